"""Write a plan as the YAML file that reads back to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpx.layout import Layout
    from hpx.plan.plan import ShardingPlan

__all__ = ["write_plan"]


def write_plan(plan: ShardingPlan) -> str:
    """A plan file that reads back with equal content and reasons."""
    lines = [f"version: {plan.version}"]
    if plan.mesh is not None:
        lines.append(f"mesh: {plan.mesh}")
    if plan.params:
        lines.append("params:")
        lines += [f"  {_quoted(r.pattern)}: {_rule_text(r.layout, r.reason)}" for r in plan.params]
    else:
        lines.append("params: {}")
    if plan.experts is not None:
        lines.append(f"experts: [{', '.join(map(_quoted, plan.experts))}]")
    if plan.packed:
        lines.append("packed:")
    for entry in plan.packed:
        parts = ", ".join(f"{_quoted(name)}: {size}" for name, size in entry.parts)
        content = f"dim: {entry.dim}, repeat: {entry.repeat}, parts: {{{parts}}}"
        lines.append(f"  {_quoted(entry.pattern)}: {{{content}}}")
    if plan.heads:
        lines.append("heads:")
        lines += [
            f"  {_quoted(h.pattern)}: [{', '.join(map(_quoted, h.names))}]" for h in plan.heads
        ]
    if plan.tied:
        lines.append("tied:")
        lines += [f"  - [{_quoted(pair.a)}, {_quoted(pair.b)}]" for pair in plan.tied]
    lines.append(f"default: {plan.default}")
    if plan.boundaries:
        lines.append("boundaries:")
        # JSON is YAML: names are quoted, so that none is taken for a sign.
        lines += [f"  {_quoted(b.pattern)}: {json.dumps(b.content())}" for b in plan.boundaries]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _rule_text(layout: Layout, reason: str | None) -> str:
    entries = ", ".join(f"{axis}: {text}" for axis, text in layout.to_json().items())
    text = f"{{{entries}}}" if entries else "replicate"
    return text if reason is None else f"{{layout: {text}, reason: {_quoted(reason)}}}"
