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
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.distributed.tensor.experimental import implicit_replication
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpx.errors import UsageError
from hpx.numeric.building import Source, choose_attention, made
from hpx.numeric.dry_boundaries import Boundaries, WrongError, shown
from hpx.numeric.failing import ModuleFailedError, attempt
from hpx.numeric.feeding import given_inputs, inputs_of, tensors_in
from hpx.numeric.report import Blame, blame_module
from hpx.ranges import fold_names

if TYPE_CHECKING:
    from hpx.numeric.preparing import Subject
    from hpx.run import Run

__all__ = ["DryReport", "validate"]


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


def validate(subject: Subject) -> DryReport:
    """Follow the layouts of a prepared check through one forward.

    Args:
        subject: What `hpx.numeric.preparing.prepare` gave.

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
        # DTensor remembers what it worked out by the names of a mesh, and with it the groups of
        # that mesh; those of the check before are gone.
        name = f"tp_{time.monotonic_ns()}"
        mesh = init_device_mesh("cpu", (run.mesh.size("tp"),), mesh_dim_names=(name,))
        model, args, kwargs = _model(subject.case.source, subject.case.attention, subject)
        boundaries = Boundaries(run, model, mesh)
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
        except WrongError as error:
            found = blame_module(run, error.module, subject.classes, "forward", error.what, None)
        except ModuleFailedError as error:
            cause, text = error.__cause__, error.text.replace(name, "tp")
            if isinstance(cause, WrongError):
                found = blame_module(
                    run, cause.module, subject.classes, "forward", cause.what, None
                )
            elif _has_no_rule(text):
                unproven = f"{error.module or 'the model'} ({error.cls}): {text}"
            else:
                at = f" [{error.line}]" if error.line else ""
                what = f"{text}{at}"
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
    named = re.search(r"aten\.(\w+)\.(\w+)", text)
    if "Sharding propagation failed" not in text or named is None:
        return False
    operator = getattr(getattr(torch.ops.aten, named[1]), named[2])
    depends = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    return bool(depends & set(operator.tags))


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
    built = made(source, attention)
    model = built.model
    if attention is None and hasattr(model, "set_attn_implementation"):
        choose_attention(model, "eager")  # DTensor has rules for what it is made of
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
            raise WrongError("", f"its output is a part of a sum ({shown(tensor)})")
