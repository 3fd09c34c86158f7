"""Sequence parallelism on real modules: where the stream is cut, and where it is whole again.

`install` is what ``insert-collectives{sp=true}`` attaches to the module around a list of layers.
The first layer cuts its input on the sequence, the last one gathers its output: so what the model
computes before the layers (positions, masks) and after them (a norm, a head) sees whole sequences.
Between them

- regions and rowwise layers gather and sum by themselves (see `hpx.runtime.boundaries`);
- a module that has to see all positions, and is not cut on tp, is computed **whole**, on every
  rank: its input is gathered, and of its output each rank takes its own positions;
- everything else works position by position.

Layers that run in another order, or end before the last one, are refused, as the stream would be
cut twice or returned in parts; so is code between the boundaries that looks at other positions.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree

from hpx.errors import NotRunnableError
from hpx.runtime.around import Around, Call, around, fill
from hpx.runtime.collectives import Group
from hpx.runtime.inputs import Inputs
from hpx.runtime.journal import Journal
from hpx.runtime.meshes import Meshes
from hpx.runtime.outputs import on_output
from hpx.runtime.sequence import enter_stream, leave_stream, own_length
from hpx.runtime.watch import Watch

__all__ = ["Stream", "Whole", "install", "install_above"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def install(
    module: nn.Module, options: Mapping[str, Any], meshes: Meshes, journal: Journal
) -> None:
    """Cut the stream of a list of layers on the sequence.

    Args:
        module: The module that runs the layers.
        options: ``axis``, ``name`` for messages, ``layers`` (paths of the layers, in the order in
            which they run) and ``regions`` (paths of the boundaries whose input is the stream).
        meshes: The meshes of the model.
        journal: Where the change is noted.
    """
    group = Group(meshes, options["axis"])
    if group.size == 1:
        return
    paths: list[str] = options["layers"]
    stream = Stream(options["name"], len(paths))
    fill(journal, around(module, journal), "boundary", _Runs(stream, group))
    for index, path in enumerate(paths):
        layer = module.get_submodule(path)
        name = f"{options['name']}.{path}" if options["name"] else path
        fill(journal, around(layer, journal), "boundary", _Layer(layer, name, index, stream, group))
    for path in options["regions"]:
        hooks = around(module.get_submodule(path), journal)
        fill(journal, hooks, "stream", stream)
        stream.regions.append(hooks)


def install_above(model: nn.Module, path: str, journal: Journal) -> None:
    """Have what stands around the module that runs the layers return whole what it recorded there.

    A hook on a layer may hand what it sees to any module above, as those of transformers do.

    Args:
        model: The model.
        path: The module that runs the layers, on which `install` was called.
        journal: Where the change is noted.
    """
    runs = around(model.get_submodule(path), journal).boundary
    if isinstance(runs, _Runs):
        parts = path.split(".")
        for length in range(len(parts) if path else 0):
            above = model.get_submodule(".".join(parts[:length]))
            journal.add_hook(above.register_forward_hook, _Above(runs.stream, runs.group))


class Stream:
    """How far one run through the layers has come.

    Attributes:
        name: The module that runs them.
        number: How many layers there are.
        length: Positions over all ranks, in the forward that ran last.
        at: The layer that ran last; -1 outside of the layers.
        regions: The hooks of the boundaries whose input is the stream.
        watched: Whether a run was watched to its end, see `hpx.runtime.watch`.
        parts: What this rank has of the stream between two layers, by ``id``, in that forward.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.number = number
        self.length = 0
        self.at = -1
        self.regions: list[Around] = []
        self.watched = False
        self.parts: dict[int, weakref.ref[Tensor]] = {}

    def note(self, part: Tensor) -> Tensor:
        """Remember what this rank has between two layers."""
        if _following():
            self.parts[id(part)] = weakref.ref(part)
        return part

    def has(self, value: object) -> bool:
        """Whether that is what this rank has between two layers."""
        known = self.parts.get(id(value))
        return known is not None and known() is value

    @property
    def between(self) -> bool:
        """Whether what runs now is between the boundaries: each rank has its positions."""
        return self.at >= 0 and not any(region.running for region in self.regions)

    def enter(self, index: int, name: str) -> None:
        """A layer begins.

        Raises:
            NotRunnableError: It is not the first one, and that one did not run; or one after it
                did.
        """
        if index and not 0 <= self.at < index:
            ran = "none of the layers ran before it" if self.at < 0 else f"layer {self.at} did"
            raise NotRunnableError(
                f"{name} is called out of order",
                why=f"the sequence is cut at layer 0 and gathered after layer {self.number - 1}, "
                f"and {ran}",
                fix="run the layers in the order of their list, or insert-collectives{sp=false}",
            )
        self.at = index
        if not index:
            self.length = 0  # until it is cut


