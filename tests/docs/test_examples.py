from __future__ import annotations

from pathlib import Path

import pytest

import hpx

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PLANS = sorted(EXAMPLES.glob("*/plan.yaml"))
SIZES = {
    "deepseek-v3": (909, 671_026_404_352),
    "gpt2": (148, 124_439_808),
    "llama-70b": (723, 70_553_706_496),
    "mixtral-8x7b": (291, 46_702_792_704),
    "qwen3-moe-235b": (1037, 235_093_634_560),
}


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_an_example_plan_gives_every_sharded_parameter_a_reason(path: Path) -> None:
    plan = hpx.ShardingPlan.from_file(path)
    assert [rule.where for rule in plan.params if rule.layout.shards and not rule.reason] == []


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_an_example_plan_names_a_mesh_that_has_the_axes_of_its_rules(path: Path) -> None:
    plan = hpx.ShardingPlan.from_file(path)
    mesh = hpx.MeshSpec.parse(plan.mesh or "")
    axes = {axis for rule in plan.params for axis, _ in rule.layout.entries}
    assert axes == set(mesh.weight_axes)


@pytest.mark.parametrize(("name", "size"), SIZES.items())
def test_an_example_config_gives_the_model_of_that_size(name: str, size: tuple[int, int]) -> None:
    pytest.importorskip("transformers")
    graph = hpx.ModuleGraph.from_file(EXAMPLES / name / "config.json")
    elements = [node.spec.num_elements for node in graph.parameters()]
    assert (len(elements), sum(elements)) == size


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.parent.name)
def test_an_example_plan_fits_its_model_on_the_mesh_it_names(path: Path) -> None:
    config = path.with_name("config.json")
    if config.exists():
        pytest.importorskip("transformers")
        model = str(config)
    else:
        model = f"hpx.bundled:{path.parent.name.replace('-', '_')}"
    plan = hpx.ShardingPlan.from_file(path)
    run = hpx.run(model, plan, plan.mesh or "")
    assert [problem for problem in run.problems if problem.level == "error"] == []
    assert all(param.rule is not None for param in run.params)
