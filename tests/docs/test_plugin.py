"""A third party's distribution, as docs/write-a-pass.md tells to write one, really installed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.docs.conftest import Shell

CHECKOUT = Path(__file__).parents[2]
PLAN = CHECKOUT / "docs" / "examples" / "tiny-moe" / "plan.yaml"
RUN = f"hpx run hpx.bundled:tiny_moe --plan {PLAN}"


def test_an_installed_pass_is_listed_with_its_distribution(
    shell: Callable[..., Shell], plugin: Path
) -> None:
    code, text = shell(plugin)("hpx passes --json")
    listed = {entry["name"]: entry for entry in json.loads(text)}
    assert code == 0
    assert listed["decay-groups"] == {
        "name": "decay-groups",
        "presets": [],
        "value": "hpx_decay.decay_groups:DecayGroups",
        "distribution": "hpx-decay",
        "version": "0.1.0",
    }


def test_an_installed_pass_runs_where_its_declarations_put_it(
    shell: Callable[..., Shell], plugin: Path
) -> None:
    run = shell(plugin)
    code, text = run(f"{RUN} -p 'decay-groups{{embeddings=true}}, @default' -o run.json")
    assert code == 0, text
    saved = json.loads((run.folder / "run.json").read_text())
    steps = [step["pass"] for step in saved["schedule"]]
    assert steps.index("decay-groups") > steps.index("stack-experts")
    assert saved["pipeline"].startswith("decay-groups{embeddings=true}, ")
    assert "decay-decided" in saved["facts"]


def test_what_an_installed_pass_decided_is_explained(
    shell: Callable[..., Shell], plugin: Path
) -> None:
    run = shell(plugin)
    run(f"{RUN} -p '@default, decay-groups' -o run.json")
    code, text = run("hpx explain run.json model.norm.weight")
    assert code == 0
    assert "decay-groups: decay = false" in text
    assert "why: a vector" in text


def test_a_saved_run_is_explained_where_the_pass_is_not_installed(
    shell: Callable[..., Shell], plugin: Path
) -> None:
    shell(plugin)(f"{RUN} -p '@default, decay-groups' -o run.json")
    code, text = shell()("hpx explain run.json model.norm.weight")
    assert code == 0
    assert "decay-groups: decay = false" in text


def test_the_tests_of_the_plugin_pass(shell: Callable[..., Shell], plugin: Path) -> None:
    run = shell(plugin)
    shutil.copytree(CHECKOUT / "tests" / "plugin" / "tests", run.folder / "tests")
    code, text = run("python -m pytest -q -p no:cacheprovider tests")
    assert code == 0, text
    assert "7 passed" in text


def test_a_name_that_two_distributions_claim_is_refused_with_both(
    shell: Callable[..., Shell], plugin: Path, fork: Path
) -> None:
    code, text = shell(plugin, fork)(f"{RUN} -p '@default, decay-groups'")
    assert code == 2
    assert "the pass name 'decay-groups' is claimed 2 times" in text
    assert "hpx_decay.decay_groups:DecayGroups (distribution hpx-decay)" in text
    assert "hpx_fork.decay_groups:DecayGroups (distribution hpx-fork)" in text
    assert "Traceback" not in text


def test_a_doubly_claimed_name_leaves_other_pipelines_alone(
    shell: Callable[..., Shell], plugin: Path, fork: Path
) -> None:
    code, text = shell(plugin, fork)(RUN)
    assert code == 0, text


def test_the_list_of_passes_says_that_a_name_is_claimed_twice(
    shell: Callable[..., Shell], plugin: Path, fork: Path
) -> None:
    code, text = shell(plugin, fork)("hpx passes")
    assert code == 2
    said = [line for line in text.splitlines() if "decay-groups" in line]
    assert len(said) == 1
    assert said[0].startswith("hpx: error: the pass name 'decay-groups' is claimed 2 times")
    assert "hpx.passes.shard_params:ShardParams" in text
