"""The links of mirrors that are spread over several processes, or shards: the one that keeps what
there is once decides for all of them, and asks the others what they follow and name.

It keeps nothing: what is followed is in the registries of the parts, what is named in their
mirrors. Which link is followed is decided in `stp/server/links`.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import secrets
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.backoff import Backoff
from penstock.errors import PenstockError
from penstock.http.forwarding.owners import unowned
from penstock.stp.server.links import NewMirror, View
from penstock.stp.server.registry import Follow

if TYPE_CHECKING:
    from penstock.http.forwarding.control import Control
    from penstock.http.forwarding.homes import Homes
    from penstock.http.forwarding.owners import Owners, Peer
    from penstock.http.forwarding.peers import Peers
    from penstock.log.engine import Engine
    from penstock.stp.server.links import Decider
    from penstock.stp.server.notify_hub import NotifyHub

ROUNDS_MAX: Final = 10
"""How often all parts are asked again because one of them has changed meanwhile."""

_backoff: Final = Backoff(base_s=0.1, cap_s=5.0, jitter=0.5)
"""How long to wait until the decider is told again that there is news."""


class Look(msgspec.Struct, frozen=True):
    """A part is asked what is new since its last report. `turn` is another each time: an order
    counts only in the turn of the last look, so that one that comes late changes nothing that has
    been reported."""

    turn: str
    life: str = ""
    follows: int = 0
    links: int = 0


class Report(msgspec.Struct, frozen=True):
    """What a part follows and names, and the versions of both, which are those of one `life`: one
    start of the part. What has not changed since the last report is left out: `follows` is None
    then, and `named` has only some of `tables`."""

    life: str
    follows_version: int
    links_version: int
    tables: list[str]
    named: dict[str, tuple[str, ...]]
    follows: list[Follow] | None


class FollowOrder(msgspec.Struct, frozen=True):
    """The owner of a mirror's path is to follow a table."""

    turn: str
    mirror: NewMirror


class UnfollowOrder(msgspec.Struct, frozen=True):
    """A part is to end a following, if it is still the same."""

    turn: str
    follow: Follow


class LinkPart:
    """The mirrors of one part, as the decider sees them."""

    def __init__(self, engine: Engine, hub: NotifyHub, homes: Homes) -> None:
        self._engine = engine
        self._hub = hub
        self._homes = homes
        self._life = secrets.token_hex(8)
        self._turn = ""
        # Held by orders: what is reported is what came of all of them.
        self._acting = asyncio.Lock()

    async def report(self, look: Look) -> Report:
        """Return what is followed and named here; NotOwner if that may be known better elsewhere,
        or by nobody yet."""
        await self._hub.ready()
        registry, records = self._hub.registry, self._hub.mirrors.records
        async with self._acting:
            self._turn = look.turn
        await records.read_all()
        if not self._engine.is_current():
            raise unowned("Another node may own these mirrors now.")
        is_new = look.life != self._life
        has_followed = is_new or look.follows != registry.follows_version
        return Report(
            self._life,
            registry.follows_version,
            records.version,
            list(records.named),
            {
                table: named
                for table, named in records.named.items()
                if is_new or records.changed_at[table] > look.links
            },
            list(registry.follows.values()) if has_followed else None,
        )

    async def follow(self, order: FollowOrder) -> str:
        """Follow a table, or return why it cannot be followed."""
        table = order.mirror.table
        await self._engine.fetch(table)
        async with self._acting, self._homes.deciding(table) as is_here:
            self._check(order.turn)
            if not is_here:
                return f"{table!r} is a fork, which is where its source is; it cannot be a mirror."
            return await self._hub.mirrors.here.follow(order.mirror)

    async def unfollow(self, order: UnfollowOrder) -> None:
        await self._engine.fetch(order.follow.table)
        async with self._acting:
            self._check(order.turn)
            await self._hub.mirrors.here.unfollow(order.follow)

    def _check(self, turn: str) -> None:
        if turn != self._turn:
            raise unowned("The mirrors were looked at since this was decided.")


class _Known:
    """What the decider knows of a part."""

    __slots__ = ("follows", "follows_version", "life", "links_version", "named")

    def __init__(self) -> None:
        self.life = ""
        self.follows_version = 0
        self.links_version = 0
        self.follows: dict[str, Follow] = {}
        self.named: dict[str, tuple[str, ...]] = {}

    def look(self, turn: str) -> Look:
        return Look(turn, self.life, self.follows_version, self.links_version)

    def learn(self, report: Report) -> bool:
        """Take in a report; return whether it says anything new."""
        before = (self.life, self.follows_version, self.links_version)
        self.life = report.life
        self.follows_version, self.links_version = report.follows_version, report.links_version
        if report.follows is not None:
            self.follows = {each.table: each for each in report.follows}
        named = self.named
        self.named = {
            table: report.named[table] if table in report.named else named[table]
            for table in report.tables
        }
        return before != (self.life, self.follows_version, self.links_version)


