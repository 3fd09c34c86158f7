"""Names and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Final

__all__ = ["count_text", "runs_text", "short_dtype", "shorten"]

_DTYPES: Final = {
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8e4m3",
    "float8_e5m2": "f8e5m2",
}


def shorten(text: str, limit: int) -> str:
    """The text, or its ends with three dots between them; the end says more than the middle.

    >>> shorten("model.layers.0.mlp", 12)
    'mod....0.mlp'
    """
    if len(text) <= limit:
        return text
    head = (limit - 3) // 3
    return f"{text[:head]}...{text[head + 3 - limit :]}"


def count_text(count: int) -> str:
    """A number of elements in the field's units.

    >>> count_text(671_026_404_352), count_text(124_439_808)
    ('671B', '124M')
    """
    value = float(count)
    units = ("", "K", "M", "B", "T")
    for unit in units:
        if value < 999.5 or unit == units[-1]:
            break
        value /= 1000
    return (
        f"{value:.0f}"
        if not unit
        else f"{value:,.0f}{unit}"
        if value >= 99.5
        else f"{value:.3g}{unit}"
    )


def short_dtype(dtype: str) -> str:
    """``bf16`` for ``bfloat16``; others as torch names them."""
    return _DTYPES.get(dtype, dtype)


def runs_text(sizes: Iterable[int]) -> str:
    """Sizes with equal neighbours counted: ``2 x2, 1, 0``.

    >>> runs_text([2, 2, 1, 0])
    '2 x2, 1, 0'
    """
    runs = ((size, len(list(same))) for size, same in groupby(sizes))
    return ", ".join(f"{size} x{times}" if times > 1 else str(size) for size, times in runs)
