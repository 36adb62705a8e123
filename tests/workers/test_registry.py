"""`__registry__` is one stream with the streams of all workers, whichever of them is killed."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import httpx2
import pytest

from penstock.protocol.shards import shard_of
from penstock.workers.reshard import reshard
from tests.cluster.workload import until
from tests.helpers.server import Server, running_server
from tests.workers.conftest import ARGS
from tests.workers.registry import PATH, is_true, listed
from tests.workers.server import path_at, worker_pids

pytestmark = pytest.mark.xdist_group("workers")
TEXT = {"content-type": "text/plain"}
REGISTRY = [*ARGS, "--registry"]
OWNER = shard_of(PATH, 2)


def _client(server: Server) -> httpx2.Client:
    return httpx2.Client(base_url=server.url, timeout=20)


def _create(http: httpx2.Client, path: str) -> int:
    return http.put(f"/v1/stream/{path}", headers=TEXT).status_code


def test_streams_of_all_workers_are_listed_and_leave_the_list() -> None:
    with running_server(args=REGISTRY) as server, _client(server) as http:
        paths = [path_at(worker, "own/s") for worker in (0, 1) * 5]
        for path in paths:
            assert _create(http, path) == 201
        fork = path_at(1, "own/fork")
        source = {"stream-forked-from": f"/v1/stream/{paths[0]}"}
        assert http.put(f"/v1/stream/{fork}", headers=source).status_code == 201
        until(lambda: {*paths, fork} <= listed(http), "all are listed")
        for path in (*paths[:4], fork):
            assert http.delete(f"/v1/stream/{path}").status_code == 204
        # The fork's path is another stream now, with another worker.
        assert _create(http, fork) == 201
        until(lambda: is_true(http, "own/"), "the registry is true")
        assert {*paths[4:], fork} <= listed(http)
        assert not any(path.startswith(("__ds/", "__stp/")) for path in listed(http))
        refused = http.delete(f"/v1/stream/{PATH}")
        assert refused.status_code == 403, refused.text


@pytest.mark.parametrize("victim", [OWNER, 1 - OWNER], ids=["its owner", "another"])
def test_nothing_is_missing_when_a_worker_is_killed(victim: int) -> None:
    with running_server(args=REGISTRY) as server:
        ending = threading.Event()
        done = [0]

        def work() -> None:
            turn = 0
            while not ending.is_set():
                turn += 1
                with _client(server) as http:
                    try:
                        path = path_at(turn % 2, "work/s")
                        if _create(http, path) == 201 and turn % 3:
                            http.delete(f"/v1/stream/{path}")
                    except httpx2.TransportError:
                        continue
                done[0] += 1

        thread = threading.Thread(target=work)
        thread.start()
        try:
            for kill in range(3):
                before = done[0]
                until(partial(_has_done, done, before + 20), "the work goes on")
                with _client(server) as http:
                    os.kill(worker_pids(server)[victim], signal.SIGKILL)
                    until(partial(_is_ready, http), f"it is back after kill {kill}")
        finally:
            ending.set()
            thread.join()
        with _client(server) as http:
            until(_ready_and(http, lambda: is_true(http, "work/")), "the registry is true")


def _has_done(done: list[int], count: int) -> bool:
    return done[0] > count


def _is_listed(http: httpx2.Client, path: str) -> bool:
    return path in listed(http)


def _is_ready(http: httpx2.Client) -> bool:
    try:
        return http.get("/readyz").status_code == 200
    except httpx2.TransportError:
        return False


def _ready_and(http: httpx2.Client, condition: Callable[[], bool]) -> Callable[[], bool]:
    return lambda: _is_ready(http) and condition()


def test_what_happened_without_the_registry_is_made_up_for(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    kept, gone, new = ([path_at(worker, "kept/s") for worker in (0, 1)] for _ in range(3))
    with running_server(args=REGISTRY, data_dir=folder) as server, _client(server) as http:
        for path in (*kept, *gone):
            assert _create(http, path) == 201
        until(lambda: is_true(http, "kept/"), "the registry is true")
    with running_server(args=ARGS, data_dir=folder) as server, _client(server) as http:
        for path in new:
            assert _create(http, path) == 201
        for path in gone:
            assert http.delete(f"/v1/stream/{path}").status_code == 204
    with running_server(args=REGISTRY, data_dir=folder) as server, _client(server) as http:
        until(lambda: is_true(http, "kept/"), "the registry is true")
    for workers in (3, 1):
        reshard(folder, workers)
        args = ["--development", "--registry", "--workers", str(workers)]
        with running_server(args=args, data_dir=folder) as server, _client(server) as http:
            until(lambda: is_true(http, "kept/"), "the registry is true")
            assert {*kept, *new} <= listed(http)
            path = f"kept/with-{workers}"
            assert _create(http, path) == 201
            until(partial(_is_listed, http, path), "it is listed")
