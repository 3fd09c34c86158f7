"""Which passes there are: found by entry points and by ``register``, imported one at a time.

``names`` lists them without importing any, ``get`` imports the one that is asked for, ``describe``
says where one comes from. A third party makes its pass known in its own ``pyproject.toml``:

    [project.entry-points."hpx.passes"]
    my-pass = "my_package.my_pass:MyPass"

The registry that the functions here share is the one mutable thing at module level in hpx.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, TypeVar

from hpx.errors import ContractError, HpxError, PipelineError, nearest
from hpx.pipeline.info import Pass, check_pass_class

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "DEFAULT",
    "GROUP",
    "Origin",
    "PassRegistry",
    "describe",
    "get",
    "names",
    "providers_of",
    "register",
]

GROUP: Final = "hpx.passes"
PassClass = TypeVar("PassClass", bound=type[Pass])


@dataclass(frozen=True)
class Origin:
    """Where a pass comes from.

    Attributes:
        name: The name of the pass.
        value: Module and class, as ``hpx.passes.localize:Localize``.
        distribution: The installed distribution; None for one registered in this process alone.
        version: The version of the distribution.
    """

    name: str
    value: str
    distribution: str | None = None
    version: str | None = None

    def __str__(self) -> str:
        if self.distribution is None:
            return f"{self.value} (registered in this process)"
        return f"{self.value} (distribution {self.distribution})"


def installed_entry_points() -> Iterable[EntryPoint]:
    """The entry points of every installed distribution in the group ``hpx.passes``."""
    from importlib.metadata import entry_points

    return entry_points(group=GROUP)


class PassRegistry:
    """Names of passes and the classes behind them; a class is imported when it is first asked for.

    Args:
        entry_points: Where installed passes are found; read once, when first needed.
    """

    def __init__(
        self, entry_points: Callable[[], Iterable[EntryPoint]] = installed_entry_points
    ) -> None:
        self._find = entry_points
        self._found: dict[str, list[EntryPoint]] | None = None
        self._classes: dict[str, type[Pass]] = {}

    def register(self, cls: PassClass) -> PassClass:
        """Make a pass known under its name; a class decorator, outermost of all.

        The same class again (a reloaded module, a notebook cell run twice) takes the place of the
        first one.

        Raises:
            ContractError: The class is no pass, or its ``info`` is not sound.
            PipelineError: Another class has the name already.
        """
        check_pass_class(cls)
        name = cls.info.name
        new = Origin(name, _value_of(cls))
        known = self._classes.get(name)
        if known is not None and _value_of(known) != new.value:
            raise _taken(name, [Origin(name, _value_of(known)), new])
        installed = [_origin(entry) for entry in self._entry_points().get(name, [])]
        if installed and all(origin.value != new.value for origin in installed):
            raise _taken(name, [*installed, new])
        self._classes[name] = cls
        return cls

    def names(self) -> list[str]:
        """All names, sorted. Imports no pass."""
        return sorted({*self._entry_points(), *self._classes})

    def describe(self, name: str) -> Origin:
        """Where the pass comes from. Imports no pass.

        Raises:
            PipelineError: No pass has the name, or two distributions claim it.
        """
        if entry := self._entry_point(name):
            return _origin(entry)
        if name in self._classes:
            return Origin(name, _value_of(self._classes[name]))
        raise self._unknown(name)

    def get(self, name: str) -> type[Pass]:
        """The class of a pass; its module is imported now if it was not.

        Raises:
            PipelineError: No pass has the name, two distributions claim it, or its module cannot
                be imported.
            ContractError: What the entry point names is not a pass of that name.
        """
        entry = self._entry_point(name)
        if name not in self._classes:
            if entry is None:
                raise self._unknown(name)
            self._classes[name] = _load(entry)
        return self._classes[name]

    def providers_of(self, fact: str) -> list[str]:
        """Names of the passes that provide a fact. Imports them all; skips those that cannot be."""
        found = []
        for name in self.names():
            try:
                provides = self.get(name).info.provides
            except HpxError:
                continue
            if any(provided.name == fact for provided in provides):
                found.append(name)
        return found

    def _entry_points(self) -> dict[str, list[EntryPoint]]:
        if self._found is None:
            found = defaultdict(list)
            for entry in self._find():
                found[entry.name].append(entry)
            self._found = dict(found)
        return self._found

    def _entry_point(self, name: str) -> EntryPoint | None:
        entries = self._entry_points().get(name, [])
        if len(entries) > 1:
            raise _taken(name, [_origin(entry) for entry in entries])
        return entries[0] if entries else None

    def _unknown(self, name: str) -> PipelineError:
        close = nearest(name.lower().replace("_", "-"), self.names())
        guess = f"did you mean {', '.join(close)}? " if close else ""
        return PipelineError(
            f"there is no pass {name!r}", fix=f"{guess}`hpx passes` lists all that are installed"
        )


def _load(entry: EntryPoint) -> type[Pass]:
    origin = _origin(entry)
    try:
        found = check_pass_class(entry.load())
    except HpxError as error:
        raise error.located(f"pass {entry.name!r} of {origin}")  # noqa: B904  same error, placed
    except Exception as error:
        first_line = str(error).strip().partition("\n")[0]
        raise PipelineError(
            f"pass {entry.name!r} cannot be imported from {origin}",
            why=f"{type(error).__name__}: {first_line}",
        ) from error
    if found.info.name != entry.name:
        raise ContractError(
            f"the entry point is called {entry.name!r}, its pass {found.info.name!r}",
            where=str(origin),
            fix="give both the same name",
        )
    return found


def _origin(entry: EntryPoint) -> Origin:
    if entry.dist is None:
        return Origin(entry.name, entry.value)
    return Origin(entry.name, entry.value, entry.dist.name, entry.dist.version)


def _value_of(cls: type[Pass]) -> str:
    return f"{cls.__module__}:{cls.__qualname__}"


def _taken(name: str, origins: list[Origin]) -> PipelineError:
    return PipelineError(
        f"the pass name {name!r} is claimed {len(origins)} times",
        why=" and ".join(map(str, origins)),
        fix="uninstall or rename all but one",
    )


DEFAULT: Final = PassRegistry()

register = DEFAULT.register
get = DEFAULT.get
names = DEFAULT.names
describe = DEFAULT.describe
providers_of = DEFAULT.providers_of
