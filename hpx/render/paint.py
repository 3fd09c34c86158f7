"""What colours tell in a picture: the layout, or the part of it on one axis, a pass, dtype or size.

A colour only ever repeats what is printed. What lives on the expert mesh has a dashed border, so
that ``ep:S(0)`` and ``tp:S(0)``, of one colour, are told apart in grey too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from hpx._text import bytes_text
from hpx.render.header import token_meaning
from hpx.render.options import ColorBy
from hpx.render.palette import SCALE, Shade, kind_shade, shade
from hpx.render.viewmodel import Box, Row, View
from hpx.render.words import short_dtype

__all__ = ["Paint", "Patch", "axis_token", "on_expert_mesh"]

_ELSEWHERE: Final = "(other mesh)"
_SPECIAL: Final = ("R", "-", "mixed", _ELSEWHERE)


@dataclass(frozen=True, slots=True)
class Patch:
    """A coloured patch.

    Attributes:
        text: What is printed on it.
        shade: Its colour.
        expert: Whether it stands for something on the expert mesh.
        unset: Whether it stands for something without a layout.
    """

    text: str
    shade: Shade
    expert: bool = False
    unset: bool = False


def on_expert_mesh(token: str) -> bool:
    """Whether a layout puts a tensor on the expert mesh, which a cut on ``ep`` does.

    >>> on_expert_mesh("ep:S(0)"), on_expert_mesh("tp:S(0)")
    (True, False)
    """
    return any(part.startswith("ep:S(") for part in token.split(","))


def axis_token(token: str, axis: str) -> str:
    """What a layout says of one axis; ``(other mesh)`` where the tensor does not live on it.

    >>> axis_token("tp:S(0),dp:S(1)", "dp"), axis_token("tp:S(0)", "dp"), axis_token("R", "dp")
    ('S(1)', 'R', 'R')
    >>> axis_token("ep:S(0)", "tp"), axis_token("tp:S(0)", "ep")
    ('(other mesh)', '(other mesh)')
    """
    if token in _SPECIAL or not token:
        return token
    placements = dict(part.partition(":")[::2] for part in token.split(","))
    if axis in placements:
        return placements[axis]
    of_experts = axis == "ep" or axis.startswith("edp")
    return "R" if axis == "pp" or of_experts == on_expert_mesh(token) else _ELSEWHERE


class Paint:
    """Colours rows, bars and the legend of one view.

    Args:
        view: The view.
        color_by: What colours tell.
        axis: The mesh axis that layouts are told of; None for all of them.
    """

    def __init__(self, view: View, color_by: ColorBy = "layout", axis: str | None = None) -> None:
        self.color_by = color_by
        self.axis = axis
        self._view = view
        names = view.passes if color_by == "pass" else view.dtypes
        self._kinds = {name: kind_shade(place) for place, (name, _) in enumerate(names)}
        self._largest = max((row.bytes for row in view.rows()), default=0)

    def token(self, token: str) -> str:
        """What is printed of a layout."""
        return token if self.axis is None else axis_token(token, self.axis)

    def row(self, row: Row) -> Patch:
        """The patch of a parameter's row, which prints its layout whatever colours tell."""
        text = self.token(row.token)
        expert = row.mesh == "expert" or on_expert_mesh(row.token)
        return Patch(text, self._row_shade(row, text), expert, row.token == "-")

    def _row_shade(self, row: Row, text: str) -> Shade:
        if self.color_by == "layout":
            return shade(text)
        if self.color_by == "pass":
            return self._kind(row.passes[0] if len(row.passes) == 1 else "")
        if self.color_by == "dtype":
            return self._kind(row.dtype)
        return SCALE[self._step(row.bytes)]

    def _kind(self, name: str) -> Shade:
        return self._kinds.get(name, shade("R"))

    def _step(self, size: int) -> int:
        """Which step of the scale: each is a quarter of the one above."""
        step, bound = len(SCALE) - 1, self._largest
        while step > 0 and size * 4 <= bound:
            step, bound = step - 1, bound // 4
        return step

    def bar(self, box: Box) -> list[tuple[Patch, int]]:
        """The bytes of a box by what colours tell, most first; empty where that is not known."""
        if self.color_by == "layout":
            by_token: Counter[str] = Counter()
            expert: dict[str, bool] = {}
            for token, size in box.tokens:
                text = self.token(token)
                by_token[text] += size
                expert[text] = on_expert_mesh(token)
            return [
                (Patch(text, shade(text), expert[text], text == "-"), size)
                for text, size in by_token.most_common()
                if size
            ]
        if self.color_by == "bytes":
            return []
        return self._bar_of_rows(box)

    def _bar_of_rows(self, box: Box) -> list[tuple[Patch, int]]:
        """From the rows below; they are all there only if none of them is cut off."""
        found: Counter[str] = Counter()
        todo = [box]
        while todo:
            one = todo.pop()
            if one.hidden or one.hidden_rows or one.same:
                return []
            todo.extend(self._view.boxes[index] for index in one.below)
            for row in one.rows:
                if row.kind == "parameter":
                    name = row.dtype if self.color_by == "dtype" else (*row.passes, "")[0]
                    found[name] += row.bytes
        return [
            (Patch(self._name(name), self._kind(name)), size)
            for name, size in found.most_common()
            if size
        ]

    def _name(self, name: str) -> str:
        if self.color_by == "dtype":
            return short_dtype(name)
        return name or "no pass"

    def legend(self) -> tuple[str, list[tuple[Patch, str]]]:
        """What colours tell, and every patch there is with what it stands for."""
        if self.color_by == "layout":
            title = f"layout on {self.axis}" if self.axis else "layout"
            return title, list(self._layouts())
        if self.color_by == "bytes":
            return "bytes of a row", list(self._sizes())
        names = self._view.passes if self.color_by == "pass" else self._view.dtypes
        return self.color_by, [
            (Patch(self._name(name), self._kind(name)), f"{count:,}") for name, count in names
        ]

    def _layouts(self) -> Iterator[tuple[Patch, str]]:
        counts: Counter[str] = Counter()
        expert: dict[str, bool] = {}
        for token, count in self._view.tokens:
            text = self.token(token)
            counts[text] += count
            expert[text] = expert.get(text, True) and on_expert_mesh(token)
        for text, count in counts.most_common():
            meaning = token_meaning(text)
            number = f"{count:,} ({meaning})" if meaning else f"{count:,}"
            yield Patch(text, shade(text), expert[text], text == "-"), number

    def _sizes(self) -> Iterator[tuple[Patch, str]]:
        bound = self._largest
        for color in reversed(SCALE):
            if bound > 0:
                yield Patch(f"to {bytes_text(bound)}", color), ""
            bound //= 4

    @property
    def has_experts(self) -> bool:
        """Whether anything lives on the expert mesh."""
        return any(on_expert_mesh(token) for token, _ in self._view.tokens)
