"""What ranks agree on before and after a change: plans, and whether everybody succeeded.

Objects travel over each axis of the dense mesh in turn, except ``pp``: the ranks of one stage hear
of each other, whatever part of the world the mesh covers. On torch's fake process group nothing is
sent, as there is nobody to hear it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

import torch.distributed as dist

from hpx.errors import HpxError, MeshError
from hpx.mesh import MeshSpec
from hpx.provenance import Derivation, Event
from hpx.ranges import fold_names
from hpx.run import Run
from hpx.runtime.meshes import Meshes

__all__ = ["RankError", "agree", "agree_on_mesh", "gather", "vote"]

T = TypeVar("T")


class RankError(HpxError):
    """Another rank failed, so this one took its changes back as well."""


def gather(value: T, meshes: Meshes) -> list[tuple[int, T]]:
    """The values of all ranks of this stage, by global rank."""
    gathered: list[tuple[int, T]] = [(dist.get_rank(), value)]
    if _alone(meshes):
        return gathered
    for axis, size in meshes.spec.axes:
        if axis == "pp" or size == 1:
            continue
        received: list[list[tuple[int, T]] | None] = [None] * size
        dist.all_gather_object(received, gathered, group=meshes.dense.get_group(axis))
        gathered = [item for part in received if part is not None for item in part]
    return sorted(gathered, key=lambda item: item[0])


def _alone(meshes: Meshes) -> bool:
    """Whether nobody else would hear: one rank a stage, or torch's fake process group."""
    ranks = [size for axis, size in meshes.spec.axes if axis != "pp" and size > 1]
    return not ranks or dist.get_backend() == "fake"


def agree_on_mesh(spec: MeshSpec | None, error: BaseException | None) -> None:
    """Refuse to make groups for different meshes: ranks would wait for each other in vain.

    Every rank of the world takes part, as each has to when meshes are made; for meshes that are
    there already nobody has to.

    Args:
        spec: The mesh of this rank.
        error: What went wrong on this rank, if anything did.

    Raises:
        BaseException: The error of this rank, after the others have heard of it.
        MeshError: Another rank has another mesh, or none.
    """
    made_before = spec is not None and spec.meshes is not None
    if dist.is_initialized() and dist.get_backend() != "fake" and not made_before:
        mine = str(spec) if error is None else f"{type(error).__name__}: {error}"
        everyone: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(everyone, mine)
        odd = next((rank for rank, text in enumerate(everyone) if text != mine), None)
        if error is None and odd is not None:
            raise MeshError(
                f"the ranks do not agree on the mesh: rank {odd} has {everyone[odd]}",
                why=f"this rank has {mine}",
                fix="give every rank the same mesh",
            )
    if error is not None:
        raise error


def agree(run: Run, meshes: Meshes, state: str = "") -> None:
    """Refuse to go on if the ranks of a stage made different runs.

    Args:
        run: What this rank is about to carry out.
        meshes: The meshes.
        state: What else has to be equal.

    Raises:
        HpxError: They did; names the first event that differs, on which rank.
    """
    if _alone(meshes):
        return
    mine = (run.request_fingerprint, run.entry_fingerprint, state)
    everyone = gather(mine, meshes)
    odd = [rank for rank, theirs in everyone if theirs != everyone[0][1]]
    if not odd:
        return
    first = everyone[0][0]
    if all(theirs[:2] == everyone[0][1][:2] for _, theirs in everyone):
        said = {rank: theirs[2] or "not sharded" for rank, theirs in everyone}
        raise HpxError(
            f"the ranks do not agree: the model of rank {odd[0]} is {said[odd[0]]}",
            why=f"that of rank {first} is {said[first]}",
            fix="call hpx.restore on the ranks that are sharded; or load the model again",
        )
    same_request = all(theirs[0] == everyone[0][1][0] for _, theirs in everyone)
    what = "another model" if same_request else "another plan, mesh or pipeline"
    if same_request:
        why = _first_node(gather(_nodes(run), meshes))
    else:
        why = _first_difference(gather([_told(run, event) for event in run.events], meshes))
    raise HpxError(
        f"the ranks do not agree: rank {_listed(odd)} has {what} than rank {first}",
        why=why,
        fix="give every rank the same model, plan, mesh, pipeline and hpx version",
    )


