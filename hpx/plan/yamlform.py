"""Plan files: YAML that keeps the line of every entry, and says what is wrong where."""

from __future__ import annotations

import re
from typing import Final, TypeAlias

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from hpx.errors import PlanError, did_you_mean
from hpx.plan.boundary import Boundary
from hpx.plan.pattern import Pattern
from hpx.plan.plan import ShardingPlan
from hpx.plan.rules import Heads, Packed, Rule, Tied, rule_value
from hpx.plan.values import at, place

__all__ = ["read_plan"]

_KEYS: Final = (
    "version",
    "mesh",
    "params",
    "experts",
    "packed",
    "heads",
    "tied",
    "default",
    "boundaries",
)
_RESERVED: Final = ("pad", "options")
_TAG: Final = "tag:yaml.org,2002:"
_TAGS: Final = {
    _TAG + kind
    for kind in ("str", "int", "float", "bool", "null", "map", "seq", "timestamp", "value")
}
_SIGNS: Final = frozenset("*{}[],")
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_QUOTED: Final = re.compile(r""" "(?:[^"\\]|\\.)*" | '[^']*' """, re.VERBOSE)
_UNQUOTED: Final = re.compile(
    r"""
    (?: ^ | [\[,{] | [-:]\s ) \s* \*      # an alias, as YAML reads it
    | ^ \s* (?:-\s+)? (?: \{[^}]*\} | \[[^\]]*\] ) [^\s,:\]}#]   # a bracket that text follows
    """,
    re.VERBOSE,
)
_MAX_DEPTH: Final = 3
_QUOTE: Final = 'quote the pattern: "model.layers.*.{q,k}_proj.weight": ...'

_Entries: TypeAlias = dict[str, tuple[Node, Node]]


def read_plan(text: str, file: str | None) -> ShardingPlan:
    """Read the text of a plan file.

    Raises:
        PlanError: It is no plan; the message has file and line.
    """
    return _Reader(file).plan(_compose(text, file))