def _following() -> bool:
    """Whether a call is one of a forward: layers that are computed again in backward are not."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() == -1


class _Runs:
    """The module that runs the layers: what it returns is whole."""

    def __init__(self, stream: Stream, group: Group) -> None:
        self.stream = stream
        self.group = group

    def enter(self, module: nn.Module, _args: Any, _kwargs: Any, call: Call) -> None:
        self.stream.at = -1
        self.stream.parts.clear()
        if _following() and not self.stream.watched:
            call.watch = Watch(self.stream, module, self.group.size)
            call.watch.__enter__()  # type: ignore[no-untyped-call]

    def leave(self, _module: nn.Module, call: Call, result: Any) -> Any:
        stream = self.stream
        if _following() and stream.at >= 0:
            raise NotRunnableError(
                f"{stream.name or 'the model'} ends after layer {stream.at} of {stream.number}",
                why=f"the sequence is gathered after layer {stream.number - 1}, so that what it"
                f" returns would be a part of {stream.length} positions",
                fix="run all layers, or insert-collectives{sp=false}",
            )
        if call.watch is not None and own_length(stream.length, self.group.size) > 1:
            stream.watched = True
        states = getattr(result, "hidden_states", None)
        if isinstance(states, tuple) and hasattr(result, "to_tuple"):
            result["hidden_states"] = tuple(self._whole(state) for state in states)
            return result
        return None

    def _whole(self, state: Any) -> Any:
        """A hidden state that somebody recorded between two layers."""
        stream = self.stream
        own = own_length(stream.length, self.group.size)
        if not isinstance(state, Tensor) or state.dim() != 3 or state.shape[1] != own:
            return state
        name = f"hidden states of {stream.name}"
        return leave_stream(state, self.group.group, name, stream.length)


class _Above:
    """A module above that one: what it returns of the stream is whole."""

    def __init__(self, stream: Stream, group: Group) -> None:
        self.stream = stream
        self.group = group

    def __call__(self, _module: nn.Module, _args: Any, result: Any) -> Any:
        stream = self.stream
        if not stream.parts or not any(map(stream.has, _pytree.tree_leaves(result))):
            return None

        def whole(x: Tensor) -> Tensor:
            if not stream.has(x):
                return x
            name = f"hidden states of {stream.name}"
            return leave_stream(x, self.group.group, name, stream.length)

        return _pytree.tree_map_only(Tensor, whole, result)


class _Layer:
    """One of the layers; the first one cuts the stream, the last one gathers it."""

    def __init__(
        self, module: nn.Module, name: str, index: int, stream: Stream, group: Group
    ) -> None:
        self.name, self.index = name, index
        self.first, self.last = index == 0, index == stream.number - 1
        self.stream = stream
        self.group = group
        self.inputs = Inputs(module, name, None)

    def enter(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _call: Call
    ) -> Arguments | None:
        stream = self.stream
        if _following():
            stream.enter(self.index, self.name)
            self._check_others(args, kwargs)
        if not self.first:
            return None

        def cut(x: Tensor) -> Tensor:
            own = enter_stream(x, self.group.group, self.name)
            stream.length = x.shape[1]
            return stream.note(own)

        return self.inputs.changed(args, kwargs, cut)

    def _check_others(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse another activation of the whole sequence: the layer would add it to a part."""
        first = self.inputs.value(args, kwargs)
        for key, value in (*enumerate(args), *kwargs.items()):
            name = self.inputs.at.get(key, str(key)) if isinstance(key, int) else key
            if (
                isinstance(value, Tensor)
                and value is not first
                and value.dim() == 3
                and value.requires_grad
                and name not in self.inputs.optional
            ):
                raise NotRunnableError(
                    f"input '{name}' of {self.name} needs a gradient",
                    why=f"it is {list(value.shape)}; under sequence parallelism only the first"
                    " input of a layer is cut on the sequence",
                    fix="run without sequence parallelism: insert-collectives{sp=false}",
                )

    def leave(self, _module: nn.Module, _call: Call, result: Any) -> Any:
        stream, group = self.stream, self.group.group
        if not self.last:
            on_output(result, stream.note, self.name)
            return None
        if _following():
            stream.at = -1

        def whole(x: Tensor) -> Tensor:
            return leave_stream(stream.note(x), group, self.name, stream.length)

        return on_output(result, whole, self.name)


class Whole:
    """A module inside the layers that all ranks compute alike, with all positions."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any], group: Group) -> None:
        self.name: str = options["name"]
        self.group = group
        self.inputs = Inputs(module, self.name, options["inputs"])

    def enter(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
    ) -> Arguments | None:
        assert call.stream is not None
        length = call.stream.length
        group = self.group.group
        return self.inputs.whole(args, kwargs, lambda x: leave_stream(x, group, self.name, length))

    def leave(self, _module: nn.Module, _call: Call, result: Any) -> Any:
        group = self.group.group
        return on_output(result, lambda x: enter_stream(x, group, self.name), self.name)
