"""What handlers ask of a principal beyond the guard: listings, forks, tables, subscriptions."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.access.principal import Principal
from penstock.access.rules import parse_rules
from tests.helpers.app import Answer, Client, run_with_app, settings_of, with_app

JSON = "application/json"
ROOT = "root"


def closed(test: Callable[[Users], Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an App where `Users` have the rules that are their token."""

    async def run(client: Client) -> None:
        def principal(token: str) -> Principal | None:
            return Principal(token, parse_rules(token.split(";")), is_root=token == "*:**")

        client.app.access.require()
        client.app.access.add_bearer(principal)
        await test(Users(client))

    run.__name__ = getattr(test, "__name__", "test")
    return with_app()(run)


class Users:
    def __init__(self, client: Client) -> None:
        self.client = client

    async def send(
        self, rules: str, method: str, target: str, body: bytes = b"", **headers: str
    ) -> Answer:
        headers.setdefault("content_type", JSON)
        token = "*:**" if rules == ROOT else rules
        return await self.client.send(
            method, target, body, authorization=f"Bearer {token}", **headers
        )

    async def create(self, *paths: str) -> None:
        for path in paths:
            answer = await self.send(ROOT, "PUT", f"/v1/stream/{path}", b"[1]")
            assert answer.status == 201, answer.body

    async def listed(self, rules: str, query: str = "") -> list[str]:
        answer = await self.send(rules, "GET", f"/v1/streams?{query}")
        assert answer.status == 200, answer.body
        return [each["path"] for each in answer.json()["streams"]]


@closed
async def test_a_listing_shows_what_may_be_listed(users: Users) -> None:
    await users.create("a", "team/a", "team/a/b", "team/b", "z/team/a")
    assert await users.listed(ROOT) == ["a", "team/a", "team/a/b", "team/b", "z/team/a"]
    assert await users.listed("list:team/a/**") == ["team/a", "team/a/b"]
    assert await users.listed("list:team/*;list:z/**") == ["team/a", "team/b", "z/team/a"]
    assert await users.listed("list:**/a") == ["a", "team/a", "z/team/a"]
    assert await users.listed("list:none") == []
    assert await users.listed("list:team/**", "prefix=team/b") == ["team/b"]
    assert await users.listed("list:team/**", "prefix=z") == []
    assert await users.listed("list:team/**;read:**", "prefix=t&after=team/a") == [
        "team/a/b",
        "team/b",
    ]


@closed
async def test_pages_of_a_listing_meet(users: Users) -> None:
    paths = [f"{team}/{number:02d}" for team in ("a", "b", "c") for number in range(20)]
    await users.create(*paths)
    for rules in ("list:**", "list:a/*;list:c/*", "list:**/*7", "list:b/1*;list:a/0*;list:a/**"):
        every = await users.listed(rules, "limit=1000")
        seen: list[str] = []
        after: str | None = ""
        while after is not None:
            answer = await users.send(rules, "GET", f"/v1/streams?limit=3&after={after}")
            seen += [each["path"] for each in answer.json()["streams"]]
            after = answer.json()["next"]
        assert seen == every == sorted(set(every))
        assert every


@closed
async def test_a_fork_needs_rights_at_both_ends(users: Users) -> None:
    await users.create("from/a")

    async def ask(rules: str, to: str, source: str) -> Answer:
        target, source = f"/v1/stream/{to}", f"/v1/stream/{source}"
        return await users.send(rules, "PUT", target, stream_forked_from=source)

    async def fork(rules: str, to: str) -> int:
        return (await ask(rules, to, "from/a")).status

    assert await fork("create:to/*", "to/1") == 404  # as if there were no source
    assert await fork("create:to/*;list:from/a", "to/1") == 403
    assert await fork("read:from/a", "to/1") == 403
    assert await fork("create:other/*;read:from/a", "to/1") == 403
    assert await fork("create:to/*;read:from/a", "to/1") == 201
    nothing = await ask("create:to/*", "to/2", "from/none")
    hidden = await ask("create:to/*", "to/2", "from/a")
    assert nothing.body.replace(b"from/none", b"from/a") == hidden.body


@closed
async def test_what_may_not_be_read_looks_like_what_is_not_there(users: Users) -> None:
    await users.create("team/a")
    for target in ("/v1/stream/{}", "/v1/stream/{}?splits=4", "/v1/state/{}", "/v1/schema/{}"):
        for method in ("GET", "HEAD"):
            hidden = await users.send("read:mine/**", method, target.format("team/a"))
            nothing = await users.send("read:mine/**", method, target.format("team/n"))
            assert hidden.status == nothing.status == 404
            assert hidden.body.replace(b"team/a", b"team/n") == nothing.body
            assert hidden.headers == nothing.headers
            known = await users.send("append:team/a", method, target.format("team/a"))
            assert known.status == 403
    absent = await users.send("read:team/**", "GET", "/v1/stream/team/n")
    assert absent.body == (await users.send("read:mine", "GET", "/v1/stream/team/n")).body


@closed
async def test_one_table_is_shared_with_a_stranger(users: Users) -> None:
    declared = await users.send(ROOT, "PUT", "/v1/table/prices", b'{"schema":"s"}')
    assert declared.status == 201
    row = await users.send(ROOT, "PUT", "/v1/table/prices?key=tea", b"3.50")
    assert row.status == 204
    stranger = "read:prices"
    read = await users.send(stranger, "GET", "/v1/table/prices?since_id=0&timeout=0")
    assert read.status == 200
    assert b"tea" in read.body
    assert (await users.send(stranger, "GET", "/v1/table/other")).status == 404
    assert (await users.send(stranger, "PUT", "/v1/table/prices?key=tea", b"0")).status == 403
    assert (await users.send(stranger, "POST", "/v1/table/prices", b"+\ttea\t0\n")).status == 403
    assert (await users.send(stranger, "DELETE", "/v1/table/prices?key=tea")).status == 403
    assert (await users.send(stranger, "DELETE", "/v1/stream/prices")).status == 403
    assert (await users.send(stranger, "GET", "/v1/streams")).status == 403
    assert (await users.send(stranger, "GET", "/metrics")).status == 403


