"""The commands in this process, plans for the bundled models, and runs that are saved."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpx.tools import cli, viz
from tests.tools.commands import LLAMA, LLAMA_PLAN, MESH, MOE, MOE_PLAN, Answer, Command


@pytest.fixture
def run_hpx(capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process."""

    def answer(*arguments: object) -> Answer:
        capsys.readouterr()
        code = cli.main([str(argument) for argument in arguments])
        return Answer(code, *capsys.readouterr())

    return answer


@pytest.fixture
def hpx_viz(capfdbinary: pytest.CaptureFixture[bytes]) -> Command:
    """Runs the drawing command in this process."""

    def answer(*arguments: object) -> Answer:
        code = viz.main([str(argument) for argument in arguments])
        out, err = capfdbinary.readouterr()
        return Answer(code, out.decode(), err.decode())

    return answer


@pytest.fixture
def moe_plan(tmp_path: Path) -> Path:
    """A plan for the bundled mixture of experts, without a mesh."""
    path = tmp_path / "plan.yaml"
    path.write_text(MOE_PLAN)
    return path


@pytest.fixture
def llama_plan(tmp_path: Path) -> Path:
    """A plan for the bundled llama."""
    path = tmp_path / "plan.yaml"
    path.write_text(LLAMA_PLAN)
    return path


@pytest.fixture(scope="session")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the bundled mixture of experts, saved by the command itself."""
    folder = tmp_path_factory.mktemp("moe")
    plan = folder / "plan.yaml"
    plan.write_text(MOE_PLAN)
    arguments = ["run", MOE, "--mesh", MESH, "--plan", str(plan)]
    assert cli.main([*arguments, "-o", str(folder / "run.json")]) == 0
    return folder / "run.json"


@pytest.fixture(scope="session")
def run_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the bundled llama, saved."""
    from hpx.run import run

    folder = tmp_path_factory.mktemp("llama")
    plan = folder / "plan.yaml"
    plan.write_text(LLAMA_PLAN)
    return run(LLAMA, plan, "dp=2,tp=4").save(folder / "run.json")
