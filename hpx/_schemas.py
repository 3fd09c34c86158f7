"""What the JSON files are that hpx itself writes, to tell somebody who gives the wrong one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hpx.errors import InputError

__all__ = ["another_kind", "no_run", "written_by_hpx"]

_KINDS: Final = {
    "hpx.run": ("a saved run", "hpx explain, hpx diff and hpx-viz read it"),
    "hpx.failed": (
        "what is left of a run that failed",
        "hpx passes {path} -o F.svg draws the step that failed",
    ),
    "hpx.check": ("a report of hpx check", "give the model that was checked"),
    "hpx.viz": ("a view that hpx-viz wrote", "give the model or the run that it shows"),
}


def written_by_hpx(path: object, content: Mapping[str, object]) -> tuple[str, str] | None:
    """What a file is, and what can be done with it; None if hpx has not written it.

    >>> written_by_hpx("a.json", {"schema": "hpx.check/1"})
    ('a report of hpx check', 'give the model that was checked')
    """
    kind = _KINDS.get(str(content.get("schema", "")).partition("/")[0])
    return None if kind is None else (kind[0], kind[1].format(path=path))


def no_run(
    path: object, why: str, fix: str = "make one with: hpx run MODEL --mesh M --plan F -o run.json"
) -> InputError:
    """The error about a file that was given for a saved run."""
    return InputError(f"{path} is not a saved run", why=why, fix=fix)


def another_kind(path: object, content: Mapping[str, object], wanted: str) -> InputError:
    """The same about a file that says another schema than the wanted one."""
    schema, written = content.get("schema"), written_by_hpx(path, content)
    if written is None or str(schema).startswith("hpx.run/"):
        return no_run(path, f"its schema is {schema!r}, not {wanted!r}")
    return no_run(path, f"it is {written[0]}", written[1])
