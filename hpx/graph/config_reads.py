"""Head counts that a module's code reads from its config at call time.

Most modules copy such counts into integers of their own when they are made. Some (Phi-3's
attention) compute ``self.config.num_attention_heads * self.head_dim`` in each forward, so a rank
needs another number there. Which do is read off the bytecode of their class, which runs nothing.
"""

from __future__ import annotations

import dis
import inspect
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Final

from hpx.heads import CONFIG, KV_COUNTS, Q_COUNTS

__all__ = ["config_counts", "config_reads"]

_COUNTS: Final = frozenset([*Q_COUNTS, *KV_COUNTS])


def config_counts(cls: type, fields: Mapping[str, object]) -> list[tuple[str, int]]:
    """``config.num_attention_heads`` and its value, for each count that the class reads there.

    Args:
        cls: Class of a module.
        fields: The module's own fields.
    """
    config = fields.get("config")
    if config is None or not (names := config_reads(cls)):
        return []
    found = ((name, getattr(config, name, None)) for name in names)
    return [(f"{CONFIG}{name}", value) for name, value in found if type(value) is int]


@lru_cache(maxsize=4096)
def config_reads(cls: type) -> tuple[str, ...]:
    """The head counts that methods of a class read as ``self.config.<name>``.

    Those that make a module or set its first values do not count: they have run by then.
    """
    found: dict[str, None] = {}
    for base in cls.__mro__:
        if base.__module__.startswith("torch."):
            break
        for name, member in vars(base).items():
            function = inspect.unwrap(member) if isinstance(member, FunctionType) else None
            overridden = inspect.getattr_static(cls, name, None) is not member
            if isinstance(function, FunctionType) and "init" not in name and not overridden:
                found.update(dict.fromkeys(_reads(function.__code__)))
    return tuple(found)


def _reads(code: CodeType) -> Iterator[str]:
    if "config" in code.co_names and not _COUNTS.isdisjoint(code.co_names):
        before = None
        for step in dis.get_instructions(code):
            if before == "config" and step.argval in _COUNTS:
                yield str(step.argval)
            before = step.argval if step.opname == "LOAD_ATTR" else None
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _reads(inner)
