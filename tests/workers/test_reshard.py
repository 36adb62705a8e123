"""`penstock reshard` keeps everything that clients know, and a kill at any moment loses nothing."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.errors import StoreError, WorkersDiffer
from penstock.log.disk.files import Files
from penstock.log.disk.worker_folders import check_layout, worker_folders, workers_of
from penstock.log.offline.moving import count_streams
from penstock.log.offline.verify import verify
from penstock.protocol.shards import shard_of
from penstock.workers import reshard as resharding
from penstock.workers.reshard import reshard
from tests.helpers.server import Server, running_server
from tests.workers.server import JSON

pytestmark = pytest.mark.xdist_group("workers")
BINARY = {"content-type": "application/octet-stream"}


@contextmanager
def _serving(folder: Path, workers: int) -> Iterator[httpx2.Client]:
    with (
        running_server(
            args=["--workers", str(workers), "--development"], data_dir=folder
        ) as server,
        httpx2.Client(base_url=server.url, timeout=30) as http,
    ):
        yield http


def _fill(http: httpx2.Client) -> None:
    for number in range(12):
        path = f"orders/{number}"
        assert http.put(f"/v1/stream/{path}", headers=JSON).status_code == 201
        producer = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
        http.post(f"/v1/stream/{path}", json={"n": number}, headers=producer)
    http.put("/v1/stream/large", headers=BINARY)
    http.post("/v1/stream/large", content=bytes(range(256)) * 2000, headers=BINARY)
    for number in range(6):
        source = {"stream-forked-from": f"/v1/stream/orders/{number}"}
        assert http.put(f"/v1/stream/forks/{number}", headers=source).status_code == 201
        http.post(f"/v1/stream/forks/{number}", json={"fork": number})
    http.delete("/v1/stream/orders/5")  # it stays for its fork
    http.put("/v1/table/prices", json={"schema": "s"})
    http.put("/v1/table/prices?key=k", content=b"1")
    http.put("/v1/stream/wakes", headers=JSON)
    for number in range(4):
        config = {"type": "pull-wake", "pattern": "orders/*", "wake_stream": "wakes"}
        url = f"/v1/stream/__ds/subscriptions/sub-{number}"
        assert http.put(url, json=config).status_code == 201
    http.post("/v1/stream/orders/1", json={"pending": True})
    wakes: list[Any] = []
    while len(wakes) < 4:  # a subscription announces its wake a little later
        wakes = http.get("/v1/stream/wakes?offset=-1").json()


def _known(http: httpx2.Client) -> dict[str, Any]:
    """Everything that a client has of the server."""
    streams = http.get("/v1/streams", params={"limit": 1000}).json()
    assert streams["next"] is None
    known: dict[str, Any] = {"streams": streams["streams"]}
    for entry in streams["streams"]:
        # What has been used since is no part of it.
        del entry["touched_at"]
        read = http.get(f"/v1/stream/{entry['path']}", params={"offset": "-1"})
        headers = {name: read.headers.get(name) for name in ("etag", "stream-next-offset")}
        known[entry["path"]] = (headers, read.content)
    for number in range(4):
        shown = http.get(f"/v1/stream/__ds/subscriptions/sub-{number}").json()
        assert shown.get("id") == f"sub-{number}", shown
        known[f"sub-{number}"] = {
            name: shown[name] for name in ("pattern", "streams", "pending", "created_at")
        }
    known["table"] = http.get("/v1/table/prices?timeout=0").text
    return known


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A folder of two workers, and what clients know of it."""
    folder = tmp_path_factory.mktemp("original") / "data"
    with _serving(folder, 2) as http:
        _fill(http)
        return folder, _known(http)


def _copy(original: Path, target: Path) -> Path:
    subprocess.run(["cp", "-r", str(original), str(target)], check=True)
    return target


def test_clients_notice_nothing_of_another_number_of_workers(
    original: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, known = _copy(original[0], tmp_path / "data"), original[1]
    for workers in (3, 1):
        result = reshard(folder, workers)
        assert (result.after, result.streams) == (workers, reshard_streams(folder))
        assert verify(folder).problem_count == 0
        with _serving(folder, workers) as http:
            assert _known(http) == known
            again = {"producer-id": "p", "producer-epoch": "0", "producer-seq": "0"}
            repeated = http.post("/v1/stream/orders/3", json={"n": 3}, headers=again)
            assert repeated.status_code == 204  # recognised: nothing is appended twice
            # A path whose fork lives elsewhere is still taken, and a deleted source still blocked.
            assert http.put("/v1/stream/forks/2", headers=JSON).status_code == 409
            assert http.put("/v1/stream/orders/5", headers=JSON).status_code == 409
            if workers > 1:
                _check_new_ids(http)


def test_what_follows_and_listens_is_kept_once(tmp_path: Path) -> None:
    """The second part of each path decides about nothing: `a/b` may be the table `b` of `a`."""
    folder = tmp_path / "data"
    mirrors = [_apart(f"own-{number}", "m") for number in range(4)]
    tables = [_apart(f"told-{number}", "t") for number in range(4)]
    with running_server(args=["--development"], memory=True) as source:
        with _serving(folder, 2) as http:
            httpx2.put(f"{source.url}/v1/table/rows", json={"schema": "s"})
            for path in mirrors:
                follow = {"surl": f"{source.url}/v1/table/rows"}
                assert http.put(f"/v1/follow/{path}", json=follow).status_code == 201
            for path in tables:
                assert http.put(f"/v1/table/{path}", json={"schema": "s"}).status_code == 201
                listen = {"changed": f"{source.url}/v1/notify/x"}
                assert http.post(f"/v1/notify/{path}", data=listen).status_code == 202
            gone = tables.pop()
            assert http.delete("/v1/nurls", params={"table": gone}).status_code == 200
        for workers in (3, 2, 1):
            reshard(folder, workers)
            with _serving(folder, workers) as http:
                followed = [each["table"] for each in http.get("/v1/follow").json()["mirrors"]]
                assert sorted(followed) == sorted(mirrors)
                nurls = _nurls(http, limit=1000)
                listening = [each["tables"] for each in nurls if each["state"] == "active"]
                assert sorted(listening) == sorted([path] for path in tables)
                assert _nurls(http, limit=2) == nurls


def _nurls(http: httpx2.Client, *, limit: int) -> list[dict[str, Any]]:
    """Return all NURLs, in pages of some."""
    nurls: list[dict[str, Any]] = []
    after: str | None = ""
    while after is not None:
        answer = http.get("/v1/nurls", params={"limit": limit, "after": after})
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["nurls"]) <= limit
        nurls += page["nurls"]
        after = page["next"]
    return nurls


