"""`penstock cluster import` and `export`: everything that clients hold stays valid, both ways."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner, Result

from penstock.cli import main
from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, StoreDamaged
from penstock.log import Append, StreamConfig, open_engine
from penstock.log.cluster import copying
from penstock.log.cluster.status import read_status
from penstock.log.disk.recovery import FORMAT, FORMAT_COLD
from penstock.log.disk.worker_folders import FORMAT_WORKERS
from penstock.log.offline.cluster_import import import_folder
from penstock.log.offline.verify import verify
from tests.cluster.workload import until
from tests.crash.make_format import ARGS, args_of, client_of, produce, seen, send, write
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.server import running_server

pytestmark = list(ON_POSTGRES)
SINGLE = ("--cluster-durability", "single")
STREAMS = 700


def cli(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "penstock.cli", "cluster", *map(str, arguments), *SINGLE],
        capture_output=True,
        text=True,
        check=False,
    )


def invoke(*arguments: str | Path) -> Result:
    """The same in this process, which is there already."""
    return CliRunner().invoke(main, ["cluster", *map(str, arguments), *SINGLE])


@contextmanager
def node(dsn: str, folder: Path, *more: str) -> Iterator[httpx2.Client]:
    args = [*ARGS, "--cluster", dsn, *SINGLE, *more]
    with running_server(args=args, data_dir=folder) as server:
        until(lambda: _is_owner(server.url), "the node owns the streams")
        with client_of(server) as client:
            yield client


def _is_owner(url: str) -> bool:
    try:
        return httpx2.get(f"{url}/readyz", verify=False).status_code == 200
    except httpx2.HTTPError:
        return False  # it becomes the owner


@contextmanager
def serving(folder: Path, version: int = FORMAT) -> Iterator[httpx2.Client]:
    args = args_of(version, folder)
    with running_server(args=args, data_dir=folder) as server, client_of(server) as client:
        yield client


def marks(client: httpx2.Client) -> dict[str, tuple[str, str]]:
    """The ETag and the next offset of a first read of every stream."""
    listing = send(client, "GET", "/v1/streams").json()["streams"]
    found = {}
    for each in listing:
        answer = send(client, "GET", f"/v1/stream/{each['path']}?offset=-1")
        found[each["path"]] = (answer.headers["etag"], answer.headers["stream-next-offset"])
    return found


def check_marks(client: httpx2.Client, expected: dict[str, tuple[str, str]]) -> None:
    assert marks(client) == expected
    for path, (etag, offset) in expected.items():
        target = f"/v1/stream/{path}"
        headers = {"if-none-match": etag}
        assert client.get(f"{target}?offset=-1", headers=headers).status_code == 304
        assert client.get(f"{target}?offset={offset}").status_code == 200


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(FORMAT, marks=pytest.mark.soak),
        FORMAT_COLD,
        pytest.param(FORMAT_WORKERS, marks=pytest.mark.soak),
    ],
)
def test_everything_that_clients_hold_survives_both_ways(tmp_path: Path, version: int) -> None:
    folder, dsn = tmp_path / "data", shared().fresh_database()
    expected = as_json(write(folder, version, crash=True))
    secret = expected.pop("token")
    with serving(folder, version) as client:
        before = marks(client)
    tier = ["--segment-bytes-max", "64KiB"]  # so that extents are full
    if version == FORMAT_COLD:
        tier += args_of(version, folder)[len(ARGS) :][:2]
    done = cli("import", folder, "--cluster", dsn, *tier)
    assert done.returncode == 0, done.stderr
    assert "copied and compared" in done.stdout
    objects = tmp_path / "extents"
    extents = ["--cluster-extents", objects.as_uri()] if version == FORMAT_COLD else []
    with node(dsn, tmp_path / "node", *extents) as client:
        assert as_json(seen(client)) == expected
        if extents:
            until(lambda: list(objects.rglob("*-*")), "full extents are moved")
        check_marks(client, before)
        assert produce(client, "lives/ttl", 0, "produced").status_code == 204
        assert produce(client, "lives/ttl", 1, "produced").status_code == 200
        bearer = {"authorization": f"Bearer {secret}"}
        assert client.get("/v1/stream/json/small", headers=bearer).status_code == 200
        assert client.get("/v1/stream/bytes/large", headers=bearer).status_code == 404
        send(client, "POST", "/v1/stream/json/large", ["goes on"])
        send(client, "DELETE", "/v1/stream/fork/second")
        expected, before = as_json(seen(client)), marks(client)
    back = tmp_path / "back"
    done = cli("export", back, "--cluster", dsn, *extents)
    assert done.returncode == 0, done.stderr
    assert verify(back).problems == []
    with serving(back, FORMAT_WORKERS if version == FORMAT_WORKERS else FORMAT) as client:
        assert as_json(seen(client)) == expected
        check_marks(client, before)
        assert produce(client, "lives/ttl", 1, "produced").status_code == 204
        assert produce(client, "lives/ttl", 2, "produced").status_code == 200
        send(client, "PUT", "/v1/stream/new", b"x", Content_Type="text/plain")


def test_the_folder_of_several_workers_becomes_a_cluster_of_several_shards(
    tmp_path: Path,
) -> None:
    folder, dsn = tmp_path / "data", shared().fresh_database()
    expected = as_json(write(folder, FORMAT_WORKERS, crash=True))
    expected.pop("token")
    asyncio.run(import_folder(folder, settings_of(dsn)))
    with node(dsn, tmp_path / "node") as client:
        assert as_json(seen(client)) == expected


def fill(folder: Path) -> None:
    """Write a folder with many streams, some with segments of several blocks."""

    async def run() -> None:
        engine = open_engine(Settings(data_dir=folder, disk_reserve_bytes=0))
        await engine.start()
        config = StreamConfig("text/plain", None, None)
        for number in range(STREAMS):
            await engine.create(f"s/{number}", config)
            size = 300_000 if number % 100 == 0 else 30
            await engine.append(f"s/{number}", Append(b"%d," % number * (size // 4), "text/plain"))
        await engine.stop()

    asyncio.run(run())


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "data"
    fill(folder)
    return folder


def content(dsn: str, folder: Path) -> dict[str, bytes]:
    """The streams of a cluster, read by a node."""
    with node(dsn, folder) as client:
        return {
            name: client.get(f"/v1/stream/{name}?offset=-1").content
            for name in ("s/0", "s/1", "s/600", f"s/{STREAMS - 1}")
        }


def settings_of(dsn: str) -> Settings:
    return Settings(cluster=dsn, cluster_durability="single", disk_reserve_bytes=0)


def query(dsn: str, text: str) -> list[str]:
    return shared().query(text, dsn.rpartition("/")[2])


def test_an_import_that_was_killed_goes_on(many: Path, tmp_path: Path) -> None:
    dsn = shared().fresh_database()
    command = ["cluster", "import", str(many), "--cluster", dsn, *SINGLE]
    process = subprocess.Popen(
        [sys.executable, "-m", "penstock.cli", *command],
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stderr is not None
        assert any(line.startswith("copying streams: 500 of") for line in process.stderr)
        process.kill()
    assert process.returncode < 0
    assert int(query(dsn, "SELECT last_id FROM penstock.import")[0]) >= 500
    refused = invoke("status", "--cluster", dsn)
    assert refused.exit_code != 0
    assert "was not finished" in refused.stderr
    done = cli("import", many, "--cluster", dsn)
    assert done.returncode == 0, done.stderr
    assert "copying streams: 0 of" not in done.stderr
    assert query(dsn, "SELECT count(*) FROM penstock.stream") == [str(STREAMS)]
    stored = content(dsn, tmp_path / "node")
    assert stored["s/600"] == b"600," * 75_000
    assert stored["s/1"] == b"1," * 7


def test_a_copy_that_differs_does_not_open(many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dsn = shared().fresh_database()

    async def ended(*_: object, **__: object) -> None:
        raise ClusterRefused("ended before the cluster was opened")

    monkeypatch.setattr(copying, "finish", ended)
    with pytest.raises(ClusterRefused, match="ended before"):
        asyncio.run(import_folder(many, settings_of(dsn)))
    monkeypatch.undo()
    flip = "set_byte(body, 70000, get_byte(body, 70000) # 1)"
    some = "(SELECT min(stream_id) FROM penstock.extent)"
    query(dsn, f"UPDATE penstock.extent SET body = {flip} WHERE stream_id = {some} AND base = 0")
    with pytest.raises(StoreDamaged, match="do not match their checksum"):
        asyncio.run(import_folder(many, settings_of(dsn)))
    query(dsn, f"UPDATE penstock.extent SET body = {flip} WHERE stream_id = {some} AND base = 0")
    query(dsn, "UPDATE penstock.stream SET count = count + 1 WHERE path = 's/7'")
    with pytest.raises(Exception, match="checksum"):
        asyncio.run(import_folder(many, settings_of(dsn)))
    query(dsn, "UPDATE penstock.stream SET count = count - 1 WHERE path = 's/7'")
    query(dsn, "DELETE FROM penstock.stream WHERE path = 's/8'")
    with pytest.raises(StoreDamaged, match="'s/8' differs"):
        asyncio.run(import_folder(many, settings_of(dsn)))
    with pytest.raises(ClusterRefused, match="not finished"):
        asyncio.run(read_status(settings_of(dsn)))


def test_a_folder_that_was_served_meanwhile_is_copied_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, dsn = tmp_path / "data", shared().fresh_database()
    with serving(folder) as client:
        send(client, "PUT", "/v1/stream/a", b"first", Content_Type="text/plain")

    async def ended(*_: object, **__: object) -> None:
        raise ClusterRefused("ended before the cluster was opened")

    monkeypatch.setattr(copying, "finish", ended)
    with pytest.raises(ClusterRefused, match="ended before"):
        asyncio.run(import_folder(folder, settings_of(dsn)))
    monkeypatch.undo()
    with serving(folder) as client:
        send(client, "POST", "/v1/stream/a", b", second", Content_Type="text/plain")
    asyncio.run(import_folder(folder, settings_of(dsn)))
    with node(dsn, tmp_path / "node") as client:
        assert client.get("/v1/stream/a?offset=-1").content == b"first, second"


def test_what_is_refused(many: Path, tmp_path: Path) -> None:
    dsn = shared().fresh_database()
    absent = invoke("import", tmp_path / "nothing", "--cluster", dsn)
    assert "is not a Penstock data folder" in absent.stderr
    folder = tmp_path / "data"
    with serving(folder):
        locked = invoke("import", folder, "--cluster", dsn)
        assert "in use" in locked.stderr
    with node(dsn, tmp_path / "node"):
        running = invoke("export", tmp_path / "back", "--cluster", dsn)
        assert "Stop all of them first" in running.stderr
    taken = invoke("import", folder, "--cluster", dsn)
    assert "holds a cluster already" in taken.stderr
    full = invoke("export", folder, "--cluster", dsn)
    assert "is not empty" in full.stderr
    nameless = invoke("import", folder)
    assert "Name the database" in nameless.stderr
    for done in (absent, locked, running, taken, full, nameless):
        assert done.exit_code != 0
        assert isinstance(done.exception, SystemExit)
        errors = [line for line in done.stderr.splitlines() if line.startswith("Error")]
        assert len(errors) == 1


LIVE = "/v1/streams/live?stream=a@now"


def cursor(client: httpx2.Client) -> str:
    """Return the cursor of several streams on one connection, at the end of all."""
    with client.stream("GET", LIVE) as response:
        lines = (line for line in response.iter_lines() if line.startswith("id:"))
        return next(lines).removeprefix("id:").strip()


def resume(client: httpx2.Client, cursor: str) -> int:
    with client.stream("GET", LIVE, headers={"last-event-id": cursor}) as response:
        return response.status_code


def test_a_restored_cluster_tells_those_who_have_seen_what_is_lost(tmp_path: Path) -> None:
    dsn, restored = shared().fresh_database(), shared().fresh_database()
    stream = "/v1/stream/a"

    def append(client: httpx2.Client, text: bytes) -> str:
        answer = send(client, "POST", stream, text, Content_Type="text/plain")
        return str(answer.headers["stream-next-offset"])

    with node(dsn, tmp_path / "one") as client:
        send(client, "PUT", stream, b"first", Content_Type="text/plain")
        kept = append(client, b", kept")
    backup = shared().dump(dsn)
    with node(dsn, tmp_path / "one") as client:
        lost = append(client, b", lost")
        lost_cursor = cursor(client)
        send(client, "PUT", "/v1/stream/lost", b"x", Content_Type="text/plain")
        other = client.head("/v1/stream/lost").headers["stream-next-offset"]
    shared().load(restored, backup)
    done = invoke("restored", "--cluster", restored)
    assert done.exit_code == 0, done.stderr
    assert "1 stream renewed" in done.stdout
    with node(restored, tmp_path / "two") as client:
        append(client, b", and something else that is longer")
        refused = client.get(f"{stream}?offset={lost}")
        assert (refused.status_code, refused.json()["code"]) == (410, "stream-recreated")
        answer = client.get(f"{stream}?offset={kept}")
        assert answer.text == ", and something else that is longer"
        assert resume(client, lost_cursor) == 400
        new_cursor = cursor(client)
        append(client, b", and more")
        assert resume(client, new_cursor) == 200
        send(client, "PUT", "/v1/stream/lost", b"another", Content_Type="text/plain")
        assert client.get(f"/v1/stream/lost?offset={other}").status_code == 410
        running = invoke("restored", "--cluster", restored)
        assert "Stop all of them first" in running.stderr
