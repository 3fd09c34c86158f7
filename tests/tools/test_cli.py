from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import Distribution, EntryPoint
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest

import hpx
from hpx.pipeline import PRESETS, PassRegistry, registry
from hpx.pipeline.registry import installed_entry_points
from hpx.run import Run
from hpx.tools.cli import main

MODEL = "hpx.bundled:tiny_moe"
PLAN = """\
version: 1
params:
  "model.embed_tokens.weight": {tp: S(0)}
  "model.layers.*.self_attn.{q,k,v}_proj.weight": {tp: S(0)}
  "model.layers.*.self_attn.o_proj.weight": {tp: S(1)}
  "model.layers.*.mlp.gate.weight": replicate
  "model.layers.*.mlp.experts.*": {ep: S(0)}
  "model.layers.*.{input,post_attention}_layernorm.weight": replicate
  "model.norm.weight": replicate
  "lm_head.weight": {tp: S(0)}
"""
MESH = "dp=2,tp=2,ep=4"
STACKED = "model.layers.0.mlp.experts.gate_proj"


class Answer(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Hpx = Callable[..., Answer]


@pytest.fixture
def run_hpx(capsys: pytest.CaptureFixture[str]) -> Hpx:
    """Runs the command line in this process."""

    def answer(*arguments: object) -> Answer:
        capsys.readouterr()
        code = main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return Answer(code, printed.out, printed.err)

    return answer


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN)
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the small model, saved by the command itself."""
    folder = tmp_path_factory.mktemp("saved")
    (folder / "plan.yaml").write_text(PLAN)
    arguments = ["run", MODEL, "--mesh", MESH, "--plan", str(folder / "plan.yaml")]
    assert main([*arguments, "-o", str(folder / "run.json")]) == 0
    return folder / "run.json"


def error_line(answer: Answer, code: int) -> str:
    """The one line on stderr of bad input."""
    assert answer.code == code, answer
    assert answer.out == ""
    (line,) = answer.err.splitlines()
    assert line.startswith("hpx: error: ")
    return line


# run


def test_run_prints_model_schedule_layouts_and_log(run_hpx: Hpx, plan: Path) -> None:
    answer = run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan)
    assert answer.code == 0
    assert "65 parameters, 156,992 elements, 613.2 KiB" in answer.out
    assert "   4  shard-params       stack-experts provides experts-stacked" in answer.out
    (row,) = [line for line in answer.out.splitlines() if "experts.gate_proj" in line]
    assert row.split() == [
        *("model.layers.{0-1}.mlp.experts.gate_proj", "2", "[8,", "32,", "64]"),
        *("ep:S(0)", "expert", "[2,", "32,", "64]", "32.0", "KiB", "plan.yaml:7"),
    ]
    assert "log: " in answer.out


def test_run_saves_what_it_prints_as_json(run_hpx: Hpx, plan: Path, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    answer = run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan, "-o", path, "--json")
    assert answer.json == json.loads(path.read_text())
    assert f"hpx: wrote {path}" in answer.err


def test_the_mesh_of_the_plan_is_used_where_none_is_given(run_hpx: Hpx, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(PLAN.replace("version: 1", f"version: 1\nmesh: {MESH}"))
    assert run_hpx("run", MODEL, "--plan", path, "--json").json["mesh"]["text"] == MESH


def test_no_mesh_at_all_is_a_usage_error(run_hpx: Hpx, plan: Path) -> None:
    assert "there is no mesh" in error_line(run_hpx("run", MODEL, "--plan", plan), 2)


def test_problems_come_first(run_hpx: Hpx, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("version: 1\nparams:\n  lm_head.weight: {tp: S(0)}\ndefault: replicate\n")
    answer = run_hpx("run", "hpx.bundled:tiny_llama", "--mesh", "tp=2,ep=2", "--plan", path)
    assert answer.out.startswith("problems (")


def test_uneven_layouts_list_sizes_and_empty_ranks(run_hpx: Hpx, tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text(
        'version: 1\nparams:\n  "**.embed_tokens.weight": {tp: S(1)}\ndefault: replicate\n'
    )
    pipeline = "@default, shard-params{uneven=allow}"
    model = "hpx.bundled:tiny_llama"
    answer = run_hpx("run", model, "--mesh", "tp=63", "--plan", path, "-p", pipeline)
    assert "model.embed_tokens.weight [256, 64], tp on dim 1: 2, 2," in answer.out
    assert "empty at tp=32 and tp=33" in answer.out


def test_verbose_prints_every_event(run_hpx: Hpx, plan: Path) -> None:
    answer = run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan, "-v")
    events = [
        line for line in answer.out.splitlines() if line.startswith("  ") and ": set" not in line
    ]
    assert any("update-heads: num_heads: 8 -> 4: " in line for line in events)


def test_verbose_names_the_nodes_of_every_event(run_hpx: Hpx, plan: Path) -> None:
    answer = run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan, "-v")
    lines = answer.out.splitlines()
    (at,) = [i for i, line in enumerate(lines) if "update-heads: num_heads: 8 -> 4: " in line]
    assert lines[at + 1] == "      model.layers.{0-1}.self_attn"


def test_a_step_that_nothing_has_to_precede_says_so(run_hpx: Hpx, plan: Path) -> None:
    answer = run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan)
    assert "   1  tie-weights        nothing has to run before it" in answer.out


def test_the_given_order_is_only_verified(run_hpx: Hpx, plan: Path) -> None:
    pipeline = "shard-params, stack-experts, tie-weights"
    arguments = ("run", MODEL, "--mesh", MESH, "--plan", plan, "-p", pipeline)
    assert run_hpx(*arguments).code == 0
    assert "the given order is wrong" in error_line(run_hpx(*arguments, "--order", "given"), 2)


# explain


def test_explain_answers_from_a_saved_run(run_hpx: Hpx, saved: Path) -> None:
    answer = run_hpx("explain", saved, STACKED, "--rank", 3)
    assert answer.code == 0
    assert answer.err == ""
    assert "from stack(model.layers.0.mlp.experts.{0-7}.gate_proj.weight)" in answer.out
    assert "experts 6..7 of 8" in answer.out


def test_explain_json_is_one_entry_with_events_and_tried(run_hpx: Hpx, saved: Path) -> None:
    record = run_hpx("explain", saved, STACKED, "--json").json
    (param,) = [p for p in json.loads(saved.read_text())["params"] if p["name"] == STACKED]
    assert {**param, "events": record["events"]}.items() <= record.items()
    assert record["tried"]


def test_explain_why_not(run_hpx: Hpx, saved: Path) -> None:
    answer = run_hpx("explain", saved, "model.norm.weight", "--why-not", "stack-experts")
    assert answer.out.startswith("stack-experts did nothing to model.norm.weight\n")


def test_explain_of_a_misspelt_name(run_hpx: Hpx, saved: Path) -> None:
    line = error_line(run_hpx("explain", saved, "model.nrm.weight"), 2)
    assert "did you mean model.norm.weight?" in line


def test_a_name_of_any_length_is_told_by_its_ends(run_hpx: Hpx, saved: Path) -> None:
    line = error_line(run_hpx("explain", saved, f"begin.{'x.' * 50_000}end"), 2)
    assert "'begin.x.x" in line
    assert "characters" in line
    assert "x.end' in" in line
    assert len(line) < 4100


def test_explain_takes_a_rank_or_a_pass(run_hpx: Hpx, saved: Path) -> None:
    answer = run_hpx("explain", saved, STACKED, "--rank", 0, "--why-not", "localize")
    assert "ask different things" in error_line(answer, 2)


# diff


def test_diff_of_equal_runs_exits_with_0(run_hpx: Hpx, saved: Path) -> None:
    assert run_hpx("diff", saved, saved) == Answer(0, "no difference\n", "")


def test_diff_of_different_runs_exits_with_1(
    run_hpx: Hpx, saved: Path, plan: Path, tmp_path: Path
) -> None:
    plan.write_text(PLAN.replace('"lm_head.weight": {tp: S(0)}', '"lm_head.weight": replicate'))
    other = tmp_path / "other.json"
    run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan, "-o", other)
    answer = run_hpx("diff", saved, other)
    assert answer.code == 1
    assert "  layout: tp:S(0) -> R; rule: " in answer.out
    assert run_hpx("diff", saved, other, "--json").json["differs"]


# passes


def test_passes_lists_all_of_the_default_pipeline(run_hpx: Hpx) -> None:
    found = run_hpx("passes", "--json").json
    assert set(PRESETS["default"]) <= {entry["name"] for entry in found}
    assert run_hpx("passes").out.splitlines()[0].split() == ["pass", "defined", "in", "from"]


class Claimed(NamedTuple):
    name: str
    version: str = "1.0"


@pytest.fixture
def clash(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another distribution claims the name localize as well."""

    class Other(EntryPoint):
        dist = cast("Distribution", Claimed("other-passes"))

    entries = [*installed_entry_points(), Other("localize", "other:Localize", "hpx.passes")]
    monkeypatch.setattr(registry, "DEFAULT", PassRegistry(lambda: entries))
    for name in ("get", "names", "describe"):
        monkeypatch.setattr(registry, name, getattr(registry.DEFAULT, name))


