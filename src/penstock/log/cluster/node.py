"""A node of a cluster: its beat, its lease, and when it claims the shard.

A beat says that the node lives, by the database's clock. The lease follows from it, by the node's
own clock: only while it lasts are readers told that they are up to date. Writes rest on neither.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import platform
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from penstock.config.settings import Settings
from penstock.errors import ClusterRefused, ClusterUnavailable, NotOwner
from penstock.log.cluster import schema, slots
from penstock.log.cluster.database import Database, OutcomeUnknown, Refused, Session
from penstock.log.cluster.extent_objects import check_store
from penstock.log.cluster.slots import SHARD, Claim

log = logging.getLogger("penstock.log")

_MY_START: Final = "(SELECT backend_start FROM pg_stat_activity WHERE pid = pg_backend_pid())"
REGISTER: Final = f"""INSERT INTO penstock.node
VALUES ($1, $2, $3, $4, clock_timestamp(), pg_backend_pid(), {_MY_START},
  pg_postmaster_start_time(), $5)
ON CONFLICT (name) DO UPDATE SET incarnation = excluded.incarnation, url = excluded.url,
  version = excluded.version, beat = excluded.beat, pid = excluded.pid,
  backend_start = excluded.backend_start, primary_start = excluded.primary_start,
  peer = excluded.peer"""
BEAT: Final = f"""UPDATE penstock.node SET beat = clock_timestamp(), pid = pg_backend_pid(),
backend_start = {_MY_START}, primary_start = pg_postmaster_start_time()
WHERE name = $1 AND incarnation = $2
RETURNING (SELECT epoch FROM penstock.shard WHERE shard = $3)"""
FORGET: Final = """DELETE FROM penstock.node WHERE (name = $1 AND incarnation = $2)
OR beat < now() - interval '1 day'"""
LOOK: Final = """SELECT shard.epoch, shard.node, node.url,
extract(epoch FROM clock_timestamp() - node.beat)::float8,
node.primary_start = pg_postmaster_start_time(),
EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = node.pid
  AND (a.backend_start IS NULL OR a.backend_start = node.backend_start)),
EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = node.pid AND a.wait_event = 'SyncRep'
  AND a.backend_start = node.backend_start), node.peer
