"""Cookies: how one is made and ended, and which requests it counts for."""

from __future__ import annotations

import re
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.http.credentials import session_cookie
from penstock.http.message import Request, Response
from penstock.http.sender import HTTPS, Sender
from tests.access.test_tokens import ROOT, bearer, stream, token
from tests.helpers.app import Answer, Client, finish, make_request, with_app

JSON = "application/json"
OWN = {"origin": "http://localhost:4437"}


async def begin(client: Client, by: str = ROOT, **headers: str) -> Answer:
    return await client.send("POST", "/v1/session", b"", **bearer(by), **headers)


async def cookie(client: Client, by: str = ROOT, **headers: str) -> dict[str, str]:
    answer = await begin(client, by, **headers)
    assert answer.status == 201, answer.body
    return {"cookie": answer.headers["set-cookie"].partition(";")[0]}


@with_app(auth_token=ROOT, cookies=True)
async def test_a_cookie_is_strict_and_holds_no_token(client: Client) -> None:
    secret = (await token(client, "read:a", expires_in=600))["token"]
    answer = await begin(client, secret)
    assert re.fullmatch(
        r"penstock=[\w.-]+; Path=/; Max-Age=600; HttpOnly; SameSite=Strict",
        answer.headers["set-cookie"],
    )
    assert secret[-46:-6] not in answer.headers["set-cookie"]
    assert answer.headers["cache-control"] == "no-store"
    request = make_request("POST", "/v1/session", authorization=f"Bearer {ROOT}")
    request.sender = Sender(scheme=HTTPS)
    assert client.app.refuse(request) is None
    response = client.app.handle(request)
    assert not isinstance(response, Response)
    answer = await finish(await response)
    assert re.fullmatch(
        r"__Host-penstock=[\w.-]+; Path=/; Max-Age=43200; HttpOnly; SameSite=Strict; Secure",
        answer.headers["set-cookie"],
    )


@with_app(auth_token=ROOT, cookies=True)
async def test_a_cookie_stands_for_its_token(client: Client) -> None:
    await stream(client, "a")
    await stream(client, "b")
    content = await token(client, "read:a")
    session = await cookie(client, content["token"])
    assert (await client.get("a", "offset=-1", **session)).status == 200
    assert (await client.get("b", "offset=-1", **session)).status == 404
    await client.send("DELETE", f"/v1/tokens/{content['id']}", b"", **bearer(ROOT))
    assert (await client.get("a", "offset=-1", **session)).status == 401


@with_app(auth_token=ROOT, cookies=True, session_lifetime_s=60)
async def test_a_session_ends_before_its_token(client: Client) -> None:
    await stream(client, "a")
    session = await cookie(client)
    assert (await client.get("a", "offset=-1", **session)).status == 200
    client.clock.advance(60)
    assert (await client.get("a", "offset=-1", **session)).status == 401
    session = await cookie(client)
    await client.send("POST", "/v1/links/rotate", b"", **bearer(ROOT))
    assert (await client.get("a", "offset=-1", **session)).status == 401


@with_app(auth_token=ROOT, cookies=True)
async def test_a_cookie_can_be_cleared(client: Client) -> None:
    answer = await client.send("DELETE", "/v1/session")
    assert answer.status == 204
    assert answer.headers["set-cookie"].startswith("penstock=; Path=/; Max-Age=0;")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec_fetch_site": "same-origin"}, 204),
        ({"sec_fetch_site": "same-origin", **OWN}, 204),
        (OWN, 204),
        ({}, 403),
        ({"origin": "null"}, 403),
        ({"origin": ""}, 403),
        ({"origin": "http://localhost"}, 403),
        ({"origin": "https://localhost:4437"}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:4437.evil.example"}, 403),
        ({"sec_fetch_site": "cross-site"}, 403),
        ({"sec_fetch_site": "same-site", **OWN}, 403),
        ({"sec_fetch_site": "none"}, 403),
    ],
)
def test_a_change_by_cookie_needs_a_page_of_this_origin(
    headers: dict[str, str], status: int
) -> None:
    async def test(client: Client) -> None:
        await stream(client, "a")
        session = await cookie(client)
        answer = await client.post("a", b"[1]", content_type=JSON, **session, **headers)
        assert answer.status == status
        if status == 403:
            assert answer.json()["code"] == "origin-refused"
        # A token in a header is no cookie: nobody sends it without meaning to.
        both = {**session, **bearer(ROOT)}
        assert (await client.post("a", b"[1]", content_type=JSON, **both)).status == 204

    _run(test, cookies=True)


def _run(test: Any, **options: Any) -> None:
    from tests.helpers.app import run_with_app

    run_with_app(test, Settings(memory=True, auth_token=ROOT, **options))


@with_app(auth_token=ROOT)
async def test_cookies_are_off_unless_they_are_switched_on(client: Client) -> None:
    await stream(client, "a")
    assert (await begin(client)).status == 404
    assert (await client.send("DELETE", "/v1/session")).status == 404
    text, _ = await client.app.tokens.links.sign_session(_root())
    answer = await client.get("a", "offset=-1", cookie=f"penstock={text}")
    assert answer.status == 401


