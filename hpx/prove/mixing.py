"""Operations that fit a rank's shapes and give other numbers: they look across what is cut.

The same operation ran whole and with the shapes of one rank. Where a dim differs between the two,
it is cut. A softmax, a mean or a roll along it sees a part; a view that takes it apart in another
order than the cut hands a rank something else than its share; a number that was computed from its
size is another number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Final

from torch import Tensor

from hpx.prove.steps import Shape, Step, bound, shape_of, words

__all__ = ["mixed"]

_ALONG: Final = words(
    "softmax log_softmax mean sum amax amin var var_mean std std_mean linalg_vector_norm norm"
    " cumsum cumprod cummax cummin logcumsumexp logsumexp max min aminmax argmax argmin prod topk"
    " sort argsort kthvalue median mode flip roll any all unique_dim fft_r2c fft_c2c glu"
    " safe_softmax"
)
_LAST: Final = words("topk sort argsort kthvalue glu median mode")
"""Those that take the last dim if none is said."""
_PICKS: Final = words("select slice split split_with_sizes cat")
_VIEWS: Final = words("view reshape unsafe_view")
_BATCHED: Final = words("bmm baddbmm")
_NUMBERS: Final = ("number", "Scalar", "float", "Tensor")


def mixed(whole: Step, local: Step, *, packed: bool) -> str | None:
    """What an operation does across what is cut; None if nothing is known to be wrong.

    Args:
        whole: The operation of the unsharded module.
        local: The same one, with the shapes of one rank.
        packed: Whether fused weights stand in the region, whose parts are taken apart on purpose.
    """
    return next(_problems(whole, local, packed), None)


def _problems(whole: Step, local: Step, packed: bool) -> Iterator[str]:
    name = whole.name
    arguments = bound(whole)
    yield from _other_numbers(arguments, bound(local))
    if not whole.shapes:
        yield from _made(whole, local)
        return
    if name == "lift_fresh":
        yield from _made(whole, local)
    first, cut = whole.shapes[0], _cut(whole.shapes[0], local.shapes[0])
    if name in _ALONG:
        for dim in cut & _dims(arguments, len(first), name):
            yield f"{name} goes along dim {dim}, of which a rank has {_of(whole, local, dim)}"
    elif name == "native_layer_norm":
        normalised = arguments["normalized_shape"][1]
        for dim in cut & set(range(len(first) - len(normalised), len(first))):
            yield f"it normalises over dim {dim}, of which a rank has {_of(whole, local, dim)}"
    elif name == "native_group_norm":
        sizes = [b["C"][1] // b["group"][1] for b in (arguments, bound(local))]
        if sizes[0] != sizes[1]:
            yield f"it normalises groups of {sizes[1]} channels, and the whole module of {sizes[0]}"
    elif name in _BATCHED and whole.shapes[-2][0] > 1:
        a, b = whole.shapes[-2][-1], local.shapes[-2][-1]
        if a != b:
            yield f"two activations are multiplied over {b} of {a} values"
    elif name == "repeat":
        repeats = arguments["repeats"][1]
        for dim in cut:
            times = repeats[len(repeats) - len(first) + dim]
            if times != 1:
                yield f"a rank's part of dim {dim} is repeated {times} times, end to end"
    elif name in _PICKS and not packed:
        yield from _picked(whole, local, arguments)
    elif name in _VIEWS and not packed:
        yield from _taken_apart(whole, local)


def _cut(whole: Shape, local: Shape) -> set[int]:
    if len(whole) != len(local):
        return set()
    return {dim for dim, (a, b) in enumerate(zip(whole, local, strict=True)) if a != b}


def _of(whole: Step, local: Step, dim: int) -> str:
    return f"{local.shapes[0][dim]} of {whole.shapes[0][dim]}"


def _dims(arguments: dict[str, tuple[str, Any]], count: int, name: str) -> set[int]:
    for key in ("dim", "dims"):
        if key in arguments:
            value = arguments[key][1]
            if value is None or value == []:
                break
            listed = value if isinstance(value, list | tuple) else [value]
            return {dim % count for dim in listed} if count else set()
    return {count - 1} if name in _LAST else set(range(count))


def _other_numbers(
    whole: dict[str, tuple[str, Any]], local: dict[str, tuple[str, Any]]
) -> Iterator[str]:
    """Numbers that are computed with; sizes and dims may differ, and do."""
    for name, (kind, a) in whole.items():
        b = local[name][1] if name in local else a
        if any(isinstance(x, bool) or not isinstance(x, int | float) for x in (a, b)):
            continue
        if any(word in kind for word in _NUMBERS) and not math.isclose(a, b, rel_tol=1e-9):
            yield f"it computes with {b:.6g}, where the whole module has {a:.6g}"


def _made(whole: Step, local: Step) -> Iterator[str]:
    """Values that the code makes, as many as there are heads: every rank makes the first ones."""
    if whole.name not in ("arange", "linspace", "logspace", "eye", "lift_fresh", "randperm"):
        return
    for a, b in zip(whole.given, local.given, strict=False):
        if a != b:
            yield f"it makes values for {list(a)}, and every rank makes the same {list(b)}"


def _picked(whole: Step, local: Step, arguments: dict[str, tuple[str, Any]]) -> Iterator[str]:
    """Pieces that are told by where they lie: on a rank other ones lie there."""
    first = whole.args[0]
    tensors = [first] if isinstance(first, Tensor) else list(first)
    others = local.args[0]
    parts = [others] if isinstance(others, Tensor) else list(others)
    if not tensors or len(tensors) != len(parts):
        return
    shape = shape_of(tensors[0])
    dim = int(arguments["dim"][1]) % max(1, len(shape))
    sizes = [_sizes(a, b, dim) for a, b in zip(tensors, parts, strict=True)]
    if all(a == b for a, b in sizes) or (whole.name == "cat" and len(tensors) == 1):
        return
    if whole.name == "slice":
        start, end, step = (arguments[key][1] for key in ("start", "end", "step"))
        if not start and (end is None or end >= sizes[0][0]) and step == 1:
            return
    elif whole.name.startswith("split") and len(whole.given) == 1:
        return
    what = "joins pieces" if whole.name == "cat" else "takes a piece"
    yield f"{whole.name} {what} along dim {dim}, of which a rank has {sizes[0][1]} of {sizes[0][0]}"


def _sizes(whole: Tensor, local: Tensor, dim: int) -> tuple[int, int]:
    a, b = shape_of(whole), shape_of(local)
    return (a[dim], b[dim]) if dim < min(len(a), len(b)) else (0, 0)


def _taken_apart(whole: Step, local: Step) -> Iterator[str]:
    """Views that take a cut dim apart, or put one together, where not the first of them is cut.

    What a rank has of a dim is one piece of it. Taken apart, that is a piece of the first of the
    dims that it becomes. The batch is left out: heads are often put beside it and taken away again.
    """
    before, after = whole.shapes[0], whole.given[0]
    if not local.given or len(local.shapes[0]) != len(before) or len(local.given[0]) != len(after):
        return
    groups = list(_groups(before, after))
    for olds, news in groups:
        if 0 in olds or 0 in news:
            continue
        for dims, shape, other in ((olds, before, local.shapes[0]), (news, after, local.given[0])):
            real = [dim for dim in dims if shape[dim] > 1]
            cut = [dim for dim in dims if shape[dim] != other[dim]]
            if cut and cut != real[:1]:
                kept = " x ".join(str(shape[dim]) for dim in dims)
                yield (
                    f"a view has {kept} values in that order, and a rank has"
                    f" {' x '.join(str(other[dim]) for dim in dims)}: its piece is no such part"
                )


def _groups(before: Shape, after: Shape) -> Iterator[tuple[list[int], list[int]]]:
    """The dims of two shapes that hold the same values, side by side."""
    i = j = 0
    while i < len(before) and j < len(after):
        olds, news = [i], [j]
        a, b = before[i], after[j]
        while a != b:
            if a < b and i + 1 < len(before):
                i += 1
                olds.append(i)
                a *= before[i]
            elif b < a and j + 1 < len(after):
                j += 1
                news.append(j)
                b *= after[j]
            else:
                return
        yield olds, news
        i, j = i + 1, j + 1
