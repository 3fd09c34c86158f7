"""Read a JSON file that somebody gave as a model."""

from __future__ import annotations

import json
from pathlib import Path

from hpx.errors import InputError

__all__ = ["read_json_object"]


def read_json_object(path: Path, shown: str) -> dict[str, object]:
    """The object in a JSON file.

    Args:
        path: The file.
        shown: How errors name it.

    Raises:
        InputError: It is no JSON, no object, or has one key twice.
    """
    try:
        value = json.loads(path.read_bytes(), object_pairs_hook=_unique)
    except _TwiceError as error:
        raise InputError(f"{shown} has the key '{error}' twice", fix="keep one") from None
    except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
        raise InputError(f"{shown} is no JSON", why=str(error)) from None
    if not isinstance(value, dict):
        raise InputError(f"{shown} is no JSON object", why=f"it is a {type(value).__name__}")
    return value


class _TwiceError(Exception):
    """A key that JSON would silently keep the last value of."""


def _unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _TwiceError(key)
            seen.add(key)
    return found
