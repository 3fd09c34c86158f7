"""Write the reference pages that follow from the code: passes.md, cli.md and python.md.

python docs/generate.py            writes them
python docs/generate.py --check    exits with 1 if they are not what the code says
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import io
import itertools
import os
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import hpx.facts
from hpx import errors, testing
from hpx.pipeline import PRESETS, as_passes, registry, schedule
from hpx.pipeline.info import Pass, option_types
from hpx.pipeline.options import expected, written
from hpx.tools import cli, viz

REFERENCE: Final = Path(__file__).parent / "reference"
COMMANDS: Final = ("run", "explain", "diff", "passes", "plan", "check")
MADE: Final = "<!-- Made by docs/generate.py; edit the code, or that file, instead. -->"

PASSES_INTRO: Final = """\
# The built-in passes

They are listed in the order of the preset `@run`; `@default` is the same without
`insert-collectives`, which a model needs only to compute. `hpx passes NAME` prints the same in a
terminal, for passes of other distributions too; [write-a-pass.md](../write-a-pass.md) tells what
the declarations mean.

A pipeline is given with `-p`, as text: `@default` adds the passes of the preset, `!name` removes
one that stands before it, and options stand in braces, as in
`@default, shard-params{uneven=allow}, !localize`. A pass named again, after the preset that
brought it, takes its place. The order of the list matters only where the declarations leave it
open; `--order given` keeps the listed order, and refuses it where it is wrong.
"""
CLI_INTRO: Final = """\
# The commands

Data goes to stdout and everything else to stderr: progress of work that takes over a second, what
was written, and errors, one line each. With `--json` a command prints JSON. Files that exist are
replaced only on success. There is no colour where `NO_COLOR` is set or nobody looks.

MODEL is a checkpoint (`.safetensors`; a state dict in `.pt`, `.pth` or `.bin`; a folder with
`model.safetensors.index.json`, or of a torch distributed checkpoint), a Hugging Face `config.json`,
or `package.module:factory`, which is looked for in the current folder too. `hpx-viz` also takes a
whole pickled module. No weight is read, and no pickle runs code. `--mesh` and
`--plan` are told about in [plan.md](plan.md), `-p` in [passes.md](passes.md), the file that `-o`
writes in [run-file.md](run-file.md).
"""

PYTHON_INTRO: Final = """\
# The Python names

