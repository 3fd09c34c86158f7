"""Attention with projections that are cut, and what `update-heads` makes of it."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hpx.errors import HpxError
from hpx.graph import ModuleGraph
from hpx.passes.update_heads import UpdateHeads
from hpx.plan import ShardingPlan
from hpx.testing import Outcome, graph_of, run_pass

CUT = {"q": "tp:S(0)", "k": "tp:S(0)", "v": "tp:S(0)", "o": "tp:S(1)"}


def attention(
    heads: int = 8,
    kv: int = 8,
    head_dim: int = 4,
    *,
    integers: Mapping[str, int] | None = None,
    layouts: Mapping[str, str] | None = None,
    extra: Mapping[str, tuple[int, ...]] | None = None,
    layers: int = 1,
    classes: Mapping[str, str] | None = None,
    config: Mapping[str, object] | None = None,
) -> ModuleGraph:
    """Layers of attention with q, k, v colwise and o rowwise, hidden width heads * head_dim."""
    hidden = heads * head_dim
    shapes: dict[str, tuple[int, ...]] = {}
    placed: dict[str, str] = {}
    for i in range(layers):
        attn = f"layers.{i}.attn"
        shapes |= {
            f"{attn}.q_proj.weight": (hidden, hidden),
            f"{attn}.k_proj.weight": (kv * head_dim, hidden),
            f"{attn}.v_proj.weight": (kv * head_dim, hidden),
            f"{attn}.o_proj.weight": (hidden, hidden),
            **{f"{attn}.{name}": shape for name, shape in (extra or {}).items()},
        }
        placed |= {
            f"{attn}.{name}_proj.weight": text
            for name, text in (layouts or CUT).items()
            if f"{attn}.{name}_proj.weight" in shapes
        }
        placed |= {
            f"{attn}.{name}": text
            for name, text in (layouts or {}).items()
            if f"{attn}.{name}" in shapes
        }
    return graph_of(
        shapes,
        attributes={f"layers.{i}.attn": integers or {} for i in range(layers)},
        classes={f"layers.0.attn.{name}": cls for name, cls in (classes or {}).items()},
        layouts=placed,
        hints={"config": config} if config else None,
    )


def heads_of(*names: str) -> ShardingPlan:
    return ShardingPlan({}, heads={"layers.*.attn": list(names)}, default="replicate")


def update(before: ModuleGraph, plan: ShardingPlan | None = None, mesh: str = "tp=4") -> Outcome:
    return run_pass(UpdateHeads(), before, plan=plan, mesh=mesh)


def refused(before: ModuleGraph, plan: ShardingPlan | None = None, mesh: str = "tp=4") -> str:
    nodes = dict(before.nodes)
    with pytest.raises(HpxError) as caught:
        update(before, plan, mesh)
    assert before.nodes == nodes
    return str(caught.value)


def skipped(outcome: Outcome) -> list[str]:
    return [event.why for event in outcome.events if event.kind == "skip"]
