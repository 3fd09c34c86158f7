"""Which of the names in a pickle are foreign: what tensors and plain values do not need.

1. A name that the stream calls is foreign unless the call is known to make a plain value.
2. A name of Python's own library is foreign in any use, plain values aside.
3. Other classes are those of the model where there is a model, and foreign where there is none.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Final, NamedTuple

from hpx._text import printable
from hpx.inert.dtypes import DTYPES, STORAGES
from hpx.inert.rebuild import call_of
from hpx.inert.values import Name

__all__ = ["Names", "sort_names"]

_LONGEST: Final = 120
_VALUES: Final = frozenset(
    (
        *(f"torch.{dtype}" for dtype in DTYPES),
        *(f"torch.{storage}" for storage in STORAGES),
        *(f"torch.cuda.{storage}" for storage in STORAGES),
        *(f"torch.storage.{name}" for name in ("UntypedStorage", "TypedStorage")),
        *(f"torch.per_{part}" for part in ("tensor_affine", "tensor_symmetric")),
        *(f"torch.per_channel_{part}" for part in ("affine", "symmetric")),
        "torch.per_channel_affine_float_qparams",
        *(f"torch.{name}" for name in ("Tensor", "FloatTensor", "strided", "sparse_coo")),
        *(f"torch.nn.parameter.{name}" for name in ("Parameter", "Buffer")),
        *("torch.nn.Parameter", "torch.nn.Buffer"),
        "torch.distributed.checkpoint.filesystem._StorageInfo",
    )
)
_INSTANCES: Final = (
    "torch.distributed.tensor.",
    "torch.distributed._tensor.",
    "torch.distributed.device_mesh.",
    "torch.distributed._mesh_layout.",
    "torch.distributed.checkpoint.metadata.",
    "numpy.dtype",
)
"""Beginnings of names whose instances are plain values."""
_BASES: Final = ("builtins.object", "builtins.NoneType")


class Names(NamedTuple):
    """The names in a file, each once, in the order in which they come."""

    foreign: list[str]
    """Those that could run code, or say that somebody wants to."""
    classes: list[str]
    """Classes and functions that the model is made of."""


def sort_names(names: Iterable[Name], *, model: bool) -> Names:
    """The names that a reader should know of.

    Args:
        names: All of the stream's.
        model: Whether the file holds a whole module, which needs its classes.
    """
    foreign: list[str] = []
    classes: list[str] = []
    for name in names:
        text = printable(name.text[:_LONGEST])
        if name.patched or name.called:
            foreign.append(text)
        elif _harmless(name):
            continue
        elif model and name.text.partition(".")[0] not in sys.stdlib_module_names:
            classes.append(text)
        else:
            foreign.append(text)
    return Names(foreign, classes)


def _harmless(name: Name) -> bool:
    if name.text in _VALUES or name.text in _BASES or call_of(name.text) is not None:
        return True
    return name.text.startswith(_INSTANCES)
