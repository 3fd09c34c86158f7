"""Pipelines as text and as Python, one for the other.

``parse_pipeline`` reads ``stack-experts, shard-params{uneven=allow}, localize``,
``format_pipeline`` writes it, and ``as_passes`` takes any mix of text, pass classes and passes:

- ``@default`` is a preset, ``@run`` another: it also inserts the collectives that a forward needs.
  A preset adds its passes that are not listed yet; one named later, with or
  without options, takes the place of the one that the preset brought:
  ``@default, shard-params{uneven=allow}`` has one ``shard-params``.
- ``!name`` removes the pass from what stands before it, and is an error where it removes nothing.
- A pass that is named twice is kept as two instances.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

from hpx.errors import HpxError, PipelineError, did_you_mean, nearest
from hpx.pipeline.info import Pass, check_pass_class, option_types
from hpx.pipeline.options import Refused, choices, convert, expected, written
from hpx.pipeline.reader import Item, Option, read_items
from hpx.pipeline.registry import DEFAULT, PassRegistry

__all__ = ["PRESETS", "Pipeline", "as_passes", "format_pipeline", "parse_pipeline"]

Pipeline: TypeAlias = str | Pass | type[Pass] | Sequence[str | Pass | type[Pass]]

PRESETS: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "default": (
            "tie-weights",
            "stack-experts",
            "pack-fused",
            "shard-params",
            "update-heads",
            "build-source-info",
            "localize",
        ),
        "run": (
            "tie-weights",
            "stack-experts",
            "pack-fused",
            "shard-params",
            "update-heads",
            "build-source-info",
            "localize",
            "insert-collectives",
        ),
    }
)


def parse_pipeline(
    text: str,
    *,
    registry: PassRegistry = DEFAULT,
    presets: Mapping[str, Sequence[str]] = PRESETS,
) -> list[Pass]:
    """The passes that a pipeline text names, in its order.

    Args:
        text: As ``@default, shard-params{uneven=allow}, !localize``; empty for no pass at all.
        registry: Where the names are looked up; only passes that are named are imported.
        presets: What ``@name`` stands for.

    Raises:
        PipelineError: The text does not parse, a name or option is unknown, or a value is not of
            the type of its option. Says the column.
    """
    listing = _Listing(registry, presets)
    listing.add_text(text)
    return listing.passes()


def format_pipeline(passes: Iterable[Pass]) -> str:
    """The text that ``parse_pipeline`` reads back as equal passes; defaults are left out."""
    return ", ".join(pass_.text() for pass_ in passes)


def as_passes(
    pipeline: Pipeline,
    *,
    registry: PassRegistry = DEFAULT,
    presets: Mapping[str, Sequence[str]] = PRESETS,
) -> list[Pass]:
    """The passes of a pipeline given as text, as a pass or its class, or as a list of these.

    A list follows the rules of the text: ``["@default", ShardParams(uneven="allow")]`` has one
    ``shard-params``. Option values of passes from Python are checked as those from text are.

    Raises:
        PipelineError: As ``parse_pipeline``, or an item is none of these.
        ContractError: A class is no sound pass.
    """
    listing = _Listing(registry, presets)
    items = [pipeline] if isinstance(pipeline, str | Pass | type) else pipeline
    for item in items:
        if isinstance(item, str):
            listing.add_text(item)
        elif isinstance(item, Pass):
            listing.add(_checked(item))
        elif isinstance(item, type):
            cls = check_pass_class(item)
            listing.add(_build(cls, (), where=None))
        else:
            raise PipelineError(
                f"a pipeline cannot hold a {type(item).__name__}",
                fix="give passes, pass classes or text",
            )
    return listing.passes()


class _Listing:
    """Passes as they are listed, each with whether a preset brought it."""

    def __init__(self, registry: PassRegistry, presets: Mapping[str, Sequence[str]]) -> None:
        self._registry = registry
        self._presets = presets
        self._entries: list[tuple[Pass, bool]] = []

    def passes(self) -> list[Pass]:
        return [pass_ for pass_, _ in self._entries]

    def add_text(self, text: str) -> None:
        for item in read_items(text):
            if item.kind == "preset":
                self._add_preset(item)
            elif item.kind == "remove":
                self._remove(item)
            else:
                cls = _located(self._registry, item.name, item.where)
                self.add(_build(cls, item.options, item.where))

    def add(self, pass_: Pass) -> None:
        for index, (listed, from_preset) in enumerate(self._entries):
            if from_preset and listed.info.name == pass_.info.name:
                self._entries[index] = (pass_, False)
                return
        self._entries.append((pass_, False))

    def _add_preset(self, item: Item) -> None:
        names = self._presets.get(item.name)
        if names is None:
            close = ", ".join(f"@{name}" for name in nearest(item.name, self._presets))
            raise PipelineError(
                f"there is no preset @{item.name}",
                where=item.where,
                fix=f"did you mean {close}?"
                if close
                else f"there is {', '.join(f'@{name}' for name in self._presets)}",
            )
        listed = self._names()
        for name in names:
            if name not in listed:
                cls = _located(self._registry, name, item.where)
                self._entries.append((_build(cls, (), item.where), True))

    def _remove(self, item: Item) -> None:
        listed = self._names()
        if item.name not in listed:
            before = f"before it stand {', '.join(listed)}" if listed else "nothing is before it"
            raise PipelineError(
                f"!{item.name} removes nothing",
                where=item.where,
                why=before,
                fix=did_you_mean(item.name, listed) or "write it behind what it is to remove",
            )
        self._entries = [entry for entry in self._entries if entry[0].info.name != item.name]

    def _names(self) -> list[str]:
        return list(dict.fromkeys(pass_.info.name for pass_, _ in self._entries))


def _located(registry: PassRegistry, name: str, where: str) -> type[Pass]:
    try:
        return registry.get(name)
    except HpxError as error:
        raise error.located(where)  # noqa: B904  same error, placed


def _build(cls: type[Pass], options: Sequence[Option], where: str | None) -> Pass:
    name = cls.info.name
    types = option_types(cls)
    values = {}
    for option in options:
        if option.key not in types:
            known = f"its options are {', '.join(types)}" if types else "it takes none"
            raise PipelineError(
                f"{name} has no option {option.key}",
                where=option.where,
                why=known,
                fix=did_you_mean(option.key, types) or None,
            )
        values[option.key] = _fitted(name, option, types[option.key])
    for missing in _without_default(cls):
        if missing not in values:
            raise PipelineError(
                f"{name} needs a value for {missing}",
                where=where,
                fix=f"write {name}{{{missing}=...}}",
            )
    try:
        return cls(**values)
    except ValueError as error:  # from a __post_init__ that knows more than the types say
        raise PipelineError(f"{name} refuses its options", where=where, why=str(error)) from error


def _checked(pass_: Pass) -> Pass:
    """The pass with every option as its type keeps it: a list as a tuple, 1 as 1.0."""
    cls = check_pass_class(type(pass_))
    name = cls.info.name
    given = {key: getattr(pass_, key) for key in option_types(cls)}
    kept = {
        key: _fitted(name, Option(key, given[key], "pipeline"), kind)
        for key, kind in option_types(cls).items()
    }
    changed = any(
        type(kept[key]) is not type(given[key]) or kept[key] != given[key] for key in given
    )
    return dataclasses.replace(pass_, **kept) if changed else pass_


def _fitted(name: str, option: Option, kind: object) -> object:
    try:
        return convert(kind, option.value)
    except Refused:
        words = choices(kind)
        guess = did_you_mean(option.value, words) if isinstance(option.value, str) else ""
        raise PipelineError(
            f"{option.key} must be {expected(kind)}{'; ' if guess else ''}{guess}",
            where=f"{option.where}, {name}{{{option.key}={_shown(option.value)}}}",
        ) from None


def _shown(value: object) -> str:
    try:
        return written(value)
    except PipelineError:
        return f"a {type(value).__name__}"


def _without_default(cls: type[Pass]) -> list[str]:
    return [
        option.name
        for option in dataclasses.fields(cls)
        if option.init
        and option.default is dataclasses.MISSING
        and option.default_factory is dataclasses.MISSING
    ]
