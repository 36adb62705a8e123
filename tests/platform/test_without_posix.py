"""Clients, command line and a server in memory run without uvloop and without POSIX."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock import Client
from tests.helpers.server import ROOT, Server, ServerDidNotStart, running_server

MODULE = "tests.helpers.without_posix"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(memory=True, posix=False) as running:
        yield running


def run(
    arguments: list[str], folder: Path, *, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        input=stdin,
        stdin=subprocess.DEVNULL if stdin is None else None,
        capture_output=True,
        text=True,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "HOME": str(folder), "PATH": ""},
        check=False,
        timeout=60,
    )


def penstock(
    *arguments: str, folder: Path, stdin: str | None = None
) -> subprocess.CompletedProcess[str]:
    return run(["-m", MODULE, *arguments], folder, stdin=stdin)


def test_the_names_are_gone(tmp_path: Path) -> None:
    code = f"import {MODULE}, os, importlib.util; print(hasattr(os, 'pread')); import uvloop"
    done = run(["-c", code], tmp_path)
    assert done.stdout == "False\n"
    assert "ModuleNotFoundError" in done.stderr


def test_a_server_in_memory_serves_and_stops_cleanly() -> None:
    with running_server(memory=True, posix=False) as server:
        with Client(server.url) as client:
            stream = client.stream("orders")
            stream.create(content_type="application/json")
            with stream.producer("till") as producer:
                for number in range(50):
                    producer.append({"number": number})
            stream.close()
            messages = [message for batch in stream.follow() for message in batch.messages]
        assert messages == [{"number": number} for number in range(50)]
        assert server.terminate() == 0
        assert server.stderr == ""


def test_a_data_folder_is_refused_in_a_line_that_says_what_to_do(tmp_path: Path) -> None:
    with (
        pytest.raises(ServerDidNotStart) as refusal,
        running_server(data_dir=tmp_path / "data", posix=False),
    ):
        pass
    message = str(refusal.value)
    assert message.startswith("Error: A data folder needs locks and syncs")
    assert "--memory" in message
    assert message.count("\n") == 1
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_data_folder_cannot_be_looked_at_either(command: str, tmp_path: Path) -> None:
    (tmp_path / "FORMAT").touch()
    done = penstock(command, str(tmp_path), folder=tmp_path)
    assert done.returncode != 0
    assert done.stderr.startswith("Error: A data folder needs locks and syncs")


def test_the_commands_write_and_read(server: Server, tmp_path: Path) -> None:
    at = ("--url", server.url)
    assert penstock("--help", folder=tmp_path).returncode == 0
    done = penstock("create", "logs", "--content-type", "text/plain", *at, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    done = penstock("append", "logs", *at, folder=tmp_path, stdin="one\ntwo\n")
    assert done.returncode == 0, done.stderr
    penstock("close", "logs", *at, folder=tmp_path)
    done = penstock("read", "-f", "logs", *at, folder=tmp_path)
    assert (done.stdout, done.stderr) == ("one\ntwo\n", "")
    # Keeps its place in a file that is replaced and synced.
    done = penstock("export", "logs", "logs.txt", *at, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "logs.txt").read_text() == "one\ntwo\n"


def test_a_context_is_written_where_files_have_no_modes(tmp_path: Path) -> None:
    done = penstock("context", "add", "here", "http://127.0.0.1:9", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "http://127.0.0.1:9" in penstock("context", "list", folder=tmp_path).stdout


def test_a_test_server_and_both_clients_make_a_round_trip(tmp_path: Path) -> None:
    code = f"""
import {MODULE}
import asyncio, sys
import penstock, penstock.testing

async def both(url):
    async with penstock.AsyncClient(url) as client:
        stream = client.stream("a")
        await stream.append({{"n": 2}})
        return (await stream.read()).messages

with penstock.testing.server() as server:
    with penstock.Client(server.url) as client:
        client.stream("a").create(content_type="application/json")
        client.stream("a").append({{"n": 1}})
    print(asyncio.run(both(server.url)))
checkpoint = penstock.FileCheckpoint("offsets.json")
checkpoint.save("a", "7")
print(checkpoint.load("a"), sys.modules["uvloop"])
"""
    done = run(["-c", code], tmp_path)
    assert done.stdout.splitlines() == ["[{'n': 1}, {'n': 2}]", "7 None"], done.stderr
