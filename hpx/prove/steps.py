"""The operations of a forward, noted one by one, so that two forwards can be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple

from torch import Tensor
from torch.utils import _pytree

__all__ = ["Shape", "Step", "bound", "shape_of", "step_of", "tensors_of", "words"]

Shape = tuple[int, ...]


class Step(NamedTuple):
    """One operation.

    Attributes:
        func: What torch dispatched.
        args: Its positional arguments; the tensors among them are fake, and kept.
        kwargs: The others.
        out: What it gave.
        shapes: Shapes of the tensors that came in, taken at the time.
        frames: The Python frames that led to it, innermost first; none where nobody asked.
    """

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    out: Any
    shapes: tuple[Shape, ...]
    frames: Sequence[tuple[FrameType, int]] = ()

    @property
    def name(self) -> str:
        """``softmax`` for ``aten::_softmax.out``: neither namespace, overload, nor underscores."""
        schema = getattr(self.func, "_schema", None)
        return schema.name.split("::")[-1].strip("_") if schema is not None else ""

    @property
    def given(self) -> tuple[Shape, ...]:
        """Shapes of the tensors that came out."""
        return tuple(shape_of(tensor) for tensor in tensors_of(self.out))


def step_of(
    func: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    out: Any,
    frames: Sequence[tuple[FrameType, int]],
) -> Step:
    """Note an operation that has run."""
    shapes = tuple(shape_of(tensor) for tensor in tensors_of((args, dict(kwargs))))
    return Step(func, args, dict(kwargs), out, shapes, frames)


def tensors_of(value: object) -> list[Tensor]:
    """The tensors in arguments or results, in order."""
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, Tensor)]


def shape_of(tensor: Tensor) -> Shape:
    """A shape; -1 stands for a size that only values tell."""
    sizes: tuple[object, ...] = tuple(tensor.shape)
    return tuple(size if isinstance(size, int) else -1 for size in sizes)


def words(text: str) -> frozenset[str]:
    """A set of names, as a table writes them."""
    return frozenset(text.split())


def bound(step: Step) -> dict[str, tuple[str, Any]]:
    """Arguments by name: their type in torch's schema, and the value, or its default."""
    schema = getattr(step.func, "_schema", None)
    found: dict[str, tuple[str, Any]] = {}
    for index, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name in step.kwargs:
            value = step.kwargs[argument.name]
        elif index < len(step.args):
            value = step.args[index]
        else:
            value = argument.default_value
        found[argument.name] = (str(argument.type), value)
    return found
