"""All tables that follow others: begun, ended, taken up again after a restart.

A mirror is a stream that the server alone writes to. What one following does is in follow.py, how
rows get into the log in mirror.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Final

from penstock.errors import (
    FollowConflict,
    FollowNotFound,
    StreamNotFound,
    TableNotFound,
    TooManyPeers,
)
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.outbound import Target
from penstock.state import declaration as state
from penstock.stp.declaration import META, Table, encode
from penstock.stp.server.follower import Follower, Status
from penstock.stp.server.mirror import LEFT, Mirror, has_followed, has_left, left, position
from penstock.stp.server.registry import OWNER, Follow

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer
    from penstock.stp.content_type import SequenceType
    from penstock.stp.server.peers import Peers
    from penstock.stp.server.registry import Registry
    from penstock.stp.server.table_view import TableView
    from penstock.stp.server.tables import TableDirectory

NOTIFY: Final = "/v1/notify/"
SCHEMA_UNKNOWN: Final = "table"
"""The schema id of a mirror whose source says none."""

_log = logging.getLogger("penstock.stp")


class Mirrors:
    def __init__(
        self,
        engine: Engine,
        keeper: StateIndexer,
        settings: Settings,
        tables: TableDirectory,
        egress: Egress,
        peers: Peers,
        registry: Registry,
        *,
        clock: Clock,
    ) -> None:
        self._engine = engine
        self._keeper = keeper
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

    async def resume(self) -> None:
        """Take up what the registry says was followed."""
        for follow in list(self._registry.follows.values()):
            try:
                stream = self._engine.find(follow.table, touch=False)
            except StreamNotFound:
                _log.error("the mirror %s is gone; it is not followed any more", follow.table)
                await self._registry.remove(follow)
                continue
            await self._engine.set_meta(follow.table, OWNER, _owner(follow.surl))
            self._begin(follow, stream)

    def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()

    def of(self, surl: Target) -> list[Follower]:
        """Those that follow a SURL."""
        return [each for each in self.followers.values() if each.follow.surl == surl.url]

    def has_ended(self, path: str, surl: Target) -> bool:
        """Whether the table at `path` has followed a SURL until it was told not to."""
        try:
            stream = self._engine.find(path, touch=False)
        except StreamNotFound:
            return False
        return has_followed(stream, surl.url)

    def totals(self) -> Status:
        """The sums of all followings, also of those that have ended."""
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
    ) -> bool:
        """Make a table a mirror of `surl`; False if it is just that already."""
        async with self._lock:
            known = self._registry.follows.get(table)
            if known is not None:
                if known.surl != surl.url or (nurl is not None and known.nurl != nurl.url):
                    raise FollowConflict(
                        f"{table!r} follows {known.surl}; a mirror has one source. "
                        f"DELETE /v1/follow/{table} first."
                    )
                self.followers[table].wake()
                return False
            self._peers.check(surl)
            self._check_room(surl)
            stream = await self._take_over(table, surl, adopt=adopt)
            follow = Follow(
                table=table,
                surl=surl.url,
                stream=stream.id,
                nurl="" if nurl is None else nurl.url,
                own_bytes=stream.tail if adopt else 0,
                base=base,
            )
            await self._registry.put(follow)
            self._begin(follow, stream)
        return True

    def _check_room(self, surl: Target) -> None:
        settings, registry = self._settings, self._registry
        here = registry.follow_hosts[surl.host]
        if len(registry.follows) >= settings.follow_max or here >= settings.follow_per_peer_max:
            raise TooManyPeers(
                "As many tables are followed as this server allows: see follow_max and "
                "follow_per_peer_max."
            )

    async def _take_over(self, table: str, surl: Target, *, adopt: bool) -> Stream:
        """The stream of a mirror: a new or empty one, one that nobody has written to since it
        followed the same source, or with `adopt` one with any rows."""
        known = self.lookup(table)
        if known is not None and known.stream.path != table:
            raise FollowConflict(
                f"{table!r} is one of the tables of the stream {known.stream.path!r}, which "
                "cannot be a mirror for one of them alone."
            )
        config = StreamConfig("application/json", None, None)
        await self._engine.create(table, config, b"", closed=False)
        stream = self._engine.find(table, touch=True)
        # Looked at after this: from here on nobody else writes to it.
        await self._engine.set_meta(table, OWNER, _owner(surl.url))
        if stream.tail and not adopt and not has_left(stream, surl.url):
            await self._engine.set_meta(table, OWNER, None)
            raise FollowConflict(
                f"{table!r} has rows already; follow into a table without any, or adopt them: "
                "they stay, and what the source says comes on top."
            )
        return stream

    async def unfollow(self, table: str) -> None:
        """End a following; the rows stay, and the table can be written again."""
        async with self._lock:
            known = self._registry.follows.get(table)
            if known is None:
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
                await self._engine.set_meta(table, LEFT, left(stream, known.surl))
                await self._engine.set_meta(table, OWNER, None)
            # Last: a crash before this leaves a following that is taken up again.
            await self._registry.remove(known)

    def _begin(self, follow: Follow, stream: Stream) -> None:
        async def declare(kind: SequenceType) -> Mirror:
            table = await self._declare(stream, kind)
            return Mirror(self._engine, self._keeper, follow, stream, table)

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

    def lookup(self, path: str) -> TableView | None:
        """The table at a path, if there is one."""
        try:
            return self._tables.find(path, touch=False)
        except TableNotFound:
            return None

    async def _declare(self, stream: Stream, kind: SequenceType) -> Table:
        """The table of a mirror, as its source describes itself."""
        schema = kind.schema or SCHEMA_UNKNOWN
        version = 1 if kind.version is None else kind.version
        known = self.lookup(stream.path)
        if known is None:
            table = Table(schema=schema, version=version, type=schema, escape=kind.escape)
            await self._declare_new(stream, table)
            return table
        # How records are kept is the table's own affair; what they mean is the source's.
        if (known.table.schema, known.table.version) != (schema, version):
            raise FollowConflict(
                f"{stream.path!r} is a table of {known.table.schema} {known.table.version}, its "
                f"source is one of {schema} {version}."
            )
        return known.table

    async def _declare_new(self, stream: Stream, table: Table) -> None:
        pending = self._engine.pending(stream)
        if pending.tail or state.META in pending.meta:
            raise FollowConflict(
                f"{stream.path!r} has events or types, but is no table: PUT /v1/table/"
                f"{stream.path} with the schema of the source first."
            )
        declaration = state.Declaration(
            version=1,
            mode="reject",
            types={table.type: {"schema": {"type": "string"}}},
            offset=self._engine.token(stream, 0),
            ordinal=0,
        )
        # Both are decided now, so that nothing comes between them.
        first = self._engine.set_meta(stream.path, state.META, state.encode(declaration))
        await self._engine.set_meta(stream.path, META, encode({"": table}))
        await first
        self._keeper.follow(stream)


def _add(total: Status, status: Status) -> None:
    for name in ("appended", "unchanged", "conflicts", "requests"):
        setattr(total, name, getattr(total, name) + getattr(status, name))


def not_followed(table: str) -> FollowNotFound:
    return FollowNotFound(f"{table!r} follows nothing; PUT a surl to /v1/follow/{table}.")


def _owner(surl: str) -> bytes:
    return f"what it follows, {surl},".encode()


def _ended(follower: Follower, task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        follower.status.state, follower.status.reason = "ended", repr(error)
        _log.error("following of %s ended", follower.follow.table, exc_info=error)
