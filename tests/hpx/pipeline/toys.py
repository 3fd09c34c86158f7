"""Passes that declare things and do nothing, and the order that they get."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import pytest

from hpx.errors import PipelineError
from hpx.pipeline import Fact, Pass, PassInfo, Schedule, schedule

__all__ = ["REVERSE", "SORT", "SPLIT", "UNIQUE", "Order", "names", "order_of", "refusal", "toy"]

Order = Literal["auto", "given"]


def fact(name: str) -> Fact:
    return Fact(name, lambda graph, request: [])


def toy(
    name: str,
    *,
    requires: Iterable[str] = (),
    provides: Iterable[str] = (),
    invalidates: Iterable[str] = (),
    before: Iterable[str] = (),
    after: Iterable[str] = (),
    conflicts: Iterable[str] = (),
    writes: Iterable[str] = (),
) -> Pass:
    """A pass that declares things and does nothing; facts are given by name."""
    declared = PassInfo(
        name=name,
        requires=map(fact, requires),
        provides=map(fact, provides),
        invalidates=map(fact, invalidates),
        before=before,
        after=after,
        conflicts=conflicts,
        writes=writes,
    )

    @dataclass(frozen=True, kw_only=True)
    class Toy(Pass):
        info = declared

        def run(self, graph: object, ctx: object) -> None: ...

    return Toy()


def order_of(
    passes: Sequence[Pass],
    entry_facts: Iterable[str] | None = (),
    order: Order = "auto",
) -> Schedule:
    entry = None if entry_facts is None else list(entry_facts)
    return schedule(passes, entry, order, providers_of=lambda name: [])


def names(found: Schedule) -> list[str]:
    return [step.name for step in found.steps]


def refusal(
    passes: Sequence[Pass],
    entry_facts: Iterable[str] | None = (),
    order: Order = "auto",
) -> str:
    with pytest.raises(PipelineError) as error:
        order_of(passes, entry_facts, order)
    return str(error.value)


SPLIT = toy("split", provides=["words"])
SORT = toy("sort", requires=["words"], provides=["sorted"])
UNIQUE = toy("unique", requires=["sorted"])
REVERSE = toy("reverse", invalidates=["sorted"])
