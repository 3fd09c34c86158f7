"""`hpx.check` and ``hpx check``: what they take, what they say, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import pytest
import torch
import torch.distributed as dist
from torch import nn

import hpx
from hpx.numeric.pool import Pool
from hpx.tools.cli import main
from tests.distributed import faults
from tests.distributed.configs import config_file

TINY = "hpx.bundled:tiny_llama"


class Lent:
    """The pool of all tests, which a command neither starts nor ends."""

    def __init__(self, pool: Pool) -> None:
        self.pool = pool

    def __enter__(self) -> Pool:
        return self.pool

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...


@pytest.fixture
def command(
    gloo: Pool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """``hpx check`` on the processes of all tests: exit code, stdout, stderr."""
    monkeypatch.setattr("hpx.numeric.checking.new_pool", lambda *_: Lent(gloo))

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        code = main(["check", *map(str, arguments)])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


Command = Callable[..., tuple[int, str, str]]


# -- the command ---------------------------------------------------------------------------------


def test_an_equal_model_is_said_to_be_and_ends_with_0(command: Command) -> None:
    code, out, _ = command(TINY, "--mesh", "tp=2")
    assert code == 0
    first, *lines = out.splitlines()
    assert first == f"equal: {TINY} on tp=2 (2 ranks), 1 step of AdamW in float64"
    assert [line.split()[1] for line in lines[:4]] == ["output", "loss", "gradients", "new"]
    assert "limit 1e-09 of max|a-b| / max|b|; a rank holds 50% of the elements" in lines[4]


def test_several_meshes_are_checked_one_after_the_other(command: Command) -> None:
    code, out, _ = command(TINY, "--mesh", "tp=2", "--mesh", "dp=2,tp=2", "--json")
    found = json.loads(out)
    assert (code, found["schema"], found["ok"]) == (0, "hpx.check/1", True)
    assert [one["mesh"] for one in found["checks"]] == ["tp=2", "dp=2,tp=2"]
    assert [one["world_size"] for one in found["checks"]] == [2, 4]
    assert [figure["tensors"] for figure in found["checks"][1]["figures"]] == [2, 2, 21, 21]


def test_a_limit_that_rounding_breaks_ends_with_1_and_writes_the_report(
    command: Command, tmp_path: Path
) -> None:
    report = tmp_path / "report.json"
    code, out, err = command(TINY, "--mesh", "tp=2", "--tolerance", "0", "-o", report)
    assert code == 1
    assert out.startswith(f"different: {TINY}")
    assert f"wrote {report}" in err
    (one,) = json.loads(report.read_text())["checks"]
    assert (one["verdict"], one["ranks"]) == ("different", [0, 1])
    assert one["first"]["module"].startswith("model.")


def test_a_plan_that_is_given_is_the_one_that_runs(command: Command, tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text('version: 1\nparams: {"lm_head.weight": {tp: S(0)}}\ndefault: replicate\n')
    _, out, _ = command(TINY, "--mesh", "tp=2", "--plan", plan, "--json")
    (one,) = json.loads(out)["checks"]
    assert (one["plan"], one["ok"]) == (str(plan), True)
    assert 0.9 < one["held"] < 0.95


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        ([TINY], 2, "there is no mesh"),
        ([TINY, "--mesh", "pp=2,tp=2"], 2, "a check does not run pp"),
        ([TINY, "--mesh", "tp=32"], 6, "processes of this machine, 16 at most"),
        ([TINY, "--mesh", "tp=2", "--shrink"], 2, "a factory decides its own sizes"),
        ([TINY, "--mesh", "tp=2", "--attn", "eager"], 2, "cannot be chosen"),
        ([TINY, "--mesh", "tp=2", "-p", "@nun"], 2, "nun"),
        (["hpx.bundled:tiny_lama", "--mesh", "tp=2"], 2, "did you mean tiny_llama"),
        (["hpx.bundled:moe_671b", "--mesh", "tp=2", "--no-shrink"], 3, "meta device"),
        ([TINY, "--mesh", "tp=2", "--timeout", "0"], 2, "the time limit is 0 s"),
        ([TINY, "--mesh", "tp=2", "--timeout", "nan"], 2, "the time limit is nan s"),
        ([TINY, "--mesh", "tp=2", "--tolerance", "nan"], 2, "the tolerance is nan"),
        ([TINY, "--mesh", "tp=2", "--steps", "0"], 2, "one step at least"),
        ([TINY, "--mesh", "tp=2", "--plan", "no.yaml"], 2, "no.yaml"),
    ],
)
def test_what_cannot_be_checked_is_one_line(
    arguments: list[str], code: int, said: str, command: Command
) -> None:
    found, out, err = command(*arguments)
    assert (found, out) == (code, "")
    errors = [line for line in err.splitlines() if line.startswith("hpx: error:")]
    assert len(errors) == 1
    assert said in errors[0]
    assert "Traceback" not in err


@pytest.mark.parametrize("mesh", ["tp=64", "tp=0", "pp=2,tp=2"])
def test_a_refused_check_leaves_the_current_folder_as_it_is(
    mesh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text("mine")
    monkeypatch.chdir(tmp_path)
    assert main(["check", "hpx.bundled:tiny_llama", "--mesh", mesh]) != 0
    with pytest.raises(hpx.HpxError):
        hpx.check("hpx.bundled:tiny_llama", mesh=mesh)
    assert [path.name for path in tmp_path.iterdir()] == ["work.py"]


def test_experts_that_are_cut_on_ep_are_refused_by_name(command: Command) -> None:
    code, _, err = command("hpx.bundled:tiny_moe", "--mesh", "tp=2,ep=2")
    assert code == 2
    assert "experts" in err


def test_a_checkpoint_has_no_code_to_run(command: Command, tmp_path: Path) -> None:
    torch.save({"a.weight": torch.zeros(2, 2)}, tmp_path / "a.pt")
    code, _, err = command(tmp_path / "a.pt", "--mesh", "tp=2")
    assert code == 3
    assert "a checkpoint has no code" in err


SLOW = """
import time
import torch.distributed as dist
from hpx.bundled_modules import CausalLM
from hpx import bundled

