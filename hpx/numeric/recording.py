"""What goes through each module of a model: outputs, inputs and their gradients, in order.

An input is taken through a view of itself, so that its gradient is the part that comes back from
this module alone, not from whoever else reads the same tensor.
"""

from __future__ import annotations

from collections import Counter
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, TypeAlias

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.hooks import RemovableHandle

from hpx.numeric.feeding import tensors_in

__all__ = ["Call", "Recorder", "Spot"]

Value: TypeAlias = Literal["input", "output", "input gradient", "output gradient"]


class Call(NamedTuple):
    """One call of a module: its path, and which of its calls."""

    module: str
    number: int


class Spot(NamedTuple):
    """One tensor at a call: what it is there, and its name among the inputs or outputs."""

    call: Call
    value: Value
    name: str


class Recorder:
    """Records between entering and leaving; `values` stay.

    Attributes:
        values: What was seen, in the order in which it was.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.values: dict[Spot, Tensor] = {}
        self._open: dict[str, list[Call]] = {}
        self._calls: Counter[str] = Counter()
        self._handles: list[RemovableHandle] = []

    def __enter__(self) -> Self:
        for path, module in self.model.named_modules():
            hooks = _Hooks(self, path)
            self._handles.append(
                module.register_forward_pre_hook(hooks.before, prepend=True, with_kwargs=True)
            )
            self._handles.append(module.register_forward_hook(hooks.after))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def begin(self, path: str) -> Call:
        """A call of a module begins."""
        call = Call(path, self._calls[path])
        self._calls[path] += 1
        self._open.setdefault(path, []).append(call)
        return call

    def end(self, path: str) -> Call:
        """The call of a module that began last ends."""
        return self._open[path].pop()

    def keep(self, call: Call, value: Value, name: str, tensor: Tensor) -> None:
        """Note a tensor, and its gradient when that comes."""
        self.values[Spot(call, value, name)] = _copy(tensor)
        if tensor.requires_grad:
            spot = Spot(call, f"{value} gradient", name)  # type: ignore[arg-type]

            def note(gradient: Tensor) -> None:
                self.values[spot] = _copy(gradient)

            tensor.register_hook(note)  # type: ignore[no-untyped-call]


class _Hooks:
    """The two hooks of one module."""

    def __init__(self, recorder: Recorder, path: str) -> None:
        self.recorder = recorder
        self.path = path

    def before(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        call = self.recorder.begin(self.path)
        views: dict[int, Tensor] = {}

        def seen(value: Any, name: str) -> Any:
            if isinstance(value, Tensor) and value.is_floating_point():
                view = views.get(id(value))
                if view is None:
                    view = value.view_as(value) if value.requires_grad else value
                    views[id(value)] = view
                    self.recorder.keep(call, "input", name, view)
                return view
            if type(value) in (tuple, list):
                return type(value)(seen(one, f"{name}.{at}") for at, one in enumerate(value))
            return value

        new_args = tuple(seen(value, str(index)) for index, value in enumerate(args))
        return new_args, {key: seen(value, key) for key, value in kwargs.items()}

    def after(self, _module: nn.Module, _args: tuple[Any, ...], result: Any) -> None:
        call = self.recorder.end(self.path)
        for name, tensor in tensors_in(result):
            self.recorder.keep(call, "output", name, tensor)


def _copy(tensor: Tensor) -> Tensor:
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return whole.detach().clone()
