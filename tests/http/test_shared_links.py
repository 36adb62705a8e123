"""One part decides about the links of all: by what all of them follow and name at one moment, and
never without one of them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from penstock.config.settings import Settings
from penstock.errors import NotOwner, TableNotFound
from penstock.http.forwarding.owners import Address, Peer
from penstock.http.forwarding.shared_links import (
    FollowOrder,
    LinkPart,
    Look,
    RemoteDecider,
    SharedMirrors,
    UnfollowOrder,
)
from penstock.stp.rows import Row
from penstock.stp.server.links import Links, NewMirror, View
from penstock.stp.server.record_links import RecordLinks
from penstock.stp.server.registry import Follow
from tests.stp.nodes import run

SURL = "https://a.example/v1/table/x"


class _NoTables:
    def find(self, path: str, *, touch: bool) -> Any:
        raise TableNotFound(path)


class FakePart:
    """A part whose mirrors do nothing but name tables."""

    def __init__(self) -> None:
        settings: Any = SimpleNamespace(follow_links_max=10)
        tables: Any = _NoTables()
        self.records = RecordLinks(tables, settings, lambda: None)
        self.registry = SimpleNamespace(follows={}, follows_version=0)
        self.done: list[str] = []
        self.may_follow = asyncio.Event()
        self.may_follow.set()
        self.is_current = True
        self.restart()

    def restart(self) -> None:
        hub: Any = SimpleNamespace(
            ready=self._ready,
            registry=self.registry,
            mirrors=SimpleNamespace(records=self.records, here=self),
        )
        engine: Any = SimpleNamespace(is_current=lambda: self.is_current, fetch=self._fetch)
        homes: Any = SimpleNamespace(deciding=_Deciding)
        self.engine = engine
        self.part = LinkPart(engine, hub, homes)

    async def _ready(self) -> None: ...

    async def _fetch(self, path: str) -> None: ...

    async def follow(self, mirror: NewMirror) -> str:
        await self.may_follow.wait()
        self.mirror(mirror.table, root=mirror.root)
        self.done.append(f"follow {mirror.table}")
        return ""

    async def unfollow(self, follow: Follow) -> None:
        self.done.append(f"unfollow {follow.table}")

    def mirror(self, table: str, *, links: int = 1, root: str = "") -> Follow:
        follow = Follow(
            table=table,
            surl=f"https://a.example/v1/table/{table}",
            stream=1,
            links=links,
            root=root,
        )
        self.registry.follows[table] = follow
        self.registry.follows_version += 1
        self.records.begin(follow)
        return follow

    def name(self, table: str, surl: str | None) -> None:
        action, record = ("-", "") if surl is None else ("+", surl)
        self.records.changed(table, [Row(1, "", action, "key", record)])  # type: ignore[arg-type]


class _Deciding:
    def __init__(self, path: str) -> None: ...

    async def __aenter__(self) -> bool:
        return True

    async def __aexit__(self, *_: object) -> None: ...


class Parts:
    """Two parts, of which the first decides. `before_ask` is called before the other is asked."""

    def __init__(self) -> None:
        self.first, self.other = FakePart(), FakePart()
        self.before_ask: Callable[[], Awaitable[None] | None] = lambda: None
        self.reports: list[Any] = []
        self.turns: list[str] = []
        peer = Peer("part-1", Address())
        self._owners: Any = SimpleNamespace(
            name="part-0",
            peers=lambda: [peer],
            peer=lambda name: peer if name == "part-1" else None,
            owner=lambda path: peer if path.startswith("other") else None,
        )
        self.all = self.decider()

    def decider(self) -> SharedMirrors:
        peers: Any = self
        return SharedMirrors(self.first.part, self.first.engine, self._owners, peers)

    async def ask(self, peer: Peer, name: str, question: Any) -> Any:
        self.before_ask()
        part = self.other.part
        question = msgspec.json.decode(msgspec.json.encode(question))
        if name == "links":
            self.turns.append(question["turn"])
            self.reports.append(await part.report(msgspec.convert(question, Look)))
            return msgspec.json.decode(msgspec.json.encode(self.reports[-1]))
        if name == "links-follow":
            return await part.follow(msgspec.convert(question, FollowOrder))
        return await part.unfollow(msgspec.convert(question, UnfollowOrder))


@run
async def test_a_link_that_moves_from_part_to_part_is_never_missed() -> None:
    parts = Parts()
    parts.first.mirror("a")
    parts.other.mirror("other")
    parts.other.name("other", SURL)
    moves = iter([True])

    def move() -> None:
        # The first has reported already; the other has not.
        if next(moves, False):
            parts.first.name("a", SURL)
            parts.other.name("other", None)

    parts.before_ask = move
    view = await parts.all.moment()
    assert SURL in {surl for _, surl in view.links()}


@run
async def test_without_one_part_there_is_no_view_at_all() -> None:
    parts = Parts()
    parts.first.mirror("a")
    assert set((await parts.all.view()).follows) == {"a"}
    parts.other.is_current = False
    for look in (parts.all.view, parts.all.moment):
        with pytest.raises(NotOwner):
            await look()
    parts.other.is_current = True
    parts.other.mirror("other")
    assert set((await parts.all.moment()).follows) == {"a", "other"}
    # The decider itself was replaced after it has said what it has.
    parts.before_ask = lambda: setattr(parts.first, "is_current", False)
    with pytest.raises(NotOwner):
        await parts.all.view()


@run
async def test_links_that_never_rest_are_an_error_instead_of_a_guess() -> None:
    parts = Parts()
    parts.other.mirror("other")
    surls = iter(range(1000))
    parts.before_ask = lambda: parts.other.name("other", f"{SURL}{next(surls)}")
    with pytest.raises(NotOwner, match="too often"):
        await parts.all.moment()


@run
async def test_a_report_has_what_is_new_and_all_after_a_restart() -> None:
    parts = Parts()
    for table in ("other-1", "other-2"):
        parts.other.mirror(table)
        parts.other.name(table, SURL)
    await parts.all.view()
    assert set(parts.reports[-1].named) == {"other-1", "other-2"}
    parts.other.name("other-2", None)
    view = await parts.all.view()
    assert (parts.reports[-1].named, parts.reports[-1].follows) == ({"other-2": ()}, None)
    assert dict(view.named) == {"other-1": (SURL,), "other-2": ()}
    parts.other.records.end("other-1")
    assert set((await parts.all.view()).named) == {"other-2"}
    parts.other.restart()
    await parts.all.view()
    assert set(parts.reports[-1].named) == {"other-2"}
    assert len(parts.reports[-1].follows) == 2


@run
async def test_an_order_counts_only_until_the_next_look() -> None:
    parts = Parts()
    follow = parts.other.mirror("other", root="a")
    before = parts.decider()
    await before.view()
    await parts.all.view()
    new = NewMirror("other-new", SURL, "", 0, "a")
    for order in (before.follow(new), before.unfollow(follow)):
        with pytest.raises(NotOwner):
            await order
    assert parts.other.done == []
    await parts.all.follow(new)
    await parts.all.unfollow(follow)
    assert parts.other.done == ["follow other-new", "unfollow other"]
    late = FollowOrder(parts.turns[-1], new)
    await parts.all.view()
    with pytest.raises(NotOwner):
        await parts.other.part.follow(late)


@run
async def test_a_report_waits_for_the_order_before_it() -> None:
    parts = Parts()
    await parts.all.view()
    parts.other.may_follow.clear()
    following = asyncio.ensure_future(
        parts.other.part.follow(
            FollowOrder(parts.turns[-1], NewMirror("other-new", SURL, "", 0, "a"))
        )
    )
    looking = asyncio.ensure_future(parts.decider().view())
    await asyncio.wait([looking], timeout=0.05)
    assert not looking.done()
    parts.other.may_follow.set()
    await following
    assert set((await looking).follows) == {"other-new"}


class _Failing:
    """Mirrors, one of them named by nobody, that cannot be reached at first."""

    def __init__(self, failures: int) -> None:
        self._failures = failures
        self.has_ended = asyncio.Event()
        self._follow = Follow(table="t", surl=SURL, stream=1, root="gone")

    async def view(self) -> View:
        self._failures -= 1
        if self._failures >= 0:
            raise NotOwner("Nobody is there.")
        return View({"t": self._follow}, {})

    moment = view

    async def follow(self, mirror: NewMirror) -> str:
        raise AssertionError("nothing is named")

    async def unfollow(self, follow: Follow) -> None:
        self.has_ended.set()


@run
async def test_links_are_decided_about_when_all_can_be_reached_again() -> None:
    mirrors, unused = _Failing(failures=2), cast("Any", None)
    links = Links(mirrors, unused, unused, Settings(), public_origin="")
    links.wake()
    await mirrors.has_ended.wait()
    links.close()


@run
async def test_the_decider_is_told_of_news_until_it_has_heard() -> None:
    failures, heard = iter([True, True]), asyncio.Event()

    class FakePeers:
        async def ask(self, peer: Peer, name: str, question: Any) -> bool:
            assert (peer.name, name) == ("part-0", "links-news")
            if next(failures, False):
                raise NotOwner("Nobody is there.")
            heard.set()
            return True

    peers: Any = FakePeers()
    decider = RemoteDecider(peers, Peer("part-0", Address()))
    decider.wake()
    await heard.wait()
    decider.close()
