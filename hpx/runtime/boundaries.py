"""Boundaries: what happens to a module's inputs and outputs because its weights are cut.

`install` is what the pass ``insert-collectives`` attaches. A boundary is one of

- ``region``: copies its inputs into the region (see `hpx.runtime.collectives`), and sums its output
  if told so;
- ``rowwise``: sums its output; its bias is withheld during the call and added once after the sum;
- ``embedding``: looks up the ids of its own rows, and sums;
- ``head``: copies its input, and puts the columns of all ranks side by side, or leaves them where
  they are, as a DTensor, for a loss that is computed in parts;
- ``whole``: see `hpx.runtime.stream`.

With ``sequence`` a region and a rowwise layer stand in a stream that is cut on the sequence: what
is copied in is gathered from the ranks first, and of a sum each rank gets its own positions.

Inputs are found by name or by position, as the caller gave them. Of an output that is a tuple, a
dict or a dataclass, the first floating tensor is meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.layout import per_rank_sizes
from hpx.runtime.around import Call, around, fill
from hpx.runtime.collectives import (
    Group,
    columns,
    copy_to_region,
    gather_last_dim,
    reduce_from_region,
)
from hpx.runtime.inputs import Inputs
from hpx.runtime.journal import Journal
from hpx.runtime.local import local_part
from hpx.runtime.meshes import Meshes
from hpx.runtime.outputs import on_output
from hpx.runtime.sequence import enter_stream, sum_into_stream
from hpx.runtime.stream import Whole

__all__ = ["install"]

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def install(
    module: nn.Module, options: Mapping[str, Any], meshes: Meshes, journal: Journal
) -> None:
    """Make a boundary of a module.

    Args:
        module: The module.
        options: ``kind`` (``region``, ``rowwise``, ``embedding``, ``head``, ``whole``), ``axis``,
            ``name`` for messages, and what the kind needs: ``inputs`` (``{name: "R" | "none"}``, or
            None for the first one), ``output`` (``sum``, ``gather``, ``columns`` or None), ``size``
            (rows or columns over all ranks), ``bias`` (path of the bias to withhold), ``rowwise``
            and ``colwise`` (paths of such layers inside a region), ``sequence`` (whether the stream
            is cut).
        meshes: The meshes of the model.
        journal: Where the change is noted.

    Raises:
        HpxError: The module is of a kind that cannot be computed in parts.
    """
    group = Group(meshes, options["axis"])
    if group.size == 1:
        return
    hooks = around(module, journal)
    fill(journal, hooks, "boundary", _KINDS[options["kind"]](module, options, group))
    for path in options.get("rowwise", ()):
        fill(journal, around(module.get_submodule(path), journal), "region", hooks)
    for path in options.get("colwise", ()):
        inner = around(module.get_submodule(path), journal)
        fill(journal, inner, "region", hooks)
        fill(journal, inner, "columns", True)


class _Region:
    """A module inside which activations are cut."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any], group: Group) -> None:
        self.group = group
        self.inputs = Inputs(module, options["name"], options["inputs"])
        self.output: str | None = options["output"]
        self.name: str = options["name"]
        self.sequence: bool = options.get("sequence", False)
        self.sizes = per_rank_sizes(options["size"], group.size) if options.get("size") else None

    def enter(
        self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
    ) -> Arguments | None:
        if not self.sequence:
            return self.inputs.copied(args, kwargs, self.group.group)
        assert call.stream is not None
        return self.inputs.gathered(args, kwargs, self.group.group, call.stream.length)

    def leave(self, _module: nn.Module, _call: Call, result: Any) -> Any:
        if self.output is None:
            return None
        return on_output(result, self._whole, self.name)

    def _whole(self, x: Tensor) -> Tensor:
        """What the ranks have put together, or this rank's positions of it."""
        group = self.group.group
        if self.output == "sum":
            return _sum(x, self.group, self.name if self.sequence else None)
        assert self.sizes is not None
        if self.output == "columns":
            return columns(x, self.group, sum(self.sizes))
        whole = gather_last_dim(x, group, self.sizes)
        return enter_stream(whole, group, self.name) if self.sequence else whole


