"""Record, replay, and say what failed."""

from __future__ import annotations

import contextlib
import logging
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Final

from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from hpx.arguments import Arguments
from hpx.errors import HpxError
from hpx.experts import expert_containers
from hpx.graph.nodes import ModuleNode
from hpx.pipeline.context import Problem
from hpx.prove.contractions import OutOfTimeError
from hpx.prove.copying import fake_copy
from hpx.prove.inputs import example_inputs
from hpx.prove.proof import Proof
from hpx.prove.readers import read_elsewhere
from hpx.prove.recording import Recorded, record
from hpx.prove.regions import Region, regions_of
from hpx.prove.replaying import Failure, replay
from hpx.roles.places import of_all_layers
from hpx.run import Run

__all__ = ["prove_regions"]

_MAX_NAMES: Final = 4


def prove_regions(
    run: Run, model: nn.Module, inputs: object, seconds: float, *, readers: bool
) -> Proof:
    """See `hpx.prove.prove`."""
    deadline = time.monotonic() + seconds
    regions = regions_of(run)
    total = sum(len(region.nodes) for region in regions)
    mode = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=False)
    found: dict[str, Recorded] = {}
    tried = [region for region in regions if not region.stacked]
    why = next((_stacked(region) for region in regions if region.stacked), "")
    copied: nn.Module | None = None
    call: Arguments | None = None
    if tried or (readers and _is_placed(run)):
        with _quiet():
            try:
                copied = fake_copy(model, mode, _alike(run, model)).eval()
                call = example_inputs(copied, inputs, mode)
            except HpxError as error:
                why = str(error)
            except Exception as error:  # noqa: BLE001 - a model's code can raise anything
                why = f"the model cannot be copied: {_short(error)}"
            else:
                if tried:
                    why = _recorded(run, copied, tried, call, mode, deadline, found) or why
    problems: list[Problem] = []
    parts: dict[int, Tensor] = {}
    proved = 0
    for region in tried:
        if region.path not in found or copied is None:
            why = why or f"{region.path or 'the model'} is never called"
            continue
        size = run.mesh.size("tp", 1)
        inside = copied.get_submodule(region.path)
        try:
            with _quiet():
                failure = replay(inside, region, found[region.path], mode, size, deadline, parts)
        except OutOfTimeError:
            why = _out_of_time(seconds)
            break
        except Exception as error:  # noqa: BLE001 - copying a module runs its own code too
            why = f"{region.path or 'the model'} cannot be replayed: {_short(error)}"
            continue
        if failure is None:
            proved += 1
        else:
            problems.append(_problem(region, failure))
    if readers and copied is not None and call is not None:
        _pass_experts_over(run, copied, [])
        with _quiet():
            problems += read_elsewhere(run, copied, call, mode, deadline)
    return Proof(total, len(regions), proved, tuple(problems), why, _experts(run))


def _is_placed(run: Run) -> bool:
    """Whether parameters are DTensors of tp."""
    size = run.mesh.size("tp", 1)
    return size > 1 and any(node.layout is not None for node in run.graph.parameters())


def _stacked(region: Region) -> str:
    return (
        f"{region.path or 'the model'} is unproven: {region.stacked[0]} is stacked, and the code"
        " has it expert by expert"
    )


