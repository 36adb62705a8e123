"""The principals that JWTs stand for: shared, bounded in number, ended with their token or key; and
what requests with JWTs get from a server."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from penstock.access.jwks import Document
from penstock.access.jwt import JwtAccess
from penstock.access.key_set import Key, KeySet
from penstock.access.principal import Principal
from penstock.access.rules import Verb
from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.egress import Egress
from penstock.errors import KeysUnavailable, KeyUnknown, Unauthorized
from penstock.http.message import EventBody
from tests.access.minting import (
    AUDIENCE,
    ISSUER,
    NOW_S,
    Signer,
    document,
    name_of,
    signer,
    write_keys,
)
from tests.helpers.app import Client, FakeSink, run_with_app, settings_of, with_app

LEEWAY_S = 30
OLD, NEW = signer(kid="old", name="old"), signer(kid="new", name="new")


class Times:
    """The wall clock and the monotonic one, moved together."""

    def __init__(self) -> None:
        self.clock = ManualClock(NOW_S * 1_000_000)
        self.now_s = 100.0

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.now_s += seconds


class CountedKeys(KeySet):
    """A key set that counts how often a key is looked up, which is once per verification."""

    __slots__ = ("count",)

    def __init__(self, keys: KeySet, issuer: Signer) -> None:
        key = keys.find(issuer.kid, issuer.algorithm)
        assert key is not None
        super().__init__([(issuer.kid, issuer.algorithm, key)])
        self.count = 0

    def find(self, kid: str | None, algorithm: str) -> Key | None:
        self.count += 1
        return super().find(kid, algorithm)


def _settings(path: Path, **changes: Any) -> Settings:
    usual = {"jwt_algorithms": ("ES256",), "jwt_issuer": (ISSUER,), "jwt_audience": (AUDIENCE,)}
    return Settings(memory=True, jwt_keys=str(path), **{**usual, **changes})


def _access(
    folder: Path, *signers: Signer, times: Times | None = None, **options: Any
) -> JwtAccess:
    settings = _settings(
        write_keys(folder / "jwks.json", *(each.jwk() for each in signers or (OLD,)))
    )
    times = times or Times()
    return JwtAccess(
        settings, Egress(settings), clock=times.clock, monotonic=lambda: times.now_s, **options
    )


def _principal(access: JwtAccess, token: str) -> Principal:
    principal = access.principal(token)
    assert principal is not None
    return principal


def _change(access: JwtAccess, *signers: Signer) -> None:
    access.keys.take(Document(document(*(each.jwk() for each in signers))))


def test_a_token_is_a_principal_with_its_rules_and_its_end(tmp_path: Path) -> None:
    times = Times()
    principal = _principal(_access(tmp_path, times=times), OLD.token(scope="read:a/** list:a/*"))
    assert (principal.name, principal.id) == ("jwt:ada", f"jwt:{ISSUER}:ada")
    assert principal.until_s == times.now_s + 600 + LEEWAY_S
    assert principal.may(Verb.READ, "a/b")
    assert not principal.may(Verb.APPEND, "a/b")
    assert not principal.is_root


def test_no_token_makes_anybody_root(tmp_path: Path) -> None:
    principal = _principal(_access(tmp_path), OLD.token(sub="root", scope="*:**"))
    assert not principal.is_root
    assert principal.name == "jwt:root"


def test_a_token_of_another_kind_is_left_to_others(tmp_path: Path) -> None:
    assert _access(tmp_path).principal("b0d1c2") is None


def test_a_token_is_verified_once_until_it_expires(tmp_path: Path) -> None:
    times = Times()
    access = _access(tmp_path, times=times)
    access.keys.current = counted = CountedKeys(access.keys.current, OLD)
    token = OLD.token()
    principal = _principal(access, token)
    assert access.principal(token) is principal
    times.advance(600 + LEEWAY_S - 1)
    assert access.principal(token) is principal
    assert counted.count == 1
    times.advance(1)
    with pytest.raises(Unauthorized, match="expired"):
        access.principal(token)
    assert len(access) == 0


@pytest.mark.parametrize("token", ["a.b.c", OLD.token(exp=1), NEW.token({"kid": "old"}), "é.é.é"])
def test_a_refused_token_is_not_remembered(token: str, tmp_path: Path) -> None:
    access = _access(tmp_path)
    with pytest.raises(Unauthorized):
        access.principal(token)
    assert len(access) == 0


def test_the_least_recently_used_token_makes_room(tmp_path: Path) -> None:
    access = _access(tmp_path, cache_max=2)
    access.keys.current = counted = CountedKeys(access.keys.current, OLD)
    first, second, third = (OLD.token(sub=name) for name in ("1", "2", "3"))
    for token in (first, second, first, third):  # the second makes room
        access.principal(token)
    assert (len(access), counted.count) == (2, 3)
    access.principal(first)
    assert counted.count == 3
    access.principal(second)
    assert (len(access), counted.count) == (2, 4)


def test_principals_that_nobody_uses_take_no_memory(tmp_path: Path) -> None:
    access = _access(tmp_path, cache_max=10)
    for number in range(200):
        access.principal(OLD.token(sub=str(number)))
    gc.collect()
    assert (len(access), len(access._signed_by)) == (10, 10)


def test_principals_end_with_their_key_and_others_go_on(tmp_path: Path) -> None:
    access = _access(tmp_path, OLD, NEW, cache_max=1)
    of_old, of_new = _principal(access, OLD.token()), _principal(access, NEW.token())
    assert len(access) == 1  # the first has left the cache, and still belongs to some request
    _change(access, NEW, signer("ES256", kid="third", name="third"))
    assert of_old.until_s == 0
    assert of_new.until_s > 0
    assert access.principal(NEW.token(sub="other")) is not None
    access.keys._attempted_s = access.keys._monotonic()
    with pytest.raises(KeyUnknown):
        access.principal(OLD.token())


def test_another_key_under_the_same_kid_is_another_key(tmp_path: Path) -> None:
    access = _access(tmp_path)
    token = OLD.token()
    before = _principal(access, token)
    _change(access, Signer("ES256", NEW.private, "old"))
    assert before.until_s == 0
    with pytest.raises(Unauthorized, match="signature is wrong"):
        access.principal(token)


def test_a_key_with_other_details_is_the_same_key(tmp_path: Path) -> None:
    access = _access(tmp_path)
    before = _principal(access, OLD.token())
    access.keys.take(Document(document(OLD.jwk(x5t="other", alg=None, key_ops=["verify"]))))
    assert before.until_s > 0


# -- requests

BACKEND = Signer("HS256", b"0123456789abcdef" * 2, None)
HS: dict[str, Any] = {
    "jwt_algorithms": ("HS256",),
    "jwt_secret": "0123456789abcdef" * 2,
    "jwt_issuer": (ISSUER,),
    "jwt_audience": (AUDIENCE,),
}


def _bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@with_app(**HS, auth_token="the root token")
async def test_requests_may_do_what_their_token_says(client: Client) -> None:
    root, text = _bearer("the root token"), {"content_type": "text/plain"}
    assert (await client.put("a/b", b"x", **text, **root)).status == 201
    reader = _bearer(BACKEND.token(scope="read:a/**"))
    assert (await client.get("a/b", **reader)).body == b"x"
    denied = await client.post("a/b", b"y", **text, **reader)
    assert (denied.status, denied.json()["verb"], denied.json()["path"]) == (403, "append", "a/b")
    assert (await client.get("b", **reader)).status == 404
    writer = _bearer(BACKEND.token(scope=["append:a/*", "create:a/*"]))
    assert (await client.post("a/b", b"y", **text, **writer)).status == 204
    assert (await client.put("a/c", b"", **text, **writer)).status == 201


@with_app(**HS)
async def test_a_server_with_jwts_is_not_open(client: Client) -> None:
    assert (await client.get("a")).status == 401
    for token in ("other", "a.b.c", BACKEND.token(exp=NOW_S - 60), NEW.token()):
        refused = await client.get("a", **_bearer(token))
        assert (refused.status, refused.json()["code"]) == (401, "unauthorized")
        assert refused.headers["www-authenticate"].startswith('Bearer realm="penstock"')
        assert token not in refused.body.decode()
    expired = await client.get("a", **_bearer(BACKEND.token(exp=NOW_S - 60)))
    assert expired.json()["detail"] == "The token has expired."
    # No scope allows nothing, and what one may not see is not there.
    assert (await client.get("a", **_bearer(BACKEND.token()))).status == 404


def test_a_request_with_a_new_key_is_to_be_sent_again(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "jwks.json", OLD.jwk())
    options = {"jwt_algorithms": ("ES256",), "jwt_keys": str(path)}

    async def test(client: Client) -> None:
        jwt = client.app._jwt
        assert jwt is not None
        await jwt.keys.refresh()
        jwt.keys._attempted_s = float("-inf")
        write_keys(path, NEW.jwk())
        token = NEW.token(scope="create:**")
        waiting = await client.put("a", b"", content_type="text/plain", **_bearer(token))
        assert (waiting.status, waiting.json()["code"]) == (503, "keys-unavailable")
        assert waiting.headers["retry-after"] == "1"
        await jwt.keys.refresh()
        accepted = await client.put("a", b"", content_type="text/plain", **_bearer(token))
        assert accepted.status == 201

    run_with_app(test, settings_of("memory", tmp_path, **{**HS, "jwt_secret": None, **options}))


def test_a_live_reader_ends_when_the_key_of_its_token_is_removed(tmp_path: Path) -> None:
    path = write_keys(tmp_path / "jwks.json", OLD.jwk(), NEW.jwk())
    options = {"jwt_algorithms": ("ES256",), "jwt_keys": str(path)}

    async def test(client: Client) -> None:
        jwt = client.app._jwt
        assert jwt is not None
        reader = await _live(client, OLD)
        other = await _live(client, NEW)
        write_keys(path, NEW.jwk())
        await reader.until(lambda sink: sink.closed or sink.aborted)
        assert (other.closed, other.aborted) == (False, False)
        with pytest.raises((KeyUnknown, KeysUnavailable)):
            name_of(jwt, OLD.token())

    run_with_app(test, settings_of("memory", tmp_path, **{**HS, "jwt_secret": None, **options}))


async def _live(client: Client, issuer: Signer) -> FakeSink:
    allow = _bearer(issuer.token(scope="read:a create:a"))
    await client.put("a", b"", content_type="text/plain", **allow)
    response = await client.respond("GET", "/v1/stream/a?offset=-1&live=sse", b"", **allow)
    assert isinstance(response.body, EventBody)
    sink = FakeSink(response)
    response.body.attach(sink)
    await asyncio.sleep(0)
    return sink
