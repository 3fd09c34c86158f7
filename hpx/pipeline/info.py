"""What a pass is, and what it declares: ``Fact``, ``PassInfo``, ``Pass``.

A pass is a frozen dataclass. Its fields are its options, its ``info`` says what it needs, what it
brings and what it writes, and ``run`` edits the graph through its context:

    @register
    @dataclass(frozen=True, kw_only=True)
    class TieWeights(Pass):
        \"\"\"Make one parameter of names that are to be tied.\"\"\"

        info = PassInfo(name="tie-weights", provides={TIED}, writes={"structure"})

        def run(self, graph: ModuleGraph, ctx: PassContext) -> None: ...
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Final, get_type_hints

from hpx.errors import ContractError
from hpx.pipeline.options import OPTION_TYPES, is_option_type, written

if TYPE_CHECKING:
    from hpx.graph import ModuleGraph
    from hpx.pipeline.context import PassContext
    from hpx.pipeline.request import Request

__all__ = ["Fact", "Pass", "PassInfo", "check_pass_class", "option_types"]

KEBAB_CASE: Final = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


@dataclass(frozen=True)
class Fact:
    """Something coarse that is true of a graph, by name; two facts of one name are the same fact.

    Attributes:
        name: Kebab-case, as ``experts-stacked``.
        holds: Reads the graph and the request; returns what speaks against the fact, one line
            each, best one at a time. Empty: it holds.
    """

    name: str
    holds: Callable[[ModuleGraph, Request], Iterable[str]] = field(compare=False, repr=False)

    def __post_init__(self) -> None:
        if not KEBAB_CASE.fullmatch(self.name):
            raise ContractError(f"fact name {self.name!r} is not kebab-case")

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, kw_only=True, init=False)
class PassInfo:
    """What a pass declares about itself. Every set takes any iterable, or one value alone.

    Attributes:
        name: Kebab-case name, as the text form writes it.
        requires: Facts that hold before it runs.
        provides: Facts that hold after it ran.
        invalidates: Facts that may hold no longer after it ran.
        before: Names of passes that it runs before, where they are listed.
        after: Names of passes that it runs after, where they are listed.
        conflicts: Names of passes that it is never listed with.
        writes: The node keys that it writes, and ``structure`` for nodes derived, removed,
            renamed or aliased.
        required: Whether a bisect must keep it.
    """

    name: str
    requires: frozenset[Fact]
    provides: frozenset[Fact]
    invalidates: frozenset[Fact]
    before: frozenset[str]
    after: frozenset[str]
    conflicts: frozenset[str]
    writes: frozenset[str]
    required: bool

    def __init__(
        self,
        *,
        name: str,
        requires: Iterable[Fact] | Fact = (),
        provides: Iterable[Fact] | Fact = (),
        invalidates: Iterable[Fact] | Fact = (),
        before: Iterable[str] = (),
        after: Iterable[str] = (),
        conflicts: Iterable[str] = (),
        writes: Iterable[str] = (),
        required: bool = True,
    ) -> None:
        values: dict[str, object] = {
            "name": name,
            "requires": frozenset([requires] if isinstance(requires, Fact) else requires),
            "provides": frozenset([provides] if isinstance(provides, Fact) else provides),
            "invalidates": frozenset(
                [invalidates] if isinstance(invalidates, Fact) else invalidates
            ),
            "before": _names(before),
            "after": _names(after),
            "conflicts": _names(conflicts),
            "writes": _names(writes),
            "required": required,
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def problems(self) -> list[str]:
        """What is wrong with this declaration, one line each; empty when it is sound."""
        found = []
        if not KEBAB_CASE.fullmatch(str(self.name)):
            found.append(f"its name {self.name!r} is not kebab-case")
        for key in ("requires", "provides", "invalidates"):
            strays = [item for item in getattr(self, key) if not isinstance(item, Fact)]
            found += [f"{key} holds {stray!r}, which is not a Fact" for stray in strays]
        for key in ("before", "after", "conflicts"):
            names = getattr(self, key)
            strays = [name for name in names if not KEBAB_CASE.fullmatch(str(name))]
            found += [f"{key} holds {stray!r}, which is not the name of a pass" for stray in strays]
            found += [f"{key} names the pass itself"] * (self.name in names)
        if both := self.provides & self.invalidates:
            found.append(f"it both provides and invalidates {_sorted_text(both)}")
        if both_names := self.before & self.after:
            found.append(f"it asks to run both before and after {_sorted_text(both_names)}")
        return found

    def to_json(self) -> dict[str, object]:
        """The declaration as JSON takes it: facts by name, every set as a sorted list."""
        values = {key.name: getattr(self, key.name) for key in dataclasses.fields(self)}
        return {
            key: sorted(map(str, value)) if isinstance(value, frozenset) else value
            for key, value in values.items()
        }


@dataclass(frozen=True, kw_only=True)
class Pass(ABC):
    """One step of a pipeline. Subclass it as a frozen dataclass whose fields are the options.

    Attributes:
        info: What the pass declares.
        summary: The first line of its docstring.
    """

    info: ClassVar[PassInfo]
    summary: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "info" in cls.__dict__:
            _check_info(cls)
        doc = (cls.__dict__.get("__doc__") or "").strip()
        # A dataclass without a docstring gets its signature as one.
        cls.summary = "" if doc.startswith(f"{cls.__name__}(") else doc.partition("\n")[0]

    @abstractmethod
    def run(self, graph: ModuleGraph, ctx: PassContext) -> None:
        """Edit the graph, through ``ctx`` alone."""

    def options(self) -> dict[str, object]:
        """The options that differ from their defaults, in the order of the fields."""
        return {
            option.name: getattr(self, option.name)
            for option in dataclasses.fields(self)
            if option.init and not _is_default(option, getattr(self, option.name))
        }

    def text(self) -> str:
        """The pass as the text form writes it: ``shard-params{uneven=allow}``."""
        options = self.options()
        if not options:
            return self.info.name
        inside = ", ".join(f"{name}={written(value)}" for name, value in options.items())
        return f"{self.info.name}{{{inside}}}"


def option_types(cls: type[Pass]) -> dict[str, object]:
    """The option names of a pass class with their types, in the order of the fields."""
    try:
        hints = get_type_hints(cls)
    except NameError as error:
        raise ContractError(
            f"the type of an option cannot be resolved: {error}",
            where=_class_name(cls),
            fix="import it at the top of the module, not under TYPE_CHECKING",
        ) from error
    return {option.name: hints[option.name] for option in dataclasses.fields(cls) if option.init}


def check_pass_class(cls: object) -> type[Pass]:
    """The class itself, if a pipeline can hold it.

    Raises:
        ContractError: It is no subclass of Pass, has no sound ``info``, or has a field that is no
            option. Names the class.
    """
    if not isinstance(cls, type):
        raise ContractError(f"a {type(cls).__name__} is not a subclass of hpx.Pass")
    if not issubclass(cls, Pass):
        raise ContractError("it is not a subclass of hpx.Pass", where=_class_name(cls))
    _check_info(cls)
    missing = sorted(cls.__abstractmethods__)
    if missing:
        raise ContractError(f"it does not define {', '.join(missing)}", where=_class_name(cls))
    types = option_types(cls)
    for name in _own_annotations(cls):
        if name not in types:
            raise ContractError(
                f"{name} is declared but is no option",
                where=_class_name(cls),
                fix="put @dataclass(frozen=True, kw_only=True) on the class",
            )
    for name, kind in types.items():
        if not is_option_type(kind):
            raise ContractError(
                f"option {name} has type {kind}, which the text form cannot write",
                where=_class_name(cls),
                fix=f"options are {OPTION_TYPES}",
            )
    return cls


def _check_info(cls: type[Pass]) -> None:
    info: object = getattr(cls, "info", None)
    if not isinstance(info, PassInfo):
        raise ContractError("its info is not a PassInfo", where=_class_name(cls))
    if problems := info.problems():
        raise ContractError("; ".join(problems), where=_class_name(cls))


def _class_name(cls: type[object]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def _own_annotations(cls: type[Pass]) -> list[str]:
    annotations = inspect.get_annotations(cls)
    return [
        name
        for name, kind in annotations.items()
        if "ClassVar" not in str(kind) and "KW_ONLY" not in str(kind)
    ]


def _is_default(option: dataclasses.Field[object], value: object) -> bool:
    default = option.default
    if option.default_factory is not dataclasses.MISSING:
        default = option.default_factory()
    # 1 == True, yet they are written differently.
    return isinstance(value, bool) is isinstance(default, bool) and value == default


def _names(value: Iterable[str]) -> frozenset[str]:
    return frozenset([value] if isinstance(value, str) else value)


def _sorted_text(items: Iterable[object]) -> str:
    return ", ".join(sorted(map(str, items)))