_Fields = Mapping[str, str]


def _nodes(run: Run) -> dict[str, _Fields]:
    """What every node of the model is, by name."""
    return {
        run.entry.path(node.id): {key: str(value) for key, value in node.spec._asdict().items()}
        for node in run.entry.walk()
    }


def _first_node(told: Sequence[tuple[int, Mapping[str, _Fields]]]) -> str:
    first_rank, expected = told[0]
    for rank, found in told[1:]:
        for name in expected.keys() ^ found.keys():
            which, other = (first_rank, rank) if name in expected else (rank, first_rank)
            return f"rank {which} has '{name}', rank {other} has not"
        for name, fields in expected.items():
            for key, value in fields.items():
                if found[name].get(key) != value:
                    return (
                        f"{key} of '{name}' is {value} on rank {first_rank},"
                        f" {found[name].get(key)} on rank {rank}"
                    )
    return "their modules are in another order, or what they are tied to differs"


class _Told(NamedTuple):
    """An event in words that another rank understands."""

    what: str
    names: tuple[str, ...]


def _told(run: Run, event: Event) -> _Told:
    value = "" if isinstance(event.new, Derivation) or event.new is None else f" {event.new}"
    graphs = (run.entry, run.graph)
    names = (next((g.path(n) for g in graphs if n in g.nodes), "") for n in event.nodes)
    words = f"{event.pass_}: {event.kind} {event.key or ''}{value} ({event.why})"
    return _Told(" ".join(words.split()), tuple(names))


def _first_difference(told: Sequence[tuple[int, Sequence[_Told]]]) -> str:
    first_rank, expected = told[0]
    for rank, found in told[1:]:
        for seq, (a, b) in enumerate(zip(expected, found, strict=False)):
            if a == b:
                continue
            start = f"event {seq} is the first that differs: "
            if a.what != b.what:
                return (
                    f"{start}on rank {first_rank} {a.what}, of {_some(a.names)}; "
                    f"on rank {rank} {b.what}, of {_some(b.names)}"
                )
            only = (
                [n for n in a.names if n not in b.names],
                [n for n in b.names if n not in a.names],
            )
            who = [
                f"of {_some(names)} only on rank {r}"
                for names, r in zip(only, (first_rank, rank), strict=True)
                if names
            ]
            return f"{start}{a.what}, {' and '.join(who) or 'in another order'}"
        if len(found) != len(expected):
            return f"rank {rank} has {len(found)} events, rank {first_rank} {len(expected)}"
    return "their events are equal, their plans or models are not"


def _some(names: Sequence[str]) -> str:
    """Some names, folded; three at most."""
    folded = fold_names(names)
    shown = ", ".join(folded[:3])
    return shown if len(folded) <= 3 else f"{shown} and {len(folded) - 3} more"


def vote(error: BaseException | None, meshes: Meshes) -> None:
    """Hear whether every rank of the stage succeeded.

    Args:
        error: What went wrong on this rank, if anything did.
        meshes: The meshes.

    Raises:
        BaseException: The error of this rank, after the others have heard of it.
        RankError: Another rank failed.
    """
    text = None if error is None else f"{type(error).__name__}: {error}"
    failed = [(rank, said) for rank, said in gather(text, meshes) if said is not None]
    if error is not None:
        raise error
    if failed:
        rank, said = failed[0]
        raise RankError(
            f"rank {_listed([r for r, _ in failed])} failed; this rank's model is as it was before",
            why=f"rank {rank}: {said}",
        )


def _listed(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:8]))
    return shown if len(ranks) <= 8 else f"{shown} and {len(ranks) - 8} more"
