"""Every code block of README.md and docs/ does what the page says.

- ``bash`` blocks run and have to succeed; ``console`` blocks run each ``$ command`` and compare
  what it prints: ``...`` stands for any text, and alone on a line for any lines.
- ``python`` blocks run in one namespace for each page; those with ``>>>`` are doctests.
- ``yaml`` blocks are plans.
- ``text``, ``json`` and ``toml`` blocks are shown only.

All blocks of a page run in one fresh folder with the checkout's ``docs/examples`` in it; those of
pages below ``docs/`` run inside it. An HTML comment right above a block changes this:

- ``<!-- not run: reason -->``
- ``<!-- write: FILE -->`` puts the block into a file of the folder.
- ``<!-- from: FILE -->`` claims that the block stands in a file of the checkout.
- ``<!-- with: tests/plugin -->``, anywhere on the page, installs that plugin first.
"""

from __future__ import annotations

import difflib
import doctest
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import pytest

import hpx

if TYPE_CHECKING:
    from tests.docs.conftest import Shell

CHECKOUT: Final = Path(__file__).parents[2]
PAGES: Final = [CHECKOUT / "README.md", *sorted((CHECKOUT / "docs").glob("**/*.md"))]
FENCE: Final = re.compile(
    r"(?:^<!-- (?P<mark>[a-z ]+): (?P<value>[^\n]*?) -->\n)?"
    r"^```(?P<language>\S*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
PROGRESS: Final = re.compile(
    r"hpx(-viz)?: (reading|tracing|drawing|comparing|writing|running|ending|step \d+ of) ?.*\n"
)
SHOWN: Final = ("text", "json", "toml")
MOST_NOT_RUN: Final = 5


class Block(NamedTuple):
    """A fenced block: where it stands, its language, and the comment above it."""

    where: str
    line: int
    language: str
    text: str
    mark: str | None
    value: str


def blocks_of(page: Path) -> Iterator[Block]:
    text = page.read_text()
    for found in FENCE.finditer(text):
        line = text.count("\n", 0, found.start("text")) + 1
        where = f"{page.relative_to(CHECKOUT)}:{line}"
        mark, value = found["mark"], found["value"] or ""
        yield Block(where, line, found["language"], found["text"], mark, value)


class Page:
    """Runs the blocks of one page in order."""

    def __init__(self, shell: Shell) -> None:
        self.shell = shell
        self.names: dict[str, object] = {"__name__": "__page__"}

    def run(self, block: Block) -> None:
        if block.mark == "not run":
            assert block.value, f"{block.where}: say why it is not run"
        elif block.mark == "write":
            (self.shell.folder / block.value).write_text(block.text)
        elif block.mark == "from":
            assert block.text in (CHECKOUT / block.value).read_text(), (
                f"{block.where} is not what stands in {block.value}"
            )
        else:
            assert block.mark is None, f"{block.where}: unknown comment {block.mark!r}"
            if block.language not in SHOWN:
                runs: Callable[[Block], None] = getattr(self, f"run_{block.language}", no_language)
                runs(block)

    def run_bash(self, block: Block) -> None:
        code, output = self.shell(f"set -euo pipefail\n{block.text}")
        assert code == 0, f"{block.where}\n{output}"

    def run_console(self, block: Block) -> None:
        for command, expected in commands_of(block):
            _, output = self.shell(command)
            assert_printed(expected, PROGRESS.sub("", output), f"{block.where}: {command}")

    def run_python(self, block: Block) -> None:
        if ">>> " not in block.text:
            code = compile("\n" * (block.line - 1) + block.text, block.where, "exec")
            exec(code, self.names)
            return
        test = doctest.DocTestParser().get_doctest(block.text, {}, "", block.where, block.line - 1)
        test.globs = self.names
        said: list[str] = []
        options = doctest.ELLIPSIS | doctest.IGNORE_EXCEPTION_DETAIL
        runner = doctest.DocTestRunner(optionflags=options, verbose=False)
        runner.run(test, out=said.append, clear_globs=False)
        assert not runner.failures, "".join(said)

    def run_yaml(self, block: Block) -> None:
        hpx.ShardingPlan.from_text(block.text, file=block.where)


def no_language(block: Block) -> None:
    raise AssertionError(f"{block.where}: no such language: {block.language!r}")


def commands_of(block: Block) -> Iterator[tuple[str, str]]:
    """Each command of a console block with the output that stands below it."""
    pieces = re.split(r"^\$ ((?:.*\\\n)*.*)\n", block.text, flags=re.MULTILINE)
    assert not pieces[0], f"{block.where}: it has to begin with a command"
    yield from zip(pieces[1::2], pieces[2::2], strict=True)


def assert_printed(expected: str, output: str, where: str) -> None:
    """Compare output with what a page shows of it; blanks at the end of lines do not count."""
    wanted = [line.rstrip() for line in expected.rstrip().splitlines()]
    got = [line.rstrip() for line in output.rstrip().splitlines()]
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in wanted
    )
    if re.fullmatch(pattern, "".join(f"{line}\n" for line in got)) is None:
        diff = "\n".join(difflib.unified_diff(wanted, got, "page", "output", lineterm=""))
        raise AssertionError(f"{where}\n{diff}")


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the examples, to which importing from it leaves no trace."""
    shutil.copytree(CHECKOUT / "docs" / "examples", tmp_path / "docs" / "examples")
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_block_of_a_page_does_what_the_page_says(
    page: Path,
    site: Path,
    shell: Callable[..., Shell],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    with_plugin = "<!-- with: tests/plugin -->" in page.read_text()
    run = shell(*([request.getfixturevalue("plugin")] if with_plugin else []))
    run.folder = site if page.name == "README.md" else site / "docs" / "examples"
    monkeypatch.chdir(run.folder)
    runner = Page(run)
    for block in blocks_of(page):
        runner.run(block)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_fence_of_a_page_belongs_to_a_block_with_a_known_language(page: Path) -> None:
    fences = re.findall(r"^ *```", page.read_text(), flags=re.MULTILINE)
    languages = [block.language for block in blocks_of(page)]
    assert len(fences) == 2 * len(languages)
    assert {*languages} <= {"bash", "console", "python", "yaml", *SHOWN}


def test_few_blocks_are_not_run() -> None:
    skipped = [b.where for page in PAGES for b in blocks_of(page) if b.mark == "not run"]
    assert len(skipped) <= MOST_NOT_RUN, skipped


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_between_pages_leads_somewhere(page: Path) -> None:
    prose = FENCE.sub("", page.read_text())
    links = re.findall(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)", prose)
    assert [to for to, anchor in links if not reaches(page, to, anchor)] == []


def reaches(page: Path, to: str, anchor: str) -> bool:
    target = (page.parent / to).resolve() if to else page
    if not anchor or not target.is_file():
        return target.exists()
    headings = re.findall(r"^#+ (.*)$", FENCE.sub("", target.read_text()), flags=re.MULTILINE)
    return anchor in {re.sub(r"[^\w\- ]", "", text).lower().replace(" ", "-") for text in headings}
