"""What ``hpx passes`` prints: all passes, one of them in full, or the order of a pipeline."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterable
from pathlib import Path

from hpx._text import reasons_text
from hpx.errors import PipelineError, UsageError
from hpx.pipeline import PRESETS, Origin, Schedule, registry
from hpx.pipeline.info import Pass, option_types
from hpx.pipeline.options import expected, written
from hpx.tools._tables import Block, Table

__all__ = [
    "check_is_name",
    "describe_pass",
    "known_passes",
    "list_passes",
    "pass_to_json",
    "passes_to_json",
    "schedule_report",
    "schedule_to_json",
]


def known_passes() -> tuple[list[Origin], list[PipelineError]]:
    """Every pass with where it comes from, and the names that cannot be used; imports none."""
    found: list[Origin] = []
    clashes: list[PipelineError] = []
    for name in registry.names():
        try:
            found.append(registry.describe(name))
        except PipelineError as error:
            clashes.append(error)
    return found, clashes


def passes_to_json(passes: Iterable[Origin]) -> list[dict[str, object]]:
    """``[{name, presets, value, distribution, version}]``."""
    return [
        {
            "name": origin.name,
            "presets": [f"@{preset}" for preset, names in PRESETS.items() if origin.name in names],
            "value": origin.value,
            "distribution": origin.distribution,
            "version": origin.version,
        }
        for origin in passes
    ]


def list_passes(passes: Iterable[Origin]) -> list[Block]:
    """The passes there are, and the presets."""
    rows = tuple(
        (
            str(found["name"]),
            str(found["value"]),
            f"{found['distribution'] or 'this process'} {found['version'] or ''}".strip(),
        )
        for found in passes_to_json(passes)
    )
    presets = [f"@{preset} = {', '.join(names)}" for preset, names in PRESETS.items()]
    more = "hpx passes NAME tells about one of them, hpx passes -p PIPELINE the order they run in"
    return [Table(("pass", "defined in", "from"), rows), "", *presets, more]


def pass_to_json(name: str) -> dict[str, object]:
    """One pass: its docstring, options and declarations. Imports it."""
    cls = registry.get(name)
    origin = registry.describe(name)
    return {
        **cls.info.to_json(),
        "doc": inspect.getdoc(cls) or "",
        "value": origin.value,
        "distribution": origin.distribution,
        "version": origin.version,
        "options": [
            {"name": option, "takes": expected(kind), "default": _default(cls, option)}
            for option, kind in option_types(cls).items()
        ],
    }


def check_is_name(name: str) -> None:
    """Refuse a pipeline and a file, which are asked for otherwise.

    Raises:
        UsageError: It is one of them.
    """
    if name.startswith(("@", "!")) or "," in name or "{" in name:
        raise UsageError(f"{name!r} is a pipeline, not the name of a pass", fix=f"-p '{name}'")
    if Path(name).is_file():
        raise UsageError(
            f"{name} is a file, not the name of a pass", fix="-o F.svg draws the pipeline of a run"
        )


def describe_pass(name: str) -> list[Block]:
    """One pass for people."""
    cls = registry.get(name)
    info = cls.info
    blocks: list[Block] = [f"{name}, {registry.describe(name)}", "", inspect.getdoc(cls) or "", ""]
    options = option_types(cls)
    if options:
        rows = tuple(
            (option, expected(kind), _default(cls, option)) for option, kind in options.items()
        )
        blocks += [Table(("option", "takes", "default"), rows), ""]
    else:
        blocks += ["it takes no options", ""]
    for what in ("requires", "provides", "invalidates", "before", "after", "conflicts", "writes"):
        values = sorted(map(str, getattr(info, what)))
        if values:
            blocks.append(f"{what + ':':<13}{', '.join(values)}")
    blocks.append(f"{'a bisect:':<13}{'keeps it' if info.required else 'may leave it out'}")
    return blocks


def _default(cls: type[Pass], name: str) -> str:
    field = next(field for field in dataclasses.fields(cls) if field.name == name)
    if field.default is not dataclasses.MISSING:
        return written(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return written(field.default_factory())
    return "(must be given)"


def schedule_to_json(plan: Schedule, text: str) -> dict[str, object]:
    """The order of a pipeline, with reasons."""
    return {
        "pipeline": text,
        "schedule": plan.to_json(),
        "assumed": list(plan.assumed),
        "warnings": list(plan.warnings),
    }


def schedule_report(plan: Schedule, text: str) -> list[Block]:
    """The order of a pipeline for people."""
    rows = tuple((str(step.index), step.name, reasons_text(step.because)) for step in plan.steps)
    blocks: list[Block] = [f"pipeline: {text or '(empty)'}"]
    if rows:
        blocks.append(Table(("step", "pass", "because"), rows, frozenset(["step"])))
    if plan.assumed:
        blocks.append(f"assumed of the model: {', '.join(plan.assumed)}")
    blocks += (f"warning: {warning}" for warning in plan.warnings)
    return blocks