class Slow(CausalLM):
    def forward(self, ids):
        if dist.is_initialized():  # on a rank, and not while its plan is derived
            time.sleep(1000)
        return super().forward(ids)

def slow():
    model = bundled.tiny_llama()
    model.__class__ = Slow
    return model

def never():
    time.sleep(1000)
"""


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    (folder / "slow_model.py").write_text(SLOW)
    code = "import sys; from hpx.tools.cli import main; sys.exit(main())"
    return subprocess.Popen(
        [sys.executable, "-c", code, "check", *arguments],
        cwd=folder,
        env=os.environ | {"TMPDIR": str(folder)},
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )


def nothing_is_left(folder: Path) -> bool:
    """Whether no process of the check runs and its folder is gone."""
    end = time.monotonic() + 20
    while time.monotonic() < end:
        lines = [_read(path) for path in Path("/proc").glob("[0-9]*/cmdline")]
        if not any(str(folder) in line for line in lines) and not [*folder.glob("gloo-pool-*")]:
            return True
        time.sleep(0.1)
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


@pytest.mark.slow
def test_an_interrupt_ends_a_check_and_all_its_processes(tmp_path: Path) -> None:
    process = started(tmp_path, "slow_model:slow", "--mesh", "tp=2")
    assert process.stderr is not None
    for line in process.stderr:
        if "running tp=2" in line:
            break
    time.sleep(1)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "Traceback" not in err
    assert nothing_is_left(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("factory", ["slow", "never"])
def test_a_check_that_takes_too_long_ends_with_6(factory: str, tmp_path: Path) -> None:
    process = started(tmp_path, f"slow_model:{factory}", "--mesh", "tp=2", "--timeout", "8")
    _, err = process.communicate(timeout=100)
    assert process.returncode == 6, err
    assert "not done after" in err
    assert "Traceback" not in err
    assert nothing_is_left(tmp_path)


# -- from Python ---------------------------------------------------------------------------------


def test_a_function_gives_model_inputs_and_loss(gloo: Pool) -> None:
    report = hpx.check(faults.with_loss, mesh="tp=2", pool=gloo)
    report.raise_if_different()
    assert report.model == "with_loss"
    assert report.to_json()["verdict"] == "equal"


def test_a_model_of_a_class_at_the_top_of_a_module_is_taken_as_it_is(gloo: Pool) -> None:
    torch.manual_seed(3)
    inputs = {"x": torch.randn(2, 5, 16)}
    report = hpx.check(
        faults.Sinks(), mesh="tp=2", inputs=inputs, loss=faults.squares, steps=2, pool=gloo
    )
    assert report.ok, report


def test_what_cannot_travel_says_what_to_do() -> None:
    class Inner(nn.Module):
        pass

    with pytest.raises(hpx.UsageError, match="at the top level of a module"):
        hpx.check(Inner(), mesh="tp=2")
    with pytest.raises(hpx.UsageError, match=r"package\.module:function"):
        hpx.check(lambda: Inner(), mesh="tp=2")
    with pytest.raises(hpx.UsageError, match="the loss cannot reach the other processes"):
        hpx.check(faults.Sinks(), mesh="tp=2", loss=lambda x: x.sum())


def test_a_difference_raises_with_the_whole_report(gloo: Pool) -> None:
    report = hpx.check(TINY, mesh="tp=2", pipeline=["@run", faults.NoReduction()], pool=gloo)
    with pytest.raises(hpx.DifferenceError) as caught:
        report.raise_if_different()
    assert str(caught.value) == str(report)
    assert "first, forward: model.layers.1.self_attn.o_proj (Linear): its output" in str(report)
    assert "no-reduction" in str(report)


def test_an_unsharded_model_that_cannot_compute_is_not_the_fault_of_its_plan(gloo: Pool) -> None:
    with pytest.raises(hpx.InputError, match="wrong_inputs cannot compute, unsharded"):
        hpx.check(faults.wrong_inputs, mesh="tp=2", pool=gloo)


def test_a_mesh_larger_than_the_pool_is_refused_with_both_sizes() -> None:
    with pytest.raises(
        hpx.UsageError, match=r"tp=4 has 4 ranks, and the pool 2\. Fix: .*Pool\(4\)"
    ):
        hpx.check(TINY, mesh="tp=4", pool=Pool(2))


def test_a_loss_has_to_be_one_number(gloo: Pool) -> None:
    with pytest.raises(hpx.InputError, match="the loss function gives no number"):
        hpx.check(faults.with_loss, mesh="tp=2", loss=faults.two_numbers, pool=gloo)


def test_time_that_is_over_ends_the_ranks() -> None:
    with Pool(2) as pool:
        with pytest.raises(hpx.TooLargeError, match="not done after 3 s"):
            hpx.check(faults.with_loss, mesh="tp=2", loss=faults.never, timeout=3, pool=pool)
        assert pool.pids == ()


def in_place() -> tuple[bool, str, int]:
    """What a program under torchrun gets; the function is a closure."""
    report = hpx.check(lambda: faults.with_loss(), mesh="tp=2")
    return report.ok, str(report).splitlines()[0], dist.get_rank()


def test_ranks_that_run_already_are_used(gloo: Pool) -> None:
    first, second = gloo.run(in_place, 2)
    assert first[0]
    assert (first[:2], second[:2]) == (first[:2], first[:2])
    assert (first[2], second[2]) == (0, 1)


# -- shrinking -----------------------------------------------------------------------------------


def test_a_shrunk_model_says_how_many_layers_are_left(gloo: Pool, tmp_path: Path) -> None:
    report = hpx.check(config_file(tmp_path, "deepseek_v3"), mesh="tp=2", pool=gloo)
    assert report.model.endswith("config.json, shrunk to 2 of 61 layers")


def test_a_count_that_tp_does_not_divide_stays_such(tmp_path: Path) -> None:
    config = config_file(tmp_path, "llama", num_attention_heads=6, num_key_value_heads=6)
    plan = hpx.ShardingPlan(
        {"**.{q,k,v}_proj.weight": {"tp": "S(0)"}, "**.o_proj.weight": {"tp": "S(1)"}},
        default="replicate",
    )
    with pytest.raises(hpx.HpxError, match="heads"):
        hpx.check(config, plan, "tp=4")
