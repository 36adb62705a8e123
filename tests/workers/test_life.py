"""Workers and their supervisor as processes: one that dies is started again alone, all stop
together, and nothing that was acknowledged is lost."""

from __future__ import annotations

import os
import signal
import stat
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from penstock.config.setting import InvalidSetting
from penstock.config.settings import Settings
from penstock.errors import WorkersDiffer
from penstock.http.asgi.app import AsgiApp
from penstock.log.disk.files import Files
from penstock.log.disk.worker_folders import check_layout
from penstock.log.offline.verify import verify
from penstock.workers.supervisor import check
from tests.helpers.server import Server, ServerDidNotStart, running_server
from tests.workers.conftest import ARGS
from tests.workers.server import JSON, is_running, path_at, worker_pids

pytestmark = pytest.mark.xdist_group("workers")


def _append(server: Server, path: str, number: int) -> httpx2.Response:
    with httpx2.Client(base_url=server.url, timeout=20) as http:  # a new connection each time
        return http.post(f"/v1/stream/{path}", content=b"%d" % number, headers=JSON)


def _read(server: Server, path: str) -> list[int]:
    with httpx2.Client(base_url=server.url, timeout=20) as http:
        messages: list[int] = http.get(f"/v1/stream/{path}?offset=-1").json()
        return messages


def _survives_kill(server: Server, victim: int) -> None:
    """Kill one worker while appends go on: its own are refused for a while, and none is lost."""
    paths = [path_at(worker, "killed") for worker in (0, 1)]
    with httpx2.Client(base_url=server.url) as http:
        for path in paths:
            assert http.put(f"/v1/stream/{path}", headers=JSON).status_code == 201
    pid = worker_pids(server)[victim]
    ready: set[int] = set()
    acknowledged: dict[str, list[int]] = {path: [] for path in paths}
    refused = number = 0
    is_back = False
    while not is_back:
        number += 1
        if number == 10:
            os.kill(pid, signal.SIGKILL)
        for path in paths:
            try:
                answer = _append(server, path, number)
            except httpx2.TransportError:
                continue  # The connection was the killed worker's own.
            if answer.status_code == 503:
                assert path == paths[victim], answer.text
                assert answer.json()["code"] == "not-owner"
                assert answer.headers["retry-after"] == "1"
                refused += 1
                with suppress(httpx2.TransportError):
                    ready.add(_ready(server))
            else:
                assert answer.status_code == 204, answer.text
                acknowledged[path].append(number)
        is_back = bool(refused) and acknowledged[paths[victim]][-1] > 10
    assert 503 in ready  # somebody who asks for readiness learns of it as well
    while _ready(server) != 200:
        pass
    for path in paths:
        stored = _read(server, path)
        assert [each for each in stored if each in set(acknowledged[path])] == acknowledged[path]
        assert len(set(stored)) == len(stored)
    assert worker_pids(server)[victim] != pid
    assert worker_pids(server)[1 - victim] != worker_pids(server)[victim]


def test_a_worker_that_is_killed_is_started_again_alone_and_nothing_is_lost() -> None:
    with running_server(args=ARGS) as server:
        other = worker_pids(server)[0]
        _survives_kill(server, 1)
        assert worker_pids(server)[0] == other
        _survives_kill(server, 0)
        with httpx2.Client(base_url=server.url) as http:
            text = http.get("/metrics").text
        assert "penstock_worker_restarts_total 2.0" in text
        assert "worker 1 is started again" in server.stderr


def _ready(server: Server) -> int:
    with httpx2.Client(base_url=server.url) as http:
        return http.get("/readyz").status_code


def test_workers_end_with_their_supervisor_however_it_ends(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    path = path_at(1)
    with running_server(args=ARGS, data_dir=folder) as server:
        with httpx2.Client(base_url=server.url) as http:
            http.put(f"/v1/stream/{path}", headers=JSON)
        assert _append(server, path, 7).status_code == 204
        pids = worker_pids(server)
        server.kill()
        while any(is_running(pid) for pid in pids.values()):
            pass
    with running_server(args=ARGS, data_dir=folder) as server:
        assert _read(server, path) == [7]
        pids = worker_pids(server)
        assert server.terminate() == 0
        assert not any(is_running(pid) for pid in pids.values())
    assert verify(folder).clean


def test_a_folder_keeps_its_number_of_workers(tmp_path: Path) -> None:
    single, double = tmp_path / "single", tmp_path / "double"
    with running_server(data_dir=single):
        pass
    with running_server(args=["--workers", "2"], data_dir=double) as server:
        sockets = [each for each in Path("/proc/net/unix").read_text().split() if ".http" in each]
        assert sockets
        folder = Path(sockets[0]).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        with (
            pytest.raises(ServerDidNotStart, match="in use"),
            running_server(args=["--workers", "2"], data_dir=double),
        ):
            pass
        assert server.running
    files = Files()
    for folder, workers in ((single, 2), (double, 1), (double, 3)):
        with pytest.raises(WorkersDiffer, match="penstock reshard"):
            check_layout(files, folder, workers)
    with pytest.raises(WorkersDiffer, match="one of several workers"):
        check_layout(files, double / "workers" / "0", 1)
    with (
        pytest.raises(ServerDidNotStart, match="is laid out for 2 workers, not 1"),
        running_server(data_dir=double),
    ):
        pass


def test_a_store_in_memory_is_refused_with_several() -> None:
    with pytest.raises(InvalidSetting, match="cannot be used with 2 workers"):
        check(Settings(workers=2, memory=True))


def test_an_asgi_application_is_one_process() -> None:
    with pytest.raises(InvalidSetting, match="an ASGI application is one process"):
        AsgiApp(Settings(memory=True, workers=2))
