"""All patterns of a plan as one automaton that walks down a module tree.

A state is carried from a module to its children: ``state[part]`` is the state one name further
down. States are made when they are first needed and kept, so that an edge of the tree costs one
dictionary lookup however many rules there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from hpx.plan.pattern import Alternative, Pattern, Segment

__all__ = ["RuleSet", "State"]


class State(dict[str, "State"]):
    """Where all patterns stand after some parts of a name; the next state by the next part.

    Attributes:
        accepted: Indices of the patterns that match the name so far, in order.
        alternatives: Indices into `RuleSet.alternatives` of what matched, in order.
    """

    __slots__ = ("_through", "accepted", "alternatives", "positions", "step")

    def __init__(
        self,
        positions: frozenset[int],
        accepted: tuple[int, ...],
        alternatives: tuple[int, ...],
        step: Callable[[State, str], State],
    ) -> None:
        super().__init__()
        self.positions: Final = positions
        self.accepted: Final = accepted
        self.alternatives: Final = alternatives
        self.step: Final = step
        self._through: dict[str, State] = {}

    def __missing__(self, part: str) -> State:
        following = self[part] = self.step(self, part)
        return following


class RuleSet:
    """Patterns in order, as an automaton.

    Args:
        patterns: The patterns; their indices are what states accept.

    Attributes:
        alternatives: Every pattern with its ``{...}`` expanded: index of the pattern, expansion.

    >>> rules = RuleSet(["layers.*.{q,k}", "**"])
    >>> state = rules.start()
    >>> for part in ("layers", "0", "q"):
    ...     state = rules.step(state, part)
    >>> rules.accepts(state)
    (0, 1)
    """

    def __init__(self, patterns: Sequence[Pattern | str]) -> None:
        self.patterns: Final = tuple(
            Pattern.parse(pattern) if isinstance(pattern, str) else pattern for pattern in patterns
        )
        self.alternatives: Final[tuple[tuple[int, Alternative], ...]] = tuple(
            (index, alternative)
            for index, pattern in enumerate(self.patterns)
            for alternative in pattern.alternatives()
        )
        # Position p waits for segment _segments[p]; at the end of an expansion it is None.
        self._segments: list[Segment | None] = []
        self._ends: dict[int, int] = {}
        starts: list[int] = []
        for number, (_, alternative) in enumerate(self.alternatives):
            starts.append(len(self._segments))
            self._segments.extend(alternative.segments)
            self._ends[len(self._segments)] = number
            self._segments.append(None)
        self._states: dict[frozenset[int], State] = {}
        self._tables: dict[frozenset[int], _Table] = {}
        self._start = self._state(starts)

    def start(self) -> State:
        """The state before the first part of a name."""
        return self._start

    def step(self, state: State, part: str) -> State:
        """The state one part further; the same as ``state[part]``."""
        return state[part]

    def through(self, state: State, part: str) -> State:
        """The state after a wrapper's part: it may be left out or be written out in full."""
        known = state._through.get(part)
        if known is None:
            written = [at + 1 for at in self._table(state).literal.get(part, ())]
            known = state._through[part] = self._state([*state.positions, *written])
        return known

    def accepts(self, state: State) -> tuple[int, ...]:
        """Indices of the patterns that match the name that led to ``state``, in order."""
        return state.accepted

    def match(self, path: str) -> tuple[int, ...]:
        """Indices of the patterns that match a dotted name, in order."""
        state = self._start
        for part in path.split("."):
            state = state[part]
        return state.accepted

    def _advance(self, state: State, part: str) -> State:
        if not state.positions:
            return state
        table = self._table(state)
        following = [at + 1 for at in table.literal.get(part, ())]
        following += [at + 1 for at, segment in table.wildcards if segment.matches(part)]
        return self._state([*table.any_depth, *following])

    def _table(self, state: State) -> _Table:
        table = self._tables.get(state.positions)
        if table is None:
            table = self._tables[state.positions] = _Table(state.positions, self._segments)
        return table

    def _state(self, positions: Iterable[int]) -> State:
        reached = set(positions)
        for at in tuple(reached):
            # `**` may match nothing, so what follows it is reached with it.
            while (segment := self._segments[at]) is not None and segment.any_depth:
                at += 1
                reached.add(at)
        key = frozenset(reached)
        state = self._states.get(key)
        if state is None:
            ended = tuple(sorted(self._ends[at] for at in key if at in self._ends))
            accepted = tuple(dict.fromkeys(self.alternatives[number][0] for number in ended))
            state = self._states[key] = State(key, accepted, ended, self._advance)
        return state


class _Table:
    """What the patterns of one state wait for, by kind."""

    __slots__ = ("any_depth", "literal", "wildcards")

    def __init__(self, positions: frozenset[int], segments: Sequence[Segment | None]) -> None:
        self.literal: Final[dict[str, list[int]]] = {}
        self.wildcards: Final[list[tuple[int, Segment]]] = []
        self.any_depth: Final[list[int]] = []
        for at in positions:
            segment = segments[at]
            if segment is None:
                continue
            if segment.any_depth:
                self.any_depth.append(at)
            elif segment.literal is not None:
                self.literal.setdefault(segment.literal, []).append(at)
            else:
                self.wildcards.append((at, segment))
