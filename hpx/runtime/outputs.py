"""The output of a module's forward, whatever it is packed in: tuple, list, dict or dataclass."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from hpx.errors import NotRunnableError

__all__ = ["on_output"]


def on_output(result: Any, change: Callable[[Tensor], Tensor], name: str) -> Any:
    """The result with its first floating tensor changed.

    Args:
        result: What a forward returned; not changed itself.
        change: Makes the new tensor.
        name: What messages call the module.

    Raises:
        NotRunnableError: There is no tensor in it.
    """
    if isinstance(result, Tensor):
        return change(result)
    if isinstance(result, tuple | list):
        for index, value in enumerate(result):
            if _is_activation(value):
                values = [*result[:index], change(value), *result[index + 1 :]]
                if hasattr(result, "_make"):
                    return type(result)._make(values)
                return type(result)(values)
    elif isinstance(result, Mapping) or dataclasses.is_dataclass(result):
        named = result if isinstance(result, Mapping) else vars(result)
        for key, value in named.items():
            if _is_activation(value):
                return _with(result, key, change(value))
    raise NotRunnableError(
        f"the output of {name} has no tensor",
        why=f"it is a {type(result).__name__}, and the parts of it have to be put together",
        fix="declare the module whose output is the tensor under boundaries: in the plan",
    )


def _is_activation(value: object) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _with(result: Any, key: str, value: Tensor) -> Any:
    made = copy.copy(result)
    if isinstance(made, Mapping):
        made[key] = value  # type: ignore[index]
    else:
        object.__setattr__(made, key, value)  # a frozen one too: it is our copy
    return made
