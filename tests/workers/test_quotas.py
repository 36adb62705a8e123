"""A quota is one budget for all workers: what one has used is missing to the others, and it holds
through the end of a worker at any time."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from penstock.workers.reshard import reshard
from tests.helpers.server import Server, running_server
from tests.workers.conftest import ARGS
from tests.workers.server import path_at, worker_pids

pytestmark = pytest.mark.xdist_group("workers")
TEXT = {"content-type": "text/plain"}
QUOTAS = "few/=10streams bytes/=1000B both/**=20streams,500B"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(args=[*ARGS, "--quotas", QUOTAS]) as server:
        yield server


def _put(http: httpx2.Client, path: str, body: bytes = b"") -> httpx2.Response:
    return http.put(f"/v1/stream/{path}", content=body, headers=TEXT)


def _post(http: httpx2.Client, path: str, body: bytes) -> httpx2.Response:
    return http.post(f"/v1/stream/{path}", content=body, headers=TEXT)


def _clear(http: httpx2.Client, prefix: str) -> None:
    for stream in http.get("/v1/streams", params={"prefix": prefix}).json()["streams"]:
        assert http.delete(f"/v1/stream/{stream['path']}").status_code == 204


def _refused(answer: httpx2.Response) -> str:
    assert (answer.status_code, answer.json()["code"]) == (429, "quota-exceeded"), answer.text
    detail: str = answer.json()["detail"]
    return detail


def test_streams_of_all_workers_share_a_quota(http: httpx2.Client) -> None:
    homes = [0] * 7 + [1] * 3
    paths = [path_at(worker, "few/s") for worker in homes]
    for path in paths:
        assert _put(http, path).status_code == 201
    for worker in (0, 1, 0):
        detail = _refused(_put(http, path_at(worker, "few/s")))
        assert detail.startswith("'few/' has 10 streams, and may have 10 (quotas).")
    assert _put(http, paths[0]).status_code == 200  # it is there already
    # Room comes back before the answer to what makes it, whoever had it and whoever asks.
    for gone, worker in zip(paths, (1, 1, 0, 1, 0, 0, 1, 0, 0, 1), strict=True):
        assert http.delete(f"/v1/stream/{gone}").status_code == 204
        assert _put(http, path_at(worker, "few/s")).status_code == 201
        _refused(_put(http, path_at(1 - worker, "few/s")))
    _clear(http, "few/")


def test_bytes_of_all_workers_share_a_quota(http: httpx2.Client) -> None:
    paths = [path_at(worker, "bytes/s") for worker in (0, 1)]
    for path in paths:
        assert _put(http, path, b"x" * 100).status_code == 201
    for number in range(8):
        assert _post(http, paths[number % 2], b"x" * 99).status_code == 204
    detail = _refused(_post(http, paths[0], b"x" * 9))
    assert detail.startswith("'bytes/' has 992 bytes of data and may have 1000 (quotas): 9 more")
    assert _post(http, paths[1], b"x" * 8).status_code == 204
    for path in paths:
        _refused(_post(http, path, b"x"))
        assert http.get(f"/v1/stream/{path}").is_success
    trimmed = http.post(f"/v1/stream/{paths[0]}/__ds/trim", json={"before": _tail(http, paths[0])})
    assert trimmed.is_success, trimmed.text
    assert _post(http, paths[1], b"x" * 400).status_code == 204
    _clear(http, "bytes/")


def _tail(http: httpx2.Client, path: str) -> str:
    offset: str = http.head(f"/v1/stream/{path}").headers["stream-next-offset"]
    return offset


def test_forks_and_the_first_bytes_of_a_stream_count_where_they_live(http: httpx2.Client) -> None:
    source = path_at(0, "both/source")
    assert _put(http, source, b"x" * 300).status_code == 201
    fork = path_at(1, "both/fork")
    headers = {"stream-forked-from": f"/v1/stream/{source}"}
    assert http.put(f"/v1/stream/{fork}", headers=headers).status_code == 201
    assert _post(http, fork, b"y" * 150).status_code == 204
    _refused(_put(http, path_at(1, "both/s"), b"x" * 51))
    _refused(_post(http, fork, b"y" * 51))
    assert _put(http, path_at(1, "both/s"), b"x" * 50).status_code == 201
    for worker in (0, 1) * 8 + (0,):
        assert _put(http, path_at(worker, "both/s")).status_code == 201
    _refused(http.put(f"/v1/stream/{path_at(1, 'both/fork')}", headers=headers))
    _clear(http, "both/")


def _create_until_refused(server: Server, created: list[str], name: str) -> None:
    with httpx2.Client(base_url=server.url, timeout=20) as http:
        for number in range(200):
            path = path_at(number % 2, f"few/{name}")
            answer = _put(http, path)
            if answer.status_code == 201:
                created.append(path)
            elif answer.status_code != 503:
                _refused(answer)
                return


def test_concurrent_writers_at_all_workers_do_not_pass_a_quota(
    server: Server, http: httpx2.Client
) -> None:
    for _ in range(3):
        created: list[str] = []
        threads = [
            threading.Thread(target=_create_until_refused, args=(server, created, f"t{number}"))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(created) == 10
        _clear(http, "few/")


@pytest.mark.parametrize("victim", [0, 1])
def test_a_quota_holds_when_a_worker_is_killed_among_writers(victim: int) -> None:
    with running_server(args=[*ARGS, "--quotas", "few/=40streams,4000B"]) as server:
        with httpx2.Client(base_url=server.url, timeout=20) as http:
            for number in range(20):
                path = path_at(number % 2, "few/first")
                assert _put(http, path, b"x" * 100).status_code == 201
        pid = worker_pids(server)[victim]
        statuses: list[int] = []
        killed = threading.Event()

        def write(number: int) -> None:
            refused = 0
            while refused < 20:
                with httpx2.Client(base_url=server.url, timeout=20) as http:
                    try:
                        answer = _put(http, path_at((number + refused) % 2, "few/w"), b"x" * 100)
                    except httpx2.TransportError:
                        continue
                statuses.append(answer.status_code)
                if len(statuses) == 12:
                    os.kill(pid, signal.SIGKILL)
                    killed.set()
                refused += answer.status_code == 429 and killed.is_set()

        threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert set(statuses) <= {201, 429, 503}
        _is_full(server, 40)
        assert worker_pids(server)[victim] != pid


def _is_full(server: Server, count: int) -> None:
    """Check that there are as many streams as may be, and that no worker takes one more."""
    with httpx2.Client(base_url=server.url, timeout=20) as http:
        while http.get("/readyz").status_code != 200:
            pass
        streams = http.get("/v1/streams", params={"prefix": "few/", "limit": 1000}).json()
        assert len(streams["streams"]) == count
        for worker in (0, 1):
            detail = _refused(_put(http, path_at(worker, "few/late")))
            assert detail.startswith(f"'few/' has {count} streams, and may have {count}")


def test_a_quota_is_counted_again_after_a_restart_and_after_a_reshard(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "data"
    args = ["--development", "--quotas", "few/=12streams"]
    with running_server(args=[*args, "--workers", "2"], data_dir=folder) as server:
        with httpx2.Client(base_url=server.url, timeout=20) as http:
            for number in range(12):
                assert _put(http, path_at(number % 2, "few/s")).status_code == 201
        _is_full(server, 12)
        server.kill()
    for workers in (2, 3):
        if workers == 3:
            reshard(folder, 3)
        with running_server(args=[*args, "--workers", str(workers)], data_dir=folder) as server:
            _is_full(server, 12)
