"""`penstock verify` and `penstock inspect` as processes, on folders that real servers left."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from penstock.log.disk.journal import batch_bytes, find_batches
from tests.helpers.folders import fingerprint, flip
from tests.helpers.server import Server, ServerDidNotStart, running_server

SEGMENTED = ["--inline-bytes-max", "100"]


def penstock(*arguments: object) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, "-m", "penstock.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert "Traceback" not in done.stderr
    return done


def request(server: Server, method: str, path: str, body: bytes, **headers: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=30)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(
            method, f"/v1/stream/{path}", body, {"Content-Type": "application/json", **named}
        )
        assert connection.getresponse().status < 300
    finally:
        connection.close()


def write(server: Server) -> None:
    request(server, "PUT", "orders/eu", b"")
    for number in range(20):
        request(server, "POST", "orders/eu", json.dumps({"order": number}).encode())
    request(
        server,
        "POST",
        "orders/eu",
        b'"end"',
        Producer_Id="till",
        Producer_Epoch="0",
        Producer_Seq="0",
        Stream_Closed="true",
    )


@pytest.fixture
def stopped(tmp_path: Path) -> Path:
    with running_server(data_dir=tmp_path / "data", args=SEGMENTED) as server:
        write(server)
        assert server.terminate() == 0
    return tmp_path / "data"


def the_segment(folder: Path) -> Path:
    (segment,) = folder.rglob("*.segment")
    return segment


def test_a_killed_server_leaves_a_clean_folder(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_server(data_dir=folder) as server:
        write(server)
        server.kill()
        before = fingerprint(folder)
        done = penstock("verify", folder)
        assert fingerprint(folder) == before
    assert (done.returncode, done.stderr) == (0, "")
    assert "not stopped cleanly" in done.stdout
    assert "1 stream, 21 messages" in done.stdout
    assert done.stdout.endswith("\nno problems found\n")


def test_a_stopped_server_leaves_a_clean_folder(stopped: Path) -> None:
    done = penstock("verify", stopped)
    assert (done.returncode, done.stderr) == (0, "")
    assert "(format 2, stopped cleanly)" in done.stdout
    assert "1 segment (1 block)" in done.stdout


def last_journal(folder: Path) -> tuple[Path, int]:
    """The last journal file, and the byte where its last batch begins."""
    path = sorted((folder / "journal").glob("*.journal"))[-1]
    scan = find_batches(path.read_bytes(), path.name)
    assert scan is not None
    return path, scan.end - batch_bytes(scan.batches[-1])


def test_a_batch_that_a_crash_explains_is_noted_and_the_exit_code_is_0(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_server(data_dir=folder) as server:
        write(server)
        server.kill()
    path, begin = last_journal(folder)
    flip(path, begin + 40)
    done = penstock("verify", folder)
    assert done.returncode == 0
    assert f"note: journal/{path.name}, byte {begin}: " in done.stdout
    assert "an incomplete or damaged batch; the last stop was not clean" in done.stdout
    assert "acknowledged" not in done.stdout
    with running_server(data_dir=folder) as server:
        with urlopen(f"{server.url}/metrics") as answer:
            metrics = answer.read().decode()
        assert "penstock_journal_cut_bytes_total " in metrics
        assert "penstock_journal_cut_bytes_total 0.0" not in metrics
        assert "incomplete or damaged batch" in server.stderr


def test_a_batch_that_no_crash_explains_is_a_problem(stopped: Path) -> None:
    path, begin = last_journal(stopped)
    flip(path, begin + 40)
    done = penstock("verify", stopped)
    assert done.returncode == 1
    assert "an incomplete or damaged batch, which a clean stop does not leave" in done.stdout


def test_a_truncated_journal_is_a_problem_and_the_server_refuses_in_one_line(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    with running_server(data_dir=folder) as server:
        write(server)
        server.kill()
    path, begin = last_journal(folder)
    with path.open("r+b") as file:
        file.truncate(begin)
    done = penstock("verify", folder)
    assert done.returncode == 1
    assert f"problem: journal/{path.name}: " in done.stdout
    with (
        pytest.raises(
            ServerDidNotStart, match=rf"it has {begin} bytes, not .* Nothing was changed"
        ),
        running_server(data_dir=folder),
    ):
        pass


def test_each_problem_is_a_line_and_the_exit_code_is_1(stopped: Path) -> None:
    segment = the_segment(stopped)
    flip(segment, 3)
    done = penstock("verify", stopped)
    assert (done.returncode, done.stderr) == (1, "")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("problem:")]
    place = segment.relative_to(stopped).as_posix()
    assert line.startswith(f"problem: {place}, byte 0 (stream orders/eu): block 0, ")
    assert line.endswith("restore the data folder from a backup")
    assert done.stdout.endswith("\n1 problem found\n")


def test_verify_as_json(stopped: Path) -> None:
    the_segment(stopped).unlink()
    done = penstock("verify", stopped, "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert (report["streams"], report["messages"], report["clean"]) == (1, 21, True)
    assert [problem["code"] for problem in report["problems"]] == ["segment-missing"]
    assert report["problems"][0]["stream"] == "orders/eu"


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_a_folder_in_use_is_refused(tmp_path: Path, command: str) -> None:
    with running_server(data_dir=tmp_path / "data") as server:
        done = penstock(command, tmp_path / "data")
        assert (done.returncode, done.stdout) == (2, "")
        assert f"in use by Penstock (process {server.pid})" in done.stderr
        assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["verify", "inspect"])
def test_what_is_no_data_folder_is_one_line_and_exit_code_2(tmp_path: Path, command: str) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path, tmp_path / "absent", tmp_path / "file"):
        done = penstock(command, folder)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith(f"Error: {folder} is not a Penstock data folder")
        assert done.stderr.count("\n") == 1
    assert penstock(command).returncode == 2


def test_inspect_shows_the_folder(stopped: Path) -> None:
    before = fingerprint(stopped)
    done = penstock("inspect", stopped)
    assert fingerprint(stopped) == before
    assert (done.returncode, done.stderr) == (0, "")
    assert "stopped cleanly" in done.stdout
    header, row = done.stdout.splitlines()[-2:]
    assert row.split()[0] == "orders/eu"
    assert row.index("application/json") == header.index("CONTENT TYPE")


@pytest.mark.parametrize("path", ["orders/eu", "/v1/stream/orders/eu", "orders/%65u"])
def test_inspect_shows_a_stream(stopped: Path, path: str) -> None:
    done = penstock("inspect", stopped, path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "closed by producer till, epoch 0, seq 0" in done.stdout
    assert '\nFIRST\n  {"order": 0}\n' in done.stdout
    assert done.stdout.endswith('\n  {"order": 18}\n  {"order": 19}\n  "end"\n')


def test_inspect_as_json(stopped: Path) -> None:
    folder = json.loads(penstock("inspect", stopped, "--json").stdout)
    assert [line["path"] for line in folder["largest"]] == ["orders/eu"]
    stream = json.loads(penstock("inspect", stopped, "orders/eu", "--json").stdout)
    assert (stream["messages"], stream["closed_by"]["id"]) == (21, "till")
    assert len(stream["segments"]) == 1


@pytest.mark.parametrize(("path", "code"), [("orders/us", 1), ("../eu", 2)])
def test_inspect_of_a_stream_that_is_not_there(stopped: Path, path: str, code: int) -> None:
    done = penstock("inspect", stopped, path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (code, "", 1)
