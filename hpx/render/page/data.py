"""What the page knows: the forms of the tree, the tables that they speak of, and what is around."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from hpx._text import rule_place
from hpx.graph.fold import FoldedGraph, fold_graph
from hpx.mesh import MeshSpec
from hpx.render.build import marks_of, title_of
from hpx.render.deviations import Deviation, find_deviations
from hpx.render.header import facts, token_meaning
from hpx.render.matched import matched_names
from hpx.render.more import more_facts, unmatched_rules, without_rule
from hpx.render.options import Options
from hpx.render.page.forms import MARKS
from hpx.render.page.tables import KINDS, Sums, Tables
from hpx.render.placing import Placer
from hpx.render.subject import Subject
from hpx.render.viewmodel import View
from hpx.render.words import short_dtype

__all__ = ["page_data"]

_LEVELS: Final = ("error", "warning", "info")
_MAX_NAMED: Final = 50
"""Of a finding: so many of its parameters lead to it."""
_MAX_NAMES: Final = 2000
"""Of parameters without a rule: so many are listed by name."""


def page_data(subject: Subject, options: Options, *, start: int) -> dict[str, object]:
    """The data of a page, JSON-able and the same for the same input.

    Args:
        subject: What to show.
        options: How.
        start: Id of the module to begin at.

    Raises:
        UsageError: A pattern of what is not to fold matches nothing.
    """
    placer = Placer(subject.mesh, options.rank or 0)
    decided = {node: decision.pass_ for node, decision in subject.decisions.items()}
    usual = fold_graph(subject.full_graph, "layout", decided=decided)
    deviations = [
        found
        for found in find_deviations(usual, placer, subject.decisions)
        if any(node_id in subject.graph.nodes for node_id in found.nodes)
    ]
    folded = _folded(subject, options, usual, decided)
    tables = Tables(subject, folded, placer, marks_of(subject, deviations), start)
    tree = tables.to_json()
    sums = tables.add_up()
    view = _around(subject, options, start, sums)
    return {
        "title": view.title,
        "facts": [[word, text] for word, text in facts(view)],
        "fold": "layout" if options.fold == "auto" else options.fold,
        "sort": options.sort,
        "depth": -1 if options.depth is None else options.depth,
        "rank": options.rank or 0,
        "axis": options.axis or "",
        "colorBy": options.color_by,
        "prefix": subject.graph.path(start),
        "mesh": _mesh_json(subject.mesh),
        "layoutsKnown": tables.has_layouts,
        "tokens": [[token, count, token_meaning(token)] for token, count in sums.tokens],
        "passCounts": [list(pair) for pair in sums.passes],
        "dtypeCounts": [[short_dtype(name), count] for name, count in sums.dtypes],
        "findings": list(_findings(subject, deviations)),
        "comparison": str(subject.diff).split("\n") if subject.diff is not None else [],
        "rules": _rules_json(tables, sums),
        "ruleless": _ruleless(subject),
        "marks": MARKS,
        "kinds": KINDS,
        **tree,
    }


def _folded(
    subject: Subject, options: Options, usual: FoldedGraph, decided: Mapping[int, str]
) -> FoldedGraph:
    """The graph folded by layout, what is compared or set apart told from its siblings."""
    graph = subject.graph
    apart = matched_names(graph, options.expand, "--expand") if options.expand else ()
    if graph is subject.full_graph and not apart:
        return usual
    tags = {n: f"{mark} {subject.was.get(n, '')}" for n, mark in subject.compared.items()}
    return fold_graph(graph, "layout", decided=decided, tags=tags, apart=apart)


def _around(subject: Subject, options: Options, start: int, sums: Sums) -> View:
    """The view without boxes, which is all that the facts above the tree need."""
    return View(
        title=title_of(subject.graph, start),
        source=subject.source,
        boxes=(),
        findings=(),
        totals=sums.totals,
        tokens=sums.tokens,
        passes=sums.passes,
        dtypes=sums.dtypes,
        mesh=subject.mesh,
        rank=options.rank or 0,
        step=subject.step,
        extra=tuple(more_facts(subject)),
    )


def _findings(subject: Subject, deviations: list[Deviation]) -> Iterator[list[object]]:
    """``[level, text, hint, names]``; the names are of some of what it is about."""
    graph = subject.graph

    def some(nodes: tuple[int, ...]) -> list[str]:
        return [graph.path(node) for node in nodes[:_MAX_NAMED] if node in graph.nodes]

    for deviation in deviations:
        yield ["deviation", deviation.text, "", some(deviation.nodes)]
    order = {level: place for place, level in enumerate(_LEVELS)}
    for problem in sorted(subject.problems, key=lambda p: order[p.level]):
        yield [problem.level, problem.text, problem.hint, some(problem.nodes)]


def _rules_json(tables: Tables, sums: Sums) -> list[list[object]]:
    """Rules as ``[place, layout, reason, parameters, matched]``, unused ones of the plan too."""
    subject = tables.subject
    if subject.run is not None and subject.decisions:
        for rule in subject.run.plan.params:
            tables.rules.setdefault(rule, len(tables.rules))
    unmatched = set(unmatched_rules(subject))
    ranked = sorted(tables.rules.items(), key=lambda pair: (pair[0].index, pair[1]))
    return [
        [
            number,
            rule_place(rule),
            str(rule.layout),
            rule.reason or "",
            sums.rules.get(number, 0),
            int(f"{rule.where} {rule.pattern!r}" not in unmatched),
        ]
        for rule, number in ranked
    ]


def _ruleless(subject: Subject) -> dict[str, object]:
    """The parameters that no rule of the plan matched."""
    found = without_rule(subject)
    names = [subject.graph.path(node_id) for node_id in found[:_MAX_NAMES]]
    return {"count": len(found), "names": names}


def _mesh_json(mesh: MeshSpec | None) -> dict[str, object] | None:
    """Both views: axes with sizes; ranks count row-major over them."""
    if mesh is None:
        return None
    views = [view for view in (mesh.dense, mesh.expert) if view is not None]
    return {
        "text": str(mesh),
        "size": mesh.world_size,
        "views": {view.name: [list(pair) for pair in view.axes] for view in views},
        "ranks": {
            view.name: list(view.ranks)
            for view in views
            if list(view.ranks) != list(range(mesh.world_size))
        },
    }
