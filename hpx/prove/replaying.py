"""A copy of a region with what one rank holds, on the inputs of the unsharded one."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree
from torch.utils.hooks import RemovableHandle

from hpx.layout import per_rank_sizes
from hpx.local_config import set_integer
from hpx.prove.blame import Blame, Frames, blame, frames_of
from hpx.prove.contractions import Contractions, OutOfTimeError
from hpx.prove.copying import copy_with
from hpx.prove.keeping import kept
from hpx.prove.mixing import mixed
from hpx.prove.passing import Sum, passing
from hpx.prove.recording import Recorded, tensors_in
from hpx.prove.regions import Region

__all__ = ["Failure", "replay"]


class Failure:
    """Why a region does not run on one rank.

    Attributes:
        what: What failed, with its numbers.
        blame: Where; its line is empty where no line is to blame.
        rank: On which rank of tp.
        runs: Whether every shape fits, and the numbers would be others.
    """

    def __init__(self, what: str, blame: Blame, rank: int = 0, *, runs: bool = False) -> None:
        self.what = what
        self.blame = blame
        self.rank = rank
        self.runs = runs


def replay(
    module: nn.Module,
    region: Region,
    recorded: Recorded,
    mode: FakeTensorMode,
    size: int,
    deadline: float,
    parts: dict[int, Tensor],
) -> Failure | None:
    """Run a region as each rank would that holds other shapes; None if every shape fits.

    What another region gave cut (a bias of positions that all layers share) enters cut, as rank 0
    has it: what ranks have of heads does not differ in shape.

    Args:
        module: The region in the fake copy of the model; stays as it is.
        region: What one rank makes of it.
        recorded: What entered and left it.
        mode: The mode of its tensors.
        size: Size of tp.
        deadline: When to give up, on the monotonic clock.
        parts: What one rank has of outputs of regions, by ``id`` of the recorded tensor, which the
            records keep alive; gets those of this region.

    Raises:
        OutOfTimeError: It took too long.
    """
    for rank, shapes in region.ranks:
        local = _on_one_rank(module, region, shapes, mode)
        failure = _run(local, region, recorded, mode, (rank, size), deadline, parts)
        if failure is not None:
            return failure
    return None


def _run(
    local: nn.Module,
    region: Region,
    recorded: Recorded,
    mode: FakeTensorMode,
    place: tuple[int, int],
    deadline: float,
    parts: dict[int, Tensor],
) -> Failure | None:
    """One rank's copy of a region on what entered the whole one."""
    rank, size = place
    contractions = Contractions(deadline, frames=True)
    divided = list(region.integers)

    def failure(what: str, frames: Frames = (), *, runs: bool = False) -> Failure:
        return Failure(what, blame(local, frames, divided, size), rank, runs=runs)

    def part_of(tensor: Tensor) -> Tensor:
        return parts.get(id(tensor), tensor)

    given = kept((recorded.args, dict(recorded.kwargs)))
    args, kwargs = _pytree.tree_map_only(Tensor, part_of, given)
    sums: list[Sum] = []
    handles = list(_watch(local, region, contractions, sums))
    try:
        with mode, torch.no_grad(), contractions:
            result = local(*args, **kwargs)
    except OutOfTimeError:
        raise
    except Exception as error:  # noqa: BLE001 - a model's code can raise anything
        text = " ".join(str(error).split())[:200]
        return failure(f"{type(error).__name__}: {text}", frames_of(error))
    finally:
        for handle in handles:
            handle.remove()
    pairs = zip(recorded.contractions, contractions.found, strict=False)
    for before, after in pairs if region.kind == "attention" else ():
        if before.size != after.size:
            what = f"query and key are multiplied over {after.size} of the {before.size} of a head"
            return failure(what, after.frames)
    for step, same in zip(recorded.steps, contractions.steps, strict=False):
        if step.func is not same.func or len(step.shapes) != len(same.shapes):
            break  # as many steps as there are heads: they cannot be told apart from here on
        mixes = mixed(step, same, packed=region.packed)
        if mixes is not None:
            return failure(mixes, same.frames, runs=True)
    came = tensors_in(result)
    wrong = _wrong_output(recorded.tensors, came, place, summed=region.summed)
    if wrong is not None:
        return failure(wrong)
    lost = _read_in_parts(recorded, came)
    if lost is not None:
        return Failure(lost, Blame("", "", "", (), ()), rank, runs=True)
    sources = _sources(local, region, args, kwargs)
    past = passing(recorded.steps, contractions.steps, sources, sums, came)
    if past is not None:
        return failure(past.what, past.frames, runs=True)
    if rank == 0:
        parts.update((id(a), b) for a, b in zip(recorded.tensors, came, strict=True))
    return None


