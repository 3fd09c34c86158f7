"""Whether the files that a checkpoint names lie in its folder."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from hpx._text import printable
from hpx.errors import UnsafeInputError

__all__ = ["check_links", "check_names"]


def check_names(files: Iterable[str], shown: str) -> None:
    """Refuse names that lead out of the folder they are in.

    Args:
        files: The names, as the checkpoint gives them.
        shown: How errors name the checkpoint.

    Raises:
        UnsafeInputError: One does.
    """
    for file in files:
        parts = file.replace("\\", "/").split("/")
        if not parts[0] or ".." in parts or "\0" in file or parts[0][1:2] == ":":
            raise UnsafeInputError(
                f"refused {shown}",
                why=f"it names {printable(file)!r}, which is not in its folder",
                fix="a checkpoint may name files beside it only",
            )


def check_links(folder: Path, files: Iterable[str], shown: str) -> None:
    """Refuse files that are links out of a folder, before they are read.

    Those of one repository in the cache of Hugging Face are taken: there
    ``models--a--b/snapshots/<revision>/x.safetensors`` is a link to ``models--a--b/blobs/<hash>``.

    Args:
        folder: The folder.
        files: Their names in it.
        shown: How errors name the checkpoint.

    Raises:
        UnsafeInputError: One is.
    """
    # realpath: other than Path.resolve, it takes a link to itself on every Python.
    home = Path(os.path.realpath(folder))
    snapshots = next((above for above in home.parents if above.name == "snapshots"), None)
    inside = [home] if snapshots is None else [home, snapshots.parent / "blobs"]
    for file in files:
        place = Path(os.path.realpath(home / file))
        if not any(place.is_relative_to(one) for one in inside):
            raise UnsafeInputError(
                f"refused {shown}",
                why=f"{printable(file)!r} is a link out of its folder, to {printable(str(place))}",
                fix="put the file there in place of the link, or open it where it is",
            )
