"""Tokens, links and the audit log are the same at every worker."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
import pytest

from tests.helpers.server import Server, running_server
from tests.workers.server import JSON, path_at

pytestmark = pytest.mark.xdist_group("workers")
ROOT = {"authorization": "Bearer root-secret-of-the-test"}
ROUNDS = 8  # new connections: enough to reach both workers


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    args = ["--workers", "2", "--token", "root-secret-of-the-test"]
    with running_server(args=args) as server:
        yield server


def _statuses(server: Server, path: str, headers: dict[str, str]) -> set[int]:
    statuses = set()
    for _ in range(ROUNDS):
        with httpx2.Client(base_url=server.url, timeout=20) as http:
            statuses.add(http.get(path, headers=headers).status_code)
    return statuses


def test_a_token_is_valid_at_every_worker_until_it_is_revoked(closed: Server) -> None:
    paths = [path_at(worker, "open/t") for worker in (0, 1)]
    with httpx2.Client(base_url=closed.url, headers=ROOT, timeout=20) as http:
        for path in paths:
            assert http.put(f"/v1/stream/{path}", headers=JSON).status_code == 201
        token = http.post("/v1/tokens", json={"allow": ["read:open/**"]}).json()
        bearer = {"authorization": f"Bearer {token['token']}"}
        for path in paths:
            assert _statuses(closed, f"/v1/stream/{path}", bearer) == {200}
            assert _statuses(closed, f"/v1/stream/{path}", {}) == {401}
        assert _statuses(closed, f"/v1/stream/{path_at(0, 'other')}", bearer) == {404}
        assert http.delete(f"/v1/tokens/{token['id']}").status_code == 200
        for path in paths:
            assert _statuses(closed, f"/v1/stream/{path}", bearer) == {401}


def test_a_signed_link_is_valid_at_every_worker_until_its_key_is_replaced(closed: Server) -> None:
    paths = [path_at(worker, "link") for worker in (0, 1)]
    with httpx2.Client(base_url=closed.url, headers=ROOT, timeout=20) as http:
        for path in paths:
            http.put(f"/v1/stream/{path}", headers=JSON)
            wish = {"verb": "read", "path": path, "expires_in": 600}
            url = http.post("/v1/link", json=wish).json()["url"]
            target = url.removeprefix(closed.url)
            assert _statuses(closed, target, {}) == {200}
        assert http.post("/v1/links/rotate").status_code == 204
        assert _statuses(closed, target, {}) == {401}


def test_the_audit_log_has_what_every_worker_did(closed: Server) -> None:
    paths = [path_at(worker, "audited") for worker in (0, 1)]
    with httpx2.Client(base_url=closed.url, headers=ROOT, timeout=20) as http:
        for path in paths:
            http.put(f"/v1/stream/{path}", headers=JSON)
            http.delete(f"/v1/stream/{path}")
        seen: set[str] = set()
        while not set(paths) <= seen:
            events = http.get("/v1/audit", params={"offset": "-1"}).json()
            seen = {each["path"] for each in events if each["action"] == "stream.delete"}
        assert len([each for each in events if each["path"] in paths]) == 2