def _watch(
    local: nn.Module, region: Region, noted: Contractions, sums: list[Sum]
) -> Iterator[RemovableHandle]:
    """Hooks that tell which operations are those of rowwise layers."""
    for path in region.rowwise:
        layer = local.get_submodule(path)
        starts: list[int] = []

        def before(_layer: nn.Module, _args: object, starts: list[int] = starts) -> None:
            starts.append(len(noted.steps))

        def after(layer: nn.Module, _args: object, out: object, starts: list[int] = starts) -> None:
            bias = getattr(layer, "bias", None)
            bias = bias if isinstance(bias, Tensor) else None
            sums.append(Sum(starts.pop(), len(noted.steps), bias, tuple(tensors_in(out))))

        yield layer.register_forward_pre_hook(before)
        yield layer.register_forward_hook(after)


def _sources(
    local: nn.Module, region: Region, args: Sequence[object], kwargs: Mapping[str, object]
) -> dict[int, str]:
    """What gets a gradient that the ranks sum, by ``id``: inputs, and whole parameters."""
    found: dict[int, str] = {}
    if region.inputs is None:
        first = next(iter(tensors_in((args, dict(kwargs)))), None)
        if first is not None and first.is_floating_point():
            found[id(first)] = "its input"
    else:
        with contextlib.suppress(TypeError, ValueError):
            given = inspect.signature(local.forward).bind(*args, **kwargs).arguments
            for name in region.inputs:
                for tensor in tensors_in(given.get(name)):
                    found[id(tensor)] = name
    for name in region.reduced:
        owner, _, last = name.rpartition(".")
        tensor = getattr(local.get_submodule(owner), last)
        found[id(tensor)] = name
    return found


def _on_one_rank(
    module: nn.Module,
    region: Region,
    held: Mapping[str, tuple[int, ...]],
    mode: FakeTensorMode,
) -> nn.Module:
    shapes: dict[int, tuple[int, ...]] = {}
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in held:
            shapes[id(parameter)] = held[name]

    def shape_of(tensor: Tensor) -> tuple[int, ...]:
        return shapes.get(id(tensor), tuple(tensor.shape))

    local = copy_with(module, mode, shape_of)
    for (path, name), value in region.integers.items():
        owner = local.get_submodule(path)
        setattr(owner, *set_integer(owner, name, value))
    return local


def _wrong_output(
    before: Sequence[Tensor], after: Sequence[Tensor], place: tuple[int, int], *, summed: bool
) -> str | None:
    """What is wrong with the shapes that came out; only the first tensor is summed."""
    if len(before) != len(after):
        return f"{len(after)} tensors come out, and {len(before)} of the unsharded one"
    for index, pair in enumerate(zip(before, after, strict=True)):
        whole, local = (tuple(int(n) for n in tensor.shape) for tensor in pair)
        must_be_whole = summed and index == 0
        if whole != local and (must_be_whole or not _is_cut(whole, local, place)):
            return f"{list(local)} comes out, where the unsharded one gives {list(whole)}"
    return None


def _read_in_parts(recorded: Recorded, after: Sequence[Tensor]) -> str | None:
    """A tensor beside the output, of which a rank has a part, that others than regions read."""
    for position, (before, local) in enumerate(zip(recorded.tensors, after, strict=True)):
        place = recorded.read.get(position)
        if place is not None and before.shape != local.shape:
            return (
                f"tensor {position + 1} that it gives is {list(local.shape)} of"
                f" {list(before.shape)} on a rank, and nobody puts it together: {place}"
            )
    return None


def _is_cut(whole: Sequence[int], local: Sequence[int], place: tuple[int, int]) -> bool:
    """Whether one dim, and nothing else, is what one rank has of it."""
    if len(whole) != len(local):
        return False
    differ = [(a, b) for a, b in zip(whole, local, strict=True) if a != b]
    rank, size = place
    return len(differ) == 1 and per_rank_sizes(differ[0][0], size)[rank] == differ[0][1]
