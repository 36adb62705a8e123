"""Folders of every released format are opened by this version, with everything that they have.

Format 1 is in `test_upgrade`: it needs to be mended. `make_format` writes the archives.
"""

from __future__ import annotations

import json
import re
import tarfile
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.log.disk.recovery import FORMAT_COLD
from penstock.log.disk.worker_folders import FORMAT_WORKERS
from penstock.log.offline.inspect import overview
from penstock.log.offline.verify import verify
from tests.crash.make_format import COLD_SEGMENTS, args_of, client_of, produce, seen, send
from tests.helpers.server import running_server

HERE = Path(__file__).parent
ARCHIVES = {
    int(match[1]): path
    for path in HERE.glob("format-*.tar.gz")
    if (match := re.fullmatch(r"format-(\d+)\.tar\.gz", path.name)) is not None
}


def test_every_format_up_to_this_one_has_an_archive() -> None:
    assert sorted(ARCHIVES) == list(range(1, FORMAT_WORKERS + 1))


@pytest.mark.parametrize("name", ["stopped", "crashed"])
@pytest.mark.parametrize("version", sorted(ARCHIVES.keys() - {1}))
def test_everything_of_a_folder_is_there(tmp_path: Path, version: int, name: str) -> None:
    with tarfile.open(ARCHIVES[version]) as archive:
        archive.extractall(tmp_path, filter="data")
    folder = tmp_path / name
    expected: dict[str, Any] = json.loads((tmp_path / "expected.json").read_text())[name]
    report = verify(folder)
    assert (report.problems, report.format) == ([], version)
    assert (report.clean, report.last_lsn > report.checkpoint_lsn) == (
        name == "stopped",
        name == "crashed",
    )
    assert report.cold_segments == (COLD_SEGMENTS if version == FORMAT_COLD else 0)
    parts = sorted(folder.glob("workers/*")) or [folder]
    assert sum(overview(part).streams for part in parts) == report.streams
    secret = expected.pop("token")
    args = args_of(version, folder)
    with running_server(data_dir=folder, args=args) as server, client_of(server) as client:
        assert json.loads(json.dumps(seen(client))) == expected
        assert produce(client, "lives/ttl", 0, "produced").status_code == 204
        assert produce(client, "lives/ttl", 1, "produced").status_code == 200
        read = httpx2.get(
            f"{server.url}/v1/stream/json/small", headers={"Authorization": f"Bearer {secret}"}
        )
        assert read.json() == [1, "two", None, "later"]
        send(client, "POST", "/v1/stream/json/large", ["goes on"])
        send(client, "DELETE", "/v1/stream/fork/second")
    assert verify(folder).problems == []
