"""All mirrors of a server: started, ended, and resumed after a restart.

A mirror is a stream that only the server writes. What one following does is in `follower`, how rows
get into the log in `mirror`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from msgspec.structs import replace

from penstock.errors import (
    FollowConflict,
    FollowNotFound,
    NotOwner,
    StreamNotFound,
    TableNotFound,
    TooManyPeers,
)
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.outbound import Target
from penstock.state import declaration as state
from penstock.stp.declaration import META, Table, encode
from penstock.stp.server.follower import Follower, Status
from penstock.stp.server.links import Decider, Links, MirrorsHere
from penstock.stp.server.mirror import LEFT, Mirror, has_followed, has_left, left, position
from penstock.stp.server.record_links import RecordLinks
from penstock.stp.server.registry import OWNER, Follow

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.content_type import SequenceType
    from penstock.stp.server.links import AllMirrors
    from penstock.stp.server.peers import Peers
    from penstock.stp.server.registry import Registry
    from penstock.stp.server.table_view import TableView
    from penstock.stp.server.tables import TableDirectory

NOTIFY: Final = "/v1/notify/"
FOLLOWED_MAX: Final = 8
"""NURLs that are told of one following."""
SCHEMA_UNKNOWN: Final = "table"
"""The schema id of a mirror whose source names none."""

_log = logging.getLogger("penstock.stp")


class Mirrors:
    """One follower for each table that mirrors another."""

    def __init__(
        self,
        engine: Engine,
        indexer: StateIndexer,
        settings: Settings,
        tables: TableDirectory,
        egress: Egress,
        peers: Peers,
        registry: Registry,
        *,
        clock: Clock,
        public_origin: str = "",
        is_alone: bool = True,
    ) -> None:
        """`is_alone` says that these are all mirrors of the server; else somebody is to bring the
        one who decides about links (`decide_by`)."""
        self._engine = engine
        self._indexer = indexer
        self._settings = settings
        self._tables = tables
        self._egress = egress
        self._peers = peers
        self._registry = registry
        self._clock = clock
        self._lock = asyncio.Lock()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.followers: dict[str, Follower] = {}
        self._past = Status()
        self._public_origin = public_origin
        self._is_resuming = False
        self.records = RecordLinks(tables, settings, self._links_changed)
        self.here = MirrorsHere(self, registry)
        self._decider: Decider | None = self.links_of(self.here) if is_alone else None

    async def resume(self) -> None:
        """Start the followers that the registry has."""
        self._is_resuming = True  # Until all are there, nothing is decided about links.
        for follow in list(self._registry.follows.values()):
            try:
                stream = self._engine.find(follow.table, touch=False)
            except StreamNotFound:
                _log.error("the mirror %s was deleted; its following ends", follow.table)
                await self._registry.remove(follow)
                continue
            await self._engine.set_meta(follow.table, OWNER, _owner(follow.surl))
            self._start_following(follow, stream)
        self._is_resuming = False
        self._links_changed()

    def close(self) -> None:
        if self._decider is not None:
            self._decider.close()
        for task in self._tasks.values():
            task.cancel()

    # -- links

    def links_of(self, mirrors: AllMirrors) -> Links:
        """Return who decides which links of some mirrors are followed."""
        return Links(
            mirrors, self._egress, self._peers, self._settings, public_origin=self._public_origin
        )

    def decide_by(self, decider: Decider) -> None:
        """Let somebody decide about the links of these mirrors and of others."""
        self._decider = decider
        self._links_changed()

    def _links_changed(self) -> None:
        if self._decider is not None and not self._is_resuming:
            self._decider.wake()

    async def link_status(self, follows: Iterable[Follow]) -> dict[str, dict[str, Any]]:
        """Return what became of the links of mirrors that follow some, by table."""
        depths = {each.table: each.links for each in follows if each.links}
        if not depths:
            return {}
        if self._decider is None:
            raise NotOwner("It is not known yet what the links lead to.", Retry_After="1")
        found = await self._decider.status(list(depths))
        return {table: {"depth": depth, **found[table]} for table, depth in depths.items()}

    # -- mirrors

    def of(self, surl: Target) -> list[Follower]:
        """Return the followers of a SURL."""
        return [each for each in self.followers.values() if each.follow.surl == surl.url]

    def has_ended(self, path: str, surl: Target) -> bool:
        """Whether the table at `path` followed a SURL until somebody ended that."""
        try:
            stream = self._engine.find(path, touch=False)
        except StreamNotFound:
            return False
        return has_followed(stream, surl.url)

    def totals(self) -> Status:
        """Return the sums of all followings, also of those that have ended."""
        total = Status()
        for status in (self._past, *(each.status for each in self.followers.values())):
            _add(total, status)
        return total

    async def follow(
        self,
        table: str,
        surl: Target,
        *,
        nurl: Target | None = None,
        adopt: bool = False,
        base: str = "",
        followed: tuple[str, ...] = (),
        links: int | None = None,
        root: str = "",
    ) -> bool:
        """Make a table a mirror of `surl`; return False if it is one already. The NURLs in
        `followed`, and those that wait for it, are told that it is followed. `links` is how deep
        the tables that its records name are followed; None leaves that as it is. A link, which has
        a `root`, changes nothing of a table that follows the same already."""
        async with self._lock:
            existing = self._registry.follows.get(table)
            if existing is not None and root and existing.surl == surl.url:
                return False
            if existing is not None:
                is_same_nurl = nurl is None or existing.nurl == nurl.url
                if existing.surl != surl.url or not is_same_nurl:
                    raise FollowConflict(
                        f"{table!r} follows {existing.surl}; a mirror has one source. "
                        f"DELETE /v1/follow/{table} first."
                    )
                await self._change(existing, followed, links)
                self.followers[table].wake()
                return False
            self._peers.check(surl)
            self._check_room(surl)
            stream = await self._take_over(table, surl, adopt=adopt)
            waiting = self._registry.waiting_for(surl.url, self._clock.now_us())
            asked = dict.fromkeys((*followed, *(each.nurl for each in waiting)))
            follow = Follow(
                table=table,
                surl=surl.url,
                stream=stream.id,
                nurl="" if nurl is None else nurl.url,
                own_bytes=stream.tail if adopt else 0,
                base=base,
                followed=tuple(asked)[:FOLLOWED_MAX],
                links=links or 0,
                root=root,
            )
            await self._registry.put(follow)
            self._start_following(follow, stream)
            for each in waiting:
                if each.nurl in follow.followed:
                    await self._registry.remove(each)
        return True

    async def _change(self, follow: Follow, nurls: tuple[str, ...], links: int | None) -> None:
        """Tell more NURLs of a following that has begun, and follow its links as deep as it says
        now. What an operator follows does not depend on links any more."""
        asked = tuple(dict.fromkeys((*follow.followed, *nurls)))[:FOLLOWED_MAX]
        depth, root = (follow.links, follow.root) if links is None else (links, "")
        changed = replace(follow, followed=asked, links=depth, root=root)
        if changed != follow:
            await self._registry.put(changed)
            self.followers[follow.table].changed(changed)
            if depth != follow.links:
                self.records.end(follow.table)
                self.records.begin(changed)

    async def forget_followed(self, table: str, nurl: str) -> None:
        """Tell a NURL of a following no more, also after a restart."""
        async with self._lock:
            follow = self._registry.follows.get(table)
            if follow is not None and nurl in follow.followed:
                others = tuple(each for each in follow.followed if each != nurl)
                follow = replace(follow, followed=others)
                await self._registry.put(follow)
                self.followers[table].changed(follow)

    def _check_room(self, surl: Target) -> None:
        settings, registry = self._settings, self._registry
        here = registry.follow_hosts[surl.host]
        if len(registry.follows) >= settings.follow_max or here >= settings.follow_per_peer_max:
            raise TooManyPeers(
                "As many tables are followed as this server allows; see follow_max and "
                "follow_per_peer_max."
            )

    async def _take_over(self, table: str, surl: Target, *, adopt: bool) -> Stream:
        """Return the stream of a mirror: a new or empty one, one that nobody has written to since
        it followed the same source, or with `adopt` one with any rows."""
        view = self.lookup(table)
        if view is not None and view.stream.path != table:
            raise FollowConflict(
                f"{table!r} is one of the tables of the stream {view.stream.path!r}, which cannot "
                "be a mirror for one of them alone. Follow into another table."
            )
        config = StreamConfig("application/json", None, None)
        await self._engine.create(table, config, b"", closed=False)
        stream = self._engine.find(table, touch=True)
        # Before its rows are checked: from here on nobody else writes to it.
        await self._engine.set_meta(table, OWNER, _owner(surl.url))
        if stream.tail and not adopt and not has_left(stream, surl.url):
            await self._engine.set_meta(table, OWNER, None)
            raise FollowConflict(
                f"{table!r} has rows already. Follow into a table without rows, or adopt them: "
                "they stay, and the rows of the source are added."
            )
        return stream

    async def unfollow(self, table: str, *, expected: Follow | None = None) -> None:
        """End a following; the rows stay, and the table can be written again. With `expected` it
        ends only if its source and its root are still those."""
        async with self._lock:
            follow = self._registry.follows.get(table)
            if follow is None or (expected is not None and not _is_same(follow, expected)):
                raise not_followed(table)
            task = self._tasks.pop(table, None)
            follower = self.followers.pop(table, None)
            if follower is not None:
                _add(self._past, follower.status)
            if task is not None:
                task.cancel()
                await asyncio.wait([task])
            with contextlib.suppress(StreamNotFound):
                stream = self._engine.find(table, touch=False)
                await self._engine.set_meta(table, LEFT, left(stream, follow.surl))
                await self._engine.set_meta(table, OWNER, None)
            # Last: a crash before this leaves a following that is resumed.
            await self._registry.remove(follow)
        self.records.end(table)

    def _start_following(self, follow: Follow, stream: Stream) -> None:
        async def declare(kind: SequenceType) -> Mirror:
            table = await self._declare(stream, kind)
            on_rows = partial(self.records.changed, follow.table)
            return Mirror(self._engine, self._indexer, follow, stream, table, on_rows=on_rows)

        base = self._settings.public_url.rstrip("/") or follow.base
        follower = Follower(
            self._settings,
            self._egress,
            self._peers,
            self._clock,
            follow,
            seqno=position(self._engine, stream, follow.surl),
            declare=declare,
            own_nurl=f"{base}{NOTIFY}{follow.table}" if base else "",
        )
        self.followers[follow.table] = follower
        task = asyncio.get_running_loop().create_task(follower.run())
        self._tasks[follow.table] = task
        task.add_done_callback(lambda done: _ended(follower, done))
        self.records.begin(follow)

    def lookup(self, path: str) -> TableView | None:
        """Return the table at a path, if there is one."""
        try:
            return self._tables.find(path, touch=False)
        except TableNotFound:
            return None

    async def _declare(self, stream: Stream, kind: SequenceType) -> Table:
        """Return the table of a mirror, declared as its source describes itself."""
        schema = kind.schema or SCHEMA_UNKNOWN
        version = 1 if kind.version is None else kind.version
        view = self.lookup(stream.path)
        if view is None:
            table = Table(schema=schema, version=version, type=schema, escape=kind.escape)
            await self._declare_new(stream, table)
            return table
        # The table decides how records are stored, the source what they mean.
        if (view.table.schema, view.table.version) != (schema, version):
            raise FollowConflict(
                f"{stream.path!r} is a table of {view.table.schema} {view.table.version}, its "
                f"source is one of {schema} {version}. Follow into another table."
            )
        return view.table

    async def _declare_new(self, stream: Stream, table: Table) -> None:
        pending = self._engine.pending(stream)
        if pending.tail or state.META in pending.meta:
            raise FollowConflict(
                f"{stream.path!r} has events or types, but is not a table. PUT /v1/table/"
                f"{stream.path} with the schema of the source first."
            )
        declaration = state.Declaration(
            version=1,
            mode="reject",
            types={table.type: {"schema": {"type": "string"}}},
            offset=self._engine.token(stream, 0),
            ordinal=0,
        )
        # Both are queued in one step, so that nothing comes between them.
        first = self._engine.set_meta(stream.path, state.META, state.encode(declaration))
        await self._engine.set_meta(stream.path, META, encode({"": table}))
        await first
        self._indexer.follow(stream)
        self._tables.declared_new(stream)


def _add(total: Status, status: Status) -> None:
    for name in ("appended", "unchanged", "conflicts", "requests"):
        setattr(total, name, getattr(total, name) + getattr(status, name))


def not_followed(table: str) -> FollowNotFound:
    return FollowNotFound(f"{table!r} follows nothing; PUT a surl to /v1/follow/{table}.")


def _is_same(follow: Follow, expected: Follow) -> bool:
    return (follow.surl, follow.root) == (expected.surl, expected.root)


def _owner(surl: str) -> bytes:
    return f"what it follows, {surl},".encode()


def _ended(follower: Follower, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        follower.status.state, follower.status.reason = "ended", repr(error)
        _log.error("following of %s ended", follower.follow.table, exc_info=error)
