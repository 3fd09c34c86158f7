"""What is read outside of regions that they give beside their first tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from hpx.prove.blame import blame
from hpx.prove.contractions import Contractions
from hpx.prove.steps import tensors_of

__all__ = ["Outside"]


class Outside(Contractions):  # type: ignore[no-untyped-call]
    """Notes all operations, and where code outside of regions reads what they give beside.

    Args:
        model: What runs.
        deadline: When to give up, on the monotonic clock.

    Attributes:
        read: Where the tensors of a kind of region are read first: by its path, then by position.
    """

    def __init__(self, model: nn.Module, deadline: float) -> None:
        super().__init__(deadline)
        self.model = model
        self.read: dict[str, dict[int, str]] = {}
        self._given: dict[int, tuple[Tensor, str, int]] = {}  # kept, so that no id comes twice
        self._inside = 0

    @property
    def watches(self) -> bool:
        """Whether a region gave more than one tensor."""
        return bool(self._given)

    def enter(self) -> None:
        """A region begins."""
        self._inside += 1

    def leave(self, kind: str, result: object) -> None:
        """It ends.

        Args:
            kind: Path of the first region that is like it.
            result: What it gave; None if it failed.
        """
        self._inside -= 1
        for position, tensor in enumerate(tensors_of(result)[1:], 1):
            self._given[id(tensor)] = (tensor, kind, position)

    def given_out(self, result: object) -> None:
        """Take down what the model gives, after its forward."""
        self._note_reads(result, lambda: "the model gives it out")

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if self._given and not self._inside:
            self._note_reads((args, dict(kwargs or {})), self._place)
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _note_reads(self, values: object, place: Callable[[], str]) -> None:
        for tensor in tensors_of(values):
            if id(tensor) in self._given:
                _, kind, position = self._given[id(tensor)]
                found = self.read.setdefault(kind, {})
                if position not in found:
                    found[position] = place()

    def _place(self) -> str:
        place = blame(self.model, self.frames(), (), 1)
        where = place.module or "the model"
        return f"{where} reads it at {place.line}" if place.line else f"{where} reads it"
