"""Build the parameters of one rank: each local shard from the ranges of originals that it needs.

Nothing of the model changes here. A shard is copied range by range into memory of its own, so no
stacked tensor is ever whole and no view keeps an original alive; meta tensors stay meta. Sources
are looked up in the model by the names that the entry graph gives them.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.distributed.tensor import DTensor

from hpx.errors import PassError, PlacementMismatchError
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import TensorNode
from hpx.layout import REPLICATED, Layout, Range, index_range
from hpx.lineage import Lineage, Source, pull
from hpx.lineage import sources as source_ids
from hpx.run import Run
from hpx.runtime.meshes import Meshes

__all__ = [
    "Built",
    "Replaced",
    "Sources",
    "attributes_of",
    "build",
    "build_parameter",
    "check_sources",
    "give_attributes",
    "local_ranges",
    "parameters_to_build",
]

_OF_TORCH: Final = frozenset(["_is_param"])


class Sources:
    """The original tensors of a model, by node id of the entry graph."""

    def __init__(self, model: nn.Module, entry: ModuleGraph) -> None:
        self._entry = entry
        self._owners: dict[int, nn.Module] = {entry.root: model}
        self._dtypes: dict[torch.dtype, str] = {}

    def owner(self, module_id: int) -> nn.Module:
        """The module with this id.

        Raises:
            PassError: The model has no such module: the run is of another model.
        """
        owners = self._owners
        way: list[int] = []
        while module_id not in owners:
            way.append(module_id)
            module_id = self._entry.nodes[module_id].parent
        found = owners[module_id]
        for step in reversed(way):
            inner = found._modules.get(self._entry.nodes[step].name)
            if inner is None:
                raise _foreign(self._entry.registered_path(step))
            found = owners[step] = inner
        return found

    def parameter(self, node_id: int) -> nn.Parameter:
        """The parameter with this id; checked against what the graph says of it.

        Raises:
            PassError: It is missing, has another shape or dtype, or has hooks of its own.
        """
        node = self._entry.tensor(node_id)
        found = self.owner(node.parent)._parameters.get(node.name)
        if found is None:
            raise _foreign(self._entry.path(node_id))
        dtype = self._dtypes.get(found.dtype)
        if dtype is None:
            dtype = self._dtypes[found.dtype] = str(found.dtype).removeprefix("torch.")
        if found._backward_hooks or found._post_accumulate_grad_hooks:
            raise PassError(
                "it has hooks of its own, and the parameter in its place would not",
                where=self._entry.path(node_id),
                fix="register them after hpx.apply",
            )
        if found.shape != node.spec.shape or dtype != node.spec.dtype:
            raise _foreign(
                self._entry.path(node_id),
                f"it is {list(found.shape)} {dtype}, the run says {list(node.shape)}"
                f" {node.spec.dtype}",
            )
        return found


def _foreign(path: str, why: str = "there is no such name") -> PassError:
    return PassError(
        f"the model is not the one that the run was made for: '{path}'",
        why=why,
        fix="make the run from this model, or apply it to the model it was made from",
    )


def parameters_to_build(run: Run) -> Iterator[TensorNode]:
    """The parameters of the final graph that differ from the model's own: cut, or derived."""
    for node in run.graph.parameters():
        if node.layout is not None or node.lineage is not None or node.order is not None:
            yield node


def local_ranges(node: TensorNode, meshes: Meshes) -> tuple[Range, ...]:
    """What this rank holds of a parameter."""
    layout = node.layout or REPLICATED
    view = meshes.spec.view_of(layout)
    return index_range(node.shape, layout, view.sizes, meshes.coordinate(view.name))


@dataclass
class Built:
    """The new parameters of one rank, before anything of the model has changed.

    Attributes:
        parameters: By node id of the final graph.
        originals: By the same id, the originals that each is made of, in order.
        by_source: The same originals by entry id.
    """

    parameters: dict[int, nn.Parameter] = field(default_factory=dict)
    originals: dict[int, list[nn.Parameter]] = field(default_factory=dict)
    by_source: dict[int, torch.Tensor] = field(default_factory=dict)