@pytest.mark.usefixtures("clash")
@pytest.mark.parametrize("form", [[], ["--json"]])
def test_a_name_that_is_claimed_twice_does_not_hide_the_others(
    run_hpx: Hpx, form: list[str]
) -> None:
    answer = run_hpx("passes", *form)
    others = set(PRESETS["default"]) - {"localize"}
    assert {name for name in others if name in answer.out} == others
    assert "hpx.passes.localize" not in answer.out
    assert answer.code == 2
    assert answer.err.startswith("hpx: error: the pass name 'localize' is claimed 2 times")
    assert len(answer.err.splitlines()) == 1


def test_a_pass_tells_its_docstring_options_facts_and_writes(run_hpx: Hpx) -> None:
    out = run_hpx("passes", "shard-params").out
    assert "Give every parameter the layout that its plan rule names." in out
    assert "uneven   error or allow  error" in out
    assert "requires:    experts-stacked, tied" in out
    assert "writes:      layout, mesh" in out


def test_a_pipeline_is_shown_in_order_with_reasons(run_hpx: Hpx) -> None:
    answer = run_hpx("passes", "-p", "localize, @default", "--json").json
    assert [step["pass"] for step in answer["schedule"]] == list(PRESETS["default"])
    assert answer["schedule"][1]["because"] == ["tie-weights provides tied"]


