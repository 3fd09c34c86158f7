"""A forward or backward that raised: which module was running, and on which line of whose code."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, TypeVar

from torch import nn

from hpx.errors import HpxError

__all__ = ["ModuleFailedError", "Side", "attempt"]

Side = Literal["unsharded", "sharded"]
T = TypeVar("T")

_CALL: Final = nn.Module._call_impl.__code__
_OWN: Final = Path(__file__).parents[1]
_NOT_THE_MODEL: Final = (
    str(Path(nn.__file__).parents[1]),
    *(str(_OWN / folder) for folder in ("numeric", "runtime")),
)


class ModuleFailedError(Exception):
    """A model could not compute.

    Attributes:
        side: Which of the two models.
        module: The innermost module that was running; None in backward, or before the first.
        cls: Its class.
        text: The error, on one line.
        line: ``file:line`` of the model's code, if any was running.
    """

    def __init__(
        self, side: Side, module: str | None, cls: str, text: str, line: str | None
    ) -> None:
        super().__init__(side, module, cls, text, line)
        self.side = side
        self.module = module
        self.cls = cls
        self.text = text
        self.line = line

    def __str__(self) -> str:
        where = "backward" if self.module is None else f"{self.module or 'the model'} ({self.cls})"
        at = f" [{self.line}]" if self.line else ""
        return f"the {self.side} model fails in {where}: {self.text}{at}"


def attempt(side: Side, model: nn.Module, step: Callable[[], T]) -> T:
    """The result of a step of a model.

    Raises:
        HpxError: hpx refused something; as it is.
        ModuleFailedError: Anything else that the step raised.
    """
    try:
        return step()
    except HpxError:
        raise
    except Exception as error:
        raise _failed(side, model, error) from error


def _failed(side: Side, model: nn.Module, error: Exception) -> ModuleFailedError:
    running: nn.Module | None = None
    frame = error.__traceback__
    line: str | None = None
    while frame is not None:
        code, values = frame.tb_frame.f_code, frame.tb_frame.f_locals
        if code is _CALL and isinstance(values.get("self"), nn.Module):
            running = values["self"]
        elif running is not None and not code.co_filename.startswith(_NOT_THE_MODEL):
            line = f"{_short(code.co_filename)}:{frame.tb_lineno}"
        frame = frame.tb_next
    text = " ".join("".join(traceback.format_exception_only(error)).split())[:400]
    names = {module: name for name, module in model.named_modules()}
    module = names.get(running) if running is not None else None
    return ModuleFailedError(side, module, type(running).__name__, text, line)


def _short(file: str) -> str:
    """From the current folder, or the last folders: no machine's own path belongs into a report."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else "/".join(path.parts[-3:])