`import hpx` loads nothing: each name is fetched when it is first used, so a program that only reads
a run needs no torch. Names that stand neither here nor in [write-a-pass.md](../write-a-pass.md) may
change without notice. Where a mesh is asked for, its text will do, as `"dp=2,tp=2"`; a pipeline is
text or passes, see [passes.md](passes.md).
"""
TESTING_INTRO: Final = """\
`import hpx.testing`. [write-a-pass.md](../write-a-pass.md) shows them at work.
"""
ERRORS_INTRO: Final = """\
All that hpx raises on purpose is an `HpxError` with the fields `what`, `where`, `why` and `fix`, of
which `str()` makes one line. [cli.md](cli.md) has the exit codes that they end commands with.
"""
PYTHON: Final = (
    (
        "Plans and meshes",
        "What is to be cut, and over how many ranks. See [plan.md](plan.md) for the file.",
        (
            *("ShardingPlan", "ShardingPlan.from_file", "ShardingPlan.from_text", "MeshSpec"),
            *("MeshSpec.parse", "MeshSpec.build", "MeshSpec.from_mesh", "Layout", "Layout.parse"),
        ),
    ),
    (
        "Dry runs",
        "A plan worked out on names and shapes; see the [tutorial](../tutorial.md).",
        ("run", "Run", "plan", "ModuleGraph", "ModuleGraph.from_module", "ModuleGraph.from_file"),
    ),
    (
        "Sharded models",
        "A run carried out on real ranks; see [run-sharded.md](../run-sharded.md).",
        (
            *("apply", "Applied", "restore", "state_dict", "load_state_dict", "in_rank_order"),
            *("fully_shard", "clip_grad_norm_"),
            "to_empty",
        ),
    ),
    (
        "Numbers",
        "A model run unsharded and sharded; see [check-a-model.md](../check-a-model.md).",
        ("check",),
    ),
)
"""Sections of the page: title, introduction, names."""
MADE_BY_HPX: Final = ("hpx.MeshSpec", "hpx.Run", "hpx.ModuleGraph", "hpx.Applied")
"""Classes that nobody makes by calling them."""
INTERNAL: Final = ("forget_order", "take_id", "edge_path", "same_request", "fallback")
"""Methods that are public within hpx only."""


def passes_page() -> str:
    """The reference of passes and facts."""
    names = PRESETS["run"]
    parts = [PASSES_INTRO.rstrip(), MADE, "\n".join(_order())]
    parts += ["\n\n".join(_pass_section(registry.get(name))) for name in names]
    parts += ["\n".join(_facts())]
    return "\n\n".join(parts) + "\n"


def _order() -> Iterator[str]:
    yield "| step | pass | why it runs no earlier |"
    yield "|---|---|---|"
    for step in schedule(as_passes("@run"), None).steps:
        yield f"| {step.index} | [`{step.name}`](#{step.name}) | {'; '.join(step.because)} |"


def _pass_section(cls: type[Pass]) -> Iterator[str]:
    info = cls.info
    yield f"## {info.name}"
    yield (inspect.getdoc(cls) or "").replace("``", "`")
    if types := option_types(cls):
        rows = [_option_row(cls, name, kind) for name, kind in types.items()]
        yield "\n".join(["| option | takes | default | |", "|---|---|---|---|", *rows])
    declared = {
        what: sorted(map(str, getattr(info, what)))
        for what in (
            "requires",
            "provides",
            "invalidates",
            "before",
            "after",
            "conflicts",
            "writes",
        )
    }
    said = [
        f"{what} {', '.join(f'`{v}`' for v in values)}"
        for what, values in declared.items()
        if values
    ]
    yield f"It {'; '.join(said)}."


def _option_row(cls: type[Pass], name: str, kind: object) -> str:
    default = written(getattr(cls, name))
    return f"| `{name}` | {expected(kind)} | `{default}` | {_texts_below(cls).get(name, '')} |"


def _facts() -> Iterator[str]:
    yield "## Facts"
    yield ""
    yield "What holds at entry is looked up in the graph; it is never assumed."
    yield ""
    yield "| fact | what it says |"
    yield "|---|---|"
    for name, text in _texts_below(hpx.facts).items():
        yield f"| `{getattr(hpx.facts, name)}` | {text} |"


def _texts_below(thing: object) -> dict[str, str]:
    """The strings that stand below assignments in the source of a module or class, by name."""
    tree = ast.parse(inspect.getsource(thing))  # type: ignore[arg-type]
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else tree.body
    found: dict[str, str] = {}
    for statement, following in itertools.pairwise(body):
        target = statement.target if isinstance(statement, ast.AnnAssign) else None
        value = following.value if isinstance(following, ast.Expr) else None
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant):
            found[target.id] = " ".join(str(value.value).split())
    return found


def cli_page() -> str:
    """The reference of both commands, from their help."""
    parts = [CLI_INTRO.rstrip(), MADE, "\n".join(_exit_codes())]
    parts.append(_help_section("hpx", cli.main, []))
    parts += [_help_section(f"hpx {command}", cli.main, [command]) for command in COMMANDS]
    parts.append(_help_section("hpx-viz", viz.main, []))
    return "\n\n".join(parts) + "\n"


def _exit_codes() -> Iterator[str]:
    """The codes, each with the errors that end in it."""
    meaning = {
        0: "ok",
        1: "a check or a diff found something; the output is written",
        2: "wrong use, no such file, a plan, mesh or pipeline that cannot be",
        3: "a file that cannot be read, or of a kind that hpx does not take",
        4: "refused as unsafe: reading it could run code",
        5: "the renderer of pictures is missing or failed",
        6: "too large, or over its time",
    }
    by_code: dict[int, list[str]] = {}
    for name in errors.__all__:
        cls = getattr(errors, name)
        if not (inspect.isclass(cls) and issubclass(cls, errors.HpxError)):
            continue
        if cls not in (errors.HpxError, errors.ManyErrors):
            by_code.setdefault(cls.exit_code, []).append(f"`{name}`")
    yield "## Exit codes"
    yield ""
    yield "| code | meaning | errors in Python |"
    yield "|---|---|---|"
    for code, text in meaning.items():
        yield f"| {code} | {text} | {', '.join(by_code.pop(code, []))} |"
    assert not by_code, f"exit codes without a meaning: {by_code}"


def _help_section(title: str, main: Callable[[list[str]], int], arguments: list[str]) -> str:
    os.environ["COLUMNS"] = "80"
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        main([*arguments, "--help"])
    lines = "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines())
    return f"## {title}\n\n```text\n{lines}\n```"


def python_page() -> str:
    """The reference of the Python names, from signatures and docstrings."""
    told = {*errors.__all__, "__version__", *(name for _, _, names in PYTHON for name in names)}
    others = ("More", "", tuple(name for name in hpx.__all__ if name not in told))
    parts = [PYTHON_INTRO.rstrip(), MADE]
    for title, intro, names in (*PYTHON, others) if others[2] else PYTHON:
        parts += [
            f"## {title}",
            *filter(None, [intro]),
            *(_name_section(f"hpx.{n}") for n in names),
        ]
    parts += ["## Testing passes", TESTING_INTRO.rstrip()]
    parts += [_name_section(f"hpx.testing.{name}") for name in testing.__all__]
    parts += ["## Errors", ERRORS_INTRO.rstrip(), "\n".join(_errors())]
    return "\n\n".join(parts) + "\n"


def _name_section(path: str) -> str:
    """One function or class: its signature, its docstring, and the members that it has."""
    found: object = testing if path.startswith("hpx.testing") else hpx
    for name in path.removeprefix("hpx.testing.").removeprefix("hpx.").split("."):
        found = getattr(found, name)
    parts = [f"### {path}"]
    if path not in MADE_BY_HPX:
        parts.append(f"```text\n{_signature(path, found)}\n```")
    parts += _told(found)
    if inspect.isclass(found) and not issubclass(found, tuple):
        parts.append("Its members:\n\n" + "\n".join(_members(found)))
    return "\n\n".join(parts)


def _signature(name: str, function: object) -> str:
    """As one would write it, on several lines if it is long."""
    signature = inspect.signature(function)  # type: ignore[arg-type]
    words: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.name == "self":
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        word = str(parameter.replace(annotation=parameter.empty, default=parameter.empty))
        if parameter.annotation is not parameter.empty:
            kind = parameter.annotation
            word += f": {getattr(kind, '__forward_arg__', kind)}"  # of a named tuple
        if parameter.default is not parameter.empty:
            word += f" = {parameter.default!r}"
        words.append(word)
    gives = signature.return_annotation
    end = "" if inspect.isclass(function) or gives in (None, "None") else f" -> {gives}"
    line = f"{name}({', '.join(words)}){end}"
    if len(line) <= 92:
        return line
    inner = "".join(f"    {word},\n" for word in words)
    return f"{name}(\n{inner}){end}"


def _told(thing: object) -> Iterator[str]:
    """The paragraphs of a docstring as Markdown; examples are left to the docstring."""
    for paragraph in (inspect.getdoc(thing) or "").replace("``", "`").split("\n\n"):
        head, _, rest = paragraph.partition("\n")
        if head in ("Args:", "Attributes:", "Raises:"):
            listed = "\n".join(f"- `{key}`: {text}" for key, text in _entries(rest))
            yield f"Raises:\n\n{listed}" if head == "Raises:" else listed
        elif head == "Returns:":
            yield textwrap.fill(f"Returns: {' '.join(rest.split())}", 100)
        elif ">>>" not in paragraph:
            yield paragraph


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Names and what is said of them, in a section of a docstring."""
    lines = textwrap.dedent(text).splitlines()
    for line, following in itertools.pairwise([*lines, "end:"]):
        if not line.startswith(" "):
            key, _, said = line.partition(": ")
            words = [said]
        else:
            words.append(line.strip())
        if not following.startswith(" "):
            yield key, " ".join(words)


