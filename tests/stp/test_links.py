"""Tables that the records of a mirror name are followed, if an operator asks for it: as deep, as
many and as large as the settings allow."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import FollowNotFound
from penstock.log.engine import Engine
from penstock.protocol.outbound import parse_url
from penstock.stp.server.record_links import link_of
from tests.stp.nodes import Node, node, run, until
from tests.stp.sources import once, rows, source


@pytest.mark.parametrize(
    ("record", "link"),
    [
        ("https://a.example/v1/table/t", "https://a.example/v1/table/t"),
        ("http://10.0.0.1:4437/t?x=1", "http://10.0.0.1:4437/t?x=1"),
        ('"https://a.example/t"', "https://a.example/t"),
        ('{"surl":"https://a.example/t","more":1}', "https://a.example/t"),
        ('{"url":"https://a.example/t"}', None),
        ('{"surl":7}', None),
        ("{", None),
        ("see https://a.example/t", None),
        ("https://a.example/t and more", None),
        ("https://a.example/t?since_id=3", None),
        ("https://user:secret@a.example/t", None),
        ("ftp://a.example/t", None),
        ("", None),
        ("7", None),
    ],
)
def test_what_names_a_table(record: str, link: str | None) -> None:
    assert link_of(record) == link


def path(of: Node, table: str) -> str:
    return f"mirror/{of.url.removeprefix('http://').replace(':', '_')}/{table}"


async def status(hub: Node, table: str) -> dict[str, Any]:
    got: dict[str, Any] = (await hub.client.get(f"/v1/follow/{table}")).json()
    return got


def tables(hub: Node) -> set[str]:
    """What is followed, durably and in fact."""
    names = set(hub.app.hub.registry.follows)
    return names if names == set(hub.app.hub.mirrors.followers) else {"in between"}


@run
async def test_links_are_followed_as_deep_as_is_asked_for() -> None:
    async with node() as there, node() as hub:
        names = ["a", "b", "c", "d"]
        for name, following in zip(names, [*names[1:], None], strict=True):
            record = there.surl(following) if following else "end"
            await there.table(name, f"+ next {record}")
        await hub.follow("a", there.surl("a"), links=2)
        mirrors = {"a", path(there, "b"), path(there, "c")}
        await until(lambda: tables(hub) == mirrors)
        await until(lambda: hub.status(path(there, "c")).seqno == 1)
        assert await hub.rows(path(there, "c")) == [["+", "next", there.surl("d")]]
        shown = await status(hub, "a")
        assert shown["links"] == {"depth": 2, "followed": [path(there, "b")], "refused": {}}
        leaf = await status(hub, path(there, "c"))
        assert (leaf["root"], "links" in leaf) == ("a", False)
        assert tables(hub) == mirrors
        # Without links nothing is followed.
        await hub.follow("a", there.surl("a"), links=0)
        await until(lambda: tables(hub) == {"a"})


@run
async def test_links_follow_what_the_records_say() -> None:
    async with node() as there, node() as hub:
        for name in ("x", "y"):
            await there.table(name, "+ k v")
        await there.table("list", f"+ 1 {there.surl('x')}", f"+ 2 {there.surl('x')}", "+ 3 text")
        await hub.follow("list", there.surl("list"), links=1)
        await until(lambda: tables(hub) == {"list", path(there, "x")})
        await there.write("list", f"+ 3 {there.surl('y')}", "- 1")
        await until(lambda: tables(hub) == {"list", path(there, "x"), path(there, "y")})
        await there.write("list", "- 2")
        await until(lambda: tables(hub) == {"list", path(there, "y")})
        assert await hub.rows(path(there, "x")) == [["+", "k", "v"]]  # its rows stay
        await there.write("x", "+ k w")
        await there.write("list", f"+ 2 {there.surl('x')}")
        await until(lambda: tables(hub) == {"list", path(there, "x"), path(there, "y")})
        await until(lambda: hub.status(path(there, "x")).seqno == 2)
        assert (await hub.client.delete("/v1/follow/list")).status_code == 204
        await until(lambda: tables(hub) == set())


@run
async def test_tables_that_name_each_other_are_followed_once() -> None:
    async with node() as there, node() as hub:
        await there.table("a", f"+ to {there.surl('b')}", f"+ self {there.surl('a')}")
        await there.table("b", f"+ back {there.surl('a')}", f"+ ours {hub.surl('a')}")
        await hub.follow("a", there.surl("a"), links=3)
        await until(lambda: tables(hub) == {"a", path(there, "b")})
        await until(lambda: hub.status(path(there, "b")).seqno == 2)

        async def is_refused() -> bool:
            refused = (await status(hub, path(there, "b")))["links"]["refused"]
            return bool(refused == {hub.surl("a"): "It is a table of this server."})

        await until(is_refused)
        assert tables(hub) == {"a", path(there, "b")}


@run
async def test_links_are_bounded_in_number_and_bytes() -> None:
    limits: dict[str, Any] = {"follow_links_max": 2, "follow_link_bytes_max": 2000}
    async with node() as there, node(**limits) as hub:
        for number in range(4):
            await there.table(f"t{number}", "+ k v")
        await there.write("t0", f"+ big {'x' * 3000}")
        lines = [f"+ {number} {there.surl(f't{number}')}" for number in range(4)]
        await there.table("list", *lines)
        await hub.follow("list", there.surl("list"), links=1)
        await until(lambda: len(tables(hub)) == 3)

        async def are_refused() -> bool:
            return len((await status(hub, "list"))["links"]["refused"]) == 2

        await until(are_refused)
        reasons = (await status(hub, "list"))["links"]["refused"].values()
        assert all("follow_links_max" in reason for reason in reasons)
        await until(lambda: hub.status(path(there, "t0")).state == "ended")
        assert "2000 bytes" in hub.status(path(there, "t0")).reason
        requests = hub.status(path(there, "t0")).requests
        await there.write("t0", "+ k w")
        await until(lambda: hub.status(path(there, "t1")).requests > 3)
        assert hub.status(path(there, "t0")).requests == requests
        # What an operator follows himself has no such bound.
        await hub.follow("own", there.surl("t0"))
        await until(lambda: hub.status("own").seqno == 3)


@run
async def test_only_tables_of_peers_and_of_the_same_host_are_followed() -> None:
    settings: dict[str, Any] = {
        "development": False,
        "egress_http": True,
        "egress_networks": ("127.0.0.0/8",),
    }
    async with node() as there, node(**settings) as hub, source(once()) as stranger:
        other = stranger.surl.replace("127.0.0.1", "127.0.0.2")
        await there.table("t", "+ k v")
        await there.table(
            "list",
            f"+ 1 {other}",
            f"+ 2 {there.surl('t')}",
            "+ 3 http://169.254.169.254/latest/meta-data",
            "+ 4 https://10.0.0.1/t",
        )
        await hub.follow("list", there.surl("list"), links=1)
        await until(lambda: tables(hub) == {"list", path(there, "t")})

        async def are_refused() -> bool:
            return len((await status(hub, "list"))["links"]["refused"]) == 3

        await until(are_refused)
        refused = (await status(hub, "list"))["links"]["refused"]
        assert all("stp_peers" in reason for reason in refused.values())
        assert stranger.requests == []
    trusting = {**settings, "stp_peers": ("*",)}
    async with node() as there, node(**trusting) as hub:
        await there.table("list", "+ 3 http://169.254.169.254/t", "+ 4 https://10.0.0.1/t")
        await hub.follow("list", there.surl("list"), links=1)

        async def are_refused_by_egress() -> bool:
            refused = (await status(hub, "list"))["links"]["refused"].values()
            return sorted("egress_networks" in reason for reason in refused) == [True, True]

        await until(are_refused_by_egress)


@run
async def test_a_url_that_is_no_table_is_left_alone_and_one_that_fails_is_tried_again() -> None:
    async with (
        node() as there,
        node() as hub,
        source(once(type="text/html")) as site,
        source(once(status=503), once(status=503), once(rows("+ a 1"))) as ailing,
    ):
        await there.table("list", f"+ 1 {site.surl}", f"+ 2 {ailing.surl}")
        await hub.follow("list", there.surl("list"), links=1)
        await until(lambda: len(tables(hub)) == 2)
        mirror = next(iter(tables(hub) - {"list"}))
        await until(lambda: hub.status(mirror).seqno == 1)
        assert len(site.requests) == 1
        assert (await hub.client.get("/v1/streams?prefix=mirror/")).text.count(str(site.port)) == 0


@run
async def test_a_link_changes_nothing_of_what_an_operator_follows() -> None:
    async with node() as there, node() as hub:
        await there.table("x", "+ k v")
        mirrors, mirror = hub.app.hub.mirrors, path(there, "x")
        target = parse_url(there.surl("x"))
        assert await mirrors.follow(mirror, target, links=0, root="list")
        by_link = hub.app.hub.registry.follows[mirror]
        assert not await mirrors.follow(mirror, target, links=2, root="other")
        assert hub.app.hub.registry.follows[mirror] == by_link
        await hub.follow(mirror, there.surl("x"), links=0)
        assert not await mirrors.follow(mirror, target, links=1, root="list")
        assert (await status(hub, mirror)).get("root") is None
        # The link has gone, but by now the operator follows the table.
        with pytest.raises(FollowNotFound):
            await mirrors.unfollow(mirror, expected=by_link)
        assert tables(hub) == {mirror}


class _Waking:
    """A decider that only counts how often it is to decide."""

    def __init__(self) -> None:
        self.times = 0

    def wake(self) -> None:
        self.times += 1

    async def status(self, tables: list[str]) -> dict[str, dict[str, Any]]:
        return {}

    def close(self) -> None: ...


@run
async def test_who_comes_to_decide_about_links_does_so_at_once() -> None:
    """News that an earlier one has heard may have ended with it."""
    async with node() as hub:
        decider = _Waking()
        hub.app.hub.mirrors.decide_by(decider)
        assert decider.times == 1


def test_links_survive_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Engine.set_meta

    def set_meta(engine: Engine, *arguments: Any) -> asyncio.Future[None]:
        """Let other tasks have their turn, as a disk would."""

        async def later() -> None:
            await asyncio.sleep(0.02)
            await original(engine, *arguments)

        return asyncio.ensure_future(later())

    @run
    async def test() -> None:
        async with node() as there:
            for name in ("x", "y", "z"):
                await there.table(name, "+ k v")
            await there.table("one", f"+ 1 {there.surl('x')}")
            await there.table("two", f"+ 1 {there.surl('y')}")
            async with node(data_dir=tmp_path) as hub:
                for name in ("one", "two"):
                    await hub.follow(name, there.surl(name), links=1)
                both = {"one", "two", path(there, "x"), path(there, "y")}
                await until(lambda: tables(hub) == both)
            await there.write("two", f"+ 1 {there.surl('z')}")
            monkeypatch.setattr(Engine, "set_meta", set_meta)
            async with node(data_dir=tmp_path) as hub:
                await hub.app.hub.ready()
                assert tables(hub) == both
                follower = hub.app.hub.mirrors.followers[path(there, "x")]
                after = {"one", "two", path(there, "x"), path(there, "z")}
                await until(lambda: tables(hub) == after)
                assert hub.app.hub.mirrors.followers[path(there, "x")] is follower

    test()


@run
async def test_the_depth_is_a_number_within_the_setting() -> None:
    async with node(follow_links_depth_max=2) as hub:
        for links in (-1, 3):
            got = await hub.follow("m", "https://a.example/t", links=links)
            assert (got.status_code, got.json()["code"]) == (400, "invalid-follow")
        await asyncio.sleep(0)
        assert tables(hub) == set()
