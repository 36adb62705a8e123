"""Stored tokens: created, used, listed, revoked, expired, and still there after a restart."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from penstock.access import tokens as module
from penstock.access.tokens import PATH
from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.http.app import App, open_app
from penstock.log import open_engine
from tests.helpers.app import Answer, Client, with_app

ROOT = "root-token"
DAY_S = 86_400


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def create(client: Client, *allow: str, by: str = ROOT, **wish: Any) -> Answer:
    body = json.dumps({"allow": allow, **wish}).encode()
    return await client.send("POST", "/v1/tokens", body, **bearer(by))


async def token(client: Client, *allow: str, by: str = ROOT, **wish: Any) -> dict[str, Any]:
    answer = await create(client, *allow, by=by, **wish)
    assert answer.status == 201, answer.body
    content: dict[str, Any] = answer.json()
    return content


async def listed(client: Client) -> list[dict[str, Any]]:
    answer = await client.send("GET", "/v1/tokens", b"", **bearer(ROOT))
    assert answer.status == 200
    tokens: list[dict[str, Any]] = answer.json()["tokens"]
    return tokens


async def read(client: Client, path: str, by: str) -> int:
    return (await client.get(path, "offset=-1", **bearer(by))).status


async def stream(client: Client, path: str) -> None:
    await client.put(path, b'["x"]', content_type="application/json", **bearer(ROOT))


@with_app(auth_token=ROOT)
async def test_a_token_may_do_what_its_rules_say_and_nothing_else(client: Client) -> None:
    await stream(client, "chat/42")
    await stream(client, "other")
    content = await token(client, "read:chat/42/**", "append:chat/42", name="guest")
    secret = content["token"]
    assert await read(client, "chat/42", secret) == 200
    append = {"content_type": "application/json", **bearer(secret)}
    assert (await client.post("chat/42", b"[1]", **append)).status == 204
    # What it may not see at all looks as if it were not there.
    assert await read(client, "other", secret) == 404
    assert (await client.post("other", b"[1]", **append)).status == 404
    denied = await client.send("DELETE", "/v1/stream/chat/42", b"", **bearer(secret))
    assert denied.status == 403
    assert denied.json()["verb"] == "delete"
    assert denied.json()["path"] == "chat/42"
    assert "'guest'" in denied.json()["detail"]
    # Nor may it see or make tokens.
    assert (await client.send("GET", "/v1/tokens", b"", **bearer(secret))).status == 403
    assert (await create(client, "read:chat/42", by=secret)).status == 403


@with_app(auth_token=ROOT)
async def test_the_list_shows_no_secrets(client: Client) -> None:
    content = await token(client, "read:a", name="one", expires_in=60)
    shown = (await client.send("GET", "/v1/tokens", b"", **bearer(ROOT))).body.decode()
    secret = content.pop("token")
    assert secret not in shown
    assert secret[-46:-6] not in shown
    assert "digest" not in shown
    assert await listed(client) == [content]
    assert content["name"] == "one"
    assert content["allow"] == ["read:a"]
    assert content["created_by"] == "root"


@with_app(auth_token=ROOT)
async def test_the_stream_of_tokens_has_digests_and_no_client_can_read_it(client: Client) -> None:
    secret = (await token(client, "*:**"))["token"]
    engine = client.engine
    stored = engine.find(PATH, touch=False)
    data = await engine.read(stored, stored.earliest, stored.tail)
    assert secret.encode() not in data
    assert secret[-46:-6].encode() not in data
    for by in (ROOT, secret):
        for target in ("/v1/stream/", "/v1/state/", "/v1/table/"):
            answer = await client.send("GET", f"{target}__ds/tokens?offset=-1", b"", **bearer(by))
            assert answer.status == 404
            answer = await client.send("GET", f"{target}%5f_ds/tokens?offset=-1", b"", **bearer(by))
            assert answer.status == 404
        listing = await client.send("GET", "/v1/streams", b"", **bearer(by))
        assert listing.json()["streams"] == []
    fork = {"stream_forked_from": "/v1/stream/__ds/tokens", **bearer(ROOT)}
    assert (await client.put("copy", b"", **fork)).status in (400, 404)


@with_app(auth_token=ROOT)
async def test_wrong_tokens_are_told_apart_in_words(client: Client) -> None:
    secret: str = (await token(client, "read:a"))["token"]
    other: str = (await token(client, "read:a"))["token"]
    cases = {
        secret[:-1]: "mistyped or cut off",
        secret.swapcase(): "not one of this server's",
        "pst_": "mistyped or cut off",
        "x": "not one of this server's",
        # The id of one token with the secret of another is not even well-formed.
        secret[:15] + other[15:]: "mistyped or cut off",
    }
    for text, reason in cases.items():
        answer = await client.get("a", "offset=-1", **bearer(text))
        assert answer.status == 401, text
        assert reason in answer.json()["detail"], text
        assert answer.headers["www-authenticate"] == 'Bearer realm="penstock"'
        assert text not in answer.json()["detail"] or len(text) < 5


@with_app(auth_token=ROOT)
async def test_a_secret_of_another_token_with_right_check_characters_is_refused(
    client: Client,
) -> None:
    from penstock.access.token_text import new_token, parse_token

    secret: str = (await token(client, "read:a"))["token"]
    parts = parse_token(secret)
    assert parts is not None
    forged = new_token()._replace(id=parts.id).text
    assert await read(client, "a", forged) == 401


@with_app(auth_token=ROOT)
async def test_a_revoked_token_ends_at_once(client: Client) -> None:
    await stream(client, "a")
    content = await token(client, "read:a")
    secret = content["token"]
    reader = await client.respond("GET", "/v1/stream/a?offset=-1&live=sse", b"", **bearer(secret))
    assert reader.status == 200
    removed = await client.send("DELETE", f"/v1/tokens/{content['id']}", b"", **bearer(ROOT))
    assert removed.status == 200
    assert await read(client, "a", secret) == 401
    assert await listed(client) == []
    again = await client.send("DELETE", f"/v1/tokens/{content['id']}", b"", **bearer(ROOT))
    assert again.status == 404
    assert again.json()["code"] == "token-not-found"


@with_app(auth_token=ROOT)
async def test_a_revocation_whose_client_goes_away_takes_effect(client: Client) -> None:
    content = await token(client, "read:a")
    store = client.app.tokens.store
    principal = store.principal(content["id"])
    assert principal is not None
    removal = asyncio.ensure_future(store.remove(content["id"]))
    await asyncio.sleep(0)
    removal.cancel()
    while principal.until_s:
        await asyncio.sleep(0.001)
    assert await read(client, "a", content["token"]) == 401


@with_app(auth_token=ROOT)
async def test_a_token_expires_and_is_removed_later(client: Client) -> None:
    await stream(client, "a")
    secret = (await token(client, "read:a", expires_in=60))["token"]
    store = client.app.tokens.store
    client.clock.advance(59)
    assert await read(client, "a", secret) == 200
    client.clock.advance(1)
    answer = await client.get("a", "offset=-1", **bearer(secret))
    assert answer.status == 401
    assert "has expired" in answer.json()["detail"]
    # Still listed, for whoever wonders.
    assert [each["expired"] for each in await listed(client)] == [True]
    client.clock.advance(7 * DAY_S)
    store._sweep()
    await store._stream.caught_up()
    assert await listed(client) == []


@with_app(auth_token=ROOT)
async def test_a_clock_that_is_set_forward_ends_tokens_of_requests_that_are_cached(
    client: Client,
) -> None:
    content = await token(client, "read:a", expires_in=3600)
    store = client.app.tokens.store
    principal = store.principal(content["id"])
    assert principal is not None
    assert principal.until_s > store._monotonic() + 3500
    client.clock.advance(3600)
    store._sweep()
    assert principal.until_s == 0.0


@with_app(auth_token=ROOT)
async def test_expiry_has_a_default_and_never_has_to_be_said(client: Client) -> None:
    now_us = client.clock.now_us()
    await token(client, "read:a")
    await token(client, "read:a", expires_in=None)
    expiries = sorted(
        (each.expires_us or 0) - now_us * bool(each.expires_us)
        for each in client.app.tokens.store.all()
    )
    assert expiries == [0, 90 * DAY_S * 1_000_000]


@with_app(auth_token=ROOT)
async def test_nobody_passes_on_more_than_they_have(client: Client) -> None:
    rules = ["*:team/**", "read:shared/*", "admin:__ds/tokens"]
    admin = (await token(client, *rules, name="lead", expires_in=100))["token"]
    for allow in (
        ["read:team/x/**"],
        ["append:team/in", "read:shared/a"],
        ["*:team/a"],
        ["admin:__ds/tokens"],
    ):
        made = await token(client, *allow, by=admin, expires_in=100)
        assert made["created_by"] == "lead"
    for allow in (
        ["read:**"],
        ["*:**"],
        ["*:shared/a"],
        ["read:team/x", "read:other"],
        ["admin:__ds/**"],
        ["read:__ds/metrics"],
        ["*:__ds/tokens"],
    ):
        answer = await create(client, *allow, by=admin, expires_in=100)
        assert answer.status == 403, allow
        assert answer.json()["code"] == "not-allowed"
    # Nor for longer than they have it themselves.
    for expires_in in (101, None):
        answer = await create(client, "read:team/x", by=admin, expires_in=expires_in)
        assert answer.status == 403
        assert "expires at" in answer.json()["detail"]
    made = await token(client, "read:team/x", by=admin)
    assert made["expires_at"] == (await listed(client))[0]["expires_at"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", "invalid-json"),
        (b"[", "invalid-json"),
        (b"[]", "invalid-access-request"),
        (b"{}", "invalid-access-request"),
        (b'{"allow": []}', "invalid-access-request"),
        (b'{"allow": "read:a"}', "invalid-access-request"),
        (b'{"allow": ["read:a"], "expires": 5}', "invalid-access-request"),
        (b'{"allow": ["read:a"], "expires_in": 0}', "invalid-access-request"),
        (b'{"allow": ["read:a"], "expires_in": -1}', "invalid-access-request"),
        (b'{"allow": ["read:a"], "expires_in": 1e400}', "invalid-access-request"),
        (b'{"allow": ["read:a"], "expires_in": 99999999999999999}', "invalid-access-request"),
        (b'{"allow": ["read:a"], "expires_in": true}', "invalid-access-request"),
        (b'{"allow": ["reed:a"]}', "invalid-rule"),
        (b'{"allow": ["read:../a"]}', "invalid-rule"),
        (b'{"allow": ["read:a"], "name": "a\\nb"}', "invalid-access-request"),
        (b'{"allow": ["read:a"], "name": "%s"}' % (b"n" * 129), "invalid-access-request"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(body: bytes, code: str) -> None:
    async def main() -> None:
        app = await open_app(Settings(memory=True, auth_token=ROOT))
        try:
            client = Client(app, app.engine, ManualClock())
            answer = await client.send("POST", "/v1/tokens", body, **bearer(ROOT))
            assert answer.status == 400, answer.body
            assert answer.json()["code"] == code
            assert app.tokens.store.all() == []
        finally:
            await app.stop()

    asyncio.run(main())


@with_app(auth_token=ROOT, tokens_max=2)
async def test_the_number_of_tokens_is_bounded(client: Client) -> None:
    await token(client, "read:a", expires_in=10)
    await token(client, "read:a")
    answer = await create(client, "read:a")
    assert answer.status == 429
    assert answer.json()["code"] == "too-many-tokens"
    client.clock.advance(10)  # An expired one does not count.
    await token(client, "read:a")


@with_app()
async def test_an_open_server_makes_no_tokens(client: Client) -> None:
    for target, wish in (
        ("/v1/tokens", {"allow": ["read:a"]}),
        ("/v1/link", {"verb": "read", "path": "a", "expires_in": 60}),
        ("/v1/links/rotate", {}),
    ):
        answer = await client.send("POST", target, json.dumps(wish).encode())
        assert answer.status == 409, target
        assert answer.json()["code"] == "server-open"
        assert "PENSTOCK_TOKEN" in answer.json()["detail"]
    assert not client.app.tokens.store.exists


@with_app(auth_token=ROOT)
async def test_the_list_comes_in_pages(client: Client) -> None:
    ids = sorted([(await token(client, "read:a"))["id"] for _ in range(5)])
    seen: list[str] = []
    after = ""
    while True:
        page = (
            await client.send("GET", f"/v1/tokens?limit=2&after={after}", b"", **bearer(ROOT))
        ).json()
        seen += [each["id"] for each in page["tokens"]]
        if page["next"] is None:
            break
        after = page["next"]
    assert seen == ids


# -- Restarts, failures, history


async def app_of(folder: Path, **settings: Any) -> tuple[App, Client]:
    app = await open_app(Settings(data_dir=folder, **settings))
    return app, Client(app, app.engine, ManualClock())


def test_tokens_survive_a_restart_and_keep_the_server_closed(tmp_path: Path) -> None:
    async def main() -> None:
        app, client = await app_of(tmp_path, auth_token=ROOT)
        await stream(client, "a")
        remaining = await token(client, "read:a", "admin:__ds/tokens")
        revoked = await token(client, "read:a")
        await client.send("DELETE", f"/v1/tokens/{revoked['id']}", b"", **bearer(ROOT))
        await app.stop()
        # Without the root token: nobody means to open it to everybody.
        app, client = await app_of(tmp_path)
        try:
            assert (await client.get("a", "offset=-1")).status == 401
            assert await read(client, "a", ROOT) == 401
            assert await read(client, "a", revoked["token"]) == 401
            assert await read(client, "a", remaining["token"]) == 200
            assert (await create(client, "read:a", by=remaining["token"])).status == 201
        finally:
            await app.stop()

    asyncio.run(main())


def test_a_server_whose_tokens_are_not_loaded_lets_nobody_in(tmp_path: Path) -> None:
    async def main() -> None:
        app, client = await app_of(tmp_path, auth_token=ROOT)
        await stream(client, "a")
        await token(client, "read:a")
        await app.stop()
        settings = Settings(data_dir=tmp_path)
        engine = open_engine(settings)
        await engine.start()
        app = App(engine, settings)  # not open_app
        try:
            answer = await Client(app, engine, ManualClock()).get("a", "offset=-1")
            assert answer.status == 401
        finally:
            await app.stop()

    asyncio.run(main())


@with_app(auth_token=ROOT)
async def test_a_long_history_is_rewritten_as_the_current_tokens(client: Client) -> None:
    store = client.app.tokens.store
    first = await token(client, "read:a", name="first")
    text = "n" * 128
    while store.rewriter.task is None:
        made = await token(client, "read:a", name=text)
        await client.send("DELETE", f"/v1/tokens/{made['id']}", b"", **bearer(ROOT))
    await store.rewriter.task
    stored = client.engine.find(PATH, touch=False)
    assert stored.earliest > module.LOG_BYTES
    assert stored.tail - stored.earliest < 2000
    assert [each["id"] for each in await listed(client)] == [first["id"]]
    # What is left of the stream says the same.
    store._entries.clear()
    await store.load()
    assert [each.id for each in store.all()] == [first["id"]]


@with_app(auth_token=ROOT)
async def test_a_token_that_is_revoked_during_a_rewrite_does_not_come_back(
    client: Client,
) -> None:
    store = client.app.tokens.store
    ids = [(await token(client, "read:a"))["id"] for _ in range(20)]
    store.rewriter.log_bytes = 1
    store.rewriter.rewrite_if_long()
    for id in ids[:10]:
        await store.remove(id)
    assert store.rewriter.task is not None
    await store.rewriter.task
    store._entries.clear()
    await store.load()
    assert [each.id for each in store.all()] == sorted(ids[10:])


@with_app(auth_token=ROOT)
async def test_a_row_that_cannot_be_read_gives_no_rights(client: Client) -> None:
    made = await token(client, "read:a")
    store = client.app.tokens.store
    row = {"type": "token", "key": made["id"], "headers": {"operation": "upsert"}}
    await store._stream.write([{**row, "value": {"id": made["id"], "allow": ["fly:a"]}}])
    store._entries.clear()
    await store.load()
    assert store.all() == []
    assert await read(client, "a", made["token"]) == 401


@with_app(auth_token=ROOT)
async def test_what_is_done_with_tokens_is_audited_without_secrets(client: Client) -> None:
    content = (await create(client, "read:a", name="guest")).json()
    await create(client, "read:b", by=content["token"])
    await client.send("DELETE", f"/v1/tokens/{content['id']}", b"", **bearer(ROOT))
    await client.send("POST", "/v1/links/rotate", b"", **bearer(ROOT))
    log = await client.send("GET", "/v1/audit?offset=-1", b"", **bearer(ROOT))
    place = f"__ds/tokens/{content['id']}"
    assert [(each["action"], each["path"], each["status"]) for each in log.json()] == [
        ("token.create", place, 201),
        ("token.create", "__ds/tokens", 403),
        ("token.remove", place, 200),
        ("link.rotate", "__ds/links", 204),
    ]
    assert content["token"][-46:-6].encode() not in log.body
