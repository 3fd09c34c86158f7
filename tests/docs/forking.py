"""A process that has imported what commands need, and runs each in a fork of itself.

A page runs a dozen commands, and most of the time of each goes into imports. The programs that
`install` puts into a folder hand their arguments, folder, environment and streams to that process;
what runs there is ``main()`` of the command itself, and its exit code comes back.

    python forking.py SOCKET                               # the process; ends with its stdin
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import select
import signal
import socket
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

__all__ = ["install"]

COMMANDS: Final = {"hpx": "hpx.tools.cli", "hpx-viz": "hpx.tools.viz"}
SHARED: Final = (
    *COMMANDS.values(),
    *("torch", "torch.distributed.tensor", "networkx", "rich", "yaml"),
)
TRANSFORMERS: Final = ("transformers.modeling_utils", "transformers.models.auto.modeling_auto")
CLIENT: Final = """\
#!{python} -IS
import json, os, socket, sys
with socket.socket(socket.AF_UNIX) as there:
    there.connect({place!r})
    said = {{"program": {program!r}, "arguments": sys.argv[1:], "folder": os.getcwd()}}
    said["environment"] = dict(os.environ)
    socket.send_fds(there, [b" "], [0, 1, 2])
    there.sendall(json.dumps(said).encode())
    there.shutdown(socket.SHUT_WR)
    code = there.recv(16)
sys.exit(int(code or b"1"))
"""


def install(folder: Path, place: Path) -> None:
    """Write the programs that have their commands run by the process at a socket.

    Args:
        folder: Where to; it goes to the front of the PATH.
        place: The socket.
    """
    folder.mkdir(exist_ok=True)
    for program in COMMANDS:
        text = CLIENT.format(python=sys.executable, place=str(place), program=program)
        (folder / program).write_text(text)
        (folder / program).chmod(0o755)


def serve(place: str) -> None:
    """Answer every program in a fork, until stdin ends."""
    for name in (*SHARED, *(TRANSFORMERS if find_spec("transformers") else ())):
        importlib.import_module(name)
    with socket.socket(socket.AF_UNIX) as here:
        here.bind(place)
        here.listen(16)
        print("ready", flush=True)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that answer
        while True:
            ready, _, _ = select.select([here, sys.stdin], [], [])
            if sys.stdin in ready:
                return
            there, _ = here.accept()
            if os.fork() == 0:
                here.close()
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                answer(there)
            there.close()


def answer(there: socket.socket) -> None:
    """Run a command in one more fork, and say how it ended."""
    _, streams, _, _ = socket.recv_fds(there, 1, 3)
    with there.makefile("rb") as reader:
        said: dict[str, Any] = json.loads(reader.read())
    pid = os.fork()
    if pid == 0:
        there.close()
        run(said, streams)
    for stream in streams:
        os.close(stream)
    _, status = os.waitpid(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    with contextlib.suppress(OSError):
        there.sendall(str(code if code >= 0 else 128 - code).encode())
    os._exit(0)


def run(said: dict[str, Any], streams: list[int]) -> None:
    """Become the command: its streams, folder, environment and arguments; end with its code."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # Those of before know what they stood on, such as whether it can be sought in.
    sys.stdin = os.fdopen(0)
    sys.stdout = os.fdopen(1, "w")
    sys.stderr = os.fdopen(2, "w", 1, errors="backslashreplace")
    os.chdir(said["folder"])
    os.environ.clear()
    os.environ.update(said["environment"])
    sites = [site for site in os.environ.get("PYTHONPATH", "").split(os.pathsep) if site]
    sys.path[:0] = sites
    sys.argv = [said["program"], *said["arguments"]]
    sys.exit(importlib.import_module(COMMANDS[said["program"]]).main())


if __name__ == "__main__":
    sys.path.pop(0)  # the folder of this file
    serve(sys.argv[1])