def _compose(text: str, file: str | None) -> Node:
    """The tree of the file's only document."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise PlanError(
            f"the plan has a character that YAML does not allow, {_character(error.character)}",
            where=place(file, line, "the plan"),
            fix="remove it",
        ) from None
    except yaml.MarkedYAMLError as error:
        raise _syntax_error(error, text, file) from None
    except RecursionError:
        raise PlanError("the plan is nested too deeply", where=file or "the plan") from None
    if node is None:
        raise PlanError(
            "the plan is empty", where=file or "the plan", fix="write version: 1, params: ..."
        )
    return node


def _character(character: object) -> str:
    code = character if isinstance(character, int) else ord(str(character)[:1] or "\0")
    return f"U+{code:04X}"


def _syntax_error(error: yaml.MarkedYAMLError, text: str, file: str | None) -> PlanError:
    """Say which line is broken, and whether it is a pattern that lacks its quotes."""
    lines = text.splitlines()
    marks = [mark for mark in (error.problem_mark, error.context_mark) if mark is not None]
    numbers = [min(mark.line, len(lines) - 1) for mark in marks]
    for number in numbers:
        if _UNQUOTED.search(_QUOTED.sub("", lines[number])):
            return PlanError(
                "a pattern is not quoted",
                where=place(file, number + 1, "the plan"),
                why=f"YAML reads * and {{ in {lines[number].strip()!r} as its own signs",
                fix=_QUOTE,
            )
    inside = error.context is not None and ("flow" in error.context or "quoted" in error.context)
    number = numbers[-1 if inside else 0] if numbers else 0
    what = " ".join(part for part in (error.context, error.problem) if part)
    return PlanError(
        f"the plan is not valid YAML, {what}",
        where=place(file, number + 1, "the plan"),
        fix="indent with spaces" if "'\\t'" in what else None,
    )


class _Reader:
    """Turns nodes into entries; every method says which line it refuses."""

    def __init__(self, file: str | None) -> None:
        self.file = file

    def plan(self, root: Node) -> ShardingPlan:
        if not isinstance(root, MappingNode):
            raise self._error(
                root, f"the plan is {_kind(root)}", "write a mapping: version: 1, params: ..."
            )
        entries = self._mapping(root, "the plan")
        for key, (node, _) in entries.items():
            if key not in (*_KEYS, *_RESERVED):
                close = did_you_mean(key, _KEYS)
                raise self._error(
                    node, f"unknown key {key!r}", close or f"the keys are {', '.join(_KEYS)}"
                )
        nodes = {key: value for key, (_, value) in entries.items()}
        for key in _RESERVED:
            if key in nodes and not _is_empty(nodes[key]):
                raise self._error(
                    nodes[key], f"{key} is reserved, not supported yet", f"remove {key}"
                )
        experts, mesh = nodes.get("experts"), nodes.get("mesh")
        return ShardingPlan(
            self._rules(nodes["params"]) if "params" in nodes else (),
            version=self._version(nodes["version"]) if "version" in nodes else 1,
            mesh=None if mesh is None or _is_null(mesh) else self._text(mesh, "mesh"),
            experts=None if experts is None or _is_null(experts) else self._experts(experts),
            packed=self._packed(nodes["packed"]) if "packed" in nodes else (),
            heads=self._heads(nodes["heads"]) if "heads" in nodes else (),
            tied=self._tied(nodes["tied"]) if "tied" in nodes else (),
            default=self._text(nodes["default"], "default") if "default" in nodes else "error",
            boundaries=self._boundaries(nodes["boundaries"]) if "boundaries" in nodes else (),
            file=self.file,
            lines=[(key, _line(node)) for key, (node, _) in entries.items()],
        )

    def _version(self, node: Node) -> int:
        text = self._text(node, "version")
        if _INTEGER.fullmatch(text) is None:
            raise self._error(node, f"version is {text!r}", "write version: 1")
        return int(text)

    def _rules(self, node: Node) -> list[Rule]:
        rules: list[Rule] = []
        for pattern, (key, value) in self._patterns(node, "params").items():
            content = self._plain(value)
            with at(self._where(key)):
                layout, reason = rule_value(content)
            line = _line(key)
            rules.append(
                Rule(len(rules), pattern, layout, file=self.file, line=line, reason=reason)
            )
        return rules

    def _experts(self, node: Node) -> list[str]:
        found = []
        for entry in self._sequence(node, "experts"):
            found.append(self._pattern(entry))
            with at(self._where(entry)):
                Pattern.parse(found[-1])
        return found

    def _packed(self, node: Node) -> list[Packed]:
        return [
            Packed.parse(pattern, self._plain(value), self.file, _line(key))
            for pattern, (key, value) in self._patterns(node, "packed").items()
        ]

    def _boundaries(self, node: Node) -> list[Boundary]:
        return [
            Boundary.parse(pattern, self._plain(value), self.file, _line(key))
            for pattern, (key, value) in self._patterns(node, "boundaries").items()
        ]

    def _heads(self, node: Node) -> list[Heads]:
        found: list[Heads] = []
        for pattern, (key, value) in self._patterns(node, "heads").items():
            entries = self._sequence(value, f"heads {pattern!r}")
            names = tuple(self._text(entry, "an attribute name") for entry in entries)
            found.append(Heads(pattern, names, self.file, _line(key)))
        return found

    def _tied(self, node: Node) -> list[Tied]:
        pairs: list[Tied] = []
        for entry in self._sequence(node, "tied"):
            names = [self._pattern(name) for name in self._sequence(entry, "a tied pair")]
            with at(self._where(entry)):
                pairs.append(Tied.parse(names, _line(entry)))
        return pairs

    # Nodes

    def _mapping(self, node: Node, what: str) -> _Entries:
        """Key and value nodes by key, in order; an empty value is an empty mapping."""
        self._check_tag(node)
        if _is_null(node):
            return {}
        if not isinstance(node, MappingNode):
            raise self._error(node, f"{what} is {_kind(node)}", "write a mapping")
        entries: _Entries = {}
        for key, value in node.value:
            self._check_tag(key)
            if not isinstance(key, ScalarNode):
                raise self._unquoted(key, f"reads it as {_kind(key)}")
            if key.value in entries:
                first = self._where(entries[key.value][0])
                raise self._error(
                    key, f"key {key.value!r} stands twice, first at {first}", "keep one of them"
                )
            entries[key.value] = (key, value)
        return entries

    def _patterns(self, node: Node, what: str) -> _Entries:
        """A mapping whose keys are patterns."""
        entries = self._mapping(node, what)
        for key, _ in entries.values():
            self._pattern(key)
        return entries

    def _pattern(self, node: Node) -> str:
        """A pattern or name; quoted if it has signs that YAML could take for its own."""
        if isinstance(node, MappingNode | SequenceNode) and node.flow_style:
            raise self._unquoted(node, f"reads it as {_kind(node)}")
        text = self._text(node, "a pattern")
        if isinstance(node, ScalarNode) and not node.style and not _SIGNS.isdisjoint(text):
            raise self._unquoted(node, f"has its own meaning for signs in {text!r}")
        return text

    def _sequence(self, node: Node, what: str) -> list[Node]:
        self._check_tag(node)
        if _is_null(node):
            return []
        if not isinstance(node, SequenceNode):
            raise self._error(node, f"{what} is {_kind(node)}", "write a list: [a, b]")
        return list(node.value)

    def _text(self, node: Node, what: str) -> str:
        """The characters of a scalar, whatever type YAML would give it."""
        self._check_tag(node)
        if not isinstance(node, ScalarNode):
            raise self._error(node, f"{what} is {_kind(node)}", "write text")
        if not node.value:
            raise self._error(node, f"{what} is empty", "write it, or remove the entry")
        return str(node.value)

    def _plain(self, node: Node, depth: int = 0) -> object:
        """The value of a small entry: texts, whole numbers, lists and mappings."""
        self._check_tag(node)
        if _is_null(node):
            return None
        if isinstance(node, ScalarNode):
            is_number = node.tag == _TAG + "int" and _INTEGER.fullmatch(node.value)
            return int(node.value) if is_number else node.value
        if depth == _MAX_DEPTH:
            raise self._error(
                node, "the entry is nested too deeply", "write a layout such as {tp: S(0)}"
            )
        if isinstance(node, SequenceNode):
            return [self._plain(entry, depth + 1) for entry in node.value]
        entries = self._mapping(node, "an entry")
        return {key: self._plain(value, depth + 1) for key, (_, value) in entries.items()}

    def _check_tag(self, node: Node) -> None:
        if node.tag not in _TAGS:
            raise self._error(
                node,
                f"YAML tag {node.tag.removeprefix(_TAG)!r} has no meaning in a plan",
                "write the value out",
            )

    def _where(self, node: Node) -> str:
        return place(self.file, _line(node), "the plan")

    def _error(self, node: Node, what: str, fix: str) -> PlanError:
        return PlanError(what, where=self._where(node), fix=fix)

    def _unquoted(self, node: Node, why: str) -> PlanError:
        return PlanError(
            "a pattern is not quoted", where=self._where(node), why=f"YAML {why}", fix=_QUOTE
        )


def _line(node: Node) -> int:
    return int(node.start_mark.line) + 1


def _is_null(node: Node) -> bool:
    return isinstance(node, ScalarNode) and node.tag == _TAG + "null"


def _is_empty(node: Node) -> bool:
    return _is_null(node) or (isinstance(node, MappingNode | SequenceNode) and not node.value)


def _kind(node: Node) -> str:
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    return "empty" if _is_null(node) else f"the text {str(node.value)[:40]!r}"
