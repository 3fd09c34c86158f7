"""Run a typer application: exit codes, and every mistake of its user as one line on stderr."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Protocol, runtime_checkable

import typer

from hpx.tools._streams import prepare_streams, tell

__all__ = ["run_app"]

_INTERRUPTED: Final = 130
_QUOTED_NAME: Final = re.compile(r"'(--?[a-zA-Z][\w-]*)'|(?<=issing argument )'([^']*)'")
_GUESS: Final = re.compile(r"( \(Possible options: |\. Did you mean ).*$")


class _Context(Protocol):
    command_path: str


@runtime_checkable
class _WrongUse(Protocol):
    """What typer raises for arguments that it does not take, its own copy of click or not."""

    exit_code: int
    ctx: _Context | None

    def format_message(self) -> str: ...


def run_app(app: typer.Typer, program: str, arguments: Sequence[str] | None) -> int:
    """Run the application and return its exit code.

    Args:
        app: What to run.
        program: Its name in messages.
        arguments: Those of the command line, where None.
    """
    prepare_streams()
    given = None if arguments is None else list(arguments)
    try:
        code = app(args=given, prog_name=program, standalone_mode=False)
    except SystemExit as stop:
        code = stop.code
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except Exception as error:
        from hpx.errors import HpxError

        if isinstance(error, HpxError):
            tell(f"{program}: error: {error}")
            return error.exit_code
        if isinstance(error, _WrongUse):
            return _told(program, error)
        raise
    return code if isinstance(code, int) else int(bool(code))


def _told(program: str, error: _WrongUse) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":
        tell(error.format_message())
        return error.exit_code
    command = program if error.ctx is None else error.ctx.command_path
    text = _one_line(error.format_message())
    if near := getattr(error, "possibilities", None):  # best first, while the message sorts them
        text = f"{_GUESS.sub('', text)}, did you mean {near[0]}?"
    tell(f"{program}: error: {text} (see {command} --help)")
    return error.exit_code


def _one_line(text: str) -> str:
    """The message as hpx writes its own.

    >>> _one_line("Missing option '--plan'.")
    'missing option --plan'
    >>> _one_line("Got unexpected extra argument(s) (c)")
    'got unexpected extra argument c'
    """
    text = " ".join(text.split()).removesuffix(".")
    text = _QUOTED_NAME.sub(lambda found: found[1] or found[2], text)
    text = text.replace("No such option: ", "no such option ").replace("Value error, ", "")
    text = re.sub(r"argument(?:\(s\))? \((.*)\)$", r"argument \1", text)
    text = re.sub(r"\. Did you mean '([^']*)'\?$", r", did you mean \1?", text)
    return text[:1].lower() + text[1:]