FROM penstock.shard LEFT JOIN penstock.node ON node.name = shard.node WHERE shard.shard = $1"""

WATCH_S: Final = 0.2
"""How often a node that owns nothing looks whether the owner is gone."""


class View(NamedTuple):
    """The shard as the database has it: who owns it, and what is known of that node."""

    epoch: int
    node: str | None
    url: str | None
    beat_age_s: float | None
    is_same_primary: bool | None
    is_connected: bool
    waits_for_standby: bool
    peer: str | None = None
    """Where that node takes what others forward: a host and a port."""

    def is_free(self, takeover_s: float) -> bool:
        """Whether the shard may be claimed: it was released, its owner's session is gone, or its
        beat is too old. An owner whose beat waits for a standby lives: nobody could do better."""
        if self.node is None or self.beat_age_s is None:
            return True
        if self.is_same_primary and not self.is_connected:
            return True
        return self.beat_age_s > takeover_s and not self.waits_for_standby


class Node:
    def __init__(
        self,
        settings: Settings,
        *,
        open_session: Callable[[], Awaitable[Session]] | None = None,
        monotonic: Callable[[], float] | None = None,
    ) -> None:
        if not settings.cluster_beat_s < settings.cluster_lease_s < settings.cluster_takeover_s:
            raise ClusterRefused(
                "A beat has to be shorter than the lease, and the lease than the time of a "
                "takeover: cluster_beat_s < cluster_lease_s < cluster_takeover_s."
            )
        self._settings = settings
        self.open_session = open_session or Database(settings).open
        self._monotonic = monotonic
        self._incarnation = secrets.token_hex(8)
        self.name = settings.cluster_node or (
            f"{platform.node()}:{settings.port or self._incarnation}"
        )
        self.url = settings.cluster_node_url
        self.peer = ""
        """Where other nodes reach this one, once it listens for them."""
        self.secret = ""
        """What nodes show each other to be believed, once this one has joined."""
        self.view: View | None = None
        """What the last look has shown."""
        self.on_look: Callable[[View], None] | None = None
        """Called after every look."""
        self.claim: Claim | None = None
        self.was_released = False
        """Whether the owner before had stopped in order."""
        self._session: Session | None = None
        self._watching: Session | None = None
        self._lease_until = 0.0
        self._current = asyncio.Event()
        self._beating: asyncio.Task[None] | None = None
        self._on_lost: Callable[[str], None] | None = None

    def _now(self) -> float:
        if self._monotonic is not None:
            return self._monotonic()
        return asyncio.get_running_loop().time()

    # -- joining and leaving

    async def join(self, version: str) -> None:
        """Make or check the tables, and register; ClusterRefused if the database will not do."""
        session = await self._first_session()
        try:
            await schema.prepare(session, self._settings.cluster_name)
            await check_store(session, self._settings)
            self.secret = await schema.read_secret(session)
            await session.fetch(
                REGISTER, self.name, self._incarnation, self.url, version, self.peer
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

    async def leave(self) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        self._end_watching()
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
        """Say that this node lives. The lease counts from before the beat was sent, and only if the
        shard is still this node's."""
        if self._session is None or self._session.is_closed:
            self._session = await self.open_session()
        sent, claim = self._now(), self.claim
        rows = await self._session.fetch(BEAT, self.name, self._incarnation, SHARD)
        if not rows:
            self.lose(f"another node has the name {self.name!r}")
        elif claim is not None and claim is self.claim:
            if rows[0][0] != claim.epoch:
                self.lose("another node has claimed the streams")
            else:
                self._extend(sent)

    def _extend(self, sent: float) -> None:
        self._lease_until = sent + self._settings.cluster_lease_s
        self._current.set()

    def _drop_session(self) -> None:
        if self._session is not None:
            self._session.abort()
            self._session = None

    def _end_watching(self) -> None:
        if self._watching is not None:
            self._watching.abort()
            self._watching = None

    def is_current(self) -> bool:
        """Whether no other node can have taken over: the lease lasts, and the session by which
        others see that this node lives has not ended."""
        is_current = (
            self.claim is not None
            and self._now() < self._lease_until
            and self._session is not None
            and not self._session.is_closed
        )
        if not is_current:
            self._current.clear()
        return is_current

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

    # -- owning

    async def look(self) -> View:
        """Look who owns the shard."""
        # Not the session of the beat, which may wait for a standby.
        if self._watching is None or self._watching.is_closed:
            self._watching = await self.open_session()
        self.view = View(*(await self._watching.fetch(LOOK, SHARD))[0])
        if self.on_look is not None:
            self.on_look(self.view)
        return self.view

    async def claim_when_free(self, on_lost: Callable[[str], None]) -> Claim:
        """Wait until the shard is free, and claim it; `on_lost` is called when another has it."""
        while True:
            try:
                claimed = await self.try_claim(on_lost)
            except (OutcomeUnknown, Refused, ClusterRefused) as error:
                log.warning("The shard cannot be claimed: %s", error)
                self._end_watching()
                claimed = None
            if claimed is not None:
                self._end_watching()
                return claimed
            await asyncio.sleep(WATCH_S)

    async def try_claim(self, on_lost: Callable[[str], None]) -> Claim | None:
        """Claim the shard if it is free now; None if it is not, or somebody else was quicker."""
        view = await self.look()
        if view.node != self.name and not view.is_free(self._settings.cluster_takeover_s):
            return None
        sent = self._now()
        session = await self.open_session()
        try:
            claimed = await slots.claim(session, view.epoch, self.name)
        finally:
            session.abort()
        if claimed is not None:
            self.was_released = view.node is None
            self.claim, self._on_lost = claimed, on_lost
            self._extend(sent)
            log.info("This node (%s) owns the streams, epoch %d.", self.name, claimed.epoch)
        return claimed

    def lose(self, reason: str) -> None:
        """Note that another node owns the shard: nothing of this one counts any more."""
        self._lease_until = 0.0
        if self.claim is None:
            return
        self.claim = None
        self._current.set()  # who waits for the lease has to look again
        log.warning("This node (%s) does not own the streams any more: %s.", self.name, reason)
        if self._on_lost is not None:
            self._on_lost(reason)

    async def release(self) -> None:
        """Let another node claim the shard at once."""
        if self.claim is None:
            return
        epoch, self.claim = self.claim.epoch, None
        with contextlib.suppress(OutcomeUnknown, Refused, ClusterRefused):
            session = await self.open_session()
            try:
                await session.fetch(slots.RELEASE, SHARD, epoch)
            finally:
                session.abort()

    def not_owner(self) -> NotOwner:
        """Return the error for requests to a node that does not own the streams."""
        view = self.view
        is_known = view is not None and view.url and view.node != self.name
        error = NotOwner(
            f"The node at {view.url} owns the streams of this cluster."
            if view is not None and is_known
            else "No node owns the streams of this cluster at the moment. Try again.",
            Retry_After="1",
        )
        error.owner = view.url if view is not None and is_known else None
        return error
