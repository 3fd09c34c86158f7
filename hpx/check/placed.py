"""Parameters that are DTensors already: the same layout, another one, or FSDP's."""

from __future__ import annotations

from hpx.graph.nodes import TensorNode
from hpx.layout import Layout
from hpx.mesh import WEIGHT_AXES, MeshSpec

__all__ = ["placed_problem"]


def placed_problem(node: TensorNode, layout: Layout, mesh: MeshSpec) -> tuple[str, str] | None:
    """(why, fix) if a DTensor is placed differently from what the plan says; None if it is so.

    Args:
        node: A parameter whose specification has ``placed``.
        layout: The resolved layout of the plan.
        mesh: The mesh.
    """
    placed = node.spec.placed or ()
    found = ", ".join(f"{axis}={size}:{text}" for axis, size, text in placed)
    data = [axis for axis, size, text in placed if axis not in WEIGHT_AXES and text != "R"]
    if data:
        return (
            f"it is sharded on {', '.join(data)} already ({found})",
            "apply hpx to the plain model first, and fully_shard after it",
        )
    view = mesh.view_of(layout)
    axis = "ep" if view.name == "expert" else "tp"
    expected = {axis: (mesh.size(axis, 1), layout.placement(axis))}
    actual = {a: (size, text) for a, size, text in placed if a in WEIGHT_AXES}
    if actual == expected:
        return None
    wanted = ", ".join(f"{a}={size}:{text}" for a, (size, text) in expected.items())
    return (
        f"expected {wanted}, found {found}",
        "start from the unsharded model, or write the layout that it has into the plan",
    )
