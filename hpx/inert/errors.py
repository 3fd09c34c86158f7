"""What stops the reading of a stream, before it is known which file it is of."""

from __future__ import annotations

__all__ = ["AbsurdError", "DamagedError"]


class DamagedError(Exception):
    """The bytes are no pickle that a pickler writes: cut off or damaged."""


class AbsurdError(Exception):
    """The bytes are made so that reading them would take memory or time without end."""
