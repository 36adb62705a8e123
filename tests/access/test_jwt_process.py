"""JWTs at a real server, on both transports: keys that come and go while it runs."""

from __future__ import annotations

import time
from pathlib import Path

import httpx2
import pytest

from tests.access.minting import AUDIENCE, ISSUER, Signer, signer, write_keys
from tests.helpers.server import ServerDidNotStart, running_server

OLD, NEW = signer(kid="old", name="old"), signer(kid="new", name="new")
FLAGS = ["--jwt-algorithms", "ES256", "--jwt-issuer", ISSUER, "--jwt-audience", AUDIENCE]
WAIT_S = 20


def _bearer(issuer: Signer) -> dict[str, str]:
    token = issuer.token(scope="create:a append:a read:a", exp=int(time.time()) + 600)
    return {"authorization": f"Bearer {token}", "content-type": "text/plain"}


def _until(client: httpx2.Client, headers: dict[str, str], status: int) -> httpx2.Response:
    """Append until the answer has a status: the server reads the file about once a second."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        answer = client.post("/v1/stream/a", content=b"x", headers=headers)
        if answer.status_code == status:
            return answer
        time.sleep(0.05)
    raise AssertionError(f"{answer.status_code} {answer.text}")


@pytest.mark.parametrize("asgi", [False, True])
def test_keys_are_rotated_while_a_server_runs(asgi: bool, tmp_path: Path) -> None:
    path = write_keys(tmp_path / "jwks.json", OLD.jwk())
    with (
        running_server(memory=True, asgi=asgi, args=[*FLAGS, "--jwt-keys", str(path)]) as server,
        httpx2.Client(base_url=server.url, timeout=WAIT_S) as client,
    ):
        old, new = _bearer(OLD), _bearer(NEW)
        assert client.put("/v1/stream/a", headers=old).status_code == 201
        for _ in range(3):  # the same head again: its principal is known
            assert client.post("/v1/stream/a", content=b"x", headers=old).status_code == 204
        assert client.get("/v1/stream/b", headers=old).status_code == 404
        assert client.get("/v1/stream/a").status_code == 401
        write_keys(path, OLD.jwk(), NEW.jwk())
        _until(client, new, 204)
        assert client.post("/v1/stream/a", content=b"x", headers=old).status_code == 204
        write_keys(path, NEW.jwk())
        refused = _until(client, old, 401)
        assert refused.json()["code"] == "key-unknown"
        assert client.post("/v1/stream/a", content=b"x", headers=new).status_code == 204
        written = server.stderr
    for headers in (old, new):
        assert headers["authorization"].removeprefix("Bearer ") not in written


def test_a_server_whose_keys_cannot_be_used_says_so_in_one_line(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "jwks.json", OLD.jwk(use="enc"))
    with (
        pytest.raises(ServerDidNotStart) as caught,
        running_server(memory=True, args=[*FLAGS, "--jwt-keys", str(path)]),
    ):
        pass
    last = str(caught.value).strip().splitlines()[-1]
    assert last.endswith(f"Setting jwt_keys: {path} has no key for ES256.")
    assert "Traceback" not in str(caught.value)
