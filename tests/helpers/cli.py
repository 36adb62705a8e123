"""The `penstock` command as a process: run to its end, driven through pipes, or at a terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from penstock import Client
from penstock.client.sync.stream import Stream
from tests.helpers import command_forks

TIMEOUT_S = 60.0
_STARTED: set[str] = set()
"""The commands that this process has started from scratch."""
JSON = "application/json"


class Cli:
    """Commands against one server, with a configuration folder of their own."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self.folder = folder
        self.client = Client(url)
        environ = {
            name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")
        }
        environ.pop("NO_COLOR", None)
        self.env = {
            **environ,
            "PENSTOCK_URL": url,
            "XDG_CONFIG_HOME": str(folder / "config"),
            "TERM": "xterm",
            "PYTHONFAULTHANDLER": "1",
        }

    def make(self, name: str, *messages: Any, content_type: str = JSON) -> Stream:
        """A stream with messages, made by the library: a process takes longer to start."""
        stream = self.client.stream(name)
        stream.create(content_type)
        if messages:
            stream.append_many(messages)
        return stream

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def run(
        self, *arguments: object, stdin: bytes = b"", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run to the end. Never a traceback, and an error is one line on stderr.

        The first run of each command, and one with an environment of its own, is a start of
        Python; the others are forks of a process that has started already.
        """
        words = [str(argument) for argument in arguments]
        name = words[0] if words else ""
        if (
            command_forks.IS_SUPPORTED
            and env is None
            and name in _STARTED
            and len(stdin) <= command_forks.STDIN_BYTES_MAX
        ):
            code, stdout, stderr = command_forks.run(words, stdin, self.env, self.folder, TIMEOUT_S)
        else:
            code, stdout, stderr = self._start_and_wait(words, stdin, env)
            _STARTED.add(name)
        error = stderr.decode()
        assert code != -signal.SIGABRT, f"{words} did not end:\n{error}"
        assert "Traceback" not in error, error
        if code not in (0, 2):
            assert error.count("\n") <= 1, error
        return subprocess.CompletedProcess(
            words, code, stdout.decode("utf-8", "surrogateescape"), error
        )

    def _start_and_wait(
        self, words: list[str], stdin: bytes, env: Mapping[str, str] | None
    ) -> tuple[int, bytes, bytes]:
        process = subprocess.Popen(
            _command(tuple(words)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**self.env, **(env or {})},
            cwd=self.folder,
        )
        try:
            stdout, stderr = process.communicate(stdin, TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)  # it then says where it hangs
            stdout, stderr = process.communicate()
        return process.returncode, stdout, stderr

    def shell(
        self, command: str, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a line of a shell, for redirections that only a shell can make."""
        return subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env={**self.env, **(env or {})},
            cwd=self.folder,
            timeout=TIMEOUT_S,
            check=False,
        )

    def ok(self, *arguments: object, stdin: bytes = b"") -> str:
        """The stdout of a command that has to succeed."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: object, stdin: bytes = b"") -> Any:
        return json.loads(self.ok(*arguments, "--json", stdin=stdin))

    def failed(self, *arguments: object, stdin: bytes = b"") -> tuple[int, str]:
        """The exit code and the error of a command that has to fail."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode != 0, done.stdout
        return done.returncode, done.stderr

    @contextmanager
    def start(
        self, *arguments: object, stdin: int = subprocess.PIPE
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A running command with pipes; killed at the end if it still runs."""
        process = subprocess.Popen(
            _command(arguments),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            cwd=self.folder,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe is not None and not pipe.closed:
                    pipe.close()

    @contextmanager
    def terminal(
        self, *arguments: object, env: Mapping[str, str] | None = None
    ) -> Iterator[Terminal]:
        """A command at a terminal of its own."""
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            _command(arguments),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**self.env, **(env or {})},
            cwd=self.folder,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        try:
            yield Terminal(ours, process)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
            os.close(ours)


class Terminal:
    """What a person sees and types."""

    def __init__(self, descriptor: int, process: subprocess.Popen[bytes]) -> None:
        self._descriptor = descriptor
        self.process = process
        self.shown = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def wait_for(self, text: str) -> str:
        """All that was shown, once `text` is in it."""
        while text not in self.shown:
            assert self._more(), f"{text!r} never came:\n{self.shown}"
        return self.shown

    def end(self) -> tuple[int, str]:
        """The exit code and all that was shown."""
        while self._more():
            pass
        return self.process.wait(TIMEOUT_S), self.shown

    def _more(self) -> bool:
        assert select.select([self._descriptor], [], [], TIMEOUT_S)[0], f"silent:\n{self.shown}"
        try:
            piece = os.read(self._descriptor, 65536)
        except OSError:  # how Linux says that the other side has closed
            return False
        self.shown += piece.decode("utf-8", "replace").replace("\r\n", "\n")
        return bool(piece)


def read_line(process: subprocess.Popen[bytes]) -> str:
    """The next line of a running command's stdout, as soon as it is there."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([descriptor], [], [], TIMEOUT_S)[0], "no line came"
        piece = os.read(descriptor, 1)
        assert piece, f"it ended after {line!r}"
        line += piece
    return line.decode().rstrip("\n")


def interrupt(process: subprocess.Popen[bytes]) -> tuple[int, str]:
    """Ctrl-C: the exit code and what it wrote to stderr."""
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    stderr = process.stderr.read().decode()
    return process.wait(TIMEOUT_S), stderr


def _command(arguments: tuple[object, ...]) -> list[str]:
    return [sys.executable, "-m", "penstock.cli", *map(str, arguments)]
