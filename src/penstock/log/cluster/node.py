"""A node of a cluster: its beat, its lease, what it sees of shards and other nodes, and what it
claims.

A beat says that the node lives, by the database's clock. The lease follows from it, by the node's
own clock: only while it lasts are readers told that they are up to date. Writes rest on neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from hashlib import blake2b
from typing import Final, NamedTuple

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, ClusterUnavailable, NotOwner
from penstock.log.cluster import schema, slots
from penstock.log.cluster.blockers import ending_blockers
from penstock.log.cluster.database import (
    Database,
    OutcomeUnknown,
    Refused,
    Session,
    Sessions,
)
from penstock.log.cluster.extent_objects import check_store
from penstock.log.cluster.shared_settings import differing_settings, digests
from penstock.log.cluster.slots import Claim

log = logging.getLogger("penstock.log")

_MY_START: Final = "(SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"
REGISTER: Final = f"""INSERT INTO penstock.node (name, incarnation, url, version, beat, pid,
  backend_start, primary_start, peer, settings)
VALUES ($1, $2, $3, $4, clock_timestamp(), pg_backend_pid(), {_MY_START},
  pg_postmaster_start_time(), $5, $6)
ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation, url = excluded.url,
  version = excluded.version, beat = excluded.beat, pid = excluded.pid,
  backend_start = excluded.backend_start, primary_start = excluded.primary_start,
  peer = excluded.peer, settings = excluded.settings, leaving = false"""
BEAT: Final = f"""UPDATE penstock.node SET beat = clock_timestamp(), pid = pg_backend_pid(),
backend_start = {_MY_START}, primary_start = pg_postmaster_start_time()
WHERE name = $1 AND incarnation = $2
RETURNING (SELECT array_agg(array[shard.shard, shard.epoch]) FROM penstock.shard
  WHERE shard.node = $1)"""
LEAVE: Final = "UPDATE penstock.node SET leaving = $3 WHERE name = $1 AND incarnation = $2"
FORGET: Final = """DELETE FROM penstock.node WHERE (name = $1 AND incarnation = $2)
OR beat < now() - interval '1 day'"""
_SEEN: Final = """node.url, extract(epoch FROM clock_timestamp() - node.beat)::float8,
node.primary_start = pg_postmaster_start_time(),
EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = node.pid
  AND (a.backend_start IS NULL OR a.backend_start = node.backend_start)),
EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = node.pid AND a.wait_event = 'SyncRep'
  AND a.backend_start = node.backend_start), node.peer"""
LOOK: Final = f"""SELECT shard.shard, shard.epoch, shard.node, {_SEEN}
FROM penstock.shard LEFT JOIN penstock.node ON node.name = shard.node ORDER BY shard.shard"""
LOOK_AT_NODES: Final = f"""SELECT node.name, {_SEEN}, node.leaving,
  CASE WHEN node.settings <> (SELECT settings FROM penstock.node WHERE name = $1)
    THEN md5(node.settings) END