def _members(cls: type) -> Iterator[str]:
    """One line for each public method and property that has no section of its own."""
    listed = {name for _, _, names in PYTHON for name in names}
    for name, value in vars(cls).items():
        said = inspect.getdoc(value)
        known = isinstance(value, property | classmethod) or callable(value) or _is_cached(value)
        if name.startswith("_") or not known or not said or f"{cls.__name__}.{name}" in listed:
            continue
        if name in INTERNAL:
            continue
        call = ""
        if callable(getattr(cls, name)):
            names = [p for p in inspect.signature(getattr(cls, name)).parameters if p != "self"]
            call = f"({', '.join(names)})"
        first = " ".join(said.partition("\n\n")[0].split()).replace("``", "`")
        yield f"- `.{name}{call}`: {first}"


def _is_cached(value: object) -> bool:
    return isinstance(value, functools.cached_property)


def _errors() -> Iterator[str]:
    """Every error of the tree with its base and what it says."""
    yield "| error | is a | when |"
    yield "|---|---|---|"
    for name in errors.__all__:
        cls = getattr(errors, name)
        if inspect.isclass(cls):
            first = " ".join((inspect.getdoc(cls) or "").partition("\n\n")[0].split())
            yield f"| `{name}` | `{cls.__mro__[1].__name__}` | {first} |"


PAGES: Final = {"passes.md": passes_page, "cli.md": cli_page, "python.md": python_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them; see the top of this file."""
    stale = []
    for name, page in PAGES.items():
        path, text = REFERENCE / name, page()
        if "--check" not in arguments:
            path.write_text(text)
        elif not path.exists() or path.read_text() != text:
            stale.append(name)
    for name in stale:
        sys.stderr.write(f"docs/reference/{name} is stale: run python docs/generate.py\n")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
