"""Read and write small text files with errors that a person can act on."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from hpx.errors import InputError, UsageError, nearest

__all__ = ["check_writable", "near_files", "read_text", "write_bytes", "write_text"]

_SIMILAR: Final = 0.6


def near_files(path: Path) -> str | None:
    """The files and folders beside it whose names, suffixes aside, look like its own."""
    try:
        found = sorted(path.parent.iterdir(), key=lambda one: (one.suffix != path.suffix, one.name))
    except (OSError, ValueError):  # ValueError: a null byte in the name
        return None
    found = [one for one in found if one.name != path.name]  # a link that leads nowhere
    stems = nearest(path.stem, dict.fromkeys(one.stem for one in found), similarity=_SIMILAR)
    names = [one.name for stem in stems for one in found if one.stem == stem]
    return f"did you mean {', '.join(names[:3])}?" if names else None


def check_writable(path: Path, inputs: Iterable[str | None] = ()) -> None:
    """Refuse a place that cannot be written before the work is done, not after it.

    Args:
        path: The place.
        inputs: What is read for it, which is not to be lost; None stands for nothing.

    Raises:
        UsageError: It is a folder or one of the inputs, or there is no folder for it, or none that
            may be written.
    """
    try:
        if path.is_dir():
            why = "it is a folder"
        elif path.is_file() and any(_is_file(given, path) for given in inputs):
            raise UsageError(
                f"cannot write {path}", why="it is what is read", fix="give -o another name"
            )
        elif path.exists():
            return  # whether it may be replaced is for its folder to say; a device is written
        elif not path.parent.is_dir():
            why = f"there is no folder {path.parent}"
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            why = f"folder {path.parent} may not be written"
        else:
            return
    except OSError as error:
        why = error.strerror or str(error)
    raise UsageError(f"cannot write {path}", why=why)


def read_text(path: Path) -> str:
    """The text of a UTF-8 file.

    Raises:
        UsageError: There is no such file, or it may not be read.
        InputError: It is not text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}", fix=near_files(path)) from None
    except UnicodeDecodeError:
        raise InputError(f"{path} is not a text file") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror) from None


def write_text(path: Path, text: str) -> Path:
    """Write a UTF-8 file whole or not at all; what is no character stands there escaped."""
    return write_bytes(path, text.encode(errors="backslashreplace"))


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file whole or not at all: an existing one is replaced only on success.

    Raises:
        UsageError: The place cannot be written.
    """
    try:
        if path.exists() and not path.is_file():  # a device or a pipe cannot be replaced
            path.write_bytes(data)
            return path
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".hpx-")
        temporary = Path(name)
        try:
            with os.fdopen(handle, "wb") as stream:
                stream.write(data)
            mode = path.stat().st_mode if path.exists() else 0o666 & ~_umask()
            temporary.chmod(mode & 0o777)
            temporary.replace(path)
        except BaseException:
            temporary.unlink()
            raise
    except OSError as error:
        raise UsageError(f"cannot write {path}", why=error.strerror) from None
    return path


def _is_file(given: str | None, path: Path) -> bool:
    try:
        return given is not None and path.samefile(given)
    except (OSError, ValueError):  # it is no file: package.module:factory
        return False


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
