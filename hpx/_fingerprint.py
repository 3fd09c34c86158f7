"""Hashes and comparisons of JSON-able values."""

from __future__ import annotations

import hashlib
import json

__all__ = ["fingerprint", "plain"]


def fingerprint(value: object) -> str:
    """``sha256:...`` of a value, whatever the order of its keys."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def plain(value: object) -> object:
    """The value as JSON holds it, so that tuples and lists compare equal."""
    copy: object = json.loads(json.dumps(value))
    return copy
