"""The program behind `hpx.numeric.pool`: one nursery, and a worker for every rank.

The nursery imports torch once and forks the workers, so that eight ranks start as fast as one. It
then waits for them, and ends when they have. A worker runs one function at a time, each in a fresh
process group; it ends when the pool closes its connection, whatever it is doing.

    python -P worker.py FOLDER PRELOAD FD...
"""

from __future__ import annotations

import faulthandler
import functools
import gc
import importlib
import importlib.util
import os
import pickle
import queue
import shutil
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from importlib.machinery import ModuleSpec
from multiprocessing.connection import Connection
from operator import attrgetter
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, TypedDict


class Reference(TypedDict):
    """Something at the top level of a module, for another process to find."""

    namespace: tuple[str, list[str]] | None  # a top-level package without __init__, and its folders
    module: str
    file: str
    name: str


class Task(TypedDict):
    """One call of a function on one rank."""

    function: Reference
    args: bytes
    store: str
    rank: int
    world_size: int
    seconds: float


class Reply(TypedDict):
    """What a worker answers: that it is there, what a call gave, that it is free again."""

    kind: str  # ready, result, error, free; the pool itself puts "died" there
    at: float
    pid: int
    result: bytes
    error: str
    trace: str


def main() -> None:
    """Import what the workers share, then nurse them.

    Raises:
        RuntimeError: An import started a thread, which no fork has.
    """
    folder, preload, *fds = sys.argv[1:]
    for name in preload.split(","):
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        raise RuntimeError(f"importing {preload} started a thread, so workers cannot be forked")
    gc.collect()
    gc.freeze()  # the workers share this memory, and collect only what they make
    nurse(Path(folder), [int(fd) for fd in fds])


def nurse(folder: Path, fds: list[int]) -> None:
    """Fork the workers, wait for all of them, and end with whatever they have started."""
    workers: dict[int, int] = {}

    def end(_signal: int, _frame: object) -> None:
        for pid in workers:
            os.kill(pid, signal.SIGKILL)

    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    signal.signal(signal.SIGTERM, end)
    for rank, fd in enumerate(fds):
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            for other in fds:
                if other != fd:
                    os.close(other)
            work(folder / f"rank{rank}.log", Connection(fd))
        workers[pid] = rank
    for fd in fds:
        os.close(fd)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while workers:
        pid, status = os.wait()
        rank = workers.pop(pid)
        code = os.waitstatus_to_exitcode(status)
        if code:
            with (folder / f"rank{rank}.log").open("a") as log:
                log.write(f"the process ended with {code}\n")
    os.read(0, 1)  # the pool closes it when it has read the logs, or is no more
    shutil.rmtree(folder, ignore_errors=True)
    os.killpg(0, signal.SIGKILL)


def work(log: Path, connection: Connection) -> None:
    """Run what comes over the connection, until it is closed; never returns."""
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=False)  # the pool asks where a rank hangs
    messages: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
    threading.Thread(target=listen, args=(connection, messages), daemon=True).start()
    answer(connection, "ready", pid=os.getpid())
    while True:
        task = messages.get()
        assert task is not None
        try:
            result = run(task)
        except BaseException as error:  # noqa: BLE001 - an exit of the function is one as well
            trace = "".join(traceback.format_exception(error.with_traceback(own_frames(error))))
            text = f"{type(error).__name__}: {error}"
            answer(connection, "error", error=text, trace=trace, result=pickled(error))
        else:
            answer(connection, "result", result=result)
            messages.get()  # None, once no other rank needs this one's connections
        leave()
        answer(connection, "free")


def listen(connection: Connection, messages: queue.SimpleQueue[Task | None]) -> None:
    """Pass messages on; end the process when there is nobody left to send any."""
    try:
        while True:
            messages.put(pickle.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        os._exit(0)


def answer(
    connection: Connection,
    kind: str,
    *,
    pid: int = 0,
    result: bytes = b"",
    error: str = "",
    trace: str = "",
) -> None:
    """Send a reply, after all that was printed before it."""
    reply = Reply(kind=kind, at=time.monotonic(), pid=pid, result=result, error=error, trace=trace)
    sys.stdout.flush()
    sys.stderr.flush()
    connection.send_bytes(pickle.dumps(reply))


def run(task: Task) -> bytes:
    """The pickled result of one call, from a state that an earlier call left no trace in."""
    import torch
    import torch.distributed as dist

    function = load(task["function"])
    args = pickle.loads(task["args"])
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float32)
    torch.set_grad_enabled(True)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{task['store']}",
        rank=task["rank"],
        world_size=task["world_size"],
        timeout=timedelta(seconds=task["seconds"]),
    )
    return pickle.dumps(function(*args))


def load(reference: Reference) -> Any:
    """What is referred to; its module has the name here that it had there.

    Raises:
        ImportError: There is no such module, or another file has its name here.
    """
    if reference["namespace"] is not None:
        top, folders = reference["namespace"]
        if top not in sys.modules:
            spec = ModuleSpec(top, None, is_package=True)
            spec.submodule_search_locations = folders
            sys.modules[top] = importlib.util.module_from_spec(spec)
    name = reference["module"]
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in (name, name.partition(".")[0]):
            raise
        module = of_file(name, reference["file"])
    if module.__file__ != reference["file"]:
        raise ImportError(f"{name} is {module.__file__} here, not {reference['file']}")
    return attrgetter(reference["name"])(module) if reference["name"] else module


def of_file(name: str, file: str) -> ModuleType:
    """A module that is on no search path, as one of a notebook's or a test's folder.

    Raises:
        ImportError: The file is no module.
    """
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} cannot be imported as {name}")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def leave() -> None:
    """Leave the process group, and forget what still refers to it."""
    import torch
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()
    forget_meshes()
    if "torch._dynamo" in sys.modules:
        torch.compiler.reset()
    gc.collect()


def forget_meshes() -> None:
    """Empty what torch keeps by mesh: a mesh keeps its group, and a group its sockets and threads.

    Otherwise a process that serves many calls fills with them.
    """
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()  # type: ignore[no-untyped-call]
    _redistribute.clear_redistribute_planner_cache()
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.distributed.tensor"):
            for value in list(vars(module).values()):
                forget_cached(value)
                for inner in list(vars(value).values()) if isinstance(value, type) else ():
                    forget_cached(inner.__func__ if isinstance(inner, staticmethod) else inner)


def forget_cached(value: object) -> None:
    """Empty the cache of a function that has one."""
    if isinstance(value, functools._lru_cache_wrapper):
        value.cache_clear()


def pickled(error: BaseException) -> bytes:
    """The error for the pool to raise or to look into; empty if it cannot travel."""
    try:
        data = pickle.dumps(error)
        pickle.loads(data)
    except Exception:  # noqa: BLE001 - whatever an exception of somebody's has inside
        return b""
    return data


def own_frames(error: BaseException) -> TracebackType | None:
    """The traceback without the frames of this file, if any other is left."""
    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
        frames = frames.tb_next
    return frames or error.__traceback__


if __name__ == "__main__":
    main()
