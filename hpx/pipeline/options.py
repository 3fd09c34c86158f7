"""The values that pass options take: which types there are, what fits, how they are written.

``expected`` says in words what an option takes, ``convert`` checks a value, ``written`` prints it
as the text form reads it. Options are bool, int, float, str, Literal, tuple[T, ...], and unions of
these with each other or None.
"""

from __future__ import annotations

import json
import re
import types
from typing import Final, Literal, Union, get_args, get_origin

from hpx.errors import PipelineError

__all__ = ["OPTION_TYPES", "Refused", "convert", "expected", "is_option_type", "written"]

OPTION_TYPES: Final = (
    "bool, int, float, str, Literal[...], tuple[T, ...] and unions of them or None"
)

_IN_WORDS: Final[dict[object, str]] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "text",
    type(None): "null",
}
# What is read as a word needs no quotes. The reserved ones are read as something else.
BARE_WORD: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/*+-]*")
RESERVED: Final[dict[str, object]] = {
    "true": True,
    "false": False,
    "null": None,
    "inf": float("inf"),
    "nan": float("nan"),
}


class Refused(Exception):  # noqa: N818  internal: callers make a PipelineError of it, with its place
    """The value does not fit the type of its option."""


def is_option_type(kind: object) -> bool:
    """Whether ``kind`` is a type that the text form can write and read.

    >>> is_option_type(tuple[str, ...]), is_option_type(dict[str, int])
    (True, False)
    """
    if kind in _IN_WORDS:
        return True
    if get_origin(kind) is Literal:
        return all(value is None or type(value) in (bool, int, str) for value in get_args(kind))
    if _is_union(kind):
        return all(is_option_type(member) for member in get_args(kind))
    return _is_tuple(kind) and is_option_type(get_args(kind)[0])


def expected(kind: object) -> str:
    """What an option of this type takes, in words.

    >>> expected(Literal["error", "allow"]), expected(int | None)
    ('error or allow', 'a whole number or null')
    """
    if get_origin(kind) is Literal:
        return _listed([written(value) for value in get_args(kind)])
    if _is_union(kind):
        return _listed([expected(member) for member in get_args(kind)])
    if _is_tuple(kind):
        return f"a list [a, b], each {expected(get_args(kind)[0])}"
    return _IN_WORDS[kind]


def convert(kind: object, value: object) -> object:
    """The value as the option keeps it: a whole number becomes a float where a float is wanted.

    Raises:
        Refused: The value does not fit. Types are strict: ``true`` is no number, ``12`` no text.
    """
    if get_origin(kind) is Literal:
        return _one_of(get_args(kind), value)
    if _is_union(kind):
        return _first_fit(get_args(kind), value)
    if _is_tuple(kind):
        return _each(get_args(kind)[0], value)
    if kind is float and type(value) is int:
        return _as_float(value)
    if type(value) is not kind:
        raise Refused
    return value


def choices(kind: object) -> list[str]:
    """The words that an option of this type can be, for the nearest names of a typo."""
    if get_origin(kind) is Literal:
        return [value for value in get_args(kind) if isinstance(value, str)]
    return [word for member in get_args(kind) for word in choices(member)]


def written(value: object) -> str:
    """The value as the text form writes it.

    >>> written(("a", "b c", "true")), written(None), written(0.5)
    ('[a, "b c", "true"]', 'null', '0.5')

    Raises:
        PipelineError: It is nothing that an option can be.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "null"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        bare = BARE_WORD.fullmatch(value) and value not in RESERVED
        return value if bare else json.dumps(value, ensure_ascii=False)
    if isinstance(value, tuple):
        return f"[{', '.join(written(item) for item in value)}]"
    raise PipelineError(
        f"an option cannot be a {type(value).__name__}", fix=f"options are {OPTION_TYPES}"
    )


def _is_union(kind: object) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _is_tuple(kind: object) -> bool:
    arguments = get_args(kind)
    return get_origin(kind) is tuple and len(arguments) == 2 and arguments[1] is Ellipsis


def _listed(words: list[str]) -> str:
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def _one_of(members: tuple[object, ...], value: object) -> object:
    # By type as well: 1 == True, yet they are two members of a Literal.
    if not any(type(value) is type(member) and value == member for member in members):
        raise Refused
    return value


def _first_fit(members: tuple[object, ...], value: object) -> object:
    # Exact fits first, so that 1 stays 1 in float | int.
    for member in sorted(members, key=lambda member: member is float and type(value) is int):
        try:
            return convert(member, value)
        except Refused:
            continue
    raise Refused


def _each(kind: object, value: object) -> tuple[object, ...]:
    if not isinstance(value, tuple | list):
        raise Refused
    return tuple(convert(kind, item) for item in value)


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise Refused from None