def test_facts_that_nobody_provides_are_assumed_of_the_model(run_hpx: Hpx) -> None:
    out = run_hpx("passes", "-p", "update-heads").out
    assert "assumed of the model: sharded" in out


def test_an_unknown_pass_is_an_error_with_the_nearest(run_hpx: Hpx) -> None:
    assert "did you mean shard-params" in error_line(run_hpx("passes", "shard-parms"), 2)


# plan


def test_r6_plan_check_shows_all_parameters_with_their_rules(run_hpx: Hpx, plan: Path) -> None:
    answer = run_hpx("plan", MODEL, "--mesh", MESH, "--check", plan)
    assert answer.code == 0
    assert "plan.yaml:7 'model.layers.*.mlp.experts.*'" in answer.out
    assert answer.out.endswith("the plan fits: 23 parameters, 16 cut, 0 without a rule\n")
    record = run_hpx("plan", MODEL, "--mesh", MESH, "--check", plan, "--json").json
    assert (len(record["parameters"]), record["problems"]) == (23, [])


def test_r6_the_table_is_filtered_and_goes_to_a_file(
    run_hpx: Hpx, plan: Path, tmp_path: Path
) -> None:
    table = tmp_path / "table.txt"
    options = ("--filter", "**.q_proj.weight", "--all", "-o", table)
    answer = run_hpx("plan", MODEL, "--mesh", MESH, "--check", plan, *options)
    assert answer.out == "\nthe plan fits: 23 parameters, 16 cut, 0 without a rule\n"
    names = [line.split()[0] for line in table.read_text().splitlines()]
    assert names == [
        "parameters",
        *(f"model.layers.{i}.self_attn.q_proj.weight" for i in range(2)),
    ]


def test_a_filter_that_matches_nothing_is_an_error(run_hpx: Hpx, plan: Path) -> None:
    answer = run_hpx("plan", MODEL, "--mesh", MESH, "--check", plan, "--filter", "nothing.*")
    assert answer.code == 2
    assert "no parameter matches 'nothing.*'" in answer.err