FROM penstock.node ORDER BY name"""
SETTINGS_OF: Final = "SELECT name, settings FROM penstock.node WHERE name = ANY($1::text[])"

WATCH_S: Final = 0.2
"""How often a node looks at the others."""


class Seen(NamedTuple):
    """What the database knows of a node."""

    url: str | None
    beat_age_s: float | None
    is_same_primary: bool | None
    is_connected: bool
    waits_for_standby: bool
    peer: str | None = None
    """Where it takes what others forward: a host and a port."""

    def is_gone(self, takeover_s: float) -> bool:
        """Whether what it owns may be claimed: it is not registered, its session has ended, or its
        beat is too old. One whose beat waits for a standby lives: nobody could do better."""
        if self.beat_age_s is None:
            return True
        if self.is_same_primary and not self.is_connected:
            return True
        return self.beat_age_s > takeover_s and not self.waits_for_standby


class View(NamedTuple):
    """A shard as the database has it: who owns it, and what is known of that node."""

    epoch: int
    node: str | None
    seen: Seen

    def is_free(self, takeover_s: float) -> bool:
        """Whether the shard may be claimed: it was released, or its owner is gone."""
        return self.node is None or self.seen.is_gone(takeover_s)


def assigned(shard: int, names: Iterable[str]) -> str | None:
    """Return which of some nodes a shard belongs to: the same on every node, and few shards move
    when one joins or leaves (rendezvous hashing)."""
    return max(names, key=lambda name: (_weight(shard, name), name), default=None)


def _weight(shard: int, name: str) -> bytes:
    return blake2b(f"{shard} {name}".encode(), digest_size=8).digest()


class Node:
    """This process among the nodes. What it owns are its holdings."""

    def __init__(
        self,
        settings: Settings,
        *,
        open_session: Callable[[], Awaitable[Session]] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        if not settings.cluster_beat_s < settings.cluster_lease_s < settings.cluster_takeover_s:
            raise ClusterRefused(
                "A beat has to be shorter than the lease, and the lease than the time of a "
                "takeover: cluster_beat_s < cluster_lease_s < cluster_takeover_s."
            )
        self._settings = settings
        self.open_session = open_session or Database(settings).open
        self._now = monotonic
        self._incarnation = secrets.token_hex(8)
        self.name = settings.cluster_node or (
            f"{platform.node()}:{settings.port or self._incarnation}"
        )
        self.url = settings.cluster_node_url
        self.peer = ""
        """Where other nodes reach this one, once it listens for them."""
        self.about = schema.About("", 1)
        """What the cluster is, once this node has joined it."""
        self.views: dict[int, View] = {}
        """The shards as the last look has shown them."""
        self.living: list[str] = []
        """The nodes that shards are assigned to, as of the last look."""
        self.living_peers: list[str] = []
        """Where those, and nodes that are leaving, take what others forward."""
        self.differing: list[str] = []
        """Those that have another value of a setting that all should share."""
        self._unlike: dict[str, str] = {}  # those with other digests than ours, and which
        self.holdings: dict[int, Holding] = {}
        self.released: dict[int, int] = {}
        """The shards that this node has released, with the epoch in which it owned them last."""
        self._session: Session | None = None
        self._watching: Session | None = None
        self._lease_until = 0.0
        self._beating: asyncio.Task[None] | None = None
        self._looked = asyncio.Event()
        self._looked_at = float("-inf")
        self.is_replaced = False
        """Whether another node has taken the name of this one."""

    # -- joining and leaving

    async def join(self, version: str, *, shards: int = 1) -> None:
        """Make the tables, with so many shards, or check them, and register; ClusterRefused if the
        database will not do."""
        session = await self._first_session()
        try:
            self.about = await schema.prepare(session, self._settings.cluster_name, shards)
            await check_store(session, self._settings)
            await session.fetch(
                REGISTER,
                self.name,
                self._incarnation,
                self.url,
                version,
                self.peer,
                digests(self._settings, self.about.secret),
            )
        except BaseException as error:
            session.abort()
            await asyncio.sleep(0)  # its transport is closed in the next turn
            if isinstance(error, OutcomeUnknown | Refused):
                raise ClusterRefused(f"PostgreSQL does not take the node: {error}") from None
            raise
        self._session = session
        self._beating = asyncio.create_task(self._beat_on())

    async def _first_session(self) -> Session:
        try:
            return await self.open_session()
        except OutcomeUnknown as error:
            raise ClusterRefused(f"{error} Check the URL of --cluster, and PostgreSQL.") from None

    async def retire(self, *, leaving: bool = True) -> bool:
        """Let other nodes have what this one owns, as soon as it releases it; or be one of those
        that shards are assigned to again. Return whether PostgreSQL has taken it."""
        try:
            session = await self.open_session()
            try:
                await session.fetch(LEAVE, self.name, self._incarnation, leaving)
            finally:
                session.abort()
        except (OutcomeUnknown, Refused, ClusterRefused):
            return False
        return True

    async def leave(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self.end_watching()
        if self._session is not None and not self._session.is_closed:
            with contextlib.suppress(OutcomeUnknown, Refused):
                await self._session.fetch(FORGET, self.name, self._incarnation)
            self._session.abort()
            await asyncio.sleep(0)
        self._session = None

    # -- the beat and the lease

    async def _beat_on(self) -> None:
        while True:
            try:
                await self.beat()
            except (OutcomeUnknown, Refused, ClusterRefused) as error:
                log.warning("A beat of this node failed: %s", error)
                self._drop_session()
            await asyncio.sleep(self._settings.cluster_beat_s)

    async def beat(self) -> None:
        """Say that this node lives. The lease counts from before the beat was sent; a shard that
        has another owner by then is lost."""
        if self._session is None or self._session.is_closed:
            # Others may have seen that the session had ended: nothing is ours until this beat.
            self._lease_until = 0.0
            self._session = await self.open_session()
        sent = self._now()
        before = [(holding, holding.claim) for holding in self.holdings.values()]
        rows = await self._session.fetch(BEAT, self.name, self._incarnation)
        if not rows:
            self.is_replaced = True
            for holding in list(self.holdings.values()):
                holding.lose(f"another node has the name {self.name!r}")
            return
        epochs = dict(rows[0][0] or ())
        for holding, claim in before:
            is_same = claim is not None and holding.claim is claim  # as when the beat was sent
            if claim is not None and is_same and epochs.get(holding.shard) != claim.epoch:
                holding.lose("another node has claimed it")
        self._extend(sent)

    def _extend(self, sent: float) -> None:
        self._lease_until = sent + self._settings.cluster_lease_s
        for holding in self.holdings.values():
            holding.look_again()

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.abort()
            self._session = None

    def end_watching(self) -> None:
        if self._watching is not None:
            self._watching.abort()
            self._watching = None

    def has_lease(self) -> bool:
        """Whether no other node can have taken over what this one owns: the lease lasts, and the
        session by which others see that this node lives has not ended."""
        return (
            self._now() < self._lease_until
            and self._session is not None
            and not self._session.is_closed
        )

    # -- the others

    async def look(self) -> None:
        """Look who owns what, and which nodes live."""
        # Not the session of the beat, which may wait for a standby.
        if self._watching is None or self._watching.is_closed:
            self._watching = await self.open_session()
        takeover_s = self._settings.cluster_takeover_s
        rows = await self._watching.fetch(LOOK)
        self.views = {row[0]: View(row[1], row[2], Seen(*row[3:])) for row in rows}
        rows = await self._watching.fetch(LOOK_AT_NODES, self.name)
        rows = [row for row in rows if not Seen(*row[1:-2]).is_gone(takeover_s)]
        self.living_peers = [row[-3] for row in rows]
        living = [row for row in rows if not row[-2]]
        self.living = [row[0] for row in living]
        self._looked_at = self._now()
        looked, self._looked = self._looked, asyncio.Event()
        looked.set()
        unlike = {row[0]: row[-1] for row in living if row[-1] is not None}
        if unlike != self._unlike:
            await self._compare_settings(unlike, self._watching)

    async def _compare_settings(self, unlike: dict[str, str], session: Session) -> None:
        """Say which nodes have other values of which settings than this one."""
        rows = await session.fetch(SETTINGS_OF, [self.name, *unlike])
        texts = dict(map(tuple, rows))
        differing = []
        for name, digest in unlike.items():
            settings = differing_settings({each: texts.get(each, "") for each in (self.name, name)})
            if settings:
                differing.append(name)
            if settings and self._unlike.get(name) != digest:
                log.warning(
                    "The node %s has other settings than this one (%s): %s. The owner of a stream "
                    "goes by its own: give all nodes the same.",
                    name,
                    self.name,
                    ", ".join(settings),
                )
        self.differing, self._unlike = differing, unlike

    def sees(self) -> bool:
        """Whether the last look is not too old to go by."""
        return self._now() < self._looked_at + self._settings.cluster_takeover_s

    def has_all_owners(self) -> bool:
        """Whether every shard had an owner that lived, at the last look."""
        takeover_s = self._settings.cluster_takeover_s
        return bool(self.views) and not any(
            view.is_free(takeover_s) for view in self.views.values()
        )

    def next_look(self) -> asyncio.Event:
        """Return what is set with the next look at the shards."""
        return self._looked

    def is_free(self, shard: int) -> bool:
        """Whether a shard may be claimed by this node, as of the last look."""
        view = self.views.get(shard)
        return view is not None and (
            view.node == self.name or view.is_free(self._settings.cluster_takeover_s)
        )

    def has_left(self, shard: int) -> bool:
        """Whether a shard that is not here belongs to this node, as of the last look: it was to be
        released, and that failed, or nobody knows whether it did. Nobody else can claim it."""
        view = self.views.get(shard)
        return (
            view is not None and view.node == self.name and self.released.get(shard) != view.epoch
        )

    def wants(self, shard: int) -> bool:
        """Whether a shard is assigned to this node, as of the last look."""
        return assigned(shard, self.living) == self.name

    def not_owner(self, shard: int = 0) -> NotOwner:
        """Return the error for requests to a node that does not own a shard."""
        view = self.views.get(shard)
        url = None if view is None or view.node == self.name else view.seen.url
        error = NotOwner(
            f"The node at {url} owns the stream."
            if url
            else "No node of the cluster owns the stream at the moment. Try again.",
            Retry_After="1",
        )
        error.owner = url or None
        return error


class Holding:
    """One shard as this node owns it, or is about to. Its store knows the node by this."""

    def __init__(self, node: Node, shard: int, sessions: Sessions) -> None:
        self.node = node
        self.shard = shard
        self.sessions = sessions
        self.claim: Claim | None = None
        self.was_released = False
        """Whether the owner before had stopped in order."""
        self._on_lost: Callable[[str], None] | None = None
        self._current = asyncio.Event()
        node.holdings[shard] = self

    def is_current(self) -> bool:
        """Whether no other node can own the shard."""
        is_current = self.claim is not None and self.node.has_lease()
        if not is_current:
            self._current.clear()
        return is_current

    def look_again(self) -> None:
        self._current.set()

    async def until_current(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                while not self.is_current():
                    if self.claim is None:
                        raise self.not_owner()
                    await self._current.wait()
        except TimeoutError:
            raise ClusterUnavailable(
                "This node cannot tell whether there is more: PostgreSQL does not answer it.",
                Retry_After="1",
            ) from None

    async def claim_when_free(self, on_lost: Callable[[str], None]) -> Claim:
        """Wait until the shard is free, and claim it; `on_lost` is called when another has it."""
        while True:
            try:
                await self.node.look()
                claimed = await self.try_claim(on_lost)
            except (OutcomeUnknown, Refused, ClusterRefused) as error:
                log.warning("A shard cannot be claimed: %s", error)
                self.node.end_watching()
                claimed = None
            if claimed is not None:
                return claimed
            await asyncio.sleep(WATCH_S)

    async def try_claim(self, on_lost: Callable[[str], None]) -> Claim | None:
        """Claim the shard if it was free at the last look; None if it was not, or somebody else
        was quicker."""
        node = self.node
        if not node.is_free(self.shard):
            return None
        view = node.views[self.shard]
        async with self.sessions.use() as session, ending_blockers(session, node.open_session):
            claimed = await slots.claim(session, view.epoch, node.name, self.shard)
        if claimed is not None:
            self.was_released = view.node is None
            self.claim, self._on_lost = claimed, on_lost
            log.info(
                "This node (%s) owns shard %d, epoch %d.", node.name, self.shard, claimed.epoch
            )
        return claimed

    def lose(self, reason: str) -> None:
        """Note that another node owns the shard: nothing of this one counts any more."""
        if self.claim is None:
            return
        self.claim = None
        self._current.set()  # who waits for the lease has to look again
        log.warning(
            "This node (%s) does not own shard %d any more: %s.",
            self.node.name,
            self.shard,
            reason,
        )
        if self._on_lost is not None:
            self._on_lost(reason)

    async def release(self) -> None:
        """Let another node claim the shard at once."""
        if self.claim is None:
            return
        epoch, self.claim = self.claim.epoch, None
        with contextlib.suppress(OutcomeUnknown, Refused, ClusterRefused):
            async with self.sessions.use() as session:
                await session.fetch(slots.RELEASE, self.shard, epoch)
            self.node.released[self.shard] = epoch  # the last look may be older

    def forget(self) -> None:
        """The store of the shard has been closed."""
        if self.node.holdings.get(self.shard) is self:
            del self.node.holdings[self.shard]

    def not_owner(self) -> NotOwner:
        return self.node.not_owner(self.shard)
