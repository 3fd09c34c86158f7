"""Large tensors that every rank of the tensor parallel group holds whole."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from hpx._text import bytes_text
from hpx.check.memory import local_bytes
from hpx.check.subject import Level, Subject, Told
from hpx.graph.nodes import TensorNode

__all__ = ["LARGE_SHARE", "REMARK_BYTES", "WARNING_BYTES", "large_replicated"]

LARGE_SHARE: Final = 0.10
"""Replicated tensors of one name are large from this share of a rank's parameters."""
REMARK_BYTES: Final = 64 * 2**20
"""Below this nobody minds, whatever the share."""
WARNING_BYTES: Final = 2**30
"""From here on it is a warning."""
_NUMBER: Final = re.compile(r"(?<![^.])[0-9]+(?![^.])")


def large_replicated(subject: Subject) -> Iterator[Told]:
    """Tensors of one name (over all layers) that are whole though tp is active, and large.

    Large is a tenth of the parameters that a rank holds; from 1 GiB it is a warning, from 64 MiB a
    remark.
    """
    if subject.tp == 1:
        return
    graph = subject.graph
    groups: dict[tuple[str, tuple[int, ...]], list[TensorNode]] = {}
    held = 0
    for node in graph.parameters():
        held += local_bytes(node, subject.mesh)
        if node.layout is not None and not node.layout.shards:
            key = (_NUMBER.sub("*", graph.path(node.id)), node.shape)
            groups.setdefault(key, []).append(node)
    for nodes in groups.values():
        size = sum(node.spec.num_bytes for node in nodes)
        if size < REMARK_BYTES or size < LARGE_SHARE * held:
            continue
        level: Level = "warning" if size >= WARNING_BYTES else "info"
        text = (
            f"{bytes_text(size)} replicated on every rank of tp={subject.tp}:"
            f" {100 * size / held:.0f} % of the {bytes_text(held)} of parameters that it holds"
        )
        numbers = (("bytes", size), ("held", held), ("tp", subject.tp))
        hint = "cut it on tp, if its module can be computed in parts"
        yield from (Told(level, node.id, text, hint, numbers) for node in nodes)
