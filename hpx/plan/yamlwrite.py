"""Write a plan as the YAML file that reads back to it, with a comment above each group of rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from hpx.plan.plan import ShardingPlan
    from hpx.plan.rules import Rule

__all__ = ["write_plan"]

_PLAIN: Final = re.compile(r"[A-Za-z][A-Za-z0-9 ,.;()'%=+/_-]*")
"""Text that YAML reads as itself; no colon, hash or bracket is in it."""
_WORDS: Final = frozenset(["true", "false", "yes", "no", "on", "off", "null"])


def write_plan(plan: ShardingPlan) -> str:
    """A plan file that reads back with equal content and reasons."""
    lines = [f"version: {plan.version}"]
    if plan.mesh is not None:
        lines.append(f"mesh: {plan.mesh}")
    if plan.params:
        lines.append("params:" + (" # the first rule that matches wins" if _grouped(plan) else ""))
        lines += _rules(plan)
    else:
        lines.append("params: {}")
    if _grouped(plan):
        lines.append("")
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


def _grouped(plan: ShardingPlan) -> bool:
    return any(rule.heading is not None for rule in plan.params)


def _rules(plan: ShardingPlan) -> Iterator[str]:
    """One line a rule; with headings a comment a group, and the reason below the layout."""
    heading = None
    for rule in plan.params:
        if rule.heading is None:
            yield f"  {_quoted(rule.pattern)}: {_one_line(rule)}"
            continue
        if rule.heading != heading:
            heading = rule.heading
            yield from ("", f"  # {heading}")
        yield f"  {_quoted(rule.pattern)}:"
        yield f"    layout: {_layout(rule)}"
        if rule.reason is not None:
            yield f"    reason: {_text(rule.reason)}"


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _text(text: str) -> str:
    """A text without quotes where YAML needs none."""
    plain = _PLAIN.fullmatch(text) and text.lower() not in _WORDS and not text.endswith(" ")
    return text if plain else _quoted(text)


def _layout(rule: Rule) -> str:
    entries = ", ".join(f"{axis}: {text}" for axis, text in rule.layout.to_json().items())
    return f"{{{entries}}}" if entries else "replicate"


def _one_line(rule: Rule) -> str:
    text = _layout(rule)
    if rule.reason is None:
        return text
    return f"{{layout: {text}, reason: {_quoted(rule.reason)}}}"
