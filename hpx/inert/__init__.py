"""Read model files without running what is in them; torch is not needed.

- `open_inert` is the way in: the graph of a checkpoint, of a whole pickled module, or of a torch
  distributed checkpoint.
- `hpx.inert.machine` interprets a pickle stream: names stay names, calls become descriptions.
- `hpx.inert.archive` reads the directory of a zip file and refuses one that is made to do harm.
- `hpx.inert.names` tells which names of a stream are foreign.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpx.graph.graph import ModuleGraph

__all__ = ["open_inert"]


def open_inert(path: str | Path, strict: bool = False) -> ModuleGraph:
    """The graph of what a file or folder holds; nothing of it is run, and no weight is read.

    Args:
        path: A ``.pt``, ``.pth``, ``.bin`` or ``.safetensors`` file, an index, or a folder of a
            checkpoint.
        strict: Refuse a pickle with foreign names instead of listing them in
            ``graph.hints["foreign"]``.

    Raises:
        UsageError: There is no such file.
        InputError: It cannot be read, or is of a kind that hpx does not take.
        UnsafeInputError: It is made to do harm, or has foreign names and is read strictly.
        TooLargeError: It is over a limit that no checkpoint reaches.
    """
    from hpx.errors import UsageError
    from hpx.graph.sources import open_for_viewing

    if not Path(path).exists():
        raise UsageError(f"there is no file or folder {path}")
    return open_for_viewing(str(path), strict=strict)
