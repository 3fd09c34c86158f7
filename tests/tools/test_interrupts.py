"""Ctrl-C ends a command, wherever it arrives."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from hpx.tools import cli, viz
from hpx.tools._interrupts import Interrupts

MODEL = "hpx.bundled:tiny_llama"


def interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def forgotten(*_: object, **__: object) -> None:
    """As a library does that tries something in vain and goes on."""
    with suppress(BaseException):
        interrupt()


def turned(*_: object, **__: object) -> None:
    """As the import of a library does whose part was interrupted."""
    with suppress(KeyboardInterrupt):
        interrupt()
    raise ImportError("cannot load module more than once per process")


def test_a_forgotten_interrupt_ends_the_block() -> None:
    reached = []

    def work() -> None:
        with Interrupts():
            forgotten()
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert reached


def test_a_forgotten_interrupt_ends_the_work_at_the_next_check() -> None:
    reached = []

    def work() -> None:
        with Interrupts() as interrupts:
            forgotten()
            interrupts.check()
            reached.append("the end")

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not reached


def test_the_handler_of_before_is_back_after_the_block() -> None:
    with Interrupts():
        assert signal.getsignal(signal.SIGINT) is not signal.default_int_handler
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_who_ignores_interrupts_goes_on_ignoring_them() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with Interrupts():
            interrupt()
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("lost", [forgotten, turned])
@pytest.mark.parametrize("quiet", [[], ["-q"]])
def test_an_interrupt_that_an_import_loses_ends_hpx_viz(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    lost: Callable[..., None],
    quiet: list[str],
) -> None:
    monkeypatch.setattr("hpx.graph.sources.open_for_viewing", lost)
    assert viz.main([MODEL, *quiet]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("lost", [forgotten, turned])
def test_an_interrupt_that_an_import_loses_ends_a_run_and_writes_nothing(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    lost: Callable[..., None],
) -> None:
    from hpx.pipeline.manager import PassManager

    monkeypatch.setattr(PassManager, "schedule", lost)
    plan = tmp_path / "plan.yaml"
    plan.write_text("version: 1\ndefault: replicate\nparams: {}\n")
    run = ["run", MODEL, "--mesh", "dp=2", "--plan", str(plan), "-o", str(tmp_path / "run.json")]
    assert cli.main(run) == 130
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == [plan]