def test_r2_a_refused_plan_exits_with_1_and_the_table_is_written(run_hpx: Hpx, plan: Path) -> None:
    plan.write_text(PLAN.replace("mlp.gate.weight", "mlp.gaet.weight"))
    answer = run_hpx("plan", MODEL, "--mesh", MESH, "--check", plan)
    assert answer.code == 1
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line}
    assert "ep:S(0)" in rows["model.layers.{0-1}.mlp.experts.gate_proj"]
    assert rows["model.layers.{0-1}.mlp.gate.weight"].rstrip().endswith("-")
    assert "rule 'model.layers.*.mlp.gaet.weight' matches no parameter. Fix: did you mean" in (
        answer.out
    )
    assert "plan.yaml:6" in answer.out


def test_names_that_stacking_replaced_are_pointed_to_with_their_alternatives(
    run_hpx: Hpx, plan: Path
) -> None:
    plan.write_text(PLAN.replace("experts.*", "experts.*.{gate,up,down}_proj.weight"))
    answer = run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan)
    assert "Fix: write 'model.layers.*.mlp.experts.{gate,up,down}_proj', or " in answer.err


def test_a_refused_plan_as_json_has_every_finding(run_hpx: Hpx, plan: Path) -> None:
    plan.write_text(PLAN.replace("mlp.gate.weight", "mlp.gaet.weight"))
    answer = run_hpx("plan", MODEL, "--mesh", MESH, "--check", plan, "--json")
    assert answer.code == 1
    assert (answer.json["ok"], answer.json["refused"]) == (False, True)
    assert len(answer.json["problems"]) == 2


# bad input: one line and the right code


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        ("dp=2,tpp=2", "unknown axis 'tpp'"),
        ("dp=2,tp", "is not axis=size"),
        ("tp=2,ep=3", "ep=3 does not divide"),
        ("", "names no axis"),
    ],
)
def test_a_bad_mesh_is_wrong_use(run_hpx: Hpx, plan: Path, mesh: str, said: str) -> None:
    assert said in error_line(run_hpx("run", MODEL, "--mesh", mesh, "--plan", plan), 2)


@pytest.mark.parametrize(
    "text",
    [
        "version: 1\nparms: {}\n",
        "version: 1\nparams: {a: R, a: R}\n",
        "version: 1\nparams:\n  *.weight: R\n",
        "version: 1\nparams:\n  {a,b}.weight: R\n",
        "",
        "[]",
        "version: 2\n",
    ],
)
def test_a_bad_plan_is_wrong_use_with_file_and_line(run_hpx: Hpx, plan: Path, text: str) -> None:
    plan.write_text(text)
    line = error_line(run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan), 2)
    assert str(plan) in line


@pytest.mark.parametrize(
    ("pipeline", "said"),
    [
        ("shard-parms", "there is no pass 'shard-parms'"),
        ("@defualt", "there is no preset @defualt"),
        ("shard-params{uneven=alow}", "did you mean allow?"),
        ("shard-params{unevne=allow}", "did you mean uneven?"),
        ("shard-params{", "column"),
        ("shard-params", "requires"),
    ],
)
def test_a_bad_pipeline_is_wrong_use(run_hpx: Hpx, plan: Path, pipeline: str, said: str) -> None:
    answer = run_hpx("run", MODEL, "--mesh", MESH, "--plan", plan, "-p", pipeline)
    assert answer.code == 2
    assert answer.out == ""
    assert said in answer.err
    assert "Traceback" not in answer.err


