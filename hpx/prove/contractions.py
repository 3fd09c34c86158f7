"""Over how much attention multiplies: a head that was cut is seen there, where no view fails.

``view(batch, length, 8, -1)`` of a fourth of the columns gives 8 heads of a fourth of their size,
and every shape after it fits. What a query and a key are contracted over is the size of a head, on
every rank the same.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

from hpx.prove.steps import Step, step_of, tensors_of

__all__ = ["Contraction", "Contractions", "OutOfTimeError"]

_BATCHED = ("aten::bmm", "aten::baddbmm")
_ATTENTION = "aten::_scaled_dot_product"


class OutOfTimeError(Exception):
    """The proof takes longer than it may."""


class Contraction(NamedTuple):
    """One batched product of activations.

    Attributes:
        size: What it sums over.
        frames: The Python frames that led to it, innermost first; none where nobody asked.
    """

    size: int
    frames: tuple[tuple[FrameType, int], ...] = ()


class Contractions(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the contractions and all operations of what runs inside, until its time is over."""

    def __init__(self, deadline: float, *, frames: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.deadline = deadline
        self.with_frames = frames
        self.found: list[Contraction] = []
        self.steps: list[Step] = []

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if time.monotonic() > self.deadline:
            raise OutOfTimeError
        name = getattr(func, "_schema", None)
        known = name.name if name is not None else ""
        if known in _BATCHED:
            first = args[1] if known.endswith("baddbmm") else args[0]
            if first.shape[0] > 1:
                self._note(int(first.shape[-1]))
        elif known.startswith(_ATTENTION) and "backward" not in known:
            self._note(int(args[0].shape[-1]))
        out = func(*args, **(kwargs or {}))
        if tensors_of(out):
            self.steps.append(step_of(func, args, kwargs or {}, out, self._frames()))
        return out

    def _note(self, size: int) -> None:
        self.found.append(Contraction(size, self._frames()))

    def _frames(self) -> tuple[tuple[FrameType, int], ...]:
        return self.frames() if self.with_frames else ()

    def frames(self) -> tuple[tuple[FrameType, int], ...]:
        """The Python frames that led here, innermost first."""
        frames: list[tuple[FrameType, int]] = []
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            frames.append((frame, frame.f_lineno))
            frame = frame.f_back
        return tuple(frames)
