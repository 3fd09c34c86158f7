"""What stands around the tree in every format: the facts above it, and the legend."""

from __future__ import annotations

from collections.abc import Iterator

from hpx._text import bytes_text, counted, printable
from hpx.render.viewmodel import View
from hpx.render.words import count_text, short_dtype

__all__ = ["drawn_text", "facts", "legend", "token_meaning"]


def facts(view: View) -> list[tuple[str, str]]:
    """Source, mesh, parameters and bytes, as pairs of a word and its text."""
    totals = view.totals
    pairs = [("source", printable(view.source))] if view.source else []
    if view.step:
        pairs.append(("step", view.step))
    if view.mesh is not None:
        pairs.append(("mesh", _mesh_text(view)))
    parameters = f"{totals.parameters:,} unique, {count_text(totals.elements)} elements"
    if totals.original_parameters not in (None, totals.parameters):
        parameters += f" ({totals.original_parameters:,} before the passes)"
    if totals.tied:
        parameters += f"; {totals.tied} with several names, counted once"
    if totals.buffers:
        parameters += f"; {counted(totals.buffers, 'buffer')}"
    pairs.append(("parameters", parameters))
    size = f"{bytes_text(totals.bytes)} in all"
    if totals.local_bytes is not None:
        size += f", {bytes_text(totals.local_bytes)} on rank {view.rank}"
    pairs.append(("bytes", size))
    pairs.append(("dtype", _dtypes_text(view)))
    pairs.extend((word, printable(text)) for word, text in view.extra)
    return pairs


def _dtypes_text(view: View) -> str:
    if len(view.dtypes) == 1:
        return view.dtypes[0][0]
    return ", ".join(f"{short_dtype(dtype)} {count:,}" for dtype, count in view.dtypes) or "none"


def _mesh_text(view: View) -> str:
    mesh = view.mesh
    assert mesh is not None
    text = f"{mesh}, {counted(mesh.world_size, 'rank')}"
    if mesh.expert is not None:
        text += f"; dense mesh {mesh.dense}; expert mesh {mesh.expert}"
    return text


def drawn_text(view: View) -> str:
    """How much of the model is drawn: ``52 nodes for 44,953 parameters``, and what was cut."""
    totals = view.totals
    count = max(totals.parameters, totals.original_parameters or 0)
    text = f"{counted(view.num_nodes, 'node')} for {counted(count, 'parameter')}"
    if view.depth is not None:
        text += f"; cut at depth {view.depth} of {view.full_depth}"
    elif any(box.hidden or box.hidden_rows for box in view.boxes):
        text += f"; cut short at {view.num_nodes} (--max-nodes)"
    return text


def token_meaning(token: str) -> str:
    """What a token says, in words; empty where it says it itself."""
    if token == "-":
        return "no layout"
    if token == "R":
        return "whole on every rank"
    return "folded ones differ" if token == "mixed" else ""


def legend(view: View) -> Iterator[str]:
    """The lines below the tree."""
    fold = {"none": "nothing folded", "structure": "siblings of equal structure folded"}
    yield f"{drawn_text(view)}; {fold.get(view.fold, 'siblings of equal layout folded')}"
    if view.has_layouts:
        yield f"layouts: {', '.join(_token_text(*pair) for pair in view.tokens)}"
    if view.passes:
        yield f"decided by: {', '.join(f'{name} {count:,}' for name, count in view.passes)}"


def _token_text(token: str, count: int) -> str:
    meaning = token_meaning(token)
    return f"{token} {count:,} ({meaning})" if meaning else f"{token} {count:,}"
