"""POST /v1/notify/<name>: what is answered, what is registered, and who is told."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from penstock.stp.notify import sign
from tests.egress.scripted import answer, scripted
from tests.stp.nodes import FORM, node, run, until

ROWS = "text/sequence; charset=utf-8; schema=s; version=1"


@run
async def test_a_handshake_registers_a_listener_who_is_told() -> None:
    async with node() as hub, scripted(answer(status=202)) as peer:
        await hub.table("endpoints")
        got = await hub.notify("endpoints", manifest_nurl=peer.url("/n"))
        assert got.status_code == 202
        assert got.json() == {"ignored": {}, "told_of": {"manifest_nurl": "endpoints"}}
        assert (await hub.registry())["listener"] == {
            f"endpoints {peer.url('/n')}": {
                "table": "endpoints",
                "nurl": peer.url("/n"),
                "surl": hub.surl("endpoints"),
                "event": "manifest_nurl",
                "state": "active",
                "reason": "",
                "source": "",
            }
        }
        assert peer.requests == []  # there is nothing to tell yet
        await hub.write("endpoints", "+ fhir_read https://a.example/fhir")
        await until(lambda: hub.app.hub.notifier.sent == 1)
        head, _, body = peer.requests[0].partition(b"\r\n\r\n")
        assert head.startswith(b"POST /n HTTP/1.1\r\n")
        assert b"content-type: application/x-www-form-urlencoded" in head
        assert httpx.QueryParams(body.decode())["surl"] == hub.surl("endpoints")


@run
async def test_a_peer_that_names_our_table_is_told_of_that_table() -> None:
    async with node() as hub, scripted(answer()) as peer:
        await hub.table("a/b", "+ k v")
        got = await hub.notify("anything", surl=hub.surl("a/b"), changed=peer.url("/n"))
        assert got.json()["told_of"] == {"changed": "a/b"}
        # It has rows that this listener was never told of.
        await until(lambda: hub.app.hub.notifier.sent == 1)
        assert not hub.app.hub.mirrors.followers  # our own table is not followed


@run
async def test_an_event_names_a_table_below_the_nurl() -> None:
    async with node() as hub, scripted(answer()) as peer:
        await hub.table("hub")
        await hub.table("hub/match")
        got = await hub.notify("hub", match=peer.url("/1"), other=peer.url("/2"))
        assert got.json()["told_of"] == {"match": "hub/match", "other": "hub"}


@run
async def test_what_means_nothing_here_is_ignored_and_says_so() -> None:
    async with node() as hub:
        got = await hub.notify(
            "nothing", Junk="x", match="http://127.0.0.1:9999/n", surl=hub.surl("none")
        )
        assert got.status_code == 202
        ignored = got.json()["ignored"]
        assert got.json()["waiting"] == {"match": ["none"]}
        assert ignored["surl"] == "there is no such table here"
        assert "Junk" in ignored
        assert "followed_by" not in got.json()


@run
async def test_repeats_change_nothing() -> None:
    async with node() as hub, scripted(answer()) as peer:
        await hub.table("t", "+ k v")
        for _ in range(3):
            assert (await hub.notify("t", x=peer.url("/n"))).status_code == 202
        await until(lambda: hub.app.hub.notifier.sent and not hub.app.hub.notifier.pending)
        assert len(peer.requests) == 1
        head = await hub.client.get("/v1/stream/__stp/registry")
        assert len(head.json()) == 1


@pytest.mark.parametrize(
    ("content", "headers", "status", "code"),
    [
        (b"surl=https://a.example/t", {}, 415, "unsupported-media-type"),
        (b"{}", {"content-type": "application/json"}, 415, "unsupported-media-type"),
        (b"", FORM, 400, "invalid-notify"),
        (b"surl=junk", FORM, 400, "invalid-notify"),
        (b"surl=https://a.example/t&surl=https://a.example/t", FORM, 400, "invalid-notify"),
        (b"x=junk", FORM, 400, "invalid-notify"),
        (b"surl=http://a.example/t", FORM, 202, None),  # a name may be loopback
        (b"surl=http://192.0.2.1/t", FORM, 403, "egress-refused"),
        (b"surl=https://10.0.0.1/t", FORM, 403, "egress-refused"),
        (b"x=" + b"a" * 70_000, FORM, 413, "body-too-large"),
    ],
)
def test_answers(content: bytes, headers: dict[str, str], status: int, code: str | None) -> None:
    @run
    async def test() -> None:
        async with node() as hub:
            got = await hub.client.post("/v1/notify/x", content=content, headers=headers)
            assert (got.status_code, got.json().get("code")) == (status, code), got.text

    test()


@run
async def test_other_methods_are_refused() -> None:
    async with node() as hub:
        got = await hub.client.get("/v1/notify/x")
        assert (got.status_code, got.headers["allow"]) == (405, "POST, OPTIONS")


@run
async def test_strangers_are_accepted_and_ignored() -> None:
    """A Notify is a hint: without the allow-list nothing comes of it, and nothing goes out."""
    async with node(development=False) as hub:
        await hub.table("t", "+ k v")
        got = await hub.notify("t", surl="https://a.example/t", x="https://b.example/n")
        reason = "its host is not among the peers of this server"
        assert got.status_code == 202
        assert got.json() == {"ignored": {"surl": reason, "x": reason}}
        assert hub.app.egress.requests == 0
        assert hub.app.hub.ignored == 2
        plain = await hub.notify("t", x="http://127.0.0.1:1234/n")
        assert (plain.status_code, plain.json()["code"]) == (403, "egress-refused")


@run
async def test_the_allow_list_decides_whom_a_notify_can_name() -> None:
    async with node(development=False, stp_peers=("a.example", "*.b.example")) as hub:
        await hub.table("t")
        for host, allowed in [
            ("a.example", True),
            ("x.a.example", False),
            ("x.b.example", True),
            ("b.example", False),
            ("evilb.example", False),
        ]:
            got = await hub.notify("t", x=f"https://{host}/n")
            assert ("told_of" in got.json()) is allowed, host


@run
async def test_a_notify_shows_a_token_or_a_signature() -> None:
    keys: dict[str, Any] = {"auth_token": "server", "notify_token": "peer"}
    keys["notify_secret"] = "secret"
    body = b"Ignored=1"

    async with node(**keys) as hub:

        async def status(**headers: str) -> int:
            got = await hub.client.post("/v1/notify/x", content=body, headers={**FORM, **headers})
            return got.status_code

        assert await status() == 401
        assert await status(authorization="Bearer server") == 202
        assert await status(authorization="Bearer peer") == 202
        assert await status(authorization="Basic peer") == 401
        assert await status(authorization="Bearer wrong") == 401
        now = int(time.time())
        assert await status(**{"stp-signature": sign("secret", body, now)}) == 202
        assert await status(**{"stp-signature": sign("secret", body + b"x", now)}) == 401
        assert await status(**{"stp-signature": sign("secret", body, now - 1000)}) == 401
        # The peer's token opens nothing else.
        bearer = {"authorization": "Bearer peer"}
        assert (await hub.client.get("/v1/streams", headers=bearer)).status_code == 401
    async with node(auth_token="server") as hub:
        assert await status() == 401
        assert await status(authorization="Bearer server") == 202
        # Without a secret there is no signature that is right.
        assert await status(**{"stp-signature": sign("", body, int(time.time()))}) == 401


@run
async def test_what_is_sent_is_signed_and_carries_the_peers_token() -> None:
    async with scripted(answer()) as peer, scripted(answer()) as other:
        tokens = (f"{peer.url('')}=for-peer",)
        async with node(notify_secret="secret", stp_peer_tokens=tokens) as hub:
            await hub.table("t", "+ k v")
            fields = f"x={peer.url('/n')}&x={other.url('/n')}".encode()
            signed = {**FORM, "stp-signature": sign("secret", fields, int(time.time()))}
            await hub.client.post("/v1/notify/t", content=fields, headers=signed)
            await until(lambda: hub.app.hub.notifier.sent == 2)
        head, _, body = peer.requests[0].partition(b"\r\n\r\n")
        lines = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:])
        assert lines["authorization"] == "Bearer for-peer"
        moment = int(lines["stp-signature"][2:].partition(",")[0])
        assert lines["stp-signature"] == sign("secret", body, moment)
        assert b"authorization" not in other.requests[0]


@run
async def test_many_changes_are_told_together() -> None:
    """While a peer is being told, changes gather: it hears of them once."""
    first = asyncio.Event()
    async with node() as hub, scripted(first, answer()) as peer:
        await hub.table("t", "+ k 0")
        await hub.notify("t", x=peer.url("/n"))
        await until(lambda: len(peer.requests) == 1)
        for number in range(20):
            await hub.write("t", f"+ k {number}")
        first.set()
        await until(lambda: not hub.app.hub.notifier.pending)
        assert len(peer.requests) == 2
        assert hub.app.hub.registry.last_notified == {f"t {peer.url('/n')}": 21}


@run
async def test_a_change_of_another_type_of_the_stream_is_not_told() -> None:
    async with node() as hub, scripted(answer()) as peer:
        for kind in ("user", "order"):
            await hub.client.put(f"/v1/table/shop/{kind}", json={"schema": kind, "stream": "shop"})
        await hub.notify("shop/user", x=peer.url("/n"))
        await hub.write("shop/order", "+ 1 x")
        await until(lambda: not hub.app.hub.notifier.pending)
        assert peer.requests == []
        await hub.write("shop/user", "+ 1 x")
        await until(lambda: hub.app.hub.notifier.sent == 1)


@run
async def test_failures_are_tried_again_and_then_given_up_for_all_to_see() -> None:
    async with node(notify_attempts_max=3) as hub, scripted(answer(status=503)) as peer:
        await hub.table("t", "+ k v")
        await hub.notify("t", x=peer.url("/n"))
        await until(lambda: hub.app.hub.notifier.given_up == 1)
        await until(lambda: not hub.app.hub.notifier.pending)
        assert len(peer.requests) == 3
        (listener,) = (await hub.registry())["listener"].values()
        assert listener["state"] == "given-up"
        assert "503" in listener["reason"]
        assert "3 failed in a row" in listener["reason"]
        metrics = (await hub.client.get("/metrics")).text
        assert 'penstock_stp_listeners{state="given-up"} 1.0' in metrics
        assert "penstock_stp_notify_failures_total 3.0" in metrics
        await hub.write("t", "+ k w")
        assert not hub.app.hub.notifier.pending
        # Saying it again takes it up again.
        await hub.notify("t", x=peer.url("/n"))
        await until(lambda: hub.app.hub.notifier.given_up == 2)
        assert len(peer.requests) == 6


@run
async def test_a_nurl_that_is_gone_for_good_is_given_up_at_once() -> None:
    async with node() as hub, scripted(answer(status=410)) as peer:
        await hub.table("t", "+ k v")
        await hub.notify("t", x=peer.url("/n"))
        await until(lambda: hub.app.hub.notifier.given_up == 1)
        assert len(peer.requests) == 1


def test_waits_double_up_to_a_limit_and_are_spread() -> None:
    from penstock.config.settings import Settings
    from penstock.stp.server.notifier import Notifier

    settings = Settings(memory=True, notify_retry_s=1, notify_retry_max_s=10)
    rest: Any = (None, None, None, None)
    backoff = Notifier(settings, *rest)._backoff
    assert [backoff.wait_s(n, 1.0) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]
    assert [backoff.wait_s(n, 0.0) for n in range(1, 7)] == [0.5, 1, 2, 4, 5, 5]


@run
async def test_listeners_are_bounded_in_all_and_a_host() -> None:
    async with node(notify_listeners_per_peer_max=2) as hub:
        await hub.table("t")
        for number in (1, 2, 2):
            assert (await hub.notify("t", x=f"http://127.0.0.1:999{number}/")).status_code == 202
        over = await hub.notify("t", x="http://127.0.0.1:9993/")
        assert (over.status_code, over.json()["code"]) == (429, "too-many-peers")
        assert (await hub.notify("t", x="http://127.0.0.2:9993/")).status_code == 202


def test_a_restart_tells_what_was_not_told_and_nothing_else(tmp_path: Path) -> None:
    @run
    async def test() -> None:
        refusing, taking = answer(status=503), answer()
        async with scripted(taking) as quick, scripted(refusing) as slow:
            settings: dict[str, Any] = {"data_dir": tmp_path, "notify_retry_s": 100}
            async with node(**settings) as hub:
                await hub.table("t", "+ k v")
                await hub.notify("t", x=quick.url("/n"))
                await hub.notify("t", x=slow.url("/n"))
                await until(lambda: hub.app.hub.notifier.sent == 1 == hub.app.hub.notifier.failed)
            slow._parts = (taking,)
            async with node(**settings) as hub:
                await hub.app.hub.ready()
                await until(lambda: not hub.app.hub.notifier.pending)
                assert (len(quick.requests), len(slow.requests)) == (1, 2)
                await hub.write("t", "+ k w")
                await until(lambda: (len(quick.requests), len(slow.requests)) == (2, 3))

    test()


def test_settings_that_cannot_be_used_are_named() -> None:
    from penstock.config.setting import InvalidSetting

    for setting, value in [
        ("public_url", "example.com"),
        ("stp_peer_tokens", ("token",)),
        ("stp_peer_tokens", ("junk=token",)),
        ("stp_peer_tokens", ("https://a.example=",)),
    ]:

        @run
        async def test(chosen: dict[str, Any] = {setting: value}) -> None:  # noqa: B006
            async with node(**chosen):
                pass

        with pytest.raises(InvalidSetting, match=setting):
            test()


@run
async def test_the_registry_is_written_by_the_server_alone() -> None:
    event = [{"type": "listener", "key": "x", "value": {}, "headers": {"operation": "insert"}}]
    as_json = {"content-type": "application/json"}
    async with node() as hub:
        early = await hub.client.put("/v1/stream/__stp/registry", headers=as_json)
        assert (early.status_code, early.json()["code"]) == (403, "mirror-read-only")
        await hub.table("t")
        await hub.notify("t", x="http://127.0.0.1:9999/")
        for method, path in [
            ("POST", "/v1/stream/__stp/registry"),
            ("DELETE", "/v1/stream/__stp/registry"),
            ("PUT", "/v1/schema/__stp/registry"),
            ("PUT", "/v1/table/__stp/registry"),
            ("PUT", "/v1/follow/__stp/registry"),
            ("POST", "/v1/stream/__stp/registry/__ds/trim"),
            ("PUT", "/v1/stream/__stp/registry/__ds/retention"),
            ("DELETE", "/v1/stream/__stp/registry/__ds/retention"),
        ]:
            got = await hub.client.request(method, path, content=json.dumps(event), headers=as_json)
            assert (got.status_code, got.json()["code"]) == (403, "mirror-read-only"), path
        policy = await hub.client.get("/v1/stream/__stp/registry/__ds/retention")
        limits = policy.json()
        assert (limits["age"], limits["bytes"], limits["own"]) == (None, None, True)


@run
async def test_a_table_made_anew_is_told_from_its_start() -> None:
    async with node() as hub, scripted(answer()) as peer:
        await hub.table("t", "+ a 1", "+ b 2")
        await hub.notify("t", x=peer.url("/n"))
        await until(lambda: hub.app.hub.notifier.sent == 1)
        assert (await hub.client.delete("/v1/stream/t")).status_code == 204
        await hub.table("t", "+ a 1")
        await hub.notify("t", x=peer.url("/n"))
        await until(lambda: hub.app.hub.notifier.sent == 2)
