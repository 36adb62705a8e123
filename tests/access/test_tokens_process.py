"""Tokens at real servers: over a kill, on a full disk, under live readers."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.helpers.server import Server, running_server

ROOT = {"authorization": "Bearer root-token"}
ENV = {"PENSTOCK_TOKEN": "root-token"}
JSON = {"content-type": "application/json"}


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


def create(server: Server, *allow: str) -> dict[str, Any]:
    answer = httpx2.post(f"{server.url}/v1/tokens", headers=ROOT, json={"allow": allow})
    assert answer.status_code == 201, answer.text
    content: dict[str, Any] = answer.json()
    return content


def status(server: Server, token: str) -> int:
    url = f"{server.url}/v1/stream/a?offset=-1"
    return httpx2.get(url, headers=bearer(token)).status_code


def test_tokens_survive_kill_9_and_the_tools_of_the_folder_cope(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    with running_server(data_dir=folder, env=ENV) as server:
        httpx2.put(f"{server.url}/v1/stream/a", headers={**ROOT, **JSON})
        url = f"{server.url}/v1/link"
        body = {"verb": "read", "path": "a", "expires_in": 600}
        link = httpx2.post(url, headers=ROOT, json=body).json()["link"]
        revoked = create(server, "read:a")
        removed = httpx2.delete(f"{server.url}/v1/tokens/{revoked['id']}", headers=ROOT)
        assert removed.status_code == 200
        secret = create(server, "read:a")["token"]
        server.kill()
    with running_server(data_dir=folder, env=ENV) as server:
        assert status(server, secret) == 200
        assert status(server, revoked["token"]) == 401
        linked = httpx2.get(f"{server.url}/v1/stream/a?offset=-1&link={link}")
        assert linked.status_code == 200
    for arguments in (["verify"], ["inspect"], ["inspect", "__ds/tokens"]):
        command, *stream = arguments
        shown = subprocess.run(
            [sys.executable, "-m", "penstock.cli", command, str(folder), *stream],
            capture_output=True,
            text=True,
            check=False,
        )
        assert shown.returncode == 0, shown.stderr
        for text in (secret, secret[-46:-6], link, "root-token"):
            assert text not in shown.stdout + shown.stderr
    written = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    for text in (secret[-46:-6], link.partition(".")[2], "root-token"):
        assert text.encode() not in written


def test_on_a_full_disk_there_is_no_token_and_none_is_revoked(tmp_path: Path) -> None:
    full = tmp_path / "full"
    with running_server(data_dir=tmp_path / "data", env=ENV, full_disk=full) as server:
        httpx2.put(f"{server.url}/v1/stream/a", headers={**ROOT, **JSON})
        content = create(server, "read:a")
        full.touch()
        url = f"{server.url}/v1/tokens"
        refused = httpx2.post(url, headers=ROOT, json={"allow": ["read:a"]})
        assert refused.status_code == 507, refused.text
        refused = httpx2.delete(f"{url}/{content['id']}", headers=ROOT)
        assert refused.status_code == 507, refused.text
        refused = httpx2.post(f"{server.url}/v1/links/rotate", headers=ROOT)
        assert refused.status_code == 507, refused.text
        # What could not be written has not happened.
        tokens = httpx2.get(url, headers=ROOT).json()["tokens"]
        assert [each["id"] for each in tokens] == [content["id"]]
        assert status(server, content["token"]) == 200
        full.unlink()


@pytest.mark.parametrize("asgi", [False, True])
def test_a_live_reader_ends_within_a_second_of_the_revocation(asgi: bool) -> None:
    with running_server(memory=True, env=ENV, asgi=asgi) as server:
        httpx2.put(f"{server.url}/v1/stream/a", headers={**ROOT, **JSON})
        content = create(server, "read:a")
        url = f"{server.url}/v1/link"
        body = {"verb": "read", "path": "a", "expires_in": 600}
        signed = httpx2.post(url, headers=bearer(content["token"]), json=body).json()["link"]
        live = f"{server.url}/v1/stream/a?offset=now&live=sse"
        with (
            httpx2.stream("GET", live, headers=bearer(content["token"])) as reader,
            httpx2.stream("GET", f"{live}&link={signed}") as linked,
        ):
            assert reader.status_code == linked.status_code == 200
            pieces, linked_pieces = reader.iter_bytes(), linked.iter_bytes()
            next(pieces)
            next(linked_pieces)
            httpx2.delete(f"{server.url}/v1/tokens/{content['id']}", headers=ROOT)
            revoked = time.monotonic()
            list(pieces)
            list(linked_pieces)
            assert time.monotonic() - revoked < 1
        assert status(server, content["token"]) == 401


def test_a_revoked_token_is_refused_on_a_connection_whose_head_is_cached() -> None:
    with running_server(memory=True, env=ENV) as server, httpx2.Client() as client:
        httpx2.put(f"{server.url}/v1/stream/a", headers={**ROOT, **JSON})
        content = create(server, "read:a")
        url, headers = f"{server.url}/v1/stream/a?offset=-1", bearer(content["token"])
        for _ in range(3):
            assert client.get(url, headers=headers).status_code == 200
        httpx2.delete(f"{server.url}/v1/tokens/{content['id']}", headers=ROOT)
        assert client.get(url, headers=headers).status_code == 401
        assert client.get(url, headers=ROOT).status_code == 200