class _Rowwise:
    """A layer of which every rank computes one part of the sum."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any], group: Group) -> None:
        self.group = group
        self.name: str = options["name"]
        self.stream = self.name if options.get("sequence") else None
        bias: str = options["bias"] or ""
        path, _, self.bias = bias.rpartition(".")
        self.owner = module.get_submodule(path) if path else None
        # A layer of another class may not do without a bias: it gets zeros.
        inside = module if self.owner is None else self.owner
        self.can_omit = type(inside).forward is nn.Linear.forward

    def enter(
        self, module: nn.Module, _args: tuple[Any, ...], _kwargs: dict[str, Any], call: Call
    ) -> Arguments | None:
        if not self.bias:
            return None
        table = module._parameters if self.owner is None else self.owner._parameters
        bias = table.get(self.bias)
        if bias is not None:
            local = self._whole_gradient(bias)
            call.kept = local
            call.swap(table, self.bias, None if self.can_omit else torch.zeros_like(local))
        return None

    def _whole_gradient(self, bias: Tensor) -> Tensor:
        """The bias as a local tensor; in a stream each rank has a part of its gradient.

        What the layer holds itself is local by now, with its gradient; what a module inside it
        holds (that of a LoRA layer) is not, as that module is not running yet.
        """
        if isinstance(bias, DTensor):
            return local_part(bias, partial=self.stream is not None)
        if self.owner is not None and self.stream is not None:
            return copy_to_region(bias, self.group.group)
        return bias

    def leave(self, _module: nn.Module, call: Call, result: Any) -> Any:
        bias = call.kept

        def summed(x: Tensor) -> Tensor:
            out = _sum(x, self.group, self.stream)
            return out if bias is None else out + bias.to(out.dtype)

        return on_output(result, summed, self.name)


class _Embedding:
    """An embedding of which every rank holds some rows."""

    def __init__(self, module: nn.Module, options: Mapping[str, Any], group: Group) -> None:
        self.name: str = options["name"]
        _check_embedding(module, self.name, declared=options["inputs"] is not None)
        self.group = group
        self.inputs = Inputs(module, self.name, options["inputs"])
        self.rows: int = options["size"]
        sizes = per_rank_sizes(self.rows, group.size)
        self.first = sum(sizes[: group.rank])
        self.number = sizes[group.rank]
        padding = getattr(module, "padding_idx", None)
        self.has_padding = padding is not None
        mine = padding is not None and 0 <= padding - self.first < self.number
        self.padding = cast(int, padding) - self.first if mine else None

    def enter(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], call: Call
    ) -> Arguments | None:
        if self.has_padding:
            # On shifted ids it would take the gradient of another row on every rank.
            call.swap(module.__dict__, "padding_idx", self.padding)

        def own(ids: Tensor) -> Tensor:
            rows = ids - self.first
            # An id that no rank has stays outside of every rank's range, and fails there.
            elsewhere = ((rows < 0) | (rows >= self.number)) & (ids >= 0) & (ids < self.rows)
            call.kept = elsewhere
            return rows.masked_fill(elsewhere, 0)

        return self.inputs.changed(args, kwargs, own)

    def leave(self, _module: nn.Module, call: Call, result: Any) -> Any:
        elsewhere = call.kept

        def summed(x: Tensor) -> Tensor:
            return reduce_from_region(x.masked_fill(elsewhere.unsqueeze(-1), 0), self.group.group)

        return on_output(result, summed, self.name)


_KINDS: Final[Mapping[str, Callable[[nn.Module, Mapping[str, Any], Group], Any]]] = {
    "region": _Region,
    "rowwise": _Rowwise,
    "embedding": _Embedding,
    "head": _Region,
    "whole": Whole,
}


def _sum(x: Tensor, group: Group, stream: str | None) -> Tensor:
    """The sum over the group; in a stream that is cut, this rank's positions of it."""
    if stream is not None:
        return sum_into_stream(x, group.group, stream)
    return reduce_from_region(x, group.group)


def _check_embedding(module: nn.Module, name: str, *, declared: bool) -> None:
    """Refuse what a lookup in some of the rows does not do."""
    for attribute in ("max_norm", "sparse", "scale_grad_by_freq"):
        if getattr(module, attribute, None):
            raise HpxError(
                f"{attribute} is set",
                where=name,
                why="it looks at all rows that are used, and a rank has some of them",
                fix="replicate the embedding, or turn it off",
            )
    known = type(module).forward is nn.Embedding.forward
    if not (known or declared or "ScaledWordEmbedding" in type(module).__name__):
        raise HpxError(
            f"{type(module).__name__} has a forward of its own",
            where=name,
            why="whether it looks up the ids that it is given, is not known",
            fix="replicate it; or, if it does, name its input under boundaries: in the plan",
        )
