"""What a training step sends between ranks, read off the boundaries and the layouts.

A ring over n ranks sends 2 * (n - 1) / n of a tensor per rank to all-reduce it, and (n - 1) / n to
gather it, to reduce and scatter it, or to exchange it all-to-all. Per token, with activations in
the dtype of the weights that make them:

- tp: every rowwise layer and embedding all-reduces its output in the forward, every region and
  head the gradient of its input in the backward; a head gathers its logits;
- ep: every token goes to k experts and comes back, in the forward and in the backward.

Per step:

- FSDP gathers what it cut twice (forward and backward), and reduces and scatters the gradients;
- without it, the gradients are all-reduced over the data axis;
- parameters that are whole and read where activations are cut all-reduce their gradient over tp.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

from hpx.check.memory import data_size, local_bytes
from hpx.check.subject import Subject
from hpx.experts import ExpertContainer, expert_containers
from hpx.graph.graph import ModuleGraph
from hpx.graph.nodes import ModuleNode, TensorNode, item_size
from hpx.mesh import MeshSpec
from hpx.projections import output_dim
from hpx.roles import Role, roles

__all__ = ["FORMULAS", "Traffic", "traffic"]

FORMULAS: Final[Mapping[str, str]] = {
    "tp_forward": "per token: 2 (n-1)/n * sum of output bytes of rowwise layers and embeddings",
    "tp_backward": "per token: 2 (n-1)/n * sum of input bytes of regions and heads",
    "tp_gather": "per token: (n-1)/n * bytes of the logits",
    "ep_exchange": "per token: 4 (n-1)/n * k * bytes of a hidden state, for each layer of experts",
    "tp_gradients": "per step: 2 (n-1)/n * bytes of whole parameters with partial gradients",
    "fsdp_gather": "per step: 2 (n-1)/n * bytes of the parameters that a rank would hold",
    "fsdp_reduce": "per step: (n-1)/n * bytes of the gradients that a rank would hold",
    "dp_reduce": "per step, without FSDP: 2 (n-1)/n * bytes of the gradients that a rank holds",
}
"""What each number is, sent by one rank of a ring of n."""
_CHOSEN: Final = (
    *("num_experts_per_tok", "top_k", "experts_per_token", "num_selected_experts"),
    *("moe_topk", "moe_top_k", "topk", "k"),
)


@dataclass(frozen=True)
class Traffic:
    """Bytes that one rank sends: per token, and per step.

    Attributes:
        tp_forward: Per token.
        tp_backward: Per token.
        tp_gather: Per token.
        ep_exchange: Per token.
        tp_gradients: Per step.
        fsdp_gather: Per step, with FSDP.
        fsdp_reduce: Per step, with FSDP.
        dp_reduce: Per step, without FSDP.
        reductions: How many tensors the forward all-reduces over tp.
        chosen: Experts that a token goes to; None where no attribute tells: then 1 is counted.
    """

    tp_forward: int = 0
    tp_backward: int = 0
    tp_gather: int = 0
    ep_exchange: int = 0
    tp_gradients: int = 0
    fsdp_gather: int = 0
    fsdp_reduce: int = 0
    dp_reduce: int = 0
    reductions: int = 0
    chosen: int | None = None

    def to_json(self) -> dict[str, object]:
        """The numbers, and the formula of each."""
        return {**asdict(self), "formulas": dict(FORMULAS)}


def traffic(subject: Subject) -> Traffic:
    """What one rank sends, by kind."""
    graph, mesh = subject.graph, subject.mesh
    forward, backward, logits = _boundary_bytes(subject)
    chosen, exchanged = _exchanged(subject)
    partial = sum(
        local_bytes(node, mesh)
        for node in graph.parameters()
        if "tp" in _reduced(node) and node.spec.requires_grad
    )
    gather, reduce, plain = _data_bytes(graph, mesh)
    return Traffic(
        tp_forward=_ring(2, subject.tp, sum(forward)),
        tp_backward=_ring(2, subject.tp, sum(backward)),
        tp_gather=_ring(1, subject.tp, sum(logits)),
        ep_exchange=_ring(4, mesh.size("ep", 1), exchanged),
        tp_gradients=_ring(2, subject.tp, partial),
        fsdp_gather=gather,
        fsdp_reduce=reduce,
        dp_reduce=plain,
        reductions=len(forward),
        chosen=chosen,
    )


def _ring(times: int, ranks: int, size: int) -> int:
    return times * (ranks - 1) * size // ranks


def _reduced(node: TensorNode) -> tuple[str, ...]:
    axes = node.props.get("reduce", ())
    return axes if isinstance(axes, tuple) else ()


# -- boundaries --------------------------------------------------------------------------------


def _boundary_bytes(subject: Subject) -> tuple[list[int], list[int], list[int]]:
    """Bytes per token of every output that is summed, input whose gradient is, and head."""
    forward: list[int] = []
    backward: list[int] = []
    logits: list[int] = []
    for role in roles(subject.graph, subject.mesh, subject.plan).boundaries:
        weight, dim = _cut_matrix(subject.graph, role)
        if weight is None:
            continue
        size = item_size(weight.spec.dtype)
        outputs, inputs = weight.shape[dim] * size, weight.shape[1 - dim] * size
        if role.kind == "embedding":
            forward.append(inputs)  # its rows are cut: what it gives is one row
        elif role.kind == "rowwise":
            forward.append(outputs)
        else:
            width = _stream_width(subject.graph, role) or inputs
            backward.append(width)
            if role.output == "sum":
                forward.append(width)
            if role.kind == "head":
                logits.append(outputs)
    return forward, backward, logits


def _cut_matrix(graph: ModuleGraph, role: Role) -> tuple[TensorNode | None, int]:
    """The first matrix of a boundary that is cut in the way of the boundary, and its output dim."""
    for node in graph.parameters(role.module):
        dim = None if node.layout is None else node.layout.dim("tp")
        if dim is None or len(node.shape) != 2:
            continue
        out = 0 if role.kind == "embedding" else output_dim(graph, node)
        if (dim == out) != (role.kind == "rowwise"):
            return node, out
    # A tied head: the matrix stands below the embedding, and the head has it by another name.
    for child in graph.children(role.module):
        if isinstance(child, TensorNode) and len(child.shape) == 2:
            return child, 0
    return None, 0


def _stream_width(graph: ModuleGraph, role: Role) -> int | None:
    """Bytes of a token at the input of a region: as wide as what a rowwise layer in it gives.

    The first cut matrix may read something narrower, such as the latent vector of an attention.
    """
    for node in graph.parameters(role.module):
        dim = None if node.layout is None else node.layout.dim("tp")
        if dim is not None and len(node.shape) == 2 and dim != output_dim(graph, node):
            return node.shape[1 - dim] * item_size(node.spec.dtype)
    return None


# -- experts -----------------------------------------------------------------------------------


def _exchanged(subject: Subject) -> tuple[int | None, int]:
    """How many experts a token goes to, and the bytes of it that are sent in all layers."""
    if subject.mesh.size("ep", 1) == 1:
        return None, 0
    total = 0
    chosen: int | None = None
    for container in expert_containers(subject.graph, subject.plan):
        weight = _expert_weight(subject.graph, container)
        if weight is not None:
            chosen = _chosen(subject.graph, container.id)
            width = _hidden(subject.graph, container.id, weight)
            total += (chosen or 1) * width * item_size(weight.spec.dtype)
    return chosen, total


def _expert_weight(graph: ModuleGraph, container: ExpertContainer) -> TensorNode | None:
    for node in graph.children(container.id):
        if not isinstance(node, TensorNode) or len(node.shape) != 3 or node.layout is None:
            continue
        if node.layout.dim("ep") is not None:
            return node
    return None


def _around(graph: ModuleGraph, node_id: int) -> Iterator[ModuleNode]:
    """A module, the one around it, and its neighbours: a router is one of them."""
    yield graph.module(node_id)
    above = graph.module(node_id).parent
    if above >= 0:
        yield graph.module(above)
        yield from (n for n in graph.children(above) if isinstance(n, ModuleNode))


def _chosen(graph: ModuleGraph, container: int) -> int | None:
    for module in _around(graph, container):
        integers = dict(module.spec.attributes)
        for name in _CHOSEN:
            if integers.get(name, 0) > 0:
                return integers[name]
    return None


def _hidden(graph: ModuleGraph, container: int, weight: TensorNode) -> int:
    """The width of a token: what a router with one row for each expert reads."""
    for module in _around(graph, container):
        for node in graph.children(module.id):
            if not isinstance(node, TensorNode) or len(node.shape) != 2:
                continue
            if node.shape[0] == weight.shape[0] and node.shape[1] in weight.shape[1:]:
                return node.shape[1]
    return weight.shape[2]


# -- data parallel -----------------------------------------------------------------------------


def _data_bytes(graph: ModuleGraph, mesh: MeshSpec) -> tuple[int, int, int]:
    """Bytes gathered and reduced with FSDP, and reduced without it."""
    held: dict[str, int] = {"dense": 0, "expert": 0}
    trained: dict[str, int] = {"dense": 0, "expert": 0}
    for node in graph.parameters():
        view = node.mesh or "dense"
        size = local_bytes(node, mesh)
        held[view] += size
        trained[view] += size if node.spec.requires_grad else 0
    gather = reduce = plain = 0
    for mesh_view in filter(None, (mesh.dense, mesh.expert)):
        sizes, name = mesh_view.sizes, mesh_view.name
        copies = sizes.get("dp_replicate", sizes.get("edp_replicate", 1))
        parts = data_size(mesh_view)
        gather += _ring(2, parts, held[name])
        reduce += _ring(1, parts, trained[name])
        reduce += _ring(2, copies, trained[name] // parts)
        plain += _ring(2, parts * copies, trained[name])
    return gather, reduce, plain
