"""``hpx check --dry``: one forward in which DTensor follows every layout, without any process.

The parameters of a copy of the model become DTensors as the plan says, on torch's fake process
group, and stay DTensors. At every boundary what arrives and what leaves is compared with what the
boundary declares; between boundaries DTensor's own rules say what an operator makes of its inputs.
So a layout that does not fit fails at its operator, and a sum that nobody makes, or that is made
twice, at its boundary. Values mean nothing here: nobody plays the other ranks.

1. Head counts stay global, as a DTensor has all heads.
2. Expert weights cut on ``ep`` stay whole: which tokens meet which expert depends on data.
3. Packed weights are cut as they are: shapes are what counts.
4. Where DTensor can only follow by gathering (a slice of packed columns), a rowwise layer that
   gets the whole is no mistake: its region is told apart from those that were followed.
5. An operator for which DTensor has no rule ends the check; what came before it holds.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode

from hpx.errors import UsageError
from hpx.numeric.building import Source, choose_attention
from hpx.numeric.failing import ModuleFailedError, attempt
from hpx.numeric.feeding import given_inputs, inputs_of, tensors_in
from hpx.numeric.report import Blame, blame_module
from hpx.ranges import fold_names
from hpx.runtime.inputs import Inputs
from hpx.runtime.outputs import on_output

if TYPE_CHECKING:
    from hpx.numeric.checking import Subject
    from hpx.run import Run

__all__ = ["DryReport", "validate"]

_BOUNDARIES: Final = "hpx.runtime.boundaries:install"
_STREAM: Final = "hpx.runtime.stream:install"
_WHOLE: Final = (Replicate(),)


@dataclass(frozen=True)
class DryReport:
    """What one forward on DTensors showed.

    Attributes:
        model: What was checked.
        run: The run.
        boundaries: How many boundaries there are.
        crossed: How many of them were called, and gave what they declare.
        gathered: Regions in which DTensor gathered what is cut, so that they were not followed.
        blame: The first module whose layouts do not fit; None if all fit.
        unproven: Why the forward could not be followed to its end; empty if it was.
        seconds: What it took.
    """

    model: str
    run: Run
    boundaries: int
    crossed: int
    gathered: tuple[str, ...]
    blame: Blame | None
    unproven: str
    seconds: float

    @property
    def ok(self) -> bool:
        """Whether nothing was found that does not fit."""
        return self.blame is None

    @property
    def verdict(self) -> str:
        """``fits``, ``wrong``, or ``unproven``."""
        if self.blame is not None:
            return "wrong"
        return "unproven" if self.unproven else "fits"

    def to_json(self) -> dict[str, Any]:
        """One entry of ``checks`` in ``hpx.check/1``."""
        return {
            "model": self.model,
            "mesh": str(self.run.mesh),
            "pipeline": self.run.pipeline,
            "plan": self.run.plan.file,
            "verdict": self.verdict,
            "ok": self.ok,
            "boundaries": self.boundaries,
            "crossed": self.crossed,
            "gathered": list(self.gathered),
            "unproven": self.unproven,
            "seconds": round(self.seconds, 3),
            "first": None if self.blame is None else self.blame.to_json(),
        }

    def __str__(self) -> str:
        lines = [
            f"{self.verdict}: {self.model} on {self.run.mesh}, one forward on DTensors, no process",
            f"  {self.crossed} of {self.boundaries} boundaries take and give what they declare;",
        ]
        lines[-1] += f" {self.seconds:.1f} s"
        if self.gathered:
            names = fold_names(self.gathered)
            lines.append(
                f"  not followed, as DTensor gathers what is cut inside: {', '.join(names[:4])}"
                + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            )
        if self.unproven:
            lines.append(f"  not followed to its end: {self.unproven}")
        if self.blame is not None:
            lines += self.blame.lines()
        return "\n".join(lines)


class _WrongError(Exception):
    """What arrives at a boundary, or leaves it, is not what it declares."""

    def __init__(self, module: str, what: str) -> None:
        super().__init__(what)
        self.module = module
        self.what = what


def validate(subject: Subject) -> DryReport:
    """Follow the layouts of a prepared check through one forward.

    Args:
        subject: What `hpx.numeric.checking.prepare` gave.

    Raises:
        UsageError: tp is not active, nothing inserts boundaries, or a process group runs already.
        HpxError: The model cannot be built.
    """
    start = time.perf_counter()
    run = subject.run
    _refuse(run)
    found: Blame | None = None
    unproven = ""
    with _fake_group(run.mesh.world_size):
        mesh = init_device_mesh("cpu", (run.mesh.size("tp"),), mesh_dim_names=("tp",))
        model, args, kwargs = _model(subject.case.source, subject.case.attention, subject)
        boundaries = _Boundaries(run, model, mesh)
        _place(model, run, mesh)
        try:
            with (
                torch.no_grad(),
                implicit_replication(),
                sdpa_kernel(SDPBackend.MATH),
                boundaries.collectives,
            ):
                result = attempt("sharded", model, lambda: model(*args, **kwargs))
            _check_result(result)
        except _WrongError as error:
            found = blame_module(run, error.module, subject.classes, "forward", error.what, None)
        except ModuleFailedError as error:
            cause = error.__cause__
            if isinstance(cause, _WrongError):
                found = blame_module(
                    run, cause.module, subject.classes, "forward", cause.what, None
                )
            elif _has_no_rule(error.text):
                unproven = f"{error.module or 'the model'} ({error.cls}): {error.text}"
            else:
                at = f" [{error.line}]" if error.line else ""
                what = f"{error.text}{at}"
                found = blame_module(run, error.module, subject.classes, "forward", what, None)
    return DryReport(
        subject.case.source.name,
        run,
        boundaries.number,
        len(boundaries.crossed),
        tuple(boundaries.gathered),
        found,
        unproven,
        time.perf_counter() - start,
    )


def _refuse(run: Run) -> None:
    if run.mesh.size("tp", 1) == 1:
        raise UsageError(
            "there is nothing to validate",
            why=f"tp is not active on {run.mesh}",
            fix="give a mesh with tp, such as tp=2",
        )
    if not any(event.kind == "attach" for event in run.events):
        raise UsageError(
            "there is no boundary to validate",
            why=f"the pipeline is {run.pipeline}",
            fix="add insert-collectives, or use @run",
        )
    if dist.is_initialized():
        raise UsageError(
            "a dry check makes a fake process group",
            why="this process has a real one already",
            fix="call it before torch.distributed.init_process_group, or in another process",
        )


def _has_no_rule(text: str) -> bool:
    """Whether it is DTensor that lacks something, and not the layouts that do not fit."""
    if "sharding strategy" in text or "DTensor does not support" in text:
        return True
    return "Sharding propagation failed" in text and "(S(" not in text and "(P" not in text


@contextlib.contextmanager
def _fake_group(size: int) -> Iterator[None]:
    dist.init_process_group("fake", rank=0, world_size=size, store=FakeStore())
    try:
        yield
    finally:
        dist.destroy_process_group()


# -- the model -----------------------------------------------------------------------------------


def _model(
    source: Source, attention: str | None, subject: Subject
) -> tuple[nn.Module, tuple[Any, ...], dict[str, Any]]:
    built = source.build()
    model = built.model.double().eval()
    if attention is not None:
        choose_attention(model, attention)
    elif hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("eager")  # DTensor has rules for what it is made of
    for module in model.modules():
        config: Any = getattr(module, "config", None)
        if config is not None and getattr(config, "use_cache", False):
            config.use_cache = False
    given = subject.case.inputs if subject.case.inputs is not None else built.inputs
    args, kwargs = given_inputs(given) if given is not None else inputs_of(model, 0)
    return model, args, kwargs


def _place(model: nn.Module, run: Run, mesh: DeviceMesh) -> None:
    """Make DTensors of the parameters that are cut on tp; the others are whole for everybody."""
    for node in run.graph.parameters():
        dim = None if node.layout is None else node.layout.dim("tp")
        if dim is None or node.id not in run.entry.nodes:
            continue
        entry = run.entry.tensor(node.id)
        owner = model.get_submodule(run.entry.registered_path(entry.parent))
        whole = owner._parameters[entry.name]
        assert whole is not None
        cut = distribute_tensor(whole.detach(), mesh, [Shard(dim)], src_data_rank=None)
        made = nn.Parameter(cut, requires_grad=False)
        for parent, name in ((node.parent, node.name), *node.more):
            place = model.get_submodule(run.graph.registered_path(parent))
            place._parameters[name] = made


def _check_result(result: object) -> None:
    for _, tensor in tensors_in(result):
        if isinstance(tensor, DTensor) and any(p.is_partial() for p in tensor.placements):
            raise _WrongError("", f"its output is a part of a sum ({_shown(tensor)})")


class _Collectives(TorchDispatchMode):
    """Counts the collectives that DTensor makes by itself.

    Attributes:
        number: How many there were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.number = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(issubclass(cls, DTensor) for cls in types):
            return NotImplemented  # DTensor first: what it is made of comes here again
        if func.namespace == "_c10d_functional" and "wait" not in str(func):
            self.number += 1
        return func(*args, **(kwargs or {}))


