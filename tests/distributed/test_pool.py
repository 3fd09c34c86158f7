"""The pool of gloo processes: results, errors, limits, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor

from hpx.errors import HpxError
from hpx.numeric.pool import Pool, RanksFailedError

PRELOAD = ("torch.distributed.tensor.debug",)


@dataclass(frozen=True)
class Number:
    """A value of a class that only this test module has."""

    value: int


def pid() -> int:
    return os.getpid()


def rank_and_size() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()


def total(number: Number) -> Number:
    value = torch.tensor(number.value + dist.get_rank())
    dist.all_reduce(value)
    return Number(int(value))


def random_number() -> float:
    return torch.rand(()).item()


def groups_of(size: int) -> int:
    """The sum of ranks over this rank's group, in a mesh whose last dim has this size."""
    sizes = (dist.get_world_size() // size, size)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    value = torch.tensor(dist.get_rank())
    dist.all_reduce(value, group=mesh.get_group("tp"))
    return int(value)


def gather_and_sum() -> None:
    """What makes torch keep the mesh in its caches: redistributing, and weighing ways to do so."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))
    rows = distribute_tensor(torch.ones(4, 4), mesh, [Shard(0)])
    columns = distribute_tensor(torch.ones(4, 4), mesh, [Shard(1)])
    for total in (rows + rows.clone(), rows + columns):
        assert isinstance(total, DTensor)
        assert total.full_tensor().sum() == 32


def threads() -> int:
    return len(list(Path("/proc/self/task").iterdir()))


def fail_on(rank: int) -> None:
    if dist.get_rank() == rank:
        raise ValueError(f"no luck on {rank}")
    dist.all_reduce(torch.zeros(()))


def fail_everywhere() -> None:
    raise ValueError(f"no luck on {dist.get_rank()}")


def hang_on(rank: int) -> None:
    print("before the end")
    if dist.get_rank() == rank:
        time.sleep(1000)
    dist.barrier()


def leave_on(rank: int) -> None:
    if dist.get_rank() == rank:
        os._exit(3)
    dist.barrier()


def unpicklable() -> object:
    return lambda: None


def start_a_process() -> int:
    return subprocess.Popen(["sleep", "1000"]).pid


def interrupt_parent(parent: int) -> None:
    if dist.get_rank() == 0:
        os.kill(parent, signal.SIGUSR2)
    time.sleep(1000)


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process}/stat").read_text().split(") ")[1][:1]


def holds(condition: Callable[[], bool], seconds: float = 20) -> bool:
    """Whether the condition comes to hold."""
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return condition()


def are_gone(processes: Iterable[int]) -> bool:
    return holds(lambda: not any(map(is_there, processes)))


@pytest.fixture(scope="module")
def small() -> Iterator[Pool]:
    """A pool that tests may bring down: it starts again faster than the one of all tests."""
    with Pool(3, PRELOAD) as pool:
        yield pool


def test_closing_a_pool_that_never_started_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "work.py").write_text("mine")
    monkeypatch.chdir(tmp_path)
    with Pool(2):
        pass
    Pool(2).close()
    assert (tmp_path / "kept" / "work.py").read_text() == "mine"


def test_a_fork_that_closes_the_pool_leaves_it_to_the_process_that_started_it() -> None:
    with Pool(1) as pool:
        before = pool.run(pid, 1)
        child = os.fork()
        if child == 0:
            try:
                pool.close()
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        assert pool.folder.is_dir()
        assert pool.run(pid, 1) == before


def test_the_groups_of_a_call_end_with_it_whatever_torch_keeps_of_their_meshes() -> None:
    with Pool(2) as pool:
        before = pool.run(threads, 2)
        pool.run(gather_and_sum, 2)
        assert pool.run(threads, 2) == before


def test_a_worker_that_died_between_two_calls_is_told_of() -> None:
    with Pool(2) as pool:
        os.kill(pool.run(pid, 2)[1], signal.SIGKILL)
        time.sleep(0.5)  # until its end of the connection is closed
        with pytest.raises(RanksFailedError, match=r"rank 1 of 2, .*: the process died"):
            pool.run(pid, 2)
        assert len(pool.run(pid, 2)) == 2


def test_closing_a_pool_twice_deletes_only_what_it_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "work.py").write_text("mine")
    monkeypatch.chdir(tmp_path)
    pool = Pool(1)
    assert pool.run(pid, 1)
    made = pool.folder
    pool.close()
    pool.close()
    assert not made.exists()
    assert (tmp_path / "work.py").read_text() == "mine"


def test_results_come_in_rank_order(gloo: Pool) -> None:
    assert gloo.run(rank_and_size, 4) == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_arguments_and_results_may_be_of_a_class_of_the_test(gloo: Pool) -> None:
    assert gloo.run(total, 2, Number(10)) == [Number(21)] * 2


def test_groups_of_two_sizes_one_after_another(gloo: Pool) -> None:
    for size in (8, 2, 1, 3):
        assert gloo.run(total, size, Number(0)) == [Number(sum(range(size)))] * size


def test_meshes_of_one_shape_in_two_calls_have_their_own_groups(gloo: Pool) -> None:
    assert gloo.run(groups_of, 4, 2) == [1, 1, 5, 5]
    assert gloo.run(groups_of, 8, 2) == [1, 1, 5, 5, 9, 9, 13, 13]
    assert gloo.run(groups_of, 4, 2) == [1, 1, 5, 5]


def test_the_processes_are_used_again(gloo: Pool) -> None:
    first = gloo.run(pid, 4)
    assert first == list(gloo.pids[:4])
    assert gloo.run(pid, 2) == first[:2]
    assert os.getpid() not in first


def test_random_numbers_start_anew_in_every_call(gloo: Pool) -> None:
    assert len({*gloo.run(random_number, 2), *gloo.run(random_number, 2)}) == 1


def test_an_error_on_one_rank_names_the_rank_and_has_its_traceback(gloo: Pool) -> None:
    with pytest.raises(RanksFailedError) as caught:
        gloo.run(fail_on, 2, 1)
    first, *rest = str(caught.value).splitlines()
    assert first == "rank 1 of 2, tests.distributed.test_pool.fail_on: ValueError: no luck on 1"
    assert any('raise ValueError(f"no luck on {rank}")' in line for line in rest)
    assert not any("worker.py" in line for line in rest)
    assert rest[-1].startswith("then rank 0: RuntimeError")
    assert caught.value.ranks == (1, 0)


def test_an_error_leaves_the_processes_fit_for_the_next_call(gloo: Pool) -> None:
    before = gloo.run(pid, 3)
    with pytest.raises(RanksFailedError):
        gloo.run(fail_on, 3, 0)
    assert gloo.run(pid, 3) == before
    assert gloo.run(total, 3, Number(0)) == [Number(3)] * 3


def test_an_error_on_every_rank_is_told_once_in_full(gloo: Pool) -> None:
    with pytest.raises(RanksFailedError) as caught:
        gloo.run(fail_everywhere, 3)
    assert sorted(caught.value.ranks) == [0, 1, 2]
    assert str(caught.value).count("Traceback") == 1


def test_a_result_that_cannot_travel_is_an_error_of_its_rank(gloo: Pool) -> None:
    with pytest.raises(RanksFailedError, match=r"rank 0 of 1.*unpicklable: .*pickle"):
        gloo.run(unpicklable, 1)


def test_a_hang_is_ended_by_the_limit_and_told_where_it_was(small: Pool) -> None:
    before = small.run(pid, 2)
    with pytest.raises(RanksFailedError) as caught:
        small.run(hang_on, 2, 1, limit=0.5)
    said = str(caught.value)
    assert "rank 1 of 2, tests.distributed.test_pool.hang_on: not done after 0.5 s" in said
    assert "before the end" in said
    assert "test_pool.py" in said
    assert "in hang_on" in said
    assert are_gone(before)
    assert small.run(total, 2, Number(0)) == [Number(1)] * 2


def test_a_process_that_dies_is_an_error_of_its_rank(small: Pool) -> None:
    with pytest.raises(
        RanksFailedError, match=r"rank 2 of 3.*leave_on: the process died"
    ) as caught:
        small.run(leave_on, 3, 2)
    assert "the process ended with 3" in str(caught.value)
    assert small.run(rank_and_size, 1) == [(0, 1)]


@pytest.mark.parametrize("world_size", [0, 9])
def test_a_size_that_the_pool_does_not_have_is_an_error(world_size: int, gloo: Pool) -> None:
    with pytest.raises(ValueError, match=f"a pool of 8 has no {world_size} ranks"):
        gloo.run(pid, world_size)


def test_a_function_inside_another_is_an_error(gloo: Pool) -> None:
    with pytest.raises(ValueError, match="does not stand at the top level of a module"):
        gloo.run(lambda: None, 1)


def test_an_interrupt_ends_every_process(small: Pool) -> None:
    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        raise KeyboardInterrupt

    processes = small.run(pid, 2)
    before = signal.signal(signal.SIGUSR2, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            small.run(interrupt_parent, 2, os.getpid())
    finally:
        signal.signal(signal.SIGUSR2, before)
    assert are_gone(processes)


def test_closing_ends_every_process_and_what_they_started(small: Pool) -> None:
    processes = [*small.run(start_a_process, 2), *small.pids]
    assert all(map(is_there, processes))
    small.close()
    assert are_gone(processes)


def test_the_processes_end_with_the_one_that_started_them() -> None:
    tests = Path(__file__).parents[1]
    code = f"""
        import os, signal, sys, types
        sys.modules["tests"] = types.ModuleType("tests")
        sys.modules["tests"].__path__ = [{str(tests)!r}]
        from hpx.numeric.pool import Pool
        from tests.distributed.test_pool import pid
        pool = Pool(2, {PRELOAD})
        print(*pool.run(pid, 2), pool.folder, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    *processes, folder = done.stdout.split()
    assert len(processes) == 2, done.stderr
    assert are_gone(list(map(int, processes)))
    assert holds(lambda: not Path(folder).exists())


def test_processes_that_do_not_start_are_told_with_what_their_log_says() -> None:
    with Pool(1, ("no_such_module",)) as pool:
        with pytest.raises(HpxError, match=r"did not start: .*No module named 'no_such_module'"):
            pool.run(pid, 1)
        assert pool.pids == ()


def test_where_processes_cannot_be_forked_safely_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with (
        Pool(1) as pool,
        pytest.raises(HpxError, match=r"Linux only, and this is darwin.*torchrun"),
    ):
        pool.begin()