def _root() -> Any:
    from penstock.access.principal import ROOT as PRINCIPAL

    return PRINCIPAL


@with_app(auth_token=ROOT, cookies=True)
async def test_a_wrong_header_is_not_saved_by_a_cookie(client: Client) -> None:
    await stream(client, "a")
    session = await cookie(client)
    assert (await client.get("a", "offset=-1", **session, **bearer("wrong"))).status == 401


@with_app(auth_token=ROOT, cookies=True)
async def test_a_session_begins_with_a_token_and_nothing_else(client: Client) -> None:
    session = await cookie(client)
    answer = await client.send("POST", "/v1/session", b"", **session, **OWN)
    assert answer.status == 403
    assert (await client.send("POST", "/v1/session")).status == 401


@with_app(auth_token=ROOT, cookies=True)
async def test_a_link_is_no_session_and_a_session_no_link(client: Client) -> None:
    from tests.access.test_links import link, read

    await stream(client, "a")
    text = await link(client, "a")
    assert (await client.get("a", "offset=-1", cookie=f"penstock={text}")).status == 401
    session = (await cookie(client))["cookie"].partition("=")[2]
    assert (await read(client, "a", session)).status == 401


@with_app(auth_token=ROOT, cookies=True, anonymous_allow=("read:public",))
async def test_an_old_cookie_does_not_lock_anybody_out(client: Client) -> None:
    await stream(client, "public")
    for text in ("old", "a.b", "", "é"):
        answer = await client.get("public", "offset=-1", cookie=f"penstock={text}")
        assert answer.status == 200


@pytest.mark.parametrize(
    ("header", "scheme", "session"),
    [
        ("penstock=a", "http", "a"),
        ("x=1; penstock=a; y=2", "http", "a"),
        ("x=1, penstock=a", "http", "a"),
        ("penstock=a; penstock=b", "http", None),
        ("__Host-penstock=a", "https", "a"),
        # A neighbour of the host can set the plain name, and so can whoever listens on http.
        ("penstock=b; __Host-penstock=a", "https", "a"),
        ("penstock=b", "https", None),
        ("__Host-penstock=a", "http", None),
        ("xpenstock=a", "http", None),
        ("PENSTOCK=a", "http", None),
        ("", "http", None),
    ],
)
def test_which_cookie_counts(header: str, scheme: str, session: str | None) -> None:
    headers = {b"cookie": header.encode(), b"host": b"a.example"}
    request = Request("GET", b"/", b"", headers)
    assert session_cookie(request, f"{scheme}://a.example") == session


@with_app(auth_token=ROOT, cookies=True)
async def test_a_session_of_a_stored_token_makes_links_of_that_token(client: Client) -> None:
    from tests.access.test_links import read

    await stream(client, "a")
    content = await token(client, "read:a")
    session = await cookie(client, content["token"])
    body = b'{"verb": "read", "path": "a", "expires_in": 60}'
    answer = await client.send("POST", "/v1/link", body, **session, **OWN)
    assert answer.status == 201
    text = answer.json()["link"]
    assert (await read(client, "a", text)).status == 200
    await client.send("DELETE", f"/v1/tokens/{content['id']}", b"", **bearer(ROOT))
    assert (await read(client, "a", text)).status == 401


# Who am I?


@with_app(auth_token=ROOT, cookies=True)
async def test_a_session_says_who_one_is_and_what_one_may_do(client: Client) -> None:
    content = await token(client, "read:a/**", "append:a/in", expires_in=600)
    who = await client.send("GET", "/v1/session", b"", **bearer(content["token"]))
    assert who.json() == {
        "principal": f"token {content['id']}",
        "rules": ["read:a/**", "append:a/in"],
        "expires_at": "2027-01-15T08:10:00.000Z",
        "open": False,
        "anonymous": False,
        "cookies": True,
    }
    assert who.headers["cache-control"] == "no-store"
    root = (await client.send("GET", "/v1/session", b"", **await cookie(client))).json()
    assert root["rules"] == ["*:**", "*:__ds/**"]
    assert root["expires_at"] == "2027-01-15T20:00:00.000Z"


@with_app(auth_token=ROOT)
async def test_without_valid_credentials_a_session_says_nothing(client: Client) -> None:
    assert (await client.send("GET", "/v1/session")).status == 401
    assert (await client.send("GET", "/v1/session", b"", **bearer("wrong"))).status == 401


@with_app(auth_token=ROOT, anonymous_allow=("read:public/**",))
async def test_rules_of_anonymous_requests_are_a_session_too(client: Client) -> None:
    who = (await client.send("GET", "/v1/session")).json()
    assert (who["principal"], who["anonymous"]) == ("anonymous", True)
    assert who["rules"] == ["read:public/**"]
    # A token that is wrong is not taken for none.
    assert (await client.send("GET", "/v1/session", b"", **bearer("wrong"))).status == 401


@with_app()
async def test_everybody_may_do_everything_at_an_open_server(client: Client) -> None:
    who = (await client.send("GET", "/v1/session")).json()
    assert (who["open"], who["rules"], who["expires_at"]) == (True, ["*:**", "*:__ds/**"], None)