class SharedMirrors:
    """The mirrors of all parts, for the one that decides about their links."""

    def __init__(self, part: LinkPart, engine: Engine, owners: Owners, peers: Peers) -> None:
        self._part = part
        self._engine = engine
        self._owners = owners
        self._peers = peers
        self._name = secrets.token_hex(8)
        self._turns = itertools.count(1)
        self._turn = ""
        # Looks and orders come one after the other.
        self._asking = asyncio.Lock()
        names = [owners.name, *(peer.name for peer in owners.peers())]
        self._known = {name: _Known() for name in names}
        self._view = View({}, {})

    async def view(self) -> View:
        async with self._asking:
            await self._ask_all()
            return self._view

    async def moment(self) -> View:
        """Return what all parts followed and named at one moment. They are asked one after the
        other, and what moves from one to another meanwhile could be missed with both; if none of
        them says anything new when all are asked again, all were so in between."""
        async with self._asking:
            await self._ask_all()
            for _ in range(ROUNDS_MAX):
                if not await self._ask_all():
                    return self._view
        raise unowned("The links change too often to be looked at.")

    async def _ask_all(self) -> bool:
        """Ask all parts; return whether something is new. NotOwner if one is missing."""
        self._turn = f"{self._name}-{next(self._turns)}"
        reports = await asyncio.gather(
            *(self._report(name, known) for name, known in self._known.items())
        )
        self._check()
        everything = list(self._known.values())
        news = [known.learn(report) for known, report in zip(everything, reports, strict=True)]
        if not any(news):
            return False
        follows: dict[str, Follow] = {}
        named: dict[str, tuple[str, ...]] = {}
        for known in everything:
            follows |= known.follows
            named |= known.named
        self._view = View(follows, named)
        return True

    async def _report(self, name: str, known: _Known) -> Report:
        look = known.look(self._turn)
        peer = self._owners.peer(name)
        if peer is None:
            return await self._part.report(look)
        answer = await self._peers.ask(peer, "links", msgspec.to_builtins(look))
        return msgspec.convert(answer, Report)

    async def follow(self, mirror: NewMirror) -> str:
        async with self._asking:
            self._check()
            order = FollowOrder(self._turn, mirror)
            peer = self._owners.owner(mirror.table)
            if peer is None:
                return await self._part.follow(order)
            return str(await self._peers.ask(peer, "links-follow", msgspec.to_builtins(order)))

    async def unfollow(self, follow: Follow) -> None:
        async with self._asking:
            self._check()
            order = UnfollowOrder(self._turn, follow)
            for name, known in self._known.items():
                if follow.table not in known.follows:
                    continue
                peer = self._owners.peer(name)
                if peer is None:
                    await self._part.unfollow(order)
                else:
                    await self._peers.ask(peer, "links-unfollow", msgspec.to_builtins(order))
                return

    def _check(self) -> None:
        if not self._engine.is_current():
            raise unowned("Another node may decide about links now.")


class RemoteDecider:
    """The decider of another part, told of what changes here."""

    def __init__(self, peers: Peers, first: Peer) -> None:
        self._peers = peers
        self._first = first
        self._has_news = False
        self._is_closed = False
        self._task: asyncio.Task[None] | None = None

    def wake(self) -> None:
        self._has_news = True
        if self._task is None and not self._is_closed:
            self._task = asyncio.get_running_loop().create_task(self._tell())

    def close(self) -> None:
        self._is_closed = True
        if self._task is not None:
            self._task.cancel()

    async def _tell(self) -> None:
        """Tell that there is news, until it is heard: one that starts then asks by itself."""
        failures = 0
        try:
            while self._has_news:
                self._has_news = False
                try:
                    await self._peers.ask(self._first, "links-news", None)
                    failures = 0
                except PenstockError:
                    failures += 1
                    self._has_news = True
                    await asyncio.sleep(_backoff.wait_s(failures, random.random()))
        finally:
            self._task = None

    async def status(self, tables: list[str]) -> dict[str, dict[str, Any]]:
        answer: dict[str, dict[str, Any]] = await self._peers.ask(
            self._first, "links-status", tables
        )
        return answer


class SharedLinks:
    """What one part does for the links of all: it reports, follows what it is told to, and decides
    if it is the one that keeps what there is once (`first` is None)."""

    def __init__(
        self,
        engine: Engine,
        hub: NotifyHub,
        homes: Homes,
        owners: Owners,
        peers: Peers,
        control: Control,
        first: Peer | None,
    ) -> None:
        self._mirrors = hub.mirrors
        self._part = LinkPart(engine, hub, homes)
        self._decider: Decider
        if first is None:
            mirrors = SharedMirrors(self._part, engine, owners, peers)
            self._decider = self._mirrors.links_of(mirrors)
            control.add("links-news", self._news)
            control.add("links-status", self._decider.status)
        else:
            self._decider = RemoteDecider(peers, first)
        control.add("links", self._report)
        control.add("links-follow", self._follow)
        control.add("links-unfollow", self._unfollow)

    def start(self) -> None:
        self._mirrors.decide_by(self._decider)

    def close(self) -> None:
        self._decider.close()

    async def _news(self, question: Any) -> bool:
        self._decider.wake()
        return True

    async def _report(self, question: Any) -> Any:
        return msgspec.to_builtins(await self._part.report(msgspec.convert(question, Look)))

    async def _follow(self, question: Any) -> str:
        reason = await self._part.follow(msgspec.convert(question, FollowOrder))
        # Whoever asked may have given up waiting, and is to see what came of it.
        self._decider.wake()
        return reason

    async def _unfollow(self, question: Any) -> bool:
        await self._part.unfollow(msgspec.convert(question, UnfollowOrder))
        return True
