"""Names of torch's dtypes, and of the classes that old files give storages instead."""

from __future__ import annotations

from typing import Final

from hpx.graph.nodes import item_size

__all__ = ["DTYPES", "ITEM_SIZES", "STORAGES"]

STORAGES: Final = {
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16",
    "LongStorage": "int64",
    "IntStorage": "int32",
    "ShortStorage": "int16",
    "CharStorage": "int8",
    "ByteStorage": "uint8",
    "BoolStorage": "bool",
    "ComplexFloatStorage": "complex64",
    "ComplexDoubleStorage": "complex128",
    "QUInt8Storage": "quint8",
    "QInt8Storage": "qint8",
    "QInt32Storage": "qint32",
    "QUInt4x2Storage": "quint4x2",
    "QUInt2x4Storage": "quint2x4",
    "UntypedStorage": "uint8",
}
"""dtype by the last part of the name of a storage's class."""

_SMALL: Final = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
_BITS: Final = ("bits8", "bits16", "bits1x8", "bits2x4", "bits4x2")
_FLOAT8: Final = (
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "float4_e2m1fn_x2",
)
DTYPES: Final = frozenset(
    (
        *STORAGES.values(),
        *(*_SMALL, *_BITS, *_FLOAT8),
        *("uint16", "uint32", "uint64", "complex32"),
    )
)
"""Every dtype, without ``torch.``."""
ITEM_SIZES: Final = {dtype: item_size(dtype) for dtype in DTYPES}
"""Bytes of an element."""
