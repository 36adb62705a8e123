"""Signed links: what they allow, what ends them, and that no byte of one can be changed."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from penstock.access.links import LINK_VERBS, PRINCIPALS_MAX
from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.http.app import open_app
from penstock.http.message import EventBody
from tests.access.test_tokens import ROOT, bearer, stream, token
from tests.helpers.app import Answer, Client, with_app

JSON = "application/json"


async def sign(
    client: Client, path: str, verb: str = "read", *, by: str = ROOT, **wish: Any
) -> Answer:
    body = json.dumps({"verb": verb, "path": path, "expires_in": 3600, **wish}).encode()
    return await client.send("POST", "/v1/link", body, **bearer(by))


async def link(
    client: Client, path: str, verb: str = "read", *, by: str = ROOT, **wish: Any
) -> str:
    answer = await sign(client, path, verb, by=by, **wish)
    assert answer.status == 201, answer.body
    return str(answer.json()["link"])


async def read(client: Client, path: str, text: str, **headers: str) -> Answer:
    return await client.get(path, f"offset=-1&link={text}", **headers)


@with_app(auth_token=ROOT)
async def test_a_link_needs_no_header(client: Client) -> None:
    await stream(client, "chat/42")
    answer = await sign(client, "chat/42")
    content = answer.json()
    assert content["url"] == f"http://localhost:4437/v1/stream/chat/42?link={content['link']}"
    assert content["expires_at"] == "2027-01-15T09:00:00.000Z"
    parts = urlsplit(content["url"])
    answer = await client.send("GET", f"{parts.path}?{parts.query}&offset=-1")
    assert answer.status == 200
    assert answer.json() == ["x"]


@with_app(auth_token=ROOT, long_poll_timeout_s=0.01)
async def test_a_link_works_for_every_way_to_read(client: Client) -> None:
    await stream(client, "a")
    text = await link(client, "a")
    assert (await client.send("HEAD", f"/v1/stream/a?link={text}")).status == 200
    assert (await client.get("a", f"offset=now&live=long-poll&link={text}")).status in (200, 204)
    response = await client.respond("GET", f"/v1/stream/a?link={text}&offset=-1&live=sse")
    assert response.status == 200
    assert isinstance(response.body, EventBody)
    events = json.dumps(
        [{"type": "t", "key": "k", "value": {}, "headers": {"operation": "insert"}}]
    )
    await client.put("state", events.encode(), content_type=JSON, **bearer(ROOT))
    text = await link(client, "state", of="state")
    assert (await client.send("GET", f"/v1/state/state?type=t&link={text}")).status == 200
    table = {"content_type": JSON, **bearer(ROOT)}
    made = await client.send("PUT", "/v1/table/t", b'{"schema": "s", "version": 1}', **table)
    assert made.status < 300, made.body
    text = await link(client, "t", of="table")
    response = await client.respond("GET", f"/v1/table/t?timeout=0&link={text}")
    assert response.status < 300
    text = await link(client, "__ds/metrics")
    assert (await client.send("GET", f"/metrics?link={text}")).status == 200
    text = await link(client, "a/**", "list")
    listing = await client.send("GET", f"/v1/streams?link={text}")
    assert [each["path"] for each in listing.json()["streams"]] == ["a"]


@with_app(auth_token=ROOT)
async def test_a_link_carries_one_verb(client: Client) -> None:
    await stream(client, "in")
    text = await link(client, "in", "append")
    target = f"/v1/stream/in?link={text}"
    assert (await client.send("POST", target, b"[1]", content_type=JSON)).status == 204
    assert (await read(client, "in", text)).status == 403
    assert (await client.send("DELETE", target)).status == 403
    assert (await client.send("PUT", target, content_type=JSON)).status == 403


@with_app(auth_token=ROOT)
async def test_a_link_is_for_its_path_or_its_pattern(client: Client) -> None:
    for path in ("chat/42", "chat/42/a", "chat/421", "chat", "chat/%2F", "chat/x"):
        await stream(client, path)
    exact = await link(client, "chat/42")
    assert (await read(client, "chat/42", exact)).status == 200
    assert (await read(client, "ch%61t/42", exact)).status == 200  # the same path
    for path in ("chat/42/a", "chat/421", "chat", "chat/x", "chat/%2F"):
        assert (await read(client, path, exact)).status == 404, path
    for path in ("chat/42/", "chat//42", "chat/./42", "chat/x/../42", "chat%2F42", "chat/%2e/42"):
        assert (await read(client, path, exact)).status in (400, 404), path
    below = await link(client, "chat/42/**")
    assert (await read(client, "chat/42", below)).status == 200
    assert (await read(client, "chat/42/a", below)).status == 200
    assert (await read(client, "chat/421", below)).status == 404
    # An escaped slash is no separator, in the path of a link neither.
    escaped = await link(client, "chat%2f42")
    assert (await read(client, "chat/42", escaped)).status == 404
    for path in ("../a", "a/../b", "a//b", ".", ""):
        assert (await sign(client, path)).status == 400, path


@with_app(auth_token=ROOT)
async def test_every_byte_of_a_link_counts(client: Client) -> None:
    await stream(client, "a")
    text = await link(client, "a")
    alphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."
    for at, character in enumerate(text):
        # The next letter flips the lowest bit, which base64 does not always need.
        other = alphabet[(alphabet.index(character) + 1) % len(alphabet)]
        for changed in (text[:at] + other + text[at + 1 :], text[:at] + text[at + 1 :]):
            assert (await read(client, "a", changed)).status == 401, at
    for changed in (text + "A", text + "=", text + ".", text[:-1], text.partition(".")[0], "", "."):
        assert (await read(client, "a", changed)).status == 401
    for changed in (text.replace(".", "%2E"), "A" * 10_000, "%00", "é".encode().hex()):
        assert (await read(client, "a", changed)).status == 401
    assert (await read(client, "a", text)).status == 200


@with_app(auth_token=ROOT)
async def test_what_a_link_says_cannot_be_changed(client: Client) -> None:
    for path in ("a", "b"):
        await stream(client, path)
    text = await link(client, "a")
    body, _, signature = text.partition(".")
    said = base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)).decode()
    version, verb, expires, issuer, path = said.split(" ")
    assert (version, verb, issuer, path) == ("1", "read", "root", "a")
    for changed in (
        [version, "delete", expires, issuer, path],
        [version, verb, "9999999999", issuer, path],
        [version, verb, expires, "other", path],
        [version, verb, expires, "token:abc", path],
        [version, verb, expires, issuer, "**"],
        ["2", verb, expires, issuer, path],
    ):
        forged = base64.urlsafe_b64encode(" ".join(changed).encode()).decode().rstrip("=")
        answer = await client.get("a", f"offset=-1&link={forged}.{signature}")
        assert answer.status == 401, changed


@with_app(auth_token=ROOT)
async def test_several_links_in_one_url_are_refused(client: Client) -> None:
    await stream(client, "a")
    text = await link(client, "a")
    answer = await client.get("a", f"link={text}&offset=-1&link={text}")
    assert answer.status == 401
    assert "several links" in answer.json()["detail"]


@with_app(auth_token=ROOT)
async def test_a_link_expires(client: Client) -> None:
    await stream(client, "a")
    text = await link(client, "a", expires_in=60)
    client.clock.advance(59)
    assert (await read(client, "a", text)).status == 200
    client.clock.advance(1)
    answer = await read(client, "a", text)
    assert answer.status == 401
    assert "link has expired" in answer.json()["detail"]
    for expires_in in (0, -1, 30 * 86_400 + 1, None, 1.5):
        assert (await sign(client, "a", expires_in=expires_in)).status == 400


@with_app(auth_token=ROOT)
async def test_nobody_signs_more_than_they_may_do(client: Client) -> None:
    await stream(client, "team/a")
    content = await token(client, "read:team/**", expires_in=100)
    by = content["token"]
    text = await link(client, "team/a", by=by)
    assert (await read(client, "team/a", text)).status == 200
    for verb, path in (("append", "team/a"), ("read", "**"), ("read", "other"), ("list", "team/a")):
        answer = await sign(client, path, verb, by=by)
        assert answer.status == 403
        assert (answer.json()["verb"], answer.json()["path"]) == (verb, path)
    # Nor for longer than their token is valid: 3600 seconds were asked for.
    answer = await sign(client, "team/a", by=by)
    assert answer.json()["expires_at"] <= content["expires_at"]
    # Whoever has no token, or only a link, signs nothing.
    body = b'{"verb": "read", "path": "team/a", "expires_in": 60}'
    assert (await client.send("POST", "/v1/link", body)).status == 401
    assert (await client.send("POST", "/v1/link", body, **bearer("wrong"))).status == 401
    assert (await client.send("POST", f"/v1/link?link={text}", body)).status == 403


@pytest.mark.parametrize("verb", ["admin", "subscribe", "follow", "session", "*", "", "READ"])
def test_a_link_carries_nothing_that_would_outlive_it(verb: str) -> None:
    async def main() -> None:
        app = await open_app(Settings(memory=True, auth_token=ROOT))
        try:
            answer = await sign(Client(app, app.engine, ManualClock()), "a", verb)
            assert answer.status == 400
        finally:
            await app.stop()

    assert verb not in LINK_VERBS
    asyncio.run(main())


@with_app(auth_token=ROOT)
async def test_a_link_ends_with_the_token_that_made_it(client: Client) -> None:
    await stream(client, "a")
    content = await token(client, "read:a")
    text = await link(client, "a", by=content["token"])
    response = await client.respond("GET", f"/v1/stream/a?link={text}&offset=-1&live=sse")
    assert response.status == 200
    principal = client.app.access.link(text)
    await client.send("DELETE", f"/v1/tokens/{content['id']}", b"", **bearer(ROOT))
    assert principal.until_s == 0.0  # and with it the response that is open
    assert (await read(client, "a", text)).status == 401
    client.app.tokens.links._principals.clear()
    assert (await read(client, "a", text)).status == 401


@with_app(auth_token=ROOT)
async def test_a_new_key_ends_all_links_at_once(client: Client) -> None:
    await stream(client, "a")
    text = await link(client, "a")
    principal = client.app.access.link(text)
    guest = (await token(client, "read:a"))["token"]
    assert (await client.send("POST", "/v1/links/rotate", b"", **bearer(guest))).status == 403
    assert (await client.send("POST", "/v1/links/rotate", b"", **bearer(ROOT))).status == 204
    assert principal.until_s == 0.0
    assert (await read(client, "a", text)).status == 401
    assert (await read(client, "a", await link(client, "a"))).status == 200


def test_links_survive_a_restart_but_not_another_root_token_nor_another_server(
    tmp_path: Path,
) -> None:
    async def run(folder: str, root: str, text: str = "") -> tuple[str, int]:
        app = await open_app(Settings(data_dir=tmp_path / folder, auth_token=root))
        client = Client(app, app.engine, ManualClock())
        try:
            await client.put("a", b"", content_type=JSON, **bearer(root))
            status = (await read(client, "a", text)).status if text else 0
            return await link(client, "a", by=root), status
        finally:
            await app.stop()

    async def main() -> None:
        text, _ = await run("one", ROOT)
        assert (await run("one", ROOT, text))[1] == 200
        assert (await run("two", ROOT, text))[1] == 401
        assert (await run("one", "another", text))[1] == 401
        assert (await run("one", ROOT, text))[1] == 200

    asyncio.run(main())


def test_links_of_the_root_token_end_when_there_is_none(tmp_path: Path) -> None:
    async def main() -> None:
        app = await open_app(Settings(data_dir=tmp_path, auth_token=ROOT))
        client = Client(app, app.engine, ManualClock())
        await stream(client, "a")
        text = await link(client, "a")
        await app.stop()
        app = await open_app(Settings(data_dir=tmp_path))
        try:
            assert (await read(Client(app, app.engine, ManualClock()), "a", text)).status == 401
        finally:
            await app.stop()

    asyncio.run(main())


@with_app(auth_token=ROOT)
async def test_a_header_wins_over_a_link(client: Client) -> None:
    await stream(client, "a")
    text = await link(client, "a")
    assert (await read(client, "a", text, **bearer("wrong"))).status == 401
    assert (await read(client, "a", "wrong", **bearer(ROOT))).status == 200


@with_app(anonymous_allow=("read:a",))
async def test_a_response_to_a_link_is_for_no_shared_cache(client: Client) -> None:
    app = client.app
    await client.engine.create("a", _config(), b'["x"]', closed=False)
    assert (await client.get("a", "offset=-1")).headers["cache-control"].startswith("public")
    from penstock.access.principal import Principal
    from penstock.access.rules import parse_rules

    text, _, _ = await app.tokens.links.sign_link(
        Principal("jwt", parse_rules(["read:a"])), "read", "a", 60
    )
    answer = await read(client, "a", text)
    assert answer.status == 200
    assert answer.headers["cache-control"].startswith("private")


def _config() -> Any:
    from penstock.protocol.lifecycle import StreamConfig

    return StreamConfig(JSON, None, None)


@with_app(auth_token=ROOT)
async def test_principals_of_links_are_shared_and_bounded(client: Client) -> None:
    links = client.app.tokens.links
    text = await link(client, "a")
    assert client.app.access.link(text) is client.app.access.link(text)
    for number in range(PRINCIPALS_MAX + 10):
        links._principals[str(number)] = links._principals[text]
    client.app.access.link(await link(client, "b"))
    assert len(links._principals) <= PRINCIPALS_MAX + 20
    for number in range(5):
        with pytest.raises(Exception, match="not one of"):
            client.app.access.link(f"wrong{number}")
    assert len(links._principals) < 10


@with_app(auth_token=ROOT)
async def test_a_link_is_in_no_error(client: Client) -> None:
    await stream(client, "a")
    text = await link(client, "a")
    for target in ("/v1/stream/b", "/v1/nothing", "/v1/stream/a/__ds/nothing", "/v1/stream/a/../b"):
        for method in ("GET", "PUT", "POST", "DELETE", "PATCH"):
            answer = await client.send(method, f"{target}?link={text}&offset=junk")
            whole = repr(answer.headers) + answer.body.decode()
            assert text[:20] not in whole
            assert text[-20:] not in whole