def test_a_missing_file_is_wrong_use(run_hpx: Hpx, plan: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "nothing"
    assert "no plan file" in error_line(run_hpx("run", MODEL, "--plan", nothing), 2)
    answer = run_hpx("run", f"{nothing}.safetensors", "--mesh", MESH, "--plan", plan)
    assert "nothing.safetensors" in error_line(answer, 2)
    assert "no such file" in error_line(run_hpx("explain", nothing, "a"), 2)
    assert "no such file" in error_line(run_hpx("diff", nothing, nothing), 2)


def test_what_is_no_run_is_unreadable(run_hpx: Hpx, plan: Path) -> None:
    assert "is not a saved run" in error_line(run_hpx("explain", plan, "a"), 3)
    assert "is not a saved run" in error_line(run_hpx("diff", plan, plan), 3)


def test_what_is_no_checkpoint_is_unreadable(run_hpx: Hpx, plan: Path, tmp_path: Path) -> None:
    for name in ("x.safetensors", "x.pt", "config.json"):
        (tmp_path / name).write_text("nonsense")
        error_line(run_hpx("run", tmp_path / name, "--mesh", MESH, "--plan", plan), 3)


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    run_hpx: Hpx, plan: Path, tmp_path: Path
) -> None:
    for place in (tmp_path / "no" / "run.json", tmp_path, tmp_path / ("x" * 300)):
        answer = run_hpx("run", "no.such:model", "--mesh", MESH, "--plan", plan, "-o", place)
        assert f"cannot write {place}" in error_line(answer, 2)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frob"], "no such command 'frob' (see hpx --help)"),
        (["exlpain"], "no such command 'exlpain', did you mean explain? (see hpx --help)"),
        (["explain"], "missing argument RUN (see hpx explain --help)"),
        (["explain", "a"], "missing argument NAME (see hpx explain --help)"),
        (["run", "x"], "missing option --plan (see hpx run --help)"),
        (
            ["run", "x", "--plam", "y"],
            "no such option --plam, did you mean --plan? (see hpx run --help)",
        ),
        (["diff", "a", "b", "c"], "got unexpected extra argument c (see hpx diff --help)"),
        (
            ["run", "x", "--plan", "y", "--order", "z"],
            "invalid value for --order: 'z' is not one of 'auto', 'given' (see hpx run --help)",
        ),
    ],
)
def test_wrong_use_is_one_line_that_says_where_to_read_more(
    run_hpx: Hpx, arguments: list[str], said: str
) -> None:
    assert run_hpx(*arguments) == Answer(2, "", f"hpx: error: {said}\n")


def test_no_command_at_all_shows_the_help(run_hpx: Hpx) -> None:
    answer = run_hpx()
    assert (answer.code, answer.out) == (2, "")
    assert answer.err.startswith("Usage: hpx [OPTIONS] COMMAND")


def test_the_version(run_hpx: Hpx) -> None:
    assert run_hpx("--version") == Answer(0, f"hpx {hpx.__version__}\n", "")


@pytest.mark.parametrize("command", ["run", "explain", "diff", "passes", "plan"])
def test_every_command_has_help_and_json(run_hpx: Hpx, command: str) -> None:
    answer = run_hpx(command, "--help")
    assert answer.code == 0
    assert "--json" in answer.out


# processes


def hpx_process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    program = "import sys; from hpx.tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", program, *map(str, arguments)]
    return subprocess.run(command, text=True, capture_output=True, check=False, **options)


LIGHT = """
import sys
from hpx.tools.cli import main
code = main({arguments})
heavy = {heavy} & set(sys.modules)
sys.exit(f"imported {{heavy}}" if heavy else code)
"""
HEAVY = {"torch", "networkx", "yaml", "rich", "transformers"}  # typer itself takes pydantic


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [
        (["--help"], {*HEAVY, "hpx.errors", "json"}),
        (["passes"], {*HEAVY, "hpx.passes.shard_params"}),
        (["explain", "RUN", STACKED, "--rank", "1"], HEAVY),
        (["explain", "RUN", "model.nrm"], HEAVY),
        (["diff", "RUN", "RUN"], HEAVY),
        (["passes", "shard-params"], {"torch", "transformers"}),
        (["run", MODEL, "--plan", "no.yaml"], HEAVY),
        (["run", MODEL, "--mesh", "tpp=2", "--plan", "no.yaml"], HEAVY),
    ],
)
def test_a_command_imports_nothing_heavy_that_it_does_not_need(
    saved: Path, arguments: list[str], heavy: set[str]
) -> None:
    given = [str(saved) if argument == "RUN" else argument for argument in arguments]
    program = LIGHT.format(arguments=given, heavy=heavy)
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False
    )
    assert "imported" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_reader_that_leaves_ends_the_command_quietly(saved: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    program = "import sys; from hpx.tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-P", "-c", program, "explain", str(saved), STACKED]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_an_interrupt_exits_with_130(
    run_hpx: Hpx, saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Run, "load", interrupted)
    answer = run_hpx("explain", saved, STACKED)
    assert answer.code == 130
    assert "Traceback" not in answer.err


def test_data_goes_to_stdout_alone(saved: Path) -> None:
    done = hpx_process("explain", saved, STACKED, "--json")
    assert json.loads(done.stdout)["name"] == STACKED
    assert done.stderr == ""