def _apart(parent: str, name: str) -> str:
    """Return a path that is with another worker than its parent, of two and of three."""
    return next(
        path
        for number in itertools.count()
        if all(
            shard_of(path := f"{parent}/{name}{number}", workers) != shard_of(parent, workers)
            for workers in (2, 3)
        )
    )


def _check_new_ids(http: httpx2.Client) -> None:
    """New streams never get an id that another worker has given."""
    before = {entry["offset"][:16] for entry in http.get("/v1/streams").json()["streams"]}
    made = []
    for number in range(20):
        answer = http.put(f"/v1/stream/new/{number}", headers=JSON)
        made.append(answer.headers["stream-next-offset"][:16])
        http.delete(f"/v1/stream/new/{number}")
    assert len({*made}) == 20
    assert min(map(int, made)) > max(map(int, before))


def reshard_streams(folder: Path) -> int:
    """The streams of clients, and the server's own that are moved as they are."""
    total = 0
    for each in worker_folders(Files(), folder):
        total += count_streams(each, leaves=lambda path: path.startswith("__"))
    # The soft-deleted source of a fork is moved and is no stream any more.
    return total - 1


class _Killed(Exception):
    """Stands in for a kill: nothing after it happens."""


_switch = resharding._switch


def _dying_switch(
    patched: pytest.MonkeyPatch, dying: Any, files: Files, root: Path, plan: dict[str, Any]
) -> None:
    for name in ("rename", "remove_all", "remove", "write_text"):
        patched.setattr(files, name, dying(name, getattr(files, name)), raising=False)
    _switch(files, root, plan)


@pytest.mark.parametrize("workers", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_a_kill_at_any_step_of_the_switch_is_finished_by_the_next_run(
    original: tuple[Path, dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    workers: int,
) -> None:
    step = 0
    while True:
        folder = _copy(original[0], tmp_path / f"data-{step}")
        calls = 0

        def dying(name: str, real: Any, step: int = step) -> Any:
            def call(*args: Any) -> Any:
                nonlocal calls
                calls += 1
                if calls > step:
                    raise _Killed(name)
                return real(*args)

            return call

        with monkeypatch.context() as patched:
            patched.setattr(resharding, "_switch", partial(_dying_switch, patched, dying))
            try:
                reshard(folder, workers)
                is_done = True
            except _Killed:
                is_done = False
        if is_done:
            break
        with pytest.raises(WorkersDiffer, match="penstock reshard"):
            check_layout(Files(), folder, workers)
        with pytest.raises(StoreError, match="Finish that first"):
            reshard(folder, 2)
        reshard(folder, workers)
        assert (workers_of(Files(), folder) or 1) == workers
        assert verify(folder).problem_count == 0
        assert reshard_streams(folder) == len(original[1]["streams"])
        assert not {"resharded", "workers.old", "RESHARDING"} & {*os.listdir(folder)}
        step += 1
    assert step >= 5  # it was killed in several places


@pytest.mark.parametrize(
    "line",
    [pytest.param("moving streams", marks=pytest.mark.soak), "checking the new folders"],
)
def test_a_command_that_is_killed_while_it_builds_leaves_the_old_folder(
    original: tuple[Path, dict[str, Any]], tmp_path: Path, line: str
) -> None:
    folder, known = _copy(original[0], tmp_path / "data"), original[1]
    command = [sys.executable, "-m", "penstock.cli", "reshard", str(folder), "--workers", "3"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    for text in process.stderr:
        if line in text:
            process.send_signal(signal.SIGKILL)
            break
    process.wait()
    process.stderr.close()
    with pytest.raises(WorkersDiffer, match="penstock reshard"):
        check_layout(Files(), folder, 2)
    # Back to what it was, or on to what it was to become: both are whole.
    if line == "moving streams":
        assert reshard(folder, 2).after == 2
        with _serving(folder, 2) as http:
            assert _known(http) == known
    else:
        assert reshard(folder, 3).after == 3
        assert verify(folder).problem_count == 0


def test_a_folder_in_use_is_not_resharded(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_server(data_dir=folder) as server:
        assert isinstance(server, Server)
        command = [sys.executable, "-m", "penstock.cli", "reshard", str(folder), "--workers", "2"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "in use" in done.stderr
    assert json.loads((folder / "PENSTOCK").read_text())["format"] == 2
