"""The sharding plan: what a person decides, from a YAML file or from Python.

>>> plan = ShardingPlan({"layers.*.wq": {"tp": "S(0)"}, "**": "replicate"}, mesh="dp=2,tp=4")
>>> [str(rule.layout) for rule in plan.params]
['tp:S(0)', 'R']
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

from hpx._files import near_files
from hpx.errors import PlanError, UsageError, did_you_mean
from hpx.layout import REPLICATED
from hpx.mesh import MeshSpec
from hpx.plan.boundary import Boundary
from hpx.plan.pattern import Pattern
from hpx.plan.rules import Heads, Packed, Rule, Tied, rule_value
from hpx.plan.values import (
    as_integer,
    as_list,
    as_mapping,
    as_optional_text,
    as_text,
    as_texts,
    at,
    place,
)

__all__ = ["DEFAULTS", "Default", "ShardingPlan"]

Default: TypeAlias = Literal["error", "replicate"]
DEFAULTS: tuple[Default, ...] = ("error", "replicate")
"""What becomes of parameters that no rule matches."""


@dataclass(frozen=True, init=False)
class ShardingPlan:
    """Rules for parameters and what else a plan declares.

    Args:
        params: Patterns with layouts (``"replicate"``, ``{"tp": "S(0)"}``, placement objects of
            torch, or ``{"layout": ..., "reason": ...}``), or finished rules. First match wins.
        version: The format; only 1 exists.
        mesh: The mesh that the plan is written for, if only one.
        experts: Patterns of expert containers to stack; None to find them.
        packed: Fused projections by pattern, as in the file.
        heads: Names of attributes that tp divides, by pattern of their modules.
        tied: Pairs of names that hold one parameter.
        default: ``"error"`` or ``"replicate"`` for parameters that no rule matches.
        boundaries: What enters and leaves modules, by pattern, where hpx cannot tell.
        file: Where it was read from.
        lines: The line of each top-level key there.

    Raises:
        PlanError: Something in it is malformed; the message has file and line, or the number of
            the rule.
    """

    params: tuple[Rule, ...]
    version: int
    mesh: str | None
    experts: tuple[str, ...] | None
    packed: tuple[Packed, ...]
    heads: tuple[Heads, ...]
    tied: tuple[Tied, ...]
    default: Default
    boundaries: tuple[Boundary, ...]
    file: str | None
    lines: tuple[tuple[str, int], ...]

    def __init__(
        self,
        params: Mapping[str, object] | Sequence[Rule] = (),
        *,
        version: int = 1,
        mesh: str | MeshSpec | None = None,
        experts: Sequence[str] | None = None,
        packed: Mapping[str, object] | Sequence[Packed] = (),
        heads: Mapping[str, Sequence[str]] | Sequence[Heads] = (),
        tied: Sequence[Sequence[str] | Tied] = (),
        default: str = "error",
        boundaries: Mapping[str, object] | Sequence[Boundary] = (),
        file: str | None = None,
        lines: Sequence[tuple[str, int]] = (),
    ) -> None:
        object.__setattr__(self, "file", file)
        object.__setattr__(self, "lines", tuple(lines))
        values = {
            "params": _rules(params),
            "version": self._version(version),
            "mesh": self._mesh(mesh),
            "experts": self._experts(experts),
            "packed": _packed(packed),
            "heads": _heads(heads),
            "tied": self._tied(tied),
            "default": self._default(default),
            "boundaries": _boundaries(boundaries),
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> ShardingPlan:
        """Read a plan file.

        Raises:
            UsageError: There is no such file.
            PlanError: It is no plan; the message has file and line.
        """
        file = str(path)
        try:
            data = Path(path).read_bytes()
        except FileNotFoundError:
            raise UsageError(f"there is no plan file {file}", fix=near_files(Path(file))) from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise UsageError(f"plan file {file} cannot be read", why=reason) from None
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, error.start) + 1
            raise PlanError(
                "the plan is not UTF-8 text",
                where=f"{file}:{line}",
                why=f"byte {error.start} is 0x{data[error.start]:02x}",
                fix="save it as UTF-8",
            ) from None
        return cls.from_text(text, file=file)

    @classmethod
    def from_text(cls, text: str, file: str | None = None) -> ShardingPlan:
        """Read the text of a plan file; ``file`` is what rules and errors call it.

        Raises:
            PlanError: It is no plan; the message has file and line.
        """
        from hpx.plan.yamlform import read_plan

        return read_plan(text, file)

    def to_yaml(self) -> str:
        """A plan file that reads back with equal content."""
        from hpx.plan.yamlwrite import write_plan

        return write_plan(self)

    def where(self, key: str) -> str:
        """``plan.yaml:3`` of a top-level key, as far as it is known."""
        return place(self.file, dict(self.lines).get(key), f"{key} of the plan")

    @property
    def fallback(self) -> Rule | None:
        """The rule that ``default: replicate`` amounts to; None for ``default: error``."""
        if self.default == "error":
            return None
        line = dict(self.lines).get("default")
        return Rule(len(self.params), "**", REPLICATED, "default", self.file, line)

    def own_mesh(self) -> MeshSpec:
        """The mesh that the plan names.

        Raises:
            PlanError: It names none.
        """
        if self.mesh is None:
            raise PlanError(
                "the plan names no mesh", where=self.file, fix="give one, or write mesh: dp=2,tp=4"
            )
        return MeshSpec.parse(self.mesh)

    def check_mesh(self, mesh: MeshSpec) -> None:
        """Refuse a mesh other than the one that the plan names.

        Raises:
            PlanError: The plan names another mesh.
        """
        if self.mesh is not None and MeshSpec.parse(self.mesh) != mesh:
            raise PlanError(
                f"the plan is for mesh {self.mesh}, and the run is on {mesh}",
                where=self.where("mesh"),
                fix=f"run on {self.mesh}, or change or remove the plan's mesh",
            )

    def content_key(self) -> dict[str, object]:
        """What the plan decides, JSON-able: no file, line, source or reason."""
        return {
            "version": self.version,
            "mesh": self.mesh,
            "params": [
                [rule.pattern, [list(entry) for entry in rule.layout.to_json().items()]]
                for rule in self.params
            ],
            "experts": None if self.experts is None else list(self.experts),
            "packed": [
                [entry.pattern, entry.dim, entry.repeat, [list(part) for part in entry.parts]]
                for entry in self.packed
            ],
            "heads": [[entry.pattern, list(entry.names)] for entry in self.heads],
            "tied": [[pair.a, pair.b] for pair in self.tied],
            "default": self.default,
            "boundaries": [[entry.pattern, entry.content()] for entry in self.boundaries],
        }

    def to_json(self) -> dict[str, object]:
        """All of it, JSON-able; `from_json` gives an equal plan."""
        return {
            "version": self.version,
            "file": self.file,
            "lines": dict(self.lines),
            "mesh": self.mesh,
            "params": [rule.to_json() for rule in self.params],
            "experts": None if self.experts is None else list(self.experts),
            "packed": [entry.to_json() for entry in self.packed],
            "heads": [entry.to_json() for entry in self.heads],
            "tied": [list(pair) for pair in self.tied],
            "default": self.default,
            "boundaries": [entry.to_json() for entry in self.boundaries],
        }

    @classmethod
    def from_json(cls, value: object) -> ShardingPlan:
        """Read back what `to_json` wrote.

        Raises:
            PlanError: It is no saved plan.
        """
        saved = as_mapping(value, "a saved plan")
        with at("a saved plan"):
            experts = saved.get("experts")
            rules = as_list(saved.get("params"), "params")
            lines = as_mapping(saved.get("lines"), "lines")
            return cls(
                [Rule.from_json(rule, index) for index, rule in enumerate(rules)],
                version=as_integer(saved.get("version"), "version"),
                mesh=as_optional_text(saved.get("mesh"), "mesh"),
                experts=None if experts is None else as_texts(experts, "experts"),
                packed=[Packed.from_json(v) for v in as_list(saved.get("packed"), "packed")],
                heads=[Heads.from_json(v) for v in as_list(saved.get("heads"), "heads")],
                tied=[Tied.from_json(pair) for pair in as_list(saved.get("tied"), "tied")],
                default=as_text(saved.get("default"), "default"),
                boundaries=[
                    Boundary.from_json(v)
                    for v in as_list(saved.get("boundaries", []), "boundaries")
                ],
                file=as_optional_text(saved.get("file"), "file"),
                lines=[(key, as_integer(line, "a line")) for key, line in lines.items()],
            )

    # What the constructor takes, made uniform.

    def _version(self, value: int) -> int:
        if value != 1 or isinstance(value, bool):
            raise PlanError(
                f"plan version {value} is unknown",
                where=self.where("version"),
                why="this hpx reads version 1",
                fix="write version: 1",
            )
        return value

    def _mesh(self, value: str | MeshSpec | None) -> str | None:
        if value is None:
            return None
        with at(self.where("mesh")):
            return str(value if isinstance(value, MeshSpec) else MeshSpec.parse(value))

    def _experts(self, value: Sequence[str] | None) -> tuple[str, ...] | None:
        if value is None:
            return None
        with at(self.where("experts")):
            patterns = as_texts(value, "experts")
            for pattern in patterns:
                Pattern.parse(pattern)
        return patterns

    def _tied(self, value: Sequence[Sequence[str] | Tied]) -> tuple[Tied, ...]:
        with at(self.where("tied")):
            return tuple(
                pair if isinstance(pair, Tied) else Tied.parse(pair)
                for pair in as_list(value, "tied")
            )

    def _default(self, value: str) -> Default:
        for known in DEFAULTS:
            if value == known:
                return known
        raise PlanError(
            f"default is {value!r}",
            where=self.where("default"),
            why=f"it is one of {', '.join(DEFAULTS)}",
            fix=did_you_mean(str(value), DEFAULTS) or None,
        )


def _rules(params: Mapping[str, object] | Sequence[Rule]) -> tuple[Rule, ...]:
    if not isinstance(params, Mapping):
        return tuple(
            rule if rule.index == index else replace(rule, index=index)
            for index, rule in enumerate(params)
        )
    rules: list[Rule] = []
    for index, (pattern, value) in enumerate(params.items()):
        with at(f"rule {index + 1}"):
            as_text(pattern, "a pattern")
            layout, reason = rule_value(value)
        rules.append(Rule(index, pattern, layout, reason=reason))
    return tuple(rules)


def _packed(packed: Mapping[str, object] | Sequence[Packed]) -> tuple[Packed, ...]:
    if not isinstance(packed, Mapping):
        return tuple(packed)
    return tuple(Packed.parse(pattern, value) for pattern, value in packed.items())


def _heads(heads: Mapping[str, Sequence[str]] | Sequence[Heads]) -> tuple[Heads, ...]:
    if not isinstance(heads, Mapping):
        return tuple(heads)
    return tuple(Heads(pattern, as_texts(names, "heads")) for pattern, names in heads.items())


def _boundaries(boundaries: Mapping[str, object] | Sequence[Boundary]) -> tuple[Boundary, ...]:
    if not isinstance(boundaries, Mapping):
        return tuple(boundaries)
    return tuple(Boundary.parse(pattern, value) for pattern, value in boundaries.items())
