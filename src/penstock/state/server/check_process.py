"""Checks of single events in a process of their own, which can be ended.

The library that checks values holds the interpreter while it works, and cannot be interrupted. So
a value that may take long is checked elsewhere, and a check that takes too long is ended with its
process. Blocks: called from a thread that has time.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import threading
from typing import IO, Final

import msgspec

from penstock.errors import Overloaded, ValidationFailed

START_TIMEOUT_S: Final = 30.0
WORKER: Final = "penstock.state.server.check_worker"
_SIZE: Final = struct.Struct(">I")


class Job(msgspec.Struct, frozen=True, array_like=True):
    """An event to check, and the stored declaration that it is checked against."""

    declaration: bytes
    event: bytes
    timeout_s: float


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """The result of a job: empty if the event is valid, else its error."""

    detail: str = ""
    field: str | None = None
    rule: str | None = None
    path: str | None = None


def send(pipe: IO[bytes], message: Job | Answer) -> None:
    data = msgspec.msgpack.encode(message)
    pipe.write(_SIZE.pack(len(data)) + data)
    pipe.flush()


def receive(pipe: IO[bytes]) -> bytes | None:
    """Return the next message; None at the end."""
    head = pipe.read(_SIZE.size)
    if len(head) < _SIZE.size:
        return None
    (size,) = _SIZE.unpack(head)
    data = pipe.read(size)
    return data if len(data) == size else None


class CheckProcess:
    """One process, started when it is first needed and again after it was ended."""

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._closed = threading.Event()
        self.ended = 0  # checks that were ended because they took too long

    def check(self, declaration: bytes, event: bytes) -> None:
        """Raise ValidationFailed if the event is invalid, or cannot be checked in time."""
        with self._lock:
            process = self._running()
            try:
                answer = self._exchange(process, Job(declaration, event, self._timeout_s))
            except (OSError, ValueError):  # the process has gone, or `close` has closed its pipes
                answer = None
            if answer is None:
                self._end(process)
        if answer is None:
            self._give_up()
        elif answer.detail:
            failure = ValidationFailed(answer.detail, field=answer.field, rule=answer.rule)
            failure.path = answer.path
            raise failure

    def _give_up(self) -> None:
        if self._closed.is_set():
            raise Overloaded("The server is stopping; try again.", Retry_After="1")
        self.ended += 1
        raise ValidationFailed(
            f"The value takes more than {self._timeout_s:g} s, or too much memory, to check "
            "against the schema of its type; make one of them simpler.",
            field="value",
            rule="timeout",
        )

    def close(self) -> None:
        """End the process; a check that runs raises Overloaded."""
        self._closed.set()
        process = self._process
        if process is not None:
            process.kill()
        with self._lock:  # a check that ran has returned, or is about to
            if self._process is not None:
                self._end(self._process)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed.is_set():
            raise Overloaded("The server is stopping; try again.", Retry_After="1")
        if self._process is not None and self._process.poll() is None:
            return self._process
        environ = {
            name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        try:
            # The interpreter that runs this, with fixed arguments.
            process = subprocess.Popen(  # noqa: S603
                [sys.executable, "-m", WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environ,
            )
        except OSError as error:
            raise Overloaded(f"A process to check the value cannot start: {error}.") from error
        self._process = process
        if self._closed.is_set():  # meanwhile: `close` has not seen the process
            process.kill()
        if self._wait(process, START_TIMEOUT_S) is None:
            self._end(process)
            raise Overloaded("The process that checks values did not start; try again.")
        return process

    def _exchange(self, process: subprocess.Popen[bytes], job: Job) -> Answer | None:
        assert process.stdin is not None
        send(process.stdin, job)
        return self._wait(process, self._timeout_s)

    def _wait(self, process: subprocess.Popen[bytes], timeout_s: float) -> Answer | None:
        """Return the next answer of the process; end it, and return None, when the time is up."""
        assert process.stdout is not None
        timer = threading.Timer(timeout_s, process.kill)
        timer.daemon = True
        timer.start()
        try:
            data = receive(process.stdout)
        finally:
            timer.cancel()
        return None if data is None else msgspec.msgpack.decode(data, type=Answer)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:
                    pass  # what was not written yet cannot be written any more
        if self._process is process:
            self._process = None
