"""The proof that nothing is lost, doubled or swapped: `hpx.testing.prove_conservation`.

Every element of every parameter gets a number of its own. The model is then applied as each rank of
the mesh in turn, on torch's fake process group, and what each rank holds is read back as numbers.
They have to be where the run says and where torch's own chunks are; each has to be on as many ranks
as the layout leaves it whole; and put together and run backwards they have to give every original.

A number is written into the bits of its element, in as many rounds as the dtype needs digits: two
for 16 bits. So dtypes stay what they are, and with them whatever the passes decide by dtype.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from hpx.errors import HpxError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.layout import REPLICATED
from hpx.run import Run
from hpx.runtime.apply import apply
from hpx.runtime.gather import current_parameter, kept_as, originals
from hpx.runtime.materialize import attributes_of, give_attributes
from hpx.runtime.proof import put_together
from hpx.runtime.record import RECORD, Applied
from hpx.runtime.restore import restore_from

__all__ = ["Conservation", "Conserved", "with_memory"]

_INTEGERS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Conserved:
    """What was proven.

    Attributes:
        parameters: How many parameters the model has, each tied group once.
        elements: How many elements they have.
        ranks: On how many ranks each was looked for.
        held: How many elements all ranks hold together.
    """

    parameters: int
    elements: int
    ranks: int
    held: int


@dataclass
class Conservation:
    """One proof.

    Args:
        model: The model; stays as it is.
        run: A run on this model.
    """

    model: nn.Module
    run: Run
    numbers: dict[int, Tensor] = field(init=False, default_factory=dict)
    """The numbers of an original's elements, by entry id."""
    found: dict[int, Tensor] = field(init=False, default_factory=dict)
    """What the ranks hold of a parameter of the final graph, put together."""

    def __post_init__(self) -> None:
        merged = kept_as(self.run)
        entry = self.run.entry
        self.total = 1  # 0 is what fresh memory often holds
        for node in entry.parameters():
            if node.id not in merged:
                count = prod(node.shape)
                numbers = torch.arange(self.total, self.total + count, dtype=torch.int64)
                self.numbers[node.id] = numbers.reshape(node.shape)
                self.total += count
        for gone, kept in merged.items():
            self.numbers[gone] = self.numbers[kept]
        self.held = torch.zeros(self.total, dtype=torch.int64)
        for node in self.run.graph.parameters():
            self.found[node.id] = torch.zeros(node.shape, dtype=torch.int64)
        bits = self.total.bit_length()
        widths = [_width(parameter.dtype) for parameter in self.model.parameters()]
        self.rounds = -(-bits // min(widths, default=64))

    def prove(self) -> Conserved:
        """Apply as every rank; compare, count, and go back.

        Raises:
            AssertionError: An element is not where it should be.
        """
        ranks = self.run.mesh.world_size
        for rank in range(ranks):
            with _playing(rank, ranks):
                self.check_rank(rank)
        self.check_counts(ranks)
        with _playing(ranks - 1, ranks):
            self.check_way_back()
        kept = [node for node in self.run.entry.parameters() if node.id not in kept_as(self.run)]
        return Conserved(len(kept), self.total - 1, ranks, int(self.held.sum()))

    # -- there -------------------------------------------------------------------------------

    def check_rank(self, rank: int) -> None:
        """What one rank holds is what the run says, and what torch's chunks are.

        Raises:
            AssertionError: It is not.
        """
        local: dict[int, Tensor] = {}
        for digit in range(self.rounds):
            applied = self.applied(digit)
            for node in applied.run.graph.parameters():
                read = _read(_local(self.only(applied, node)), digit)
                local[node.id] = local[node.id] | read if node.id in local else read
            _forget(applied)
        for node in self.run.graph.parameters():
            name = self.run.graph.path(node.id)
            whole = put_together(node.expression, self.numbers)
            param = self.run.by_name[name]
            index = tuple(slice(*r) for r in param.ranges(self.run.mesh, rank))
            self.compare(f"{name} on rank {rank}", local[node.id], whole[index])
            if not torch.equal(whole[index], self.chunk(node, whole, rank)):
                raise AssertionError(f"{name} on rank {rank}: the run and torch.chunk disagree")
            self.found[node.id][index] = local[node.id]
            held = local[node.id].flatten()
            self.held.index_add_(0, held, torch.ones_like(held))

    def applied(self, digit: int) -> Applied:
        """A copy of the model with one digit of the numbers in it, applied.

        Raises:
            AssertionError: A buffer was replaced or changed.
        """
        model = copy.deepcopy(self.model)
        for node in self.run.entry.parameters():
            owner = model.get_submodule(self.run.entry.registered_path(node.parent))
            parameter = owner._parameters[node.name]
            assert parameter is not None
            _write(parameter.detach(), self.numbers[node.id], digit)
        buffers = [(name, buffer, _bytes(buffer)) for name, buffer in model.named_buffers()]
        applied = apply(model, run=self.run, verify="off")
        kept = dict(model.named_buffers())
        for name, buffer, content in buffers:
            if kept.get(name) is not buffer or _bytes(buffer) != content:
                raise AssertionError(f"buffer {name} was replaced or changed")
        return applied

    def only(self, applied: Applied, node: TensorNode) -> nn.Parameter:
        """The parameter that all names of a node hold.

        Raises:
            AssertionError: A name holds another one.
        """
        first = current_parameter(applied, node)
        for parent, name in node.more:
            owner = applied.model.get_submodule(applied.run.graph.registered_path(parent))
            if owner._parameters.get(name) is not first:
                path = applied.run.graph.path(node.id)
                raise AssertionError(f"{path}: its name {name} holds another parameter")
        return first

    def chunk(self, node: TensorNode, whole: Tensor, rank: int) -> Tensor:
        """The part of a rank, as ``torch.chunk`` cuts."""
        layout = node.layout or REPLICATED
        view = self.run.mesh.view_of(layout)
        for axis, dim in layout.shards:
            pieces = whole.chunk(view.size(axis), dim)
            at = view.coordinate(rank)[axis]
            whole = pieces[at] if at < len(pieces) else whole.narrow(dim, 0, 0)
        return whole

    def compare(self, where: str, got: Tensor, expected: Tensor) -> None:
        """Compare two tensors of numbers, and name the first element that differs.

        Raises:
            AssertionError: One does.
        """
        if got.shape != expected.shape:
            raise AssertionError(
                f"{where}: has shape {list(got.shape)}, not {list(expected.shape)}"
            )
        for place in (got != expected).nonzero()[:1]:
            index = tuple(place.tolist())
            raise AssertionError(
                f"{where}: {list(index)} holds {self.name(int(got[index]))}"
                f" instead of {self.name(int(expected[index]))}"
            )

    def name(self, number: int) -> str:
        """An element's number in words."""
        for node_id, numbers in self.numbers.items():
            for place in (numbers == number).nonzero():
                return f"element {place.tolist()} of {self.run.entry.path(node_id)}"
        return "what is no element of the model"

    def check_counts(self, ranks: int) -> None:
        """Each element is on as many ranks as its layout leaves it whole.

        Raises:
            AssertionError: One is not.
        """
        expected = torch.zeros_like(self.held)
        for node in self.run.graph.parameters():
            layout = node.layout or REPLICATED
            view = self.run.mesh.view_of(layout)
            whole = put_together(node.expression, self.numbers).flatten()
            expected[whole] += ranks // prod(view.size(axis) for axis, _ in layout.shards)
        for place in (self.held != expected).nonzero()[:1]:
            number = int(place)
            raise AssertionError(
                f"{self.name(number)} is on {int(self.held[number])} ranks"
                f" instead of {int(expected[number])}"
            )

    # -- and back ----------------------------------------------------------------------------

    def check_way_back(self) -> None:
        """What the ranks hold, put together and run backwards, is every original.

        Raises:
            AssertionError: One is not.
        """
        applied = self.applied(0)
        missing = {node.id for node in self.run.entry.parameters()} - kept_as(self.run).keys()
        for _, place, numbers in originals(applied, lambda _, node: self.found[node.id]):
            name = self.run.entry.path(place.node)
            self.compare(f"{name} on the way back", numbers, self.numbers[place.node])
            if place.node not in missing:
                raise AssertionError(f"{name} comes back twice")
            missing.remove(place.node)
        for node_id in sorted(missing)[:1]:
            raise AssertionError(f"{self.run.entry.path(node_id)} does not come back")
        _forget(applied)
        back = {
            self.run.entry.path(node.id): torch.zeros(node.shape, dtype=torch.int64)
            for node in self.run.entry.parameters()
        }
        for digit in range(self.rounds):
            applied = self.applied(digit)

            def whole(applied: Applied, node: TensorNode, digit: int = digit) -> Tensor:
                like = current_parameter(applied, node)
                made = torch.empty(node.shape, dtype=like.dtype)
                _write(made, self.found[node.id], digit)
                return made

            restore_from(applied, whole)
            self.check_names(applied.model)
            for node in self.run.entry.parameters():
                owner = applied.model.get_submodule(self.run.entry.registered_path(node.parent))
                parameter = owner._parameters[node.name]
                assert parameter is not None
                back[self.run.entry.path(node.id)] |= _read(parameter.detach(), digit)
        for node in self.run.entry.parameters():
            path = self.run.entry.path(node.id)
            self.compare(f"{path} after restore", back[path], self.numbers[node.id])

    def check_names(self, restored: nn.Module) -> None:
        """The names of a restored model are those that it had.

        Raises:
            AssertionError: They are not.
        """
        for kind in ("modules", "parameters", "buffers"):
            before = [n for n, _ in getattr(self.model, f"named_{kind}")(remove_duplicate=False)]
            after = [n for n, _ in getattr(restored, f"named_{kind}")(remove_duplicate=False)]
            if before != after:
                odd = sorted(set(before) ^ set(after))[:3]
                raise AssertionError(f"after restore, names of {kind} differ: {odd or 'the order'}")


def with_memory(model: nn.Module) -> nn.Module:
    """A copy of a model in which what is on the meta device has memory."""
    twin = copy.deepcopy(model)
    graph = ModuleGraph.from_module(twin)
    memory: dict[int, Tensor] = {}
    for node in graph.walk():
        if not isinstance(node, TensorNode) or node.spec.device != "meta":
            continue
        for parent, name in ((node.parent, node.name), *node.more):
            owner = twin.get_submodule(graph.registered_path(parent))
            table: dict[str, Any] = (
                owner._parameters if node.kind == "parameter" else owner._buffers
            )
            old = table.get(name)
            if old is None or not old.is_meta:
                continue
            made = memory.get(node.id)
            if made is None:
                made = torch.zeros(node.shape, dtype=old.dtype)
                if isinstance(old, nn.Parameter):
                    made = nn.Parameter(made, requires_grad=old.requires_grad)
                    give_attributes(made, attributes_of(old))
                memory[node.id] = made
            table[name] = made
    return twin


@contextmanager
def _playing(rank: int, world_size: int) -> Iterator[None]:
    """This process as one rank of a group in which nobody plays the others."""
    from torch.distributed.tensor import debug
    from torch.testing._internal.distributed.fake_pg import FakeStore

    if dist.is_initialized():
        raise HpxError(
            "there is a process group already, and the proof has to play every rank of its own",
            fix="call it in a process without one",
        )
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)
    try:
        yield
    finally:
        dist.destroy_process_group()
        debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]