class Replaced(Mapping[nn.Parameter, nn.Parameter]):
    """From old parameters to new ones; it does not keep the old ones alive.

    So an original is there as long as somebody else holds it, such as an optimizer.
    """

    def __init__(self, pairs: Iterable[tuple[nn.Parameter, nn.Parameter]] = ()) -> None:
        self._new = {id(old): (weakref.ref(old), new) for old, new in pairs}

    def __getitem__(self, old: nn.Parameter) -> nn.Parameter:
        found = self._new.get(id(old))
        if found is None or found[0]() is not old:  # an id is used again
            raise KeyError(old)
        return found[1]

    def __iter__(self) -> Iterator[nn.Parameter]:
        return (old for ref, _ in self._new.values() if (old := ref()) is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __reduce__(self) -> tuple[type[Replaced], tuple[()]]:
        return Replaced, ()  # a copy of the model has no originals


def check_sources(run: Run, sources: Sources) -> None:
    """Resolve every original before anything is built.

    Raises:
        PassError: The model is not the one of the run.
    """
    for node in parameters_to_build(run):
        for source in source_ids(node.expression):
            sources.parameter(source)


def build(run: Run, sources: Sources, meshes: Meshes, *, donate: bool = False) -> Built:
    """Build every parameter that this rank needs.

    Args:
        run: The run.
        sources: The originals.
        meshes: The meshes.
        donate: Free each original as soon as what is made of it is built.

    Raises:
        HpxError: A source is missing, or is placed differently already.
    """
    built = Built()
    for node in parameters_to_build(run):
        ids = list(source_ids(node.expression))
        originals = [sources.parameter(source) for source in ids]
        parameter = build_parameter(node, sources, meshes, donate=donate)
        built.parameters[node.id] = parameter
        built.originals[node.id] = originals
        built.by_source.update(zip(ids, originals, strict=True))
        if donate:
            for original in originals:
                _free(original, parameter)
    return built


def _free(original: nn.Parameter, replacement: nn.Parameter) -> None:
    """Give an original's memory back, unless its replacement uses it or others share it."""
    if original is replacement or original.is_meta:
        return
    local = replacement.data
    kept = local.to_local() if isinstance(local, DTensor) else local
    storage = original.untyped_storage()
    if kept.untyped_storage().data_ptr() == storage.data_ptr():
        return
    if storage.nbytes() == original.numel() * original.element_size():
        original.data = original.data.new_empty(0)


def build_parameter(
    node: TensorNode, sources: Sources, meshes: Meshes, *, donate: bool = False
) -> nn.Parameter:
    """The parameter that takes the place of the model's own on this rank.

    Args:
        node: A parameter of the final graph.
        sources: The originals.
        meshes: The meshes.
        donate: Take the memory of an original that stays whole, rather than a copy.

    Raises:
        PlacementMismatchError: A source is a DTensor with another layout.
    """
    lineage = node.expression
    first = sources.parameter(next(source_ids(lineage)))
    permanent = node.props.get("localized") == "permanent"
    if isinstance(first.data, DTensor):
        return _keep_placed(node, first, meshes, permanent=permanent)
    ranges = local_ranges(node, meshes)
    whole = isinstance(lineage, Source) and all(
        stop - start == size for (start, stop), size in zip(ranges, node.shape, strict=True)
    )
    keep = whole and donate
    local = first.detach() if keep else _assemble(lineage, sources, ranges, like=first)
    data: torch.Tensor = local
    if node.layout is not None and not permanent:
        mesh, placements = meshes.of(node.layout)
        data = DTensor.from_local(
            local,
            mesh,
            placements,
            run_check=False,
            shape=torch.Size(node.shape),
            stride=_strides(node.shape, local),
        )
    parameter = nn.Parameter(data, requires_grad=first.requires_grad)
    give_attributes(parameter, attributes_of(first))
    return parameter


def attributes_of(tensor: torch.Tensor) -> dict[str, object]:
    """What somebody has set on a parameter, besides torch itself."""
    # Asking a plain parameter for its __dict__ would leave an empty one on each.
    plain = type(tensor) is nn.Parameter
    fields: Any = object.__getstate__(tensor) if plain else vars(tensor)
    return {name: value for name, value in (fields or {}).items() if name not in _OF_TORCH}


def give_attributes(parameter: nn.Parameter, attributes: Mapping[str, object]) -> None:
    """Set attributes on a parameter."""
    for name, value in attributes.items():
        setattr(parameter, name, value)


def _strides(shape: tuple[int, ...], local: torch.Tensor) -> tuple[int, ...]:
    """Strides of the global tensor whose dims lie in memory in the order of the local one's."""
    steps: tuple[int, ...] = local.stride()
    order = sorted(range(len(shape)), key=lambda dim: (-steps[dim], dim))
    strides = [1] * len(shape)
    step = 1
    for dim in reversed(order):
        strides[dim] = step
        step *= max(shape[dim], 1)
    return tuple(strides)


def _assemble(
    lineage: Lineage, sources: Sources, ranges: tuple[Range, ...], *, like: torch.Tensor
) -> torch.Tensor:
    """The local tensor, copied from the pieces of originals that it is made of."""
    shape = [stop - start for start, stop in ranges]
    if isinstance(like, FakeTensor):  # what is made of it belongs to the same mode
        local = like.detach().new_empty(shape)
    else:
        local = torch.empty(shape, dtype=like.dtype, device=like.device)
    if local.is_meta:
        return local
    with torch.no_grad():
        for piece in pull(lineage, ranges):
            source = sources.parameter(piece.node).detach()
            target = local[tuple(slice(a, b) for a, b in piece.dest)]
            part = source[tuple(slice(a, b) for a, b in piece.source)]
            target.copy_(part.reshape(target.shape))  # a view: only dims of size 1 are added
    return local


def _keep_placed(
    node: TensorNode, parameter: nn.Parameter, meshes: Meshes, *, permanent: bool
) -> nn.Parameter:
    """The DTensor that the model has already, if it is placed as the run says."""
    layout = node.layout or Layout()
    mesh, placements = meshes.of(layout)
    data = parameter.data
    assert isinstance(data, DTensor)
    if node.order is not None:
        raise PlacementMismatchError(
            f"{node.name} is a DTensor already, and its packed parts are to be reordered",
            why=f"the rows of a piece are those of the model's own order, not of {node.order}",
            fix="start from the unsharded model",
        )
    if tuple(data.placements) == tuple(placements) and data.device_mesh == mesh:
        if not permanent:
            return parameter
        plain = nn.Parameter(data.to_local(), requires_grad=parameter.requires_grad)
        give_attributes(plain, attributes_of(parameter))
        return plain
    raise PlacementMismatchError(
        f"{node.name} is a DTensor already",
        why=f"expected {placements} on {mesh}, found {data.placements} on {data.device_mesh}",
        fix="start from the unsharded model",
    )
