"""Models that cast to float32 inside, kept in float64 for a comparison.

Norms, rotary embeddings and softmax of many models compute in float32 whatever they are given.
Rounded there, two steps that differ by 1e-16 differ by 1e-7 afterwards, and faults drown.

torch runs no function mode during backward, so what an activation checkpoint computes anew there is
cast as the model says. In eval mode, which a check uses, models of transformers do not checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

__all__ = ["KeepDouble"]

_LOWER: Final = (torch.float32, torch.float16, torch.bfloat16)
_TO_FIXED: Final = (Tensor.float, Tensor.half, Tensor.bfloat16)
_TO_GIVEN: Final = (Tensor.to, Tensor.type)


class KeepDouble(TorchFunctionMode):
    """Inside, a float64 tensor stays one where code casts it to a lower floating dtype.

    >>> with KeepDouble():
    ...     torch.ones(2, dtype=torch.float64).float().softmax(0, dtype=torch.float32).dtype
    torch.float64
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Call ``func`` without the cast."""
        given = dict(kwargs or {})
        if not (args and isinstance(args[0], Tensor) and args[0].dtype is torch.float64):
            return func(*args, **given)
        if func in _TO_FIXED:
            return args[0]
        if given.get("dtype") in _LOWER:
            given["dtype"] = torch.float64
        if func in _TO_GIVEN:
            args = (args[0], *(torch.float64 if _is_lower(arg) else arg for arg in args[1:]))
        return func(*args, **given)


def _is_lower(value: object) -> bool:
    return isinstance(value, torch.dtype) and value in _LOWER