# -- boundaries ----------------------------------------------------------------------------------


@dataclass
class _Boundaries:
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
    collectives: _Collectives = field(default_factory=lambda: _Collectives())
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
        self, name: str, module: nn.Module, options: Mapping[str, Any], around: _Boundaries
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
            raise _WrongError(
                self.name,
                f"what arrives is {_said(placement)} ({_shown(x)}), and it takes the whole",
            )
        return x

    def arrives_cut(self, x: Tensor) -> Tensor:
        if isinstance(x, DTensor) and x.placements == _WHOLE and self.around.has_gathered():
            return x.redistribute(placements=[Shard(x.dim() - 1)])
        if not isinstance(x, DTensor) or x.placements != (Shard(x.dim() - 1),):
            said = _said(x.placements[0]) if isinstance(x, DTensor) else "whole"
            raise _WrongError(
                self.name,
                f"what arrives is {said} ({_shown(x)}), and its weight takes a part of the columns",
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
            raise _WrongError(
                self.name, f"it gives {_said(placement)} ({_shown(x)}), where it declares {wanted}"
            )
        if self.sequence and sums:
            return cast(DTensor, x).redistribute(placements=[Shard(1)])
        return self.around.local(x)


def _said(placement: Placement) -> str:
    if placement.is_partial():
        return "a part of a sum"
    return "whole" if placement.is_replicate() else "cut"


def _shown(x: Tensor) -> str:
    """Layout and shape: ``tp:S(2) of [2, 10, 64]``."""
    layout = "R"
    if isinstance(x, DTensor):
        (placement,) = x.placements
        layout = "P" if placement.is_partial() else "R"
        if isinstance(placement, Shard):
            layout = f"tp:S({placement.dim})"
    return f"{layout} of {list(x.shape)}"
