"""Real gloo processes that run functions, started once and used for many calls.

    def total(number: int) -> int:                        # at the top level of a module
        value = torch.tensor(number + dist.get_rank())
        dist.all_reduce(value)
        return int(value)

    with Pool(2) as pool:
        assert pool.run(total, 2, 10) == [21, 21]

Every call gets a process group of its own. See `worker.py` for the other end.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Final, Self, TypeVar, cast

from hpx.errors import HpxError
from hpx.numeric.worker import Reference, Reply, Task

__all__ = ["LIMIT", "PRELOAD", "Pool", "RanksFailedError", "module_reference", "reference"]

T = TypeVar("T")

LIMIT: Final = 120.0
"""Seconds that a call may take."""

PRELOAD: Final = (
    "torch",
    "torch.distributed",
    "torch.distributed.tensor",
    "torch.distributed.tensor.debug",
    "torch.distributed.fsdp",
    "torch.distributed.checkpoint.state_dict",
)
"""What the workers share instead of importing it each."""

_START: Final = 120.0
_PATIENCE: Final = 3.0  # for the others after one rank failed, and for an end without force
_NO_PATIENCE: Final = 0.0
_SETTINGS: Final = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "GLOO_SOCKET_IFNAME": "lo",
}
_DIED: Final = Reply(kind="died", at=0.0, pid=0, result=b"", error="the process died", trace="")


class RanksFailedError(Exception):
    """A function failed on a rank, or a rank did not finish.

    Attributes:
        ranks: The ranks, the first to fail first.
        late: Those of them that were not done in time.
        cause: What the first one raised; None if it died, was late, or its error cannot travel.
    """

    def __init__(
        self,
        message: str,
        ranks: Sequence[int],
        late: Sequence[int] = (),
        cause: BaseException | None = None,
    ) -> None:
        super().__init__(message)
        self.ranks = tuple(ranks)
        self.late = tuple(late)
        self.cause = cause


class Pool:
    """Up to ``size`` ranks. The processes start with the first call, and again after a failed one.

    Args:
        size: The largest number of ranks.
        preload: Modules that the workers have in common from the start.
    """

    def __init__(self, size: int = 8, preload: Iterable[str] = PRELOAD) -> None:
        self.size = size
        self.preload = tuple(preload)
        self.pids: tuple[int, ...] = ()
        self._nursery: subprocess.Popen[bytes] | None = None
        self._workers: list[Connection] = []
        self._folder: Path | None = None
        self._starter = 0
        self._calls = 0

    @property
    def folder(self) -> Path:
        """Where the processes keep their logs; there is none before they start.

        Raises:
            RuntimeError: They have not started.
        """
        if self._folder is None:
            raise RuntimeError("the processes have not started")
        return self._folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def run(
        self, function: Callable[..., T], world_size: int, *args: object, limit: float = LIMIT
    ) -> list[T]:
        """Call ``function(*args)`` on every rank of a fresh group; the results in rank order.

        Random numbers start from seed 0. Arguments and results travel as pickles, so tensors are
        fine and what belongs to a process group is not.

        Args:
            function: From the top level of a module.
            world_size: How many ranks.
            args: The same for all ranks; they differ by ``dist.get_rank()``.
            limit: Seconds after which the processes are ended.

        Raises:
            RanksFailedError: An error on one rank or several, or the limit passed.
            HpxError: The processes do not start.
        """
        if not 1 <= world_size <= self.size:
            raise ValueError(f"a pool of {self.size} has no {world_size} ranks")
        task = _task(function, args, world_size, limit)
        self._start()
        self._calls += 1
        task["store"] = str(self.folder / f"store{self._calls}")
        logs = [self._log(rank).stat().st_size for rank in range(world_size)]
        error: RanksFailedError | None = None
        free = False
        try:
            replies = self._replies(task, limit)
            results = [reply for reply in replies.values() if reply["kind"] == "result"]
            if len(results) < world_size:
                error = self._error(task, replies, logs, limit)
            free = self._let_go(replies, world_size)
        finally:
            if not free:
                self._end(_NO_PATIENCE)
        if error is not None:
            raise error
        Path(task["store"]).unlink(missing_ok=True)
        return [cast(T, pickle.loads(replies[rank]["result"])) for rank in range(world_size)]

    def begin(self) -> None:
        """Start the processes without waiting for them, while there is something else to do.

        Raises:
            HpxError: They cannot be started here.
        """
        if self._nursery is None:
            self._spawn()

    def close(self) -> None:
        """End all processes; the next call would start them again."""
        self._end(_PATIENCE)

    def _start(self) -> None:
        if self.pids:
            return
        self.begin()
        try:
            self.pids = tuple(self._started(worker) for worker in self._workers)
        except BaseException:
            self._end(_NO_PATIENCE)
            raise

    def _spawn(self) -> None:
        if not sys.platform.startswith("linux"):
            why = f"they are forked, which is safe on Linux only, and this is {sys.platform}"
            raise _not_started(why)
        atexit.register(self.close)
        self._folder = Path(tempfile.mkdtemp(prefix="gloo-pool-"))
        self._starter = os.getpid()
        pairs = [Pipe() for _ in range(self.size)]
        self._workers = [here for here, _ in pairs]
        fds = [there.fileno() for _, there in pairs]
        program = Path(__file__).with_name("worker.py")
        command = [sys.executable, "-P", str(program), str(self.folder), ",".join(self.preload)]
        try:
            with (self.folder / "nursery.log").open("wb") as log:
                self._nursery = subprocess.Popen(
                    [*command, *map(str, fds)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    env=os.environ | _SETTINGS,
                    pass_fds=fds,
                    start_new_session=True,
                )
            for _, there in pairs:
                there.close()
        except BaseException:
            self._end(_NO_PATIENCE)
            raise

    def _started(self, worker: Connection) -> int:
        reply = _received(worker, _START)
        if reply is None:
            said = (self.folder / "nursery.log").read_text()
            raise _not_started(" ".join(said.split())[-600:] or f"no word in {_START:g} s")
        return reply["pid"]

    def _end(self, patience: float) -> None:
        """End the workers and their nursery, by force when ``patience`` (seconds) is over."""
        nursery, self._nursery, self.pids = self._nursery, None, ()
        for worker in self._workers:
            worker.close()  # which a worker takes as the end
        self._workers = []
        mine = self._starter == os.getpid()  # a fork of that process has only copies of its ends
        if nursery is not None and nursery.stdin is not None:
            nursery.stdin.close()
        if nursery is not None and mine:
            for signal_, seconds in ((None, patience), (signal.SIGTERM, _PATIENCE)):
                if signal_ is not None:
                    nursery.send_signal(signal_)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    nursery.wait(seconds)
                    break
            else:
                os.killpg(nursery.pid, signal.SIGKILL)
                nursery.wait()
        folder, self._folder = self._folder, None
        if folder is not None and mine:  # only what this pool has made itself
            shutil.rmtree(folder, ignore_errors=True)
        atexit.unregister(self.close)

    def _replies(self, task: Task, limit: float) -> dict[int, Reply]:
        """What the ranks answered, by rank; without those that did not in time."""
        waiting = dict(zip(self._workers, range(task["world_size"]), strict=False))
        replies: dict[int, Reply] = {}
        for worker, rank in waiting.items():
            with contextlib.suppress(OSError):  # it has died since the last call, as will show
                worker.send_bytes(pickle.dumps(Task(**task | {"rank": rank})))
        end = time.monotonic() + limit
        while waiting:
            ready = cast(list[Connection], wait(list(waiting), max(0.0, end - time.monotonic())))
            if not ready:
                break
            for worker in ready:
                reply = _received(worker, 0) or _DIED
                replies[waiting.pop(worker)] = reply
                if reply["kind"] != "result":  # it closes its connections, which the others see
                    end = min(end, time.monotonic() + _PATIENCE)
        return replies

    def _let_go(self, replies: dict[int, Reply], world_size: int) -> bool:
        """Have the ranks leave their group; whether all of them are ready for another call."""
        if len(replies) < world_size or any(reply["kind"] == "died" for reply in replies.values()):
            return False
        for rank, reply in replies.items():
            if reply["kind"] == "result":
                with contextlib.suppress(OSError):
                    self._workers[rank].send_bytes(pickle.dumps(None))
        free = [_received(self._workers[rank], _PATIENCE) for rank in replies]
        return all(reply is not None and reply["kind"] == "free" for reply in free)

    def _error(
        self, task: Task, replies: dict[int, Reply], logs: Sequence[int], limit: float
    ) -> RanksFailedError:
        """One readable error: the first rank to fail in full, then a line for every other one."""
        size = task["world_size"]
        late = [rank for rank in range(size) if rank not in replies]
        failed = [rank for rank in replies if replies[rank]["kind"] != "result"]
        failed.sort(key=lambda rank: replies[rank]["at"])
        for rank in late:
            os.kill(self.pids[rank], signal.SIGUSR1)  # it writes where it is into its log
        if late or replies[failed[0]]["kind"] == "died":
            time.sleep(0.3)  # for the logs to be written
        lines: list[str] = []
        for rank in failed[:1] or late:
            said = replies[rank]["error"] if rank in replies else f"not done after {limit:g} s"
            where = f"{task['function']['module']}.{task['function']['name']}"
            lines.append(f"rank {rank} of {size}, {where}: {said}")
            lines.append(replies[rank]["trace"] if rank in replies else "")
            log = self._log(rank).read_bytes()[logs[rank] :].decode(errors="replace")
            lines.extend(line for line in log.splitlines() if "worker.py" not in line)
        lines.extend(f"then rank {rank}: {replies[rank]['error']}" for rank in failed[1:])
        if failed and late:
            lines.append(f"ranks {late} waited for it and were ended")
        data = replies[failed[0]]["result"] if failed else b""
        cause: BaseException | None = pickle.loads(data) if data else None
        text = "\n".join(line for line in lines if line)
        return RanksFailedError(text, [*failed, *late], late, cause)

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank{rank}.log"


def _not_started(why: str) -> HpxError:
    return HpxError(
        "the processes of the ranks did not start",
        why=why,
        fix="start them by torchrun, and call hpx.check on every rank",
    )


def reference(target: object) -> Reference:
    """How a worker finds a function or class that stands at the top level of a module.

    Raises:
        ValueError: It does not stand there.
    """
    name, module = getattr(target, "__qualname__", "<"), sys.modules.get(target.__module__)
    if module is None or "<" in name or getattr(module, "__file__", None) is None:
        raise ValueError(f"{name} does not stand at the top level of a module")
    return module_reference(module, name)


def module_reference(module: ModuleType, name: str = "") -> Reference:
    """How a worker finds a module, or what has a name there."""
    top = module.__name__.partition(".")[0]
    above = sys.modules.get(top)
    # The folder of tests is on no search path: pytest makes it a package, and so does the worker.
    made = hasattr(above, "__path__") and getattr(above, "__file__", None) is None
    return Reference(
        namespace=(top, list(sys.modules[top].__path__)) if made else None,
        module=module.__name__,
        file=module.__file__ or "",
        name=name,
    )


def _task(function: Callable[..., object], args: object, world_size: int, limit: float) -> Task:
    return Task(
        function=reference(function),
        args=pickle.dumps(args),
        store="",
        rank=0,
        world_size=world_size,
        seconds=limit + 60,  # so that it is the pool that ends a call, and can tell where it was
    )


def _received(worker: Connection, seconds: float) -> Reply | None:
    """The next reply; None if there is none in time, or the process has ended."""
    try:
        return cast(Reply, pickle.loads(worker.recv_bytes())) if worker.poll(seconds) else None
    except (EOFError, OSError):
        return None
