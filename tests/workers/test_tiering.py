"""Workers with an object store: each moves its own segments there, and they stay readable with any
number of workers."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest

from penstock.log.offline.verify import verify
from penstock.object_store import FolderStore
from penstock.workers import reshard as resharding
from penstock.workers.reshard import reshard
from tests.cluster.workload import until
from tests.crash.test_tiered_server import TIERED
from tests.helpers.server import Server, running_server
from tests.workers.server import path_at, worker_pids

pytestmark = pytest.mark.xdist_group("workers")
TEXT = {"content-type": "text/plain"}


class Tiered:
    """A folder whose old segments go to a folder of objects."""

    def __init__(self, root: Path) -> None:
        self.data = root / "data"
        self.objects = FolderStore(root / "objects")
        self._url = (root / "objects").as_uri()
        self.content: dict[str, bytes] = {}

    def args(self, workers: int) -> list[str]:
        place = ("--tier-url", self._url, "--checkpoint-interval", "0.1")
        return [*TIERED, *place, "--workers", str(workers), "--development"]

    def write(self, http: httpx2.Client, path: str, count: int = 60) -> None:
        """Append to a stream, again if a worker is missing; exactly once, by a producer."""
        if path not in self.content:
            until(partial(_is_there, http, path), f"{path} is created")
            self.content[path] = b""
        for number in range(count):
            body = f"{path} {number} ".encode() * 16
            before = len(self.content[path])
            headers = {**TEXT, "producer-id": f"p{before}", "producer-epoch": "0"}
            headers["producer-seq"] = "0"
            until(partial(_is_appended, http, path, body, headers), f"{path} takes {number}")
            self.content[path] += body

    def check(self, http: httpx2.Client) -> None:
        for path, content in self.content.items():
            assert http.get(f"/v1/stream/{path}").content == content

    def verify(self) -> int:
        """Check all bytes, also those of objects; return how many segments are cold."""
        report = verify(self.data, cold=True)
        assert (report.problems, report.notes) == ([], [])
        return report.cold_segments


@pytest.fixture
def tiered(tmp_path: Path) -> Tiered:
    return Tiered(tmp_path)


def _client(server: Server) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, timeout=20)


def _is_there(http: httpx2.Client, path: str) -> bool:
    with suppress(httpx2.TransportError):
        return http.put(f"/v1/stream/{path}", headers=TEXT).status_code in (200, 201)
    return False


def _is_appended(http: httpx2.Client, path: str, body: bytes, headers: dict[str, str]) -> bool:
    with suppress(httpx2.TransportError):
        answer = http.post(f"/v1/stream/{path}", content=body, headers=headers)
        assert answer.status_code in (200, 204, 503), answer.text
        return answer.status_code != 503
    return False


def _has_cold(http: httpx2.Client, count: int) -> bool:
    """Whether all workers have more cold segments than so many."""
    lines = http.get("/metrics").text.splitlines()
    name = "penstock_tier_cold_segments "
    return any(float(line.split()[1]) > count for line in lines if line.startswith(name))


def test_all_workers_move_their_segments_and_a_killed_one_loses_none(tiered: Tiered) -> None:
    paths = [path_at(worker, "cold/s") for worker in (0, 1)]
    with running_server(args=tiered.args(2), data_dir=tiered.data) as server:
        with _client(server) as http:
            for victim in (0, 1):
                for path in paths:
                    tiered.write(http, path)
                os.kill(worker_pids(server)[victim], signal.SIGKILL)
            for path in paths:
                tiered.write(http, path)
            until(lambda: http.get("/readyz").status_code == 200, "all are back")
            until(partial(_has_cold, http, 4), "segments are cold")
            tiered.check(http)
        assert server.terminate() == 0
    # One prefix for each folder: they cannot meet.
    assert len({blob.key.partition("/")[0] for blob in tiered.objects.list()}) == 2
    assert tiered.verify() > 4


def test_cold_segments_stay_with_every_number_of_workers(tiered: Tiered) -> None:
    fork = path_at(1, "cold/fork")
    source = path_at(0, "cold/source")
    for workers in (1, 2, 3, 1):
        if workers != 1 or tiered.content:
            reshard(tiered.data, workers)
            tiered.verify()
        with running_server(args=tiered.args(workers), data_dir=tiered.data) as server:
            with _client(server) as http:
                tiered.check(http)
                for number in range(3):
                    tiered.write(http, f"cold/{number}", 40)
                if source not in tiered.content:
                    tiered.write(http, source)
                    headers = {"stream-forked-from": f"/v1/stream/{source}"}
                    made = http.put(f"/v1/stream/{fork}", headers=headers)
                    assert made.status_code == 201, made.text
                    tiered.content[fork] = tiered.content[source]
                until(partial(_has_cold, http, 8), "segments are cold")
                tiered.check(http)
            assert server.terminate() == 0
        assert tiered.verify() > 8
    with (
        running_server(args=tiered.args(1), data_dir=tiered.data) as server,
        _client(server) as http,
    ):
        for path in tiered.content:
            assert http.delete(f"/v1/stream/{quote(path)}").status_code == 204
        # Those of earlier folders go as well, under the names that they have.
        until(lambda: not list(tiered.objects.list()), "no object is left")


def test_a_reshard_that_is_ended_leaves_cold_segments_as_they_were(
    tiered: Tiered, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running_server(args=tiered.args(2), data_dir=tiered.data) as server:
        with _client(server) as http:
            for number in range(4):
                tiered.write(http, f"cold/{number}")
            until(partial(_has_cold, http, 4), "segments are cold")
        assert server.terminate() == 0
    objects = sorted(blob.key for blob in tiered.objects.list())

    def fail(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(resharding, "_check", fail)
        with pytest.raises(KeyboardInterrupt):
            reshard(tiered.data, 3)
    assert sorted(blob.key for blob in tiered.objects.list()) == objects
    reshard(tiered.data, 2)  # back to what there was
    assert tiered.verify() > 4
    reshard(tiered.data, 3)
    assert sorted(blob.key for blob in tiered.objects.list()) == objects
    with (
        running_server(args=tiered.args(3), data_dir=tiered.data) as server,
        _client(server) as http,
    ):
        tiered.check(http)


def test_a_backup_has_the_bytes_of_cold_segments_of_all_workers(
    tiered: Tiered, tmp_path: Path
) -> None:
    place = tmp_path / "backup"
    with running_server(args=tiered.args(2), data_dir=tiered.data) as server:
        with _client(server) as http:
            for number in range(4):
                tiered.write(http, f"cold/{number}")
            until(partial(_has_cold, http, 4), "segments are cold")
            job = http.post("/v1/backup", json={"destination": str(place)}).json()
            while job["state"] == "running":
                job = http.get("/v1/backup").json()
            assert job["state"] == "done", job
        assert server.terminate() == 0
    folder = tmp_path / "restored"
    command = [sys.executable, "-m", "penstock.cli", "restore", str(place)]
    subprocess.run([*command, "--data-dir", str(folder)], check=True, capture_output=True)
    with (
        running_server(args=["--workers", "2"], data_dir=folder) as server,
        _client(server) as http,
    ):
        tiered.check(http)
    assert verify(folder).cold_segments == 0
