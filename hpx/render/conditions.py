"""What ``--fail-on`` asks: ``unset``, ``conflict``, ``unsharded>5%``, several of them with commas.

1. A condition is a kind of `Only`, or ``deviation``. Alone it fails where there is any.
2. ``>N`` fails where there are more than N parameters; ``>N%`` where they have more than N percent
   of the bytes.
3. Everything that is shown counts, but for what ``only`` leaves out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, cast, get_args

from hpx._text import bytes_text, counted, printable
from hpx.errors import UsageError, did_you_mean
from hpx.graph.fold import fold_graph
from hpx.graph.nodes import ModuleNode, TensorNode
from hpx.ranges import fold_names
from hpx.render.deviations import find_deviations
from hpx.render.options import Only
from hpx.render.placing import Placer
from hpx.render.select import ids_of_kind
from hpx.render.subject import Subject

__all__ = ["Condition", "failing", "parse_conditions"]

_DEVIATION: Final = "deviation"
_KINDS: Final = (*get_args(Only), _DEVIATION)
_FORM: Final = re.compile(r"([a-z]+)(?:\s*>\s*([0-9]+(?:\.[0-9]+)?)\s*(%?))?")
_MOST_NAMES: Final = 3


@dataclass(frozen=True)
class Condition:
    """Something that must not be.

    Attributes:
        kind: What is counted.
        limit: How many there may be.
        percent: Whether the limit is in percent of the bytes.
        text: As it was written.
    """

    kind: str
    limit: float
    percent: bool
    text: str


def parse_conditions(text: str | None) -> tuple[Condition, ...]:
    """The conditions of a text; none for None.

    Raises:
        UsageError: It is no list of conditions.

    >>> parse_conditions("unset,unsharded>5%")[1]
    Condition(kind='unsharded', limit=5.0, percent=True, text='unsharded>5%')
    """
    if text is None:
        return ()
    return tuple(_parse(part.strip()) for part in text.split(","))


def _parse(text: str) -> Condition:
    found = _FORM.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--fail-on has {text!r}", fix="conditions such as unset, tied>3 or unsharded>5%"
        )
    kind, limit, percent = found.groups()
    if kind not in _KINDS:
        near = did_you_mean(kind, _KINDS)
        raise UsageError(f"--fail-on has {kind!r}", fix=near or f"one of {', '.join(_KINDS)}")
    return Condition(kind, float(limit or 0), percent == "%", text)


def failing(subject: Subject, conditions: tuple[Condition, ...]) -> list[str]:
    """The conditions that do not hold good, one line each with the numbers.

    Raises:
        UsageError: It takes layouts or a comparison to tell, and there is none.
    """
    kept = (node for node in subject.graph.parameters() if node.id not in subject.gone)
    total = sum(node.spec.num_bytes for node in kept)
    return [line for each in conditions if (line := _check(subject, each, total))]


def _check(subject: Subject, condition: Condition, total: int) -> str:
    nodes = subject.graph.nodes
    ids = _ids(subject, condition.kind)
    found = [nodes[n] for n in sorted(ids) if n in nodes]
    size = sum(node.spec.num_bytes for node in found if isinstance(node, TensorNode))
    share = 100 * size / total if total else 0.0
    if (share if condition.percent else len(found)) <= condition.limit:
        return ""
    names = fold_names(subject.graph.path(node.id) for node in found)
    shown = ", ".join(printable(name) for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    modules = any(isinstance(node, ModuleNode) for node in found)
    what = counted(len(found), "place" if modules else "parameter")
    return f"{condition.text}: {what}, {bytes_text(size)}, {share:.1f}% of the bytes: {shown}{more}"


def _ids(subject: Subject, kind: str) -> set[int]:
    if kind != _DEVIATION:
        found = ids_of_kind(subject, cast(Only, kind), "--fail-on")
        return found if kind == "changed" else found - subject.gone
    decided = {n: decision.pass_ for n, decision in subject.decisions.items()}
    folded = fold_graph(subject.full_graph, "layout", decided=decided)
    deviations = find_deviations(folded, Placer(subject.mesh), subject.decisions)
    return {node_id for deviation in deviations for node_id in deviation.nodes}
