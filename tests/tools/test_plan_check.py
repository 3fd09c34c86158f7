"""``hpx plan --check``: the table of a plan, and a plan that is refused."""

from __future__ import annotations

from pathlib import Path

from tests.tools.commands import MESH, MOE, MOE_PLAN, Command


def test_r6_plan_check_shows_all_parameters_with_their_rules(
    run_hpx: Command, moe_plan: Path
) -> None:
    answer = run_hpx("plan", MOE, "--mesh", MESH, "--check", moe_plan)
    assert answer.code == 0
    assert "plan.yaml:7 'model.layers.*.mlp.experts.*'" in answer.out
    assert answer.out.endswith("the plan fits: 23 parameters, 16 cut, 0 without a rule\n")
    record = run_hpx("plan", MOE, "--mesh", MESH, "--check", moe_plan, "--json").json
    assert (len(record["parameters"]), record["problems"]) == (23, [])


def test_r6_the_table_is_filtered_and_goes_to_a_file(
    run_hpx: Command, moe_plan: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table.txt"
    options = ("--filter", "**.q_proj.weight", "--all", "-o", table)
    answer = run_hpx("plan", MOE, "--mesh", MESH, "--check", moe_plan, *options)
    assert answer.out == "\nthe plan fits: 23 parameters, 16 cut, 0 without a rule\n"
    names = [line.split()[0] for line in table.read_text().splitlines()]
    assert names == [
        "parameters",
        *(f"model.layers.{i}.self_attn.q_proj.weight" for i in range(2)),
    ]


def test_a_filter_that_matches_nothing_is_an_error(run_hpx: Command, moe_plan: Path) -> None:
    answer = run_hpx("plan", MOE, "--mesh", MESH, "--check", moe_plan, "--filter", "nothing.*")
    assert answer.code == 2
    assert "no parameter matches 'nothing.*'" in answer.err


def test_r2_a_refused_plan_exits_with_1_and_the_table_is_written(
    run_hpx: Command, moe_plan: Path
) -> None:
    moe_plan.write_text(MOE_PLAN.replace("mlp.gate.weight", "mlp.gaet.weight"))
    answer = run_hpx("plan", MOE, "--mesh", MESH, "--check", moe_plan)
    assert answer.code == 1
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line}
    assert "ep:S(0)" in rows["model.layers.{0-1}.mlp.experts.gate_proj"]
    assert rows["model.layers.{0-1}.mlp.gate.weight"].rstrip().endswith("-")
    assert "rule 'model.layers.*.mlp.gaet.weight' matches no parameter. Fix: did you mean" in (
        answer.out
    )
    assert "plan.yaml:6" in answer.out


def test_names_that_stacking_replaced_are_pointed_to_with_their_alternatives(
    run_hpx: Command, moe_plan: Path
) -> None:
    moe_plan.write_text(MOE_PLAN.replace("experts.*", "experts.*.{gate,up,down}_proj.weight"))
    answer = run_hpx("run", MOE, "--mesh", MESH, "--plan", moe_plan)
    assert "Fix: write 'model.layers.*.mlp.experts.{gate,up,down}_proj', or " in answer.err


def test_a_refused_plan_as_json_has_every_finding(run_hpx: Command, moe_plan: Path) -> None:
    moe_plan.write_text(MOE_PLAN.replace("mlp.gate.weight", "mlp.gaet.weight"))
    answer = run_hpx("plan", MOE, "--mesh", MESH, "--check", moe_plan, "--json")
    assert answer.code == 1
    assert (answer.json["ok"], answer.json["refused"]) == (False, True)
    assert len(answer.json["problems"]) == 2
