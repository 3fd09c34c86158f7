"""The page about checks has the table that the code gives."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from hpx.check.checks import known
from hpx.check.traffic import FORMULAS, Traffic

PAGE = Path(__file__).parents[2] / "docs" / "checks.md"
MARKS = ("<!-- table -->\n", "<!-- end of table -->")


def table() -> str:
    rows = ["| check | asked by | says | what has to hold |", "|---|---|---|---|"]
    rows += [f"| `{c.name}` | {c.where} | {c.levels} | {_plain(c.text)} |" for c in known()]
    return "\n".join(rows) + "\n"


def _plain(text: str) -> str:
    return text.replace("``", "`").replace("|", "/")


def test_the_table_of_checks_is_that_of_the_code() -> None:
    text = PAGE.read_text()
    found = text[text.index(MARKS[0]) + len(MARKS[0]) : text.index(MARKS[1])]
    assert found == table(), f"put this between the marks of {PAGE.name}:\n{table()}"


def test_every_number_about_traffic_is_on_the_page() -> None:
    told = set(re.findall(r"^\| `(\w+)` \| (?:token|step)", PAGE.read_text(), flags=re.MULTILINE))
    assert told == set(FORMULAS)
    assert told <= {field.name for field in fields(Traffic)}
