"""The reference pages say what the code says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpx
from hpx.pipeline.context import PassContext
from hpx.plan import yamlform
from hpx.run import Run
from hpx.testing import graph_of

DOCS = Path(__file__).parents[2] / "docs"
PLAN = DOCS / "examples" / "tiny-moe" / "plan.yaml"


def words_in_code(page: str) -> set[str]:
    """Whatever a page writes in backticks, in the first two columns of its tables."""
    rows = re.findall(r"^\| (.*?) \|", (DOCS / page).read_text(), flags=re.MULTILINE)
    return {word for row in rows for word in re.findall(r"`([^`]*)`", row)}


def test_the_pages_made_from_the_code_are_up_to_date() -> None:
    command = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def saved() -> dict[str, object]:
    run: Run = hpx.run("hpx.bundled:tiny_moe", PLAN, "dp=2,tp=2,ep=4")
    return run.to_json()


def test_every_field_of_a_run_file_is_on_its_page(saved: dict[str, object]) -> None:
    assert saved.keys() - words_in_code("reference/run-file.md") == set()


@pytest.mark.parametrize("part", ["events", "params"])
def test_every_field_of_the_records_of_a_run_file_is_on_its_page(
    saved: dict[str, object], part: str
) -> None:
    records = saved[part]
    assert isinstance(records, list)
    fields = {field for record in records for field in record}
    assert fields
    assert fields - words_in_code("reference/run-file.md") == set()


def test_every_key_of_a_plan_is_on_its_page() -> None:
    text = (DOCS / "reference" / "plan.md").read_text()
    example = re.search(r"^```yaml\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert example is not None
    keys = set(re.findall(r"^(\w+):", example[1], flags=re.MULTILINE))
    assert keys == set(yamlform._KEYS)
    assert all(f"`{key}`" in text for key in yamlform._RESERVED)


def test_every_verb_of_the_context_is_on_the_page_about_passes() -> None:
    told = " ".join(words_in_code("write-a-pass.md"))
    verbs = [name for name, value in vars(PassContext).items() if callable(value)]
    public = {verb for verb in verbs if not verb.startswith("_")} - {"decision"}
    assert [verb for verb in sorted(public) if f"ctx.{verb}(" not in told] == []


def test_every_message_that_the_page_about_sharded_models_lists_stands_in_the_code() -> None:
    page = (DOCS / "run-sharded.md").read_text()
    table = page.partition("| it says |")[2].partition("\n\n")[0]
    rows = re.findall(r"^\| (`.*?`) \|", table, flags=re.MULTILINE)
    messages = [words for row in rows for words in re.findall(r"`(.*?)`", row)]
    files = [path for top in ("hpx", "passes") for path in (DOCS.parent / top).rglob("*.py")]
    # A message is several literals, and may hold values.
    code = " ".join(re.sub(r'"\s*f?"', "", path.read_text()) for path in files)
    assert len(messages) > 20
    assert [words for words in messages if words not in code] == []


def test_explanations_give_the_reasons_that_the_page_about_debugging_lists() -> None:
    model = graph_of({"down.weight": (4, 8), "down.bias": (4,), "norm.weight": (4,), "x": (4,)})
    rules = {"down.weight": {"tp": "S(1)"}, "norm.weight": "replicate"}
    plan = hpx.ShardingPlan(rules, default="replicate")
    run = hpx.run(model, plan, "tp=2")
    answers = [run.explain(name) for name in ("norm.weight", "x", "down.bias")]
    answers.append(hpx.run(model, plan, "tp=1").explain("down.weight"))
    answers.append(hpx.run(model, plan, "tp=2", "tie-weights").explain("down.weight"))
    page = (DOCS / "debug-a-sharding-decision.md").read_text()
    table = page.partition("| it says |")[2].partition("\n\n")[0]
    listed = re.findall(r"^\| `(.*?)` \|", table, flags=re.MULTILINE)
    assert len(listed) == len(answers)
    assert [text for text, said in zip(listed, answers, strict=True) if text not in str(said)] == []
