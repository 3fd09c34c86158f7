"""The boundaries of a run as hooks on a model of DTensors: what arrives, and what leaves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard
from torch.utils._python_dispatch import TorchDispatchMode

from hpx.run import Run
from hpx.runtime.inputs import Inputs
from hpx.runtime.outputs import on_output

__all__ = ["Boundaries", "WrongError", "shown"]

_BOUNDARIES: Final = "hpx.runtime.boundaries:install"
_STREAM: Final = "hpx.runtime.stream:install"
_WHOLE: Final = (Replicate(),)


class WrongError(Exception):
    """What arrives at a boundary, or leaves it, is not what it declares."""

    def __init__(self, module: str, what: str) -> None:
        super().__init__(what)
        self.module = module
        self.what = what


class _Collectives(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the collectives that DTensor makes by itself.

    Attributes:
        number: How many there were.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(cls, DTensor) for cls in types):
            return NotImplemented  # DTensor first: what it is made of comes here again
        if func.namespace == "_c10d_functional" and "wait" not in str(func):
            self.number += 1
        return func(*args, **(kwargs or {}))


@dataclass
class Boundaries:
    """The boundaries of a run, as hooks on a model.

    Attributes:
        crossed: Names of those that were called, and gave what they declare.
        number: How many there are.
        gathered: Names of regions inside which DTensor gathered what is cut.
        collectives: Counts those that DTensor makes by itself.
    """

    run: Run
    model: nn.Module
    mesh: DeviceMesh
    crossed: set[str] = field(default_factory=set)
    number: int = 0
    gathered: dict[str, None] = field(default_factory=dict)
    collectives: _Collectives = field(default_factory=_Collectives)
    open: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        for event in self.run.events:
            if event.kind != "attach":
                continue
            wanted = cast(dict[str, Any], event.new)
            for node in event.nodes:
                path = self.run.graph.registered_path(node)
                if wanted["function"] == _BOUNDARIES:
                    self.add(path, wanted["options"])
                elif wanted["function"] == _STREAM:
                    self.add_stream(path, wanted["options"]["layers"])

    def add(self, path: str, options: Mapping[str, Any]) -> None:
        """One boundary."""
        module = self.model.get_submodule(path)
        name = self.run.graph.path(self.run.graph.get(path).id)
        boundary = _Boundary(name, module, options, self)
        module.register_forward_pre_hook(boundary.enter, with_kwargs=True)
        module.register_forward_hook(boundary.leave, prepend=True)
        self.number += 1

    def add_stream(self, path: str, layers: list[str]) -> None:
        """Layers between which the stream is cut on the sequence."""
        around = self.model.get_submodule(path)
        first, last = around.get_submodule(layers[0]), around.get_submodule(layers[-1])
        inputs = Inputs(first, layers[0], None)

        def enter(_module: nn.Module, args: Any, kwargs: Any) -> Any:
            return inputs.changed(
                args, kwargs, lambda x: self.made(x).redistribute(placements=[Shard(1)])
            )

        def leave(_module: nn.Module, _args: Any, result: Any) -> Any:
            return on_output(result, self.local, layers[-1])

        first.register_forward_pre_hook(enter, with_kwargs=True)
        last.register_forward_hook(leave)

    def made(self, x: Tensor) -> DTensor:
        """A tensor as DTensor; one that is plain is whole."""
        if isinstance(x, DTensor):
            return x
        return DTensor.from_local(x, self.mesh, _WHOLE, run_check=False)

    def count(self) -> int:
        """How many collectives DTensor has made."""
        return self.collectives.number

    def has_gathered(self) -> bool:
        """Whether DTensor has gathered something in the region that runs, and note so."""
        for name, before in reversed(self.open):
            if self.count() > before:
                self.gathered.setdefault(name)
                return True
        return False

    @staticmethod
    def local(x: Tensor) -> Tensor:
        """The whole as a plain tensor."""
        return x.redistribute(placements=_WHOLE).to_local() if isinstance(x, DTensor) else x


class _Boundary:
    """What a boundary declares, checked as it is called."""

    def __init__(
        self, name: str, module: nn.Module, options: Mapping[str, Any], around: Boundaries
    ) -> None:
        self.name = name
        self.around = around
        self.kind: str = options["kind"]
        self.output: str | None = options["output"]
        self.sequence: bool = options.get("sequence", False)
        self.inputs = Inputs(module, name, options["inputs"])

    def enter(self, _module: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.kind == "region":
            self.around.open.append((self.name, self.around.count()))
        change = self.arrives_cut if self.kind == "rowwise" else self.arrives_whole
        return self.inputs.changed(args, kwargs, change)

    def arrives_whole(self, x: Tensor) -> Tensor:
        if self.kind == "whole":  # which positions go where inside may depend on data
            return self.around.local(x)
        x = self.around.made(x)
        (placement,) = x.placements
        in_stream = self.sequence and self.kind in ("region", "head")
        if in_stream and placement == Shard(1):
            return x.redistribute(placements=_WHOLE)
        if placement != Replicate():
            raise WrongError(
                self.name,
                f"what arrives is {_said(placement)} ({shown(x)}), and it takes the whole",
            )
        return x

    def arrives_cut(self, x: Tensor) -> Tensor:
        if isinstance(x, DTensor) and x.placements == _WHOLE and self.around.has_gathered():
            return x.redistribute(placements=[Shard(x.dim() - 1)])
        if not isinstance(x, DTensor) or x.placements != (Shard(x.dim() - 1),):
            said = _said(x.placements[0]) if isinstance(x, DTensor) else "whole"
            raise WrongError(
                self.name,
                f"what arrives is {said} ({shown(x)}), and its weight takes a part of the columns",
            )
        return x

    def leave(self, _module: nn.Module, _args: Any, result: Any) -> Any:
        if self.kind == "region":
            self.around.open.pop()
        if self.kind == "region" and self.output is None:
            self.around.crossed.add(self.name)
            return None
        changed = on_output(result, self.given, self.name)
        self.around.crossed.add(self.name)
        return changed

    def given(self, x: Tensor) -> Tensor:
        sums = self.kind in ("rowwise", "embedding") or self.output == "sum"
        if self.kind == "whole":
            return self.around.made(x).redistribute(placements=[Shard(1)])
        placement = x.placements[0] if isinstance(x, DTensor) else Replicate()
        fits = placement.is_partial() if sums else placement == Shard(x.dim() - 1)
        if self.kind == "embedding" and isinstance(x, DTensor):
            fits = fits or placement.is_replicate()  # what scales it has DTensor sum it
        if not fits:
            wanted = "a part of a sum" if sums else "a part of the columns"
            raise WrongError(
                self.name, f"it gives {_said(placement)} ({shown(x)}), where it declares {wanted}"
            )
        if self.sequence and sums:
            return cast(DTensor, x).redistribute(placements=[Shard(1)])
        return self.around.local(x)


def _said(placement: Placement) -> str:
    if placement.is_partial():
        return "a part of a sum"
    return "whole" if placement.is_replicate() else "cut"


def shown(x: Tensor) -> str:
    """Layout and shape: ``tp:S(2) of [2, 10, 64]``."""
    layout = "R"
    if isinstance(x, DTensor):
        (placement,) = x.placements
        layout = "P" if placement.is_partial() else "R"
        if isinstance(placement, Shard):
            layout = f"tp:S({placement.dim})"
    return f"{layout} of {list(x.shape)}"
