"""Runs `penstock` commands as forks of one process that has loaded what they import.

A fork is a process of its own, with its own arguments, environment, folder and pipes. It saves most
of the 0.2 s of processor time that Python and the imports of a command take. Started as a program,
this module is the process that forks.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from keyword import iskeyword
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
IS_SUPPORTED = hasattr(os, "pidfd_open")  # Linux
STDIN_BYTES_MAX = 32 * 1024  # fits into a pipe, so that nobody has to wait while it is written
_MESSAGE_BYTES_MAX = 128 * 1024
_PRELOADED = ("penstock.client.sync.client", "penstock.client.sync.producer", "msgspec.json")


class Ended(NamedTuple):
    code: int
    stdout: bytes
    stderr: bytes


def run(
    arguments: Sequence[str], stdin: bytes, env: Mapping[str, str], folder: Path, timeout_s: float
) -> Ended:
    """Run one command to its end, or until it is aborted after `timeout_s`."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    (stdin_read, stdin_write), (out, out_write), (err, err_write) = (os.pipe() for _ in range(3))
    given = [stdin_read, out_write, err_write, theirs.fileno()]
    message = json.dumps({"arguments": list(arguments), "env": dict(env), "folder": str(folder)})
    try:
        socket.send_fds(_forker(), [message.encode()], given)
    finally:
        for descriptor in given[:3]:
            os.close(descriptor)
        theirs.close()
    with ours, open(stdin_write, "wb", buffering=0) as pipe:
        pid = int(ours.recv(64))
        try:
            pipe.write(stdin)
        except BrokenPipeError:
            pass  # it does not read
        pipe.close()
        output = _read_all([out, err], pid, timeout_s)
        return Ended(int(ours.recv(64)), *output)


def _read_all(descriptors: Sequence[int], pid: int, timeout_s: float) -> list[bytes]:
    """What is written to pipes until all are closed; aborts a process that takes too long."""
    pieces: dict[int, list[bytes]] = {descriptor: [] for descriptor in descriptors}
    is_open = set(descriptors)
    deadline = time.monotonic() + timeout_s
    while is_open:
        ready = select.select(is_open, [], [], max(0.0, deadline - time.monotonic()))[0]
        if not ready:
            os.kill(pid, signal.SIGABRT)  # it then says where it hangs
            deadline = time.monotonic() + timeout_s
        for descriptor in ready:
            piece = os.read(descriptor, 65536)
            pieces[descriptor].append(piece)
            if not piece:
                is_open.remove(descriptor)
                os.close(descriptor)
    return [b"".join(parts) for parts in pieces.values()]


@cache
def _forker() -> socket.socket:
    """The connection to the process that forks: one for each process that runs tests."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _MESSAGE_BYTES_MAX)
    command = [sys.executable, "-m", "tests.helpers.command_forks", str(theirs.fileno())]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONFAULTHANDLER": "1"}
    null = subprocess.DEVNULL  # no terminal: so Python decides how a fork writes to its pipes
    process = subprocess.Popen(
        command, stdin=null, stdout=null, cwd=ROOT, env=env, pass_fds=[theirs.fileno()]
    )
    theirs.close()

    def stop() -> None:
        ours.close()  # it ends then
        process.wait()

    atexit.register(stop)
    return ours


# From here on: the process that forks, and its forks.


def _serve(connection: socket.socket) -> list[str] | None:
    """Fork for each message; the arguments of its command in a fork, and None at the end."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    running: dict[int, tuple[int, socket.socket]] = {}
    while True:
        for descriptor, _ in poll.poll():
            if descriptor in running:
                poll.unregister(descriptor)
                pid, report = running.pop(descriptor)
                os.close(descriptor)
                report.send(b"%d" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                report.close()
                continue
            message, given, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES_MAX, 4)
            if not message:
                return None
            if (pid := os.fork()) == 0:
                return _become(json.loads(message), given)
            report = socket.socket(fileno=given[3])
            report.send(b"%d" % pid)
            for each in given[:3]:
                os.close(each)
            watched = os.pidfd_open(pid)
            running[watched] = (pid, report)
            poll.register(watched, select.POLLIN)


def _become(message: dict[str, object], given: list[int]) -> list[str]:
    """Turn a fork into the process that was asked for."""
    for number in range(3):  # sys.stdin, stdout and stderr write to them, and have nothing buffered
        os.dup2(given[number], number)
    os.closerange(3, max(given) + 1)
    env, folder, arguments = message["env"], message["folder"], message["arguments"]
    assert isinstance(env, dict)
    assert isinstance(folder, str)
    assert isinstance(arguments, list)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(folder)
    return arguments


def main() -> None:
    from penstock.cli import COMMANDS
    from penstock.cli import main as penstock

    for name in COMMANDS:
        import_module(
            f"penstock.cli.commands.{name}_" if iskeyword(name) else f"penstock.cli.commands.{name}"
        )
    for name in _PRELOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    arguments = _serve(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv = ["penstock", *arguments]
        penstock(prog_name="penstock")


if __name__ == "__main__":
    main()
