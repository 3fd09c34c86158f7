"""Which module, attribute and source line a replay failed at."""

from __future__ import annotations

import ast
import inspect
import linecache
import re
import sysconfig
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Final, NamedTuple

import torch
from torch import nn

from hpx.heads import PROTECTED

__all__ = ["Blame", "blame", "frames_of"]

_OWN: Final = str(Path(__file__).parent)
_TORCH: Final = str(Path(torch.__file__).parent)
_STDLIB: Final = sysconfig.get_path("stdlib")
_ATTRIBUTE: Final = re.compile(r"\bself\.(\w+)(?:\.(\w+))?")
_SHAPING: Final = re.compile(r"\b(view|reshape|unflatten|split|chunk|expand|rearrange|narrow)\b")
_NUMBER: Final = re.compile(r"(?<![\w.\-])(\d+)(?![\w.])")

Frames = Sequence[tuple[FrameType, int]]


class Blame(NamedTuple):
    """Where something failed.

    Attributes:
        module: Name of the innermost module there, relative to what was replayed.
        line: ``file:line``.
        code: What stands there.
        counts: (name, value) of integers that it reads, that nobody divided.
        numbers: Numbers that stand in the code.
    """

    module: str
    line: str
    code: str
    counts: tuple[tuple[str, int], ...]
    numbers: tuple[int, ...]


def frames_of(error: BaseException) -> list[tuple[FrameType, int]]:
    """The frames that an error passed, innermost first."""
    found: list[tuple[FrameType, int]] = []
    step = error.__traceback__
    while step is not None:
        found.append((step.tb_frame, step.tb_lineno))
        step = step.tb_next
    return found[::-1]


def blame(root: nn.Module, frames: Frames, divided: Iterable[tuple[str, str]], size: int) -> Blame:
    """Find the place in the model's own code, and what it reads there.

    Args:
        root: What was replayed.
        frames: The frames, innermost first.
        divided: (module, name) of integers that were divided, by names relative to ``root``.
        size: In how many pieces heads are cut.
    """
    names = {id(module): name for name, module in root.named_modules()}
    own = [at for at in frames if _is_of_the_model(at[0].f_code.co_filename)]
    done = set(divided)
    for frame, number in own[:1]:
        code = _statement(frame.f_code.co_filename, number)
        module, reader = _module(own, names)
        texts = [code, *_assignments(frame.f_code, code)]
        counts: dict[str, int] = {}
        if reader is not None:
            for text in texts:
                counts.update(_counts(reader, module, text, done, size))
        if reader is not None and not counts and not _SHAPING.search(code):
            # It shows here, and was made where the module shaped its heads.
            for filename, at, text in _shaping_lines(reader):
                found = dict(_counts(reader, module, text, done, size))
                if found:
                    place = f"{_shown(filename)}:{at}"
                    return Blame(module, place, text, tuple(found.items()), ())
        shaped = code if _SHAPING.search(code) else ""
        numbers = tuple(int(n) for n in _NUMBER.findall(shaped) if int(n) > 1)
        place = f"{_shown(frame.f_code.co_filename)}:{number}"
        return Blame(module, place, code, tuple(counts.items()), numbers)
    return Blame("", "", "", (), ())


def _is_of_the_model(filename: str) -> bool:
    """Whether a file is neither torch's, nor Python's, nor of the proof itself."""
    if filename.startswith((_OWN, _TORCH, "<")):
        return False
    return "site-packages" in filename or not filename.startswith(_STDLIB)


def _module(frames: Frames, names: dict[int, str]) -> tuple[str, nn.Module | None]:
    """The innermost module whose code runs there, and its name."""
    for frame, _ in frames:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and id(owner) in names:
            return names[id(owner)], owner
    return "", None


def _counts(
    module: nn.Module, name: str, text: str, done: set[tuple[str, str]], size: int
) -> Iterator[tuple[str, int]]:
    for first, second in _ATTRIBUTE.findall(text):
        value = module.__dict__.get(first)
        shown = first
        if second and value is not None and type(value) is not int:
            value, shown = getattr(value, second, None), f"{first}.{second}"
        if type(value) is not int or value < 2 or (name, first) in done:
            continue
        if first not in PROTECTED and second not in PROTECTED and value % size == 0:
            yield shown, value


def _statement(filename: str, number: int) -> str:
    """The whole statement that begins or runs at a line, on one line."""
    lines = linecache.getlines(filename)
    for length in range(1, 12):
        text = textwrap.dedent("".join(lines[number - 1 : number - 1 + length]))
        head = text.strip()
        if head.endswith(":"):
            return head
        try:
            ast.parse(head)
        except SyntaxError:
            continue
        return " ".join(head.split())
    return " ".join(linecache.getline(filename, number).split())


def _shaping_lines(module: nn.Module) -> Iterator[tuple[str, int, str]]:
    """(file, line, statement) of everything in a module's own code that gives tensors a shape."""
    for cls in type(module).__mro__:
        if cls is nn.Module:
            break
        try:
            filename, (lines, first) = inspect.getsourcefile(cls), inspect.getsourcelines(cls)
        except (OSError, TypeError):
            continue
        for number, line in enumerate(lines, first):
            if filename is not None and _SHAPING.search(line) and "self." in line:
                yield filename, number, _statement(filename, number)


def _assignments(code: CodeType, statement: str) -> Iterator[str]:
    """Statements of the same function that give a value to a name that a statement reads."""
    lines = linecache.getlines(code.co_filename)
    last = max((number for *_, number in code.co_lines() if number), default=code.co_firstlineno)
    for number in range(code.co_firstlineno, last + 1):
        found = re.match(r"\s*([A-Za-z_]\w*)\s*=\s", lines[number - 1] if lines else "")
        if found and re.search(rf"\b{found[1]}\b", statement):
            yield _statement(code.co_filename, number)


def _shown(filename: str) -> str:
    """A file from the current folder, or from the folder of installed packages."""
    path, here = Path(filename), Path.cwd()
    if path.is_relative_to(here):
        return str(path.relative_to(here))
    for part in ("site-packages", "dist-packages"):
        if part in path.parts:
            return str(Path(*path.parts[path.parts.index(part) + 1 :]))
    return path.name