@closed
async def test_a_table_of_another_stream_needs_that_stream(users: Users) -> None:
    await users.send(ROOT, "PUT", "/v1/stream/orders")
    document = b'{"schema":"s","stream":"orders"}'

    async def declare(rules: str) -> int:
        return (await users.send(rules, "PUT", "/v1/table/orders/paid", document)).status

    assert await declare("create:orders/paid") == 404
    assert await declare("create:orders/paid;read:orders") == 403
    assert await declare("create:orders/paid;admin:orders") == 201


@closed
async def test_a_subscription_names_only_what_may_be_subscribed(users: Users) -> None:
    async def put(rules: str, **members: Any) -> Answer:
        document = {"type": "pull-wake", "wake_stream": "team/wakes", **members}
        body = json.dumps(document).encode()
        return await users.send(rules, "PUT", "/v1/stream/__ds/subscriptions/s", body)

    wakes = "append:team/wakes"
    team = f"subscribe:team/**;{wakes}"
    for refused in (
        await put(team, pattern="**"),
        await put(team, pattern="*/a"),
        await put(team, pattern="team/*", streams=["other/a"]),
        await put("subscribe:team/**", pattern="team/*"),
        await put(f"read:**;{wakes}", pattern="team/*"),
        await put(f"subscribe:team/*;{wakes}", pattern="team/**"),
    ):
        assert refused.status == 403, refused.body
    assert (await put(team, pattern="team/*", streams=["team/x/y"])).status == 201
    assert (await put(team, pattern="team/*", streams=["team/x/y"])).status == 200


@closed
async def test_a_subscription_is_there_for_those_who_may_subscribe_to_all_of_it(
    users: Users,
) -> None:
    base = "/v1/stream/__ds/subscriptions"
    document = {"type": "pull-wake", "wake_stream": "wakes", "pattern": "team/*"}
    body = json.dumps(document).encode()
    assert (await users.send(ROOT, "PUT", f"{base}/s", body)).status == 201
    owner, other = "subscribe:team/**", "subscribe:team/a;subscribe:mine/**"
    assert (await users.send(owner, "GET", f"{base}/s")).status == 200
    assert [each["id"] for each in (await users.send(owner, "GET", base)).json()["subscriptions"]]
    hidden = await users.send(other, "GET", f"{base}/s")
    nothing = await users.send(other, "GET", f"{base}/n")
    assert hidden.status == nothing.status == 404
    assert hidden.body.replace(b"'s'", b"'n'").replace(b"/s.", b"/n.") == nothing.body
    assert (await users.send(other, "GET", base)).json()["subscriptions"] == []
    claim = b'{"worker":"w"}'
    assert (await users.send(other, "POST", f"{base}/s/claim", claim)).status == 404
    more = b'{"streams":["mine/a"]}'
    assert (await users.send(other, "POST", f"{base}/s/streams", more)).status == 404
    assert (await users.send(owner, "POST", f"{base}/s/streams", more)).status == 403
    assert (await users.send(other, "DELETE", f"{base}/s")).status == 204  # as for none
    assert (await users.send(owner, "GET", f"{base}/s")).status == 200
    assert (await users.send(owner, "DELETE", f"{base}/s")).status == 204
    assert (await users.send(owner, "GET", f"{base}/s")).status == 404


@closed
async def test_a_subscription_that_grew_is_hidden_from_those_it_outgrew(users: Users) -> None:
    base = "/v1/stream/__ds/subscriptions"
    document = {"type": "pull-wake", "wake_stream": "wakes", "streams": ["team/a"]}
    await users.send(ROOT, "PUT", f"{base}/s", json.dumps(document).encode())
    owner = "subscribe:team/**"
    assert (await users.send(owner, "GET", f"{base}/s")).status == 200
    more = b'{"streams":["secret/a"]}'
    assert (await users.send(ROOT, "POST", f"{base}/s/streams", more)).status == 204
    assert (await users.send(owner, "GET", f"{base}/s")).status == 404


@closed
async def test_a_notify_needs_the_right_to_follow(users: Users) -> None:
    async def notify(rules: str) -> int:
        form = b"event=update&surl=https://peer.example/t"
        kind = "application/x-www-form-urlencoded"
        answer = await users.send(rules, "POST", "/v1/notify/team/a", form, content_type=kind)
        return answer.status

    assert await notify("read:**") == 401
    assert await notify("follow:other") == 401
    assert await notify("follow:team/*") != 401


@pytest.mark.parametrize("rules", ["read:public/**", "read:public/**;append:public/in"])
def test_anonymous_users_may_do_what_their_rules_say(rules: str) -> None:
    async def run(client: Client) -> None:
        await client.send("PUT", "/v1/stream/public/in", authorization="Bearer t")
        assert (await client.get("public/in")).status == 200
        append = await client.post("public/in", b"x", content_type="application/octet-stream")
        assert append.status == (204 if "append" in rules else 401)
        assert (await client.get("private")).status == 401
        assert (await client.delete("public/in")).status == 401
        wrong = await client.send("GET", "/v1/stream/public/in", authorization="Bearer wrong")
        assert wrong.status == 401

    options = {"auth_token": "t", "anonymous_allow": tuple(rules.split(";"))}
    run_with_app(run, settings_of("memory", Path(), **options))