def _experts(run: Run) -> str:
    """What of the experts is cut on ep, and that it is not replayed."""
    graph = run.graph
    owners = {
        of_all_layers(graph.path(node.parent))
        for node in graph.parameters()
        if node.layout is not None and node.layout.dim("ep") is not None
    }
    if not owners or run.mesh.size("ep", 1) == 1:
        return ""
    names = ", ".join(sorted(owners)[:_MAX_NAMES])
    return (
        f"experts unproven: {names} {'is' if len(owners) == 1 else 'are'} cut on ep and not"
        " replayed, as which tokens reach an expert is told by values, and fake tensors have none"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What models print goes to stderr; torch says nothing of what fails on fake tensors."""
    log = logging.getLogger("torch._subclasses.fake_tensor")
    was = log.disabled
    log.disabled = True
    try:
        with contextlib.redirect_stdout(sys.stderr), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.disabled = was


def _out_of_time(seconds: float) -> str:
    return f"it was given up after {seconds:g} s"


def _short(error: BaseException) -> str:
    text = " ".join(str(error).split())[:160]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _recorded(
    run: Run,
    copied: nn.Module,
    regions: list[Region],
    call: Arguments,
    mode: FakeTensorMode,
    deadline: float,
    found: dict[str, Recorded],
) -> str:
    """Record every region; why one could not be, or nothing."""
    paths = [region.path for region in regions]
    alike = {
        run.graph.registered_path(node): region.path for region in regions for node in region.nodes
    }
    try:
        record(copied, paths, alike, call, mode, deadline, found)
    except OutOfTimeError:
        return "its forward took too long on fake tensors"
    except Exception as error:  # noqa: BLE001 - a model's code can raise anything
        first = _short(error)
    else:
        return ""
    # Routing tokens to experts asks for values, which fake tensors have not: pass experts over.
    if not _pass_experts_over(run, copied, paths):
        return f"its forward does not run on fake tensors: {first}"
    try:
        record(copied, paths, alike, call, mode, deadline, found)
    except OutOfTimeError:
        return "its forward took too long on fake tensors"
    except Exception as error:  # noqa: BLE001 - a model's code can raise anything
        return f"its forward does not run on fake tensors: {_short(error)}"
    return ""


def _pass_experts_over(run: Run, copied: nn.Module, paths: list[str]) -> bool:
    """Have the experts of a fake copy give back what they get; whether there are any."""
    graph = run.entry
    done = False
    for container in expert_containers(graph, run.plan):
        node = graph.module(container.id)
        if node.spec.container is not None and node.parent >= 0:
            node = graph.module(node.parent)  # a list is not called: the block around it is
        path = graph.registered_path(node.id)
        if not any(inner == path or inner.startswith(f"{path}.") for inner in paths):
            module = copied.get_submodule(path)
            module.__dict__["forward"] = _first_argument()
            done = True
    return done


def _first_argument() -> Callable[..., Any]:
    def forward(*args: Any, **kwargs: Any) -> Any:
        return args[0] if args else next(iter(kwargs.values()))

    return forward


def _alike(run: Run, model: nn.Module) -> Iterator[list[nn.Module]]:
    """Groups of equal experts, of which one copy is enough."""
    graph = run.entry
    for container in expert_containers(graph, run.plan):
        nodes = [graph.nodes[child] for _, _, child in container.experts]
        signatures = {node.signature for node in nodes if isinstance(node, ModuleNode)}
        if len(signatures) == 1 and 0 not in signatures:
            table = model.get_submodule(graph.registered_path(container.id))._modules
            found = (table[name] for _, name, _ in container.experts)
            yield [module for module in found if module is not None]


def _problem(region: Region, failure: Failure) -> Problem:
    """What failed, where, and what to write so that it does not."""
    where = failure.blame
    inner = ".".join(filter(None, (region.path, where.module))) or "the model"
    whose = "one rank" if failure.rank == 0 else f"tp rank {failure.rank}"
    text = f"with the shapes of {whose} it fails: {failure.what}"
    if failure.runs:
        text = f"with the shapes of {whose} it runs and computes something else: {failure.what}"
    if where.line:
        text += f"; {where.line}, in {inner}: {where.code}"
    hint = "replicate the region, or change the code"
    if where.counts and not failure.runs:
        read = ", ".join(f"{name} = {value}" for name, value in where.counts)
        text += f"; it reads {read}, which nobody divided"
        plain = [name for name, _ in where.counts if "." not in name]
        hint = (
            f'declare it under heads: in the plan: "{inner}": [{", ".join(plain)}]'
            if plain
            else "read the count from an attribute of the module, and declare it under heads:"
        )
    elif where.numbers and not failure.runs:
        shown = ", ".join(map(str, where.numbers))
        text += f"; the numbers in the code ({shown}) are those of the unsharded model"
        hint = "write -1 where the number of heads or channels stands, or read it from an attribute"
    return Problem("error", region.nodes, text, hint, "shapes", where.counts)
