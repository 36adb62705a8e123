"""NURLs that peers advertise: kept until their table is there, listed, used, and told of a
following."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest

from penstock.clock import ManualClock
from penstock.state.declaration import META, decode, encode
from tests.egress.scripted import Scripted, answer, scripted
from tests.stp.nodes import Node, node, run, until
from tests.stp.sources import once, rows, source


def forms(peer: Scripted) -> list[dict[str, list[str]]]:
    """The Notify forms that a peer got."""
    return [parse_qs(each.partition(b"\r\n\r\n")[2].decode()) for each in peer.requests]


async def listed(hub: Node, **selection: str) -> list[dict[str, Any]]:
    got = await hub.client.get("/v1/nurls", params=selection)
    assert got.status_code == 200, got.text
    nurls: list[dict[str, Any]] = got.json()["nurls"]
    return nurls


# -- a handshake before its table


@run
async def test_a_handshake_takes_effect_when_its_table_appears() -> None:
    async with node() as hub, scripted(answer()) as peer:
        got = await hub.notify("hub", endpoints=peer.url("/n"))
        assert got.status_code == 202
        assert got.json() == {"ignored": {}, "waiting": {"endpoints": ["hub/endpoints", "hub"]}}
        again = await hub.notify("hub", endpoints=peer.url("/n"))
        assert again.json() == got.json()
        assert len(hub.app.hub.registry.waiting) == 1
        await hub.table("hub/endpoints", "+ k v")
        await until(lambda: hub.app.hub.notifier.sent == 1)
        assert forms(peer) == [{"surl": [hub.surl("hub/endpoints")]}]
        await until(lambda: not hub.app.hub.registry.waiting)
        assert "waiting" not in await hub.registry()
        (nurl,) = await listed(hub)
        assert (nurl["state"], nurl["tables"]) == ("active", ["hub/endpoints"])
        await hub.write("hub/endpoints", "+ k w")
        await until(lambda: hub.app.hub.notifier.sent == 2)


@run
async def test_a_peer_may_name_a_table_that_is_not_there_yet() -> None:
    async with node() as hub, scripted(answer()) as peer:
        got = await hub.notify("x", surl=hub.surl("a/b"), changed=peer.url("/n"))
        assert got.json()["waiting"] == {"changed": ["a/b"]}
        await hub.table("x", "+ k v")  # It is not the one.
        await hub.client.put("/v1/table/a/b", json={"schema": "b", "stream": "a"})
        await hub.write("a/b", "+ k v")
        await until(lambda: hub.app.hub.notifier.sent == 1)
        assert forms(peer) == [{"surl": [hub.surl("a/b")]}]


@run
async def test_a_mirror_that_appears_is_a_table_too() -> None:
    async with node() as hub, scripted(answer()) as peer, source(once(rows("+ a 1"))) as origin:
        await hub.notify("m", changed=peer.url("/n"))
        await hub.follow("m", origin.surl)
        await until(lambda: hub.app.hub.notifier.sent == 1)
        assert forms(peer) == [{"surl": [hub.surl("m")]}]


def test_a_handshake_that_waits_survives_a_restart(tmp_path: Path) -> None:
    @run
    async def test() -> None:
        async with scripted(answer()) as peer:
            async with node(data_dir=tmp_path) as hub:
                await hub.notify("early", x=peer.url("/n"))
                await hub.notify("late", x=peer.url("/n"))
            async with node(data_dir=tmp_path) as hub:
                await hub.table("early", "+ k v")
                await until(lambda: hub.app.hub.notifier.sent == 1)
                # As after a crash: the table is there, and the entry has not been used.
                await hub.app.hub.ready()
                hub.app.tables.on_declared = None
                await hub.table("late", "+ k v")
                assert len(hub.app.hub.registry.waiting) == 1
            async with node(data_dir=tmp_path) as hub:
                await hub.app.hub.ready()
                await until(lambda: hub.app.hub.notifier.sent == 1)
                assert hub.app.hub.registry.waiting == {}

    test()


@run
async def test_a_handshake_waits_for_a_time_that_a_repeat_renews() -> None:
    clock = ManualClock(1_800_000_000_000_000)
    async with node(clock=clock, notify_waiting_s=100) as hub, scripted(answer()) as peer:
        await hub.notify("a", x=peer.url("/n"))
        await hub.notify("b", x=peer.url("/n"))
        clock.advance(60)
        await hub.notify("b", x=peer.url("/n"))
        clock.advance(60)
        assert [each["tables"] for each in await listed(hub)] == [["b/x", "b"]]
        await hub.table("a", "+ k v")
        await hub.table("b", "+ k v")
        await until(lambda: hub.app.hub.notifier.sent == 1)
        assert forms(peer) == [{"surl": [hub.surl("b")]}]
        await hub.notify("c", y=peer.url("/n"))
        assert [each.name for each in hub.app.hub.registry.waiting.values()] == ["c"]


@run
async def test_handshakes_that_wait_are_bounded_in_all_and_a_host() -> None:
    limits: dict[str, Any] = {"notify_waiting_max": 3, "notify_waiting_per_peer_max": 2}
    async with node(**limits) as hub:
        for number in (1, 2, 2):
            assert (await hub.notify("t", x=f"http://127.0.0.1:999{number}/")).status_code == 202
        over = await hub.notify("t", x="http://127.0.0.1:9993/")
        assert (over.status_code, over.json()["code"]) == (429, "too-many-peers")
        assert (await hub.notify("t", x="http://127.0.0.2:9993/")).status_code == 202
        assert (await hub.notify("t", x="http://127.0.0.3:9993/")).status_code == 429
        assert len(hub.app.hub.registry.waiting) == 3


@run
async def test_a_stranger_is_not_kept_waiting() -> None:
    async with node(development=False, stp_peers=("a.example",)) as hub:
        got = await hub.notify("t", x="https://b.example/n")
        assert list(got.json()["ignored"]) == ["x"]
        assert hub.app.hub.registry.waiting == {}


@run
async def test_a_listener_of_a_table_that_is_made_anew_is_told_without_asking() -> None:
    async with node() as hub, scripted(answer()) as peer:
        await hub.table("t", "+ a 1", "+ b 2")
        await hub.notify("t", x=peer.url("/n"))
        await until(lambda: hub.app.hub.notifier.sent == 1)
        assert (await hub.client.delete("/v1/stream/t")).status_code == 204
        await hub.table("t", "+ a 1")
        await until(lambda: hub.app.hub.notifier.sent == 2)


@run
async def test_a_registry_of_an_earlier_version_takes_handshakes_that_wait() -> None:
    async with node() as hub:
        await hub.table("t")
        await hub.notify("t", x="http://127.0.0.1:9999/")
        engine = hub.app.engine
        stored = decode(engine.find("__stp/registry", touch=False).meta[META])
        types = {name: each for name, each in stored.types.items() if name != "waiting"}
        old = encode(type(stored)(**{**_fields(stored), "types": types}))
        await engine.set_meta("__stp/registry", META, old)
        got = await hub.notify("none", x="http://127.0.0.1:9999/")
        assert got.status_code == 202
        assert len((await hub.registry())["waiting"]) == 1


def _fields(declaration: Any) -> dict[str, Any]:
    return {name: getattr(declaration, name) for name in declaration.__struct_fields__}


# -- listed and used


@run
async def test_advertised_nurls_are_listed_notified_and_removed() -> None:
    async with node() as hub, scripted(answer()) as one, scripted(answer(status=503)) as two:
        await hub.table("hub", "+ k v")
        surl = "http://127.0.0.1:1999/v1/table/patients"
        await hub.notify("hub", match=one.url("/match"))
        await until(lambda: hub.app.hub.notifier.sent == 1)
        await hub.notify("other", surl=surl, match=two.url("/match"), grant=one.url("/grant"))
        nurls = await listed(hub)
        assert [(each["nurl"], each["event"], each["state"]) for each in nurls] == sorted(
            [
                (one.url("/match"), "match", "active"),
                (one.url("/grant"), "grant", "waiting"),
                (two.url("/match"), "match", "waiting"),
            ]
        )
        (waiting,) = await listed(hub, source=surl, event="match")
        assert waiting["tables"] == ["other/match", "other"]
        assert waiting["expires_at"] > "2026"
        assert [each["nurl"] for each in await listed(hub, table="hub")] == [one.url("/match")]
        assert await listed(hub, nurl="https://nobody.example/") == []

        ours = hub.surl("matches")
        sent = await hub.client.post("/v1/nurls", json={"event": "match", "surl": ours})
        assert sent.status_code == 200
        assert sent.json()["sent"] == [one.url("/match")]
        assert "503" in sent.json()["failed"][two.url("/match")]
        assert forms(one)[-1] == {"surl": [ours]}
        with_callback = {"nurl": one.url("/grant"), "surl": ours, "callbacks": {"seen": ours}}
        await hub.client.post("/v1/nurls", json=with_callback)
        assert forms(one)[-1] == {"surl": [ours], "seen": [ours]}
        assert one.requests[-1].startswith(b"POST /grant ")

        removed = await hub.client.delete("/v1/nurls", params={"event": "match"})
        assert removed.json() == {"removed": 2}
        assert [each["event"] for each in await listed(hub)] == ["grant"]
        await hub.write("hub", "+ k w")
        assert not hub.app.hub.notifier.pending
        assert "listener" not in await hub.registry()


@run
async def test_the_list_comes_in_pages() -> None:
    async with node() as hub:
        await hub.table("t")
        for number in range(1, 8):
            await hub.notify("t", x=f"http://127.0.0.1:999{number}/")
        found, after = [], ""
        while True:
            page = await hub.client.get("/v1/nurls", params={"limit": "3", "after": after})
            found += [each["nurl"] for each in page.json()["nurls"]]
            if page.json()["next"] is None:
                break
            after = page.json()["next"]
        assert found == [f"http://127.0.0.1:999{number}/" for number in range(1, 8)]


@pytest.mark.parametrize(
    ("method", "target", "body", "status", "code"),
    [
        ("POST", "/v1/nurls", b"", 400, "invalid-json"),
        ("POST", "/v1/nurls", b"{}", 400, "invalid-notify"),
        ("POST", "/v1/nurls", b'{"surl":"junk"}', 400, "invalid-notify"),
        ("POST", "/v1/nurls", b'{"surl":"https://a.example/t","x":1}', 400, "invalid-notify"),
        (
            "POST", "/v1/nurls", b'{"surl":"https://a.example/t","callbacks":{"X":"https://b.example"}}',
            400, "invalid-notify",
        ),
        ("POST", "/v1/nurls", b'{"surl":"https://a.example/t","event":"x"}', 404, "nurl-not-found"),
        ("DELETE", "/v1/nurls", b"", 400, "invalid-parameter"),
        ("DELETE", "/v1/nurls?event=x", b"", 404, "nurl-not-found"),
        ("DELETE", "/v1/nurls?evnt=x", b"", 400, "unknown-parameter"),
        ("GET", "/v1/nurls?limit=0", b"", 400, "invalid-parameter"),
    ],
)  # fmt: skip
def test_requests_that_are_refused(
    method: str, target: str, body: bytes, status: int, code: str
) -> None:
    @run
    async def test() -> None:
        async with node() as hub:
            got = await hub.client.request(method, target, content=body)
            assert (got.status_code, got.json()["code"]) == (status, code), got.text

    test()


def test_one_request_notifies_a_bounded_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.limits.NOTIFY_SEND_MAX", 2)

    @run
    async def test() -> None:
        async with node() as hub:
            await hub.table("t")
            for number in range(1, 4):
                await hub.notify("t", x=f"http://127.0.0.1:999{number}/")
            got = await hub.client.post("/v1/nurls", json={"event": "x", "surl": hub.surl("t")})
            assert (got.status_code, got.json()["code"]) == (400, "invalid-notify")
            assert hub.app.egress.requests == 0

    test()


@run
async def test_the_list_needs_the_servers_token() -> None:
    async with node(auth_token="server", notify_token="peer") as hub:
        for token, status in (("peer", 401), ("server", 200)):
            bearer = {"authorization": f"Bearer {token}"}
            assert (await hub.client.get("/v1/nurls", headers=bearer)).status_code == status


# -- "tell me if you follow it"


@run
async def test_a_peer_learns_that_its_table_is_followed() -> None:
    async with node() as hub, scripted(answer()) as peer, source(once(rows("+ a 1"))) as origin:
        for _ in range(2):
            got = await hub.notify("hub", surl=origin.surl, followed=peer.url("/n"))
            (table,) = got.json()["followed_by"]
            assert got.json()["told_of"] == {"followed": origin.surl}
        await until(lambda: len(peer.requests) == 1)
        assert forms(peer) == [{"surl": [origin.surl], "changed": [hub.nurl(table)]}]
        await until(lambda: len(origin.requests) > 5)
        assert len(peer.requests) == 1  # once, however often it asks
        (nurl,) = await listed(hub, event="followed")
        assert (nurl["state"], nurl["tables"], nurl["source"]) == (
            "followed", [table], origin.surl,
        )  # fmt: skip


@run
async def test_a_peer_learns_of_a_decision_that_an_operator_makes_later() -> None:
    async with (
        node(notify_follow=False) as hub,
        scripted(answer()) as peer,
        source(once(rows("+ a 1"))) as origin,
    ):
        got = await hub.notify("hub", surl=origin.surl, followed=peer.url("/n"))
        assert got.json() == {
            "ignored": {"surl": "an operator decides which tables are followed here"},
            "waiting": {"followed": origin.surl},
        }
        (offer,) = await listed(hub)
        assert (offer["state"], offer["source"]) == ("waiting", origin.surl)
        assert (peer.requests, origin.requests) == ([], [])
        await hub.follow("copy", origin.surl)
        await until(lambda: len(peer.requests) == 1)
        assert forms(peer) == [{"surl": [origin.surl], "changed": [hub.nurl("copy")]}]
        assert hub.app.hub.registry.waiting == {}


@run
async def test_two_penstocks_need_one_notify_to_stay_in_step() -> None:
    """The provider offers its table; the hub follows it, says so at the NURL, and is told of every
    change from there on."""
    async with node(follow_poll_s=1000) as provider, node(follow_poll_s=1000) as hub:
        await provider.table("manifest", "+ a 1")
        got = await hub.notify(
            "hub", surl=provider.surl("manifest"), followed=provider.nurl("manifest")
        )
        (mirror,) = got.json()["followed_by"]
        await until(lambda: len(provider.app.hub.registry.listeners) == 1)
        (listener,) = provider.app.hub.registry.listeners.values()
        assert (listener.table, listener.nurl) == ("manifest", hub.nurl(mirror))
        await provider.write("manifest", "+ b 2")

        async def is_there() -> bool:
            return await hub.rows(mirror) == [["+", "a", "1"], ["+", "b", "2"]]

        await until(is_there)


def test_a_nurl_that_does_not_answer_delays_no_row_and_is_given_up(tmp_path: Path) -> None:
    @run
    async def test() -> None:
        stuck = asyncio.Event()
        async with (
            scripted(stuck) as silent,
            source(once(rows("+ a 1")), once()) as origin,
            node() as hub,
        ):
            await hub.notify("hub", surl=origin.surl, followed=silent.url("/n"))
            await until(lambda: len(silent.requests) == 1)
            await until(lambda: len(origin.requests) > 3)
        async with scripted(answer(status=500)) as failing, source(once()) as origin:
            settings: dict[str, Any] = {"data_dir": tmp_path, "notify_attempts_max": 3}
            async with node(**settings) as hub:
                await hub.notify("hub", surl=origin.surl, followed=failing.url("/n"))
                await until(lambda: len(failing.requests) == 3)
                before = len(origin.requests)
                await until(lambda: len(origin.requests) > before + 5)
                assert len(failing.requests) == 3
                gone = await hub.client.delete("/v1/nurls", params={"event": "followed"})
                assert gone.json() == {"removed": 1}
            async with node(**settings) as hub:  # a restart would tell it again
                before = len(origin.requests)
                await until(lambda: len(origin.requests) > before + 3)
                assert len(failing.requests) == 3

    test()


@run
async def test_a_stranger_is_not_told() -> None:
    peers = ("127.0.0.1",)
    networks = ("127.0.0.0/8",)
    settings: dict[str, Any] = {"development": False, "egress_http": True}
    async with (
        node(**settings, stp_peers=peers, egress_networks=networks) as hub,
        source(once()) as origin,
    ):
        got = await hub.notify("hub", surl=origin.surl, followed="https://a.example/n")
        assert got.json()["ignored"] == {
            "followed": "its host is not among the peers of this server"
        }
        assert "told_of" not in got.json()