def _forget(applied: Applied) -> None:
    """Let go of a copy: what is applied to is kept in mind as long as it lives."""
    applied.model.__dict__.pop(RECORD, None)


def _local(parameter: nn.Parameter) -> Tensor:
    found = parameter.detach()
    return found.to_local() if isinstance(found, DTensor) else found


def _width(dtype: torch.dtype) -> int:
    """How many bits of a number an element of this dtype takes."""
    return 1 if dtype == torch.bool else 8 * min(dtype.itemsize, 8)


def _as_integers(tensor: Tensor) -> Tensor:
    """The same memory as integers; of 16 bytes, the first eight."""
    if tensor.dtype.itemsize == 16:
        return torch.view_as_real(tensor)[..., 0].view(torch.int64)
    return tensor.view(_INTEGERS[tensor.dtype.itemsize])


def _write(tensor: Tensor, numbers: Tensor, digit: int) -> None:
    """Write a digit of each number into the bits of each element."""
    width = _width(tensor.dtype)
    value = numbers >> min(width * digit, 63)
    if width < 64:
        value = value & ((1 << width) - 1)
        value = value - ((value >> (width - 1)) << width) if width in (16, 32) else value  # signed
    with torch.no_grad():
        _as_integers(tensor).copy_(value)


def _read(tensor: Tensor, digit: int) -> Tensor:
    """The numbers of which this digit is in the bits, as if their other digits were zero."""
    width = _width(tensor.dtype)
    value = _as_integers(tensor).to(torch.int64)
    if width * digit > 62:
        return torch.zeros_like(value)
    return value if width == 64 else (value & ((1 << width) - 1)) << (width * digit)


def _bytes(tensor: Tensor) -> bytes:
    if tensor.is_meta:
        return b""
    return bytes(tensor.detach().contiguous().reshape(-1).view(torch.uint8).tolist())
