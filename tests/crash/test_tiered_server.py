"""Servers with an object store: killed under writers, and with the store gone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from penstock.log.offline.verify import verify
from penstock.object_store import FolderStore
from tests.crash.test_kill import SMALL, run_kills
from tests.helpers.server import Server, running_server
from tests.spark.object_store import BUCKET, Store, missing, running_store

TIERED = [
    *SMALL,
    *("--segment-bytes-max", "1KiB"),
    *("--checkpoint-bytes", "2KiB"),
    *("--inline-bytes-max", "256B"),
    *("--chunk-size", "4MiB"),
    *("--tier-after", "0"),
    *("--tier-interval", "0.01"),
    *("--tier-cache-bytes-max", "64KiB"),
]


def folder_url(tmp_path: Path) -> str:
    return (tmp_path / "objects").as_uri()


def _kill(tmp_path: Path, *, kills: int, seed: int) -> None:
    data_dir = tmp_path / "data"
    run_kills(
        data_dir,
        kills=kills,
        seed=seed,
        appends_max=700,
        args=[*TIERED, "--tier-url", folder_url(tmp_path)],
    )
    assert len(list(FolderStore(tmp_path / "objects").list())) > 0
    report = verify(data_dir, cold=True)
    assert (report.problems, report.notes) == ([], [])
    assert report.cold_segments > 0


def test_kill_twice_while_segments_move(tmp_path: Path) -> None:
    _kill(tmp_path, kills=2, seed=41)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [42, 43])
def test_kill_200_times_while_segments_move(tmp_path: Path, seed: int) -> None:
    _kill(tmp_path, kills=200, seed=seed)


@pytest.fixture
def s3() -> Iterator[Store]:
    if reason := missing():
        pytest.skip(reason)
    with running_store() as store:
        yield store


def post(server: Server, path: str, body: bytes, *, method: str = "POST") -> None:
    headers = {"Content-Type": "text/plain"}
    url = f"{server.url}/v1/stream/{path}"
    with urlopen(Request(url, body, headers, method=method)) as response:
        assert response.status in (200, 201, 204)


def read(server: Server, path: str, query: str = "") -> bytes:
    with urlopen(f"{server.url}/v1/stream/{path}{query}") as response:
        return bytes(response.read())


def metric(server: Server, name: str) -> float:
    with urlopen(f"{server.url}/metrics") as response:
        lines = response.read().decode().splitlines()
    (line,) = [line for line in lines if line.startswith(f"penstock_{name} ")]
    return float(line.split()[1])


def fill_until_cold(server: Server, path: str, segments: int) -> bytes:
    """Append to a new stream until so many segments of it have moved; return its content."""
    post(server, path, b"", method="PUT")
    content = b""
    for number in range(1000):
        if metric(server, "tier_cold_segments") >= segments:
            return content
        piece = b"%06d," % number * 700
        post(server, path, piece)
        content += piece
    pytest.fail("nothing moves")


def test_a_real_s3_store_and_its_end(tmp_path: Path, s3: Store) -> None:
    args = [*TIERED, "--tier-url", f"s3://{BUCKET}/cold", "--tier-timeout", "1"]
    data_dir = tmp_path / "data"
    with running_server(args=args, data_dir=data_dir, env=s3.options) as server:
        content = fill_until_cold(server, "a", 3)
        assert read(server, "a") == content
        server.terminate()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in s3.options.items():
            patch.setenv(name, value)
        assert verify(data_dir, cold=True).problems == []
    for path in (data_dir / "cache").iterdir():
        path.unlink()
    with running_server(args=args, data_dir=data_dir, env=s3.options) as server:
        assert read(server, "a") == content
        assert metric(server, "tier_fetched_bytes_total") >= 3 * 1024
    for path in (data_dir / "cache").iterdir():
        path.unlink()
    gone = {**s3.options, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
    with running_server(args=args, data_dir=data_dir, env=gone) as server:
        with pytest.raises(HTTPError) as refusal:
            read(server, "a")
        problem = json.loads(refusal.value.read())
        assert (refusal.value.code, problem["type"].rpartition("/")[2]) == (
            503,
            "cold-data-unavailable",
        )
        assert int(refusal.value.headers["Retry-After"]) >= 1
        post(server, "a", b"!")
        assert read(server, "a", f"?offset={1:016d}_{len(content):016d}") == b"!"
        assert server.terminate() == 0
