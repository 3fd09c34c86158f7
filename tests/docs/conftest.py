from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tests.docs.forking import install as install_programs

CHECKOUT = Path(__file__).parents[2]
FORKING = Path(__file__).with_name("forking.py")
PLUGIN = CHECKOUT / "tests" / "plugin"


class Shell:
    """Runs commands as a user would: `programs` on the PATH, what `sites` hold importable."""

    def __init__(self, folder: Path, programs: Path, sites: Sequence[Path] = ()) -> None:
        self.folder = folder
        drop = ("PYTHONSAFEPATH", "PYTHONPATH", "COLUMNS", "CLICOLOR_FORCE", "FORCE_COLOR")
        self.environment = {key: value for key, value in os.environ.items() if key not in drop}
        self.environment |= {
            "PATH": os.pathsep.join(
                [str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]
            ),
            "NO_COLOR": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        if sites:
            self.environment["PYTHONPATH"] = os.pathsep.join(map(str, sites))

    def __call__(self, command: str) -> tuple[int, str]:
        """The exit code, and stdout and stderr as they come on a terminal."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        return done.returncode, done.stdout


def install(project: Path, site: Path) -> None:
    """Install a project into a folder, without network and without touching the environment."""
    offline = ["--no-deps", "--no-index", "--no-build-isolation"]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", *offline]
    command = [*pip, "--target", str(site), str(project)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with hpx and hpx-viz, which share the time of their imports; see `forking`."""
    folder = tmp_path_factory.mktemp("programs")
    place = folder / "socket"
    install_programs(folder / "bin", place)
    command = [sys.executable, str(FORKING), str(place)]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **streams, start_new_session=True) as server:  # type: ignore[call-overload]
        assert server.stdout.readline() == b"ready\n"
        yield folder / "bin"
        server.communicate(timeout=60)


@pytest.fixture
def shell(tmp_path: Path, programs: Path) -> Callable[..., Shell]:
    """Makes a shell in a fresh folder: `shell(site, ...)`."""
    return lambda *sites: Shell(tmp_path, programs, sites)


@pytest.fixture(scope="session")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the distribution of tests/plugin installed."""
    folder = tmp_path_factory.mktemp("plugin")
    shutil.copytree(PLUGIN, folder / "project", ignore=shutil.ignore_patterns("conftest.py"))
    install(folder / "project", folder / "site")
    return folder / "site"


@pytest.fixture(scope="session")
def fork(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with another distribution installed that claims the same pass name."""
    folder = tmp_path_factory.mktemp("fork")
    project = folder / "project"
    (project / "hpx_fork").mkdir(parents=True)
    for source in (PLUGIN / "hpx_decay").glob("*.py"):
        shutil.copy(source, project / "hpx_fork")
    text = (PLUGIN / "pyproject.toml").read_text()
    text = text.replace("hpx_decay", "hpx_fork").replace("hpx-decay", "hpx-fork")
    (project / "pyproject.toml").write_text(text)
    install(project, folder / "site")
    return folder / "site"
