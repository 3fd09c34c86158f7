"""What hpx does around a module's forward: one pair of hooks, whichever parts ask for it.

Local tensors are put in before the boundary looks at the module, and taken out after it, in
whatever order the two were installed. Everything that is swapped for the time of a call is put back
by object, newest first: after an exception at once, after an interrupt (which skips hooks) at the
next call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, MutableMapping
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import nn

from hpx.errors import NotRunnableError
from hpx.graph.traits import computed_names
from hpx.runtime.journal import Journal

if TYPE_CHECKING:
    from hpx.runtime.stream import Stream
    from hpx.runtime.watch import Watch

__all__ = ["Around", "Boundary", "Call", "Swaps", "around", "calls_of", "fill", "settle"]


class Call:
    """One call of a module: what was swapped for it, and what a boundary keeps until its end."""

    __slots__ = ("kept", "stream", "swaps", "watch")

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = stream
        self.swaps: list[tuple[MutableMapping[str, Any], str, object, object]] = []
        self.kept: Any = None
        self.watch: Watch | None = None

    def swap(self, table: MutableMapping[str, Any], name: str, value: object) -> None:
        """Put a value under a name until the end of the call."""
        self.swaps.append((table, name, table[name], value))
        table[name] = value

    def undo(self) -> None:
        """Put back what stood there, unless somebody else has replaced it since."""
        if self.watch is not None:
            self.watch.end()
        for table, name, found, put in reversed(self.swaps):
            if table.get(name) is put:
                table[name] = found


class Swaps(Protocol):
    """What puts local tensors into a module."""

    def enter(self, module: nn.Module, call: Call) -> None:
        """Swap, before the forward."""


class Boundary(Protocol):
    """What changes a module's inputs and outputs."""

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """Before the forward: other arguments, or None to leave them."""

    def leave(self, module: nn.Module, call: Call, result: Any) -> Any:
        """After the forward: another result, or None to leave it."""


class Around:
    """The hooks of one module.

    Attributes:
        swaps: What puts local tensors in.
        boundary: What changes inputs and outputs.
        region: The hooks of the module whose input this one relies on, if it is inside a region.
        columns: Whether it gives some columns, which only that region takes.
        stream: The stream of hidden states that enters this module, if that is cut on the sequence.
    """

    def __init__(self) -> None:
        self.swaps: Swaps | None = None
        self.boundary: Boundary | None = None
        self.region: Around | None = None
        self.columns = False
        self.stream: Stream | None = None
        self._open: list[Call] = []

    def before(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        """The forward pre-hook."""
        if self._open:
            self._close(calls_of(module) - 1)
        if self.region is not None and not self.region._open:
            _refuse_outside(module, columns=self.columns)
        call = Call(self.stream)
        self._open.append(call)
        if self.swaps is not None:
            self.swaps.enter(module, call)
        if self.boundary is not None:
            return self.boundary.enter(module, args, kwargs, call)
        return None

    def after(
        self, module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any], result: Any
    ) -> Any:
        """The forward hook; called after an exception too, then without a result."""
        if result is None and len(self._open) < calls_of(module):
            return None  # another hook failed before ours had begun
        if not self._open:
            return None
        call = self._open.pop()
        try:
            if self.boundary is not None and result is not None:
                return self.boundary.leave(module, call, result)
            return None
        finally:
            call.undo()

    @property
    def running(self) -> bool:
        """Whether the module is inside its forward."""
        return bool(self._open)

    def _close(self, running: int) -> None:
        """End calls that were interrupted: more are open than the interpreter has running."""
        while len(self._open) > running:
            self._open.pop().undo()


def around(module: nn.Module, journal: Journal) -> Around:
    """The hooks of a module, registered if it has none yet.

    They come after hooks that are there already, and before these on the way out, so that FSDP
    gathers a parameter before it is made local, and frees it after; also where it comes later.
    Only hooks that compute a weight from parameters follow, as they need the local ones.
    """
    for hook in module._forward_pre_hooks.values():
        found = getattr(hook, "__self__", None)
        if isinstance(found, Around):
            return found
    made = Around()
    first = bool(computed_names(module))
    journal.add_hook(module.register_forward_pre_hook, made.before, with_kwargs=True, prepend=first)
    journal.add_hook(
        module.register_forward_hook, made.after, with_kwargs=True, always_call=True, prepend=True
    )
    return made


def fill(journal: Journal, owner: Around, field: str, value: object) -> None:
    """Give a pair of hooks one more thing to do."""
    change: Callable[[], None] = lambda: setattr(owner, field, value)  # noqa: E731
    before = getattr(owner, field)
    journal.call(f"around {field}", change, lambda: setattr(owner, field, before))


def settle(model: nn.Module) -> None:
    """Put back what an interrupted forward left in the model; call it outside any forward."""
    for module in model.modules():
        for hook in module._forward_pre_hooks.values():
            found = getattr(hook, "__self__", None)
            if isinstance(found, Around) and found.running:
                found._close(0)


def _refuse_outside(module: nn.Module, *, columns: bool) -> None:
    """A region that runs without its hooks would leave columns, or gradients of its input, apart.

    Recomputing alone, in backward, is fine: the region ran before.
    """
    if (columns or torch.is_grad_enabled()) and torch._C._current_graph_task_id() == -1:
        raise NotRunnableError(
            f"a {type(module).__name__} is called, and the module around it is not",
            why="it gives some of its columns, and that module puts them together"
            if columns
            else "that module's hooks take care of the gradient of its input",
            fix="call the module itself, not its forward or a part of it",
        )


_CALL = nn.Module._call_impl.__code__


@torch.compiler.disable  # type: ignore[untyped-decorator]
def calls_of(module: nn.Module) -> int:
    """How many calls of the module are running in this thread. Slow; for the rare cases."""
    count = 0
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code is _CALL and frame.f_locals.get("self") is module:
            count += 1
        frame = frame.f_back
    return count
