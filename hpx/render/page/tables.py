"""Turn every node of a graph into its form, and keep the tables that forms speak of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

from hpx.graph.fold import FoldedGraph
from hpx.graph.nodes import ModuleNode, TensorNode, TensorSpec, item_size
from hpx.layout import Layout
from hpx.plan import Rule
from hpx.render.page.forms import MARKS, Forms, Table, TensorFacts
from hpx.render.page.history import Histories
from hpx.render.placing import Placer, Placing
from hpx.render.rows import experts_in
from hpx.render.subject import Decision, Subject
from hpx.render.sums import ranked
from hpx.render.tied import below_shared
from hpx.render.viewmodel import Mark, Totals
from hpx.render.words import short_dtype

__all__ = ["KINDS", "Sums", "Tables"]

KINDS: Final = ("parameter", "buffer", "tensor")
_REMOVED: Final = MARKS.index("removed")


class Sums(NamedTuple):
    """The sums over the whole tree."""

    totals: Totals
    tokens: tuple[tuple[str, int], ...]
    passes: tuple[tuple[str, int], ...]
    dtypes: tuple[tuple[str, int], ...]
    rules: Mapping[int, int]


class Tables:
    """Reads a graph once, from the leaves up.

    Args:
        subject: What is shown.
        folded: Its graph, folded by layout.
        placer: Works out what the rank holds.
        marks: What stands out, by node id.
        start: Id of the module to begin at.
    """

    def __init__(
        self,
        subject: Subject,
        folded: FoldedGraph,
        placer: Placer,
        marks: Mapping[int, Mark],
        start: int,
    ) -> None:
        self.subject = subject
        self.graph = subject.graph
        self.placer = placer
        self.start = start
        self.has_layouts = any(
            node.layout is not None or node.spec.placed is not None
            for node in self.graph.parameters()
        )
        self.rules: dict[Rule, int] = {}
        self._keys = _keys(folded)
        self._marks = {node_id: MARKS.index(mark) for node_id, mark in marks.items() if mark}
        self._warned = {n for p in subject.problems if p.level == "warning" for n in p.nodes}
        self._shared = below_shared(self.graph)
        self._forms = Forms(self.graph, self._keys)
        self._histories = Histories(subject.run)
        self._shapes, self._dtypes, self._layouts = Table(), Table(), Table()
        self._passes, self._reduces, self._lineages = Table(), Table(), Table()
        self._aliases, self._notes, self._was = Table(), Table(), Table()
        self._decisions: dict[int, tuple[int, int]] = {}
        self._layout_of: dict[tuple[object, ...], int] = {}
        self._placings: dict[TensorFacts, tuple[Placing, TensorSpec]] = {}
        self._read()

    def _read(self) -> None:
        graph, forms = self.graph, self._forms
        start = None if self.start == graph.root else self.start
        mark, again, module = self._marks.get, forms.again, forms.module
        history, decision = self._histories.index, self.subject.decisions.get
        keys, warned, shared = self._keys, self._warned, self._shared
        codes: dict[object, int] = {}
        for node in reversed(list(graph.walk(start))):
            here = node.id
            if isinstance(node, ModuleNode):
                module(node, history(here), self._notes_of(node), mark(here, -1))
                continue
            if (
                node.more
                or node.lineage is not None
                or len(node.shape) == 3
                or node.parent in shared
            ):
                forms.tensor(here, self._tensor(node))
                continue
            # Most are equal to one before in all that makes a form.
            key: tuple[object, ...]
            key = (keys[here], history(here), mark(here, -1), id(decision(here)), here in warned)
            if (reduce := node.props.get("reduce")) is not None:
                key = (*key, reduce)
            code = codes.get(key)
            if code is None:
                codes[key] = forms.tensor(here, self._tensor(node))
            else:
                again(here, code)

    def to_json(self) -> dict[str, object]:
        """The forms and the tables."""
        return {
            "tree": self._forms.to_json(self.start),
            "shapes": self._shapes.values,
            "dtypes": [
                [name, short_dtype(str(name)), item_size(str(name))] for name in self._dtypes.values
            ],
            "layouts": [self._layout_json(value) for value in self._layouts.values],
            "passes": self._passes.values,
            "reduces": self._reduces.values,
            "lineages": self._lineages.values,
            "aliases": self._aliases.values,
            "notes": self._notes.values,
            "was": self._was.values,
            **self._histories.to_json(),
        }

    def _tensor(self, node: TensorNode) -> TensorFacts:
        node_id, spec, parameter = node.id, node.spec, node.kind == "parameter"
        decided, rule = self._decision(self.subject.decisions.get(node_id))
        reduce = node.props.get("reduce")
        layout = self._layout(node)
        mark = self._marks.get(node_id, -1)
        if mark < 0 and layout < 0 and parameter and self.has_layouts:
            mark = MARKS.index("unset")
        facts = TensorFacts(
            KINDS.index(node.kind),
            self._shapes.index(spec.shape),
            self._dtypes.index(spec.dtype),
            int(spec.requires_grad),
            layout,
            decided,
            rule,
            self._histories.index(node_id),
            mark,
            int(node_id in self._warned),
            -1 if (experts := experts_in(self.graph, node)) is None else experts,
            self._reduces.index(reduce) if isinstance(reduce, tuple) and reduce else -1,
            self._lineages.index(self._histories.lineage(node)) if node.lineage is not None else -1,
            self._aliases_of(node),
            self._was.index(was) if (was := self.subject.was.get(node_id)) else -1,
            self._keys[node_id],
        )
        self._placings[facts] = (self.placer.of(node), spec)
        return facts

    def _aliases_of(self, node: TensorNode) -> int:
        if not node.more and node.parent not in self._shared:
            return -1
        names = tuple(self.graph.paths(node.id)[1:])
        return self._aliases.index(names) if names else -1

    def _decision(self, decision: Decision | None) -> tuple[int, int]:
        """The pass and the rule; one event's parameters share the decision object."""
        if decision is None:
            return -1, -1
        found = self._decisions.get(id(decision))
        if found is None:
            rule = (
                -1
                if decision.rule is None
                else self.rules.setdefault(decision.rule, len(self.rules))
            )
            found = self._decisions[id(decision)] = (self._passes.index(decision.pass_), rule)
        return found

    def _layout(self, node: TensorNode) -> int:
        layout, placed = node.layout, node.spec.placed
        if layout is None and placed is None:
            return -1
        key = (layout, node.mesh, None if layout is not None else placed)
        found = self._layout_of.get(key)
        if found is None:
            token = self.placer.of(node).token
            found = self._layout_of[key] = self._layouts.index((token, *key))
        return found

    def _layout_json(self, value: object) -> dict[str, object]:
        """``token``; ``view``; its ``axes`` with sizes; ``cuts``, in the order they apply."""
        assert isinstance(value, tuple)
        token, layout, view_name, placed = value
        if placed is not None:
            return {
                "token": token,
                "view": "",
                "axes": [[axis, size] for axis, size, _ in placed],
                "cuts": [
                    [axis, dim]
                    for axis, _, text in placed
                    for _, dim in Layout.parse({axis: "R" if text[0] == "P" else text}).shards
                ],
                "partial": [axis for axis, _, text in placed if text[0] == "P"],
            }
        axes: list[list[object]] = []
        mesh = self.subject.mesh
        if mesh is not None:
            view = mesh.view_of(layout)
            axes, view_name = [list(pair) for pair in view.axes], view.name
        return {
            "token": token,
            "view": view_name or "",
            "axes": axes,
            "cuts": [list(pair) for pair in layout.shards],
            "partial": [],
        }

    def _notes_of(self, node: ModuleNode) -> int:
        """Integers of the module that passes changed, as text; -1 for none."""
        if not node.props:
            return -1
        before = dict(node.spec.attributes)
        notes = tuple(
            f"{name} {before.get(name, 'unset')} -> {value}"
            for key, value in sorted(node.props.items())
            if (name := key.removeprefix("attributes.")) != key and before.get(name) != value
        )
        return self._notes.index(notes) if notes else -1

    def add_up(self) -> Sums:
        """Add up the forms by how often each occurs; a tied parameter is one."""
        subject = self.subject
        tokens: Counter[str] = Counter()
        passes: Counter[str] = Counter()
        dtypes: Counter[str] = Counter()
        rules: Counter[int] = Counter()
        parameters = elements = size = local = tied = buffers = 0
        for facts, count in self._forms.counts(self.start):
            if facts.mark == _REMOVED:
                continue
            if facts.kind:
                buffers += count
                continue
            placing, spec = self._placings[facts]
            parameters += count
            elements += count * spec.num_elements
            size += count * spec.num_bytes
            local += count * placing.local_bytes
            tied += count * (facts.aliases >= 0)
            tokens[placing.token] += count
            dtypes[spec.dtype] += count
            rules[facts.rule] += count
            if facts.decided >= 0:
                passes[str(self._passes.values[facts.decided])] += count
        totals = Totals(
            parameters=parameters,
            original_parameters=None if subject.selection else subject.original_parameters,
            elements=elements,
            bytes=size,
            local_bytes=local if subject.mesh is not None and self.has_layouts else None,
            tied=tied,
            buffers=buffers,
        )
        known = ranked(tokens) if self.has_layouts else ()
        return Sums(totals, known, ranked(passes), ranked(dtypes), rules)


def _keys(folded: FoldedGraph) -> Mapping[int, int]:
    """The numbers of nodes that fold; of its own and negative for one that folds with none."""
    opened: Collection[int] = folded.opened
    if not opened:
        return folded.keys
    return {**folded.keys, **{node_id: -1 - node_id for node_id in opened}}
