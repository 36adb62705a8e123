"""Real server processes for tests: started, waited for, stopped, never left behind.

with running_server(args=["--long-poll-timeout", "1"]) as server:
    httpx.get(server.url + "/healthz")
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Self
from urllib.parse import urlsplit

ROOT = Path(__file__).resolve().parents[2]
READY_PREFIX = "Penstock serving "
START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


class ServerDidNotStart(Exception):
    """The process ended, or said nothing in time; the message is what it wrote to stderr."""


class Server:
    """A server process that has said it is ready."""

    def __init__(
        self, process: subprocess.Popen[str], ready_line: str, log: IO[str], data_dir: Path | None
    ) -> None:
        self.process = process
        self.ready_line = ready_line
        self.data_dir = data_dir
        self.url = ready_line.removeprefix(READY_PREFIX).split()[0]
        self.port = urlsplit(self.url).port or 0
        self._log = log
        self._stderr: str | None = None

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    @property
    def stderr(self) -> str:
        """All that the server wrote to stderr so far; still there after the server is gone."""
        return _written(self._log) if self._stderr is None else self._stderr

    def kill(self) -> None:
        """End the process as a crash would: at once, with nothing tidied up."""
        self.process.kill()
        self.process.wait()

    def terminate(self) -> int:
        """Ask for a clean stop and return the exit code."""
        if self.running:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """The exit code, once the process has ended by itself."""
        return self.process.wait(STOP_TIMEOUT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.terminate()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the server did not stop when asked:\n{self.stderr}") from None
        finally:
            self._stderr = _written(self._log)


@contextmanager
def running_server(
    *,
    args: Sequence[str] = (),
    asgi: bool = False,
    posix: bool = True,
    memory: bool = False,
    data_dir: Path | None = None,
    full_disk: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """A server on a free port, ready to serve, stopped at the end.

    `args` are flags of `penstock serve`, also when it runs under uvicorn (`asgi=True`) or without
    the names that Windows does not have (`posix=False`). Without a `data_dir` a temporary one is
    used. Its disk is full while the file `full_disk` exists.
    """
    with ExitStack() as cleanup:
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-test-")))
        log = cleanup.enter_context((scratch / "stderr").open("w+"))
        module = "penstock.cli" if posix else "tests.helpers.without_posix"
        module = "tests.helpers.asgi" if asgi else module
        if full_disk is not None:
            module, env = "tests.helpers.full_disk", {**(env or {}), "FULL_DISK": str(full_disk)}
        folder = None if memory else data_dir or scratch / "data"
        store = ["--memory"] if folder is None else ["--data-dir", str(folder)]
        process = subprocess.Popen(
            [sys.executable, "-m", module, "serve", "--port", "0", *store, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=scratch,  # no penstock.toml is found by accident
            env=_environ(env or {}),
        )
        cleanup.callback(_end, process)
        line = _ready_line(process)
        if not line.startswith(READY_PREFIX):
            raise ServerDidNotStart(_written(log) or line)
        yield cleanup.enter_context(Server(process, line, log, folder))


def _environ(extra: Mapping[str, str]) -> dict[str, str]:
    """This environment without settings of its own, so that a test means the same everywhere."""
    environ = {name: text for name, text in os.environ.items() if not name.startswith("PENSTOCK_")}
    path = os.pathsep.join(filter(None, [str(ROOT), environ.get("PYTHONPATH")]))
    return {**environ, "PYTHONPATH": path, **extra}


def _ready_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    if not select.select([process.stdout], [], [], START_TIMEOUT_S)[0]:
        return "it printed nothing"
    return process.stdout.readline().strip()


def _end(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _written(log: IO[str]) -> str:
    return Path(log.name).read_text(errors="replace")
