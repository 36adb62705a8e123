"""Follows one table of another server: reads its rows after the last SeqNo and appends them to the
mirror, without end.

A server that streams is read as long as it sends; others are polled, and asked at once when a
Notify says that there is news. Every failure is retried, and shown in the status.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.backoff import Backoff
from penstock.errors import EgressFailed, InvalidContentType, PenstockError
from penstock.protocol.headers import format_expires_at
from penstock.protocol.outbound import parse_url, shown_url
from penstock.stp.content_type import MEDIA, SequenceType, parse_content_type
from penstock.stp.deduplication import Deduplicator
from penstock.stp.folding import apply
from penstock.stp.notify import FORM, SIGNATURE, form, sign
from penstock.stp.rows import Row, RowDecoder, RowsBefore, parse_last_seqno
from penstock.stp.server.mirror import Mirror

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress, Streamed
    from penstock.stp.server.peers import Peers
    from penstock.stp.server.registry import Follow

REASON_BYTES_MAX: Final = 300
REPORTED_MAX: Final = 1000
"""Contradictions that are remembered, so that each is reported once."""
SNAPSHOT_BYTES_MAX: Final = 256 * 1024 * 1024
"""Keys and records that are held in memory while a table is read from its first row."""
OK, GONE = 200, 410
EVENT: Final = "changed"
"""The event that is named to a source's NURL."""

_log = logging.getLogger("penstock.stp")


class _Full(EgressFailed):
    """A table that a record led to is larger than the settings allow."""


class Status(msgspec.Struct, kw_only=True):
    """The state of a following, for people."""

    state: str = "starting"
    seqno: int = 0
    appended: int = 0
    unchanged: int = 0
    conflicts: int = 0
    last_conflict: str = ""
    failures: int = 0
    reason: str = ""
    requests: int = 0


class Snapshot:
    """The live rows of a table up to `position`, folded as they come. Complete when `position` has
    reached `last`, the SeqNo where the table ended when it was asked for, if it said so."""

    def __init__(self, last: int | None, *, bytes_max: int = SNAPSHOT_BYTES_MAX) -> None:
        self._last = last
        self._bytes_max = bytes_max
        self._bytes = 0
        self.live: dict[str, Row] = {}
        self.position = 0

    @property
    def is_complete(self) -> bool:
        return self._last is not None and self.position >= self._last

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.seqno <= self.position:
                continue
            self.position = row.seqno
            self._bytes += len(row.key) + len(row.record)
            apply(self.live, row)
        if self._bytes > self._bytes_max:
            raise EgressFailed(
                "The source has deleted the rows after the mirror's position, and has more than "
                f"{self._bytes_max} bytes from its start: too many to read at once. Follow it into "
                "a new table."
            )


class Follower:
    """The task that follows one source. Call `wake` when there is news."""

    def __init__(
        self,
        settings: Settings,
        egress: Egress,
        peers: Peers,
        clock: Clock,
        follow: Follow,
        *,
        seqno: int,
        declare: Callable[[SequenceType], Awaitable[Mirror]],
        own_nurl: str,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._egress = egress
        self._headers = {
            "accept": f"{MEDIA}; charset=utf-8",
            **peers.headers(parse_url(follow.surl)),
        }
        self._peers = peers
        self._clock = clock
        self.follow = follow
        self._declare = declare
        self._own_nurl = own_nurl
        self._chance = chance
        self._backoff = Backoff(
            base_s=settings.follow_retry_s, cap_s=settings.follow_retry_max_s, jitter=0.5
        )
        self._mirror: Mirror | None = None
        self._kind: SequenceType | None = None
        self._deduplicator = Deduplicator(seqno)
        self._reported: set[str] = set()
        self._news = asyncio.Event()
        # NURLs that are to learn of the following, with the number of failed attempts.
        self._unannounced = dict.fromkeys(follow.followed, 0)
        if follow.nurl and own_nurl:
            self._unannounced[follow.nurl] = 0
        self._announcing: asyncio.Task[None] | None = None
        self.status = Status(seqno=seqno)

    def wake(self) -> None:
        """Ask the source now, or once more after the current request."""
        self._news.set()

    def changed(self, follow: Follow) -> None:
        """Take over a changed entry of the registry: other NURLs that are to learn of it."""
        new = [nurl for nurl in follow.followed if nurl not in self.follow.followed]
        for nurl in set(self.follow.followed) - set(follow.followed):
            self._unannounced.pop(nurl, None)
        self.follow = follow
        self._unannounced |= dict.fromkeys(new, 0)
        self._announce_soon()

    async def run(self) -> None:
        try:
            await self._run()
        finally:
            if self._announcing is not None:
                self._announcing.cancel()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        status = self.status
        while True:
            started, before = loop.time(), self._deduplicator.position
            self._news.clear()
            self._announce_soon()
            try:
                await self._read()
            except _Full as error:
                self._report(error)
                status.state = "ended"
                return
            except PenstockError as error:
                if self._deduplicator.position > before:
                    status.failures = 0  # It was cut off, but brought rows.
                status.failures += 1
                self._report(error)
                await self._pause(self._backoff.wait_s(status.failures, self._chance()))
                continue
            status.failures, status.reason, status.state = 0, "", "following"
            if self._deduplicator.position == before:
                await self._pause(started + self._settings.follow_poll_s - loop.time())

    def _report(self, error: PenstockError) -> None:
        status = self.status
        reason = error.detail[:REASON_BYTES_MAX]
        if status.reason != reason:  # Once, not at every attempt.
            _log.warning("cannot follow %s: %s", self.follow.table, reason)
        status.reason, status.state = reason, "failing"

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._news.wait()
        except TimeoutError:
            pass

    # -- reading

    async def _read(self) -> None:
        """Read one answer of the source to its end."""
        async with self._get(self._deduplicator.position) as answer:
            has_gap = answer.status == GONE
            if not has_gap:
                mirror, decoder = await self._open(answer)
                self.status.state = "following"
                async for piece in answer.pieces:
                    await self._receive(mirror, decoder, piece)
                # A row without its line end is not complete: it comes again, whole.
                decoder.end()
        if has_gap:
            await self._read_from_start()

    async def _read_from_start(self) -> None:
        """Make the mirror what the source is: the rows after the mirror's position are deleted."""
        _log.warning(
            "rows of the source of %s are deleted; reading it from the start", self.follow.table
        )
        async with self._get(0) as answer:
            mirror, decoder = await self._open(answer)
            snapshot = Snapshot(_last_seqno(answer))
            async for piece in answer.pieces:
                snapshot.add(decoder.feed(piece))
                if snapshot.is_complete:
                    break
        await mirror.replace(snapshot.live, snapshot.position, self._now())
        self._deduplicator = Deduplicator(snapshot.position)
        self._count(mirror)

    def _get(self, since_id: int) -> AbstractAsyncContextManager[Streamed]:
        self.status.requests += 1
        surl = self.follow.surl
        joint = "&" if "?" in surl else "?"
        return self._egress.stream(f"{surl}{joint}since_id={since_id}", headers=self._headers)

    async def _open(self, answer: Streamed) -> tuple[Mirror, RowDecoder]:
        if answer.status != OK:
            raise EgressFailed(f"The source answered {answer.status}.")
        try:
            kind = parse_content_type(answer.headers.get("content-type", ""))
        except InvalidContentType as error:
            raise EgressFailed(f"The source does not speak STP: {error.detail}") from None
        last = _last_seqno(answer)
        if last is not None and last < self._deduplicator.position:
            raise EgressFailed(
                f"The source ends at SeqNo {last}, before {self._deduplicator.position}, which was "
                "read already: it is another table now. Unfollow it, delete the mirror's stream, "
                "and follow it again."
            )
        if self._mirror is None or kind != self._kind:
            self._mirror, self._kind = await self._declare(kind), kind
        line_bytes_max = self._settings.follow_row_bytes_max
        return self._mirror, RowDecoder(escape=kind.escape, line_bytes_max=line_bytes_max)

    async def _receive(self, mirror: Mirror, decoder: RowDecoder, piece: bytes) -> None:
        bad: RowsBefore | None = None
        try:
            rows = decoder.feed(piece)
        except RowsBefore as error:
            rows, bad = error.rows, error
        before = self._deduplicator.position
        new, conflicts = self._deduplicator.accept(rows)
        for conflict in conflicts:
            self._contradicted(str(conflict)[:REASON_BYTES_MAX])
        if new:
            try:
                await mirror.apply(new, self._now())
            except BaseException:
                self._deduplicator = Deduplicator(before)  # They come again.
                raise
        self._count(mirror)
        limit = self._settings.follow_link_bytes_max
        if self.follow.root and mirror.size > limit:
            raise _Full(f"A record leads to it, and it has more than {limit} bytes.")
        if bad is not None:
            raise EgressFailed(f"The source sent a line that is not a row: {bad.detail}")

    def _contradicted(self, text: str) -> None:
        """Report a contradiction, once: a server that sends everything each time repeats it."""
        if text in self._reported:
            return
        if len(self._reported) >= REPORTED_MAX:
            self._reported.clear()
        self._reported.add(text)
        self.status.conflicts += 1
        self.status.last_conflict = text
        _log.error("the source of %s contradicts itself: %s", self.follow.table, text)

    def _count(self, mirror: Mirror) -> None:
        status = self.status
        status.seqno = self._deduplicator.position
        status.appended, status.unchanged = mirror.appended, mirror.unchanged

    def _now(self) -> str:
        return format_expires_at(self._clock.now_us())

    # -- telling the source

    def _announce_soon(self) -> None:
        """Tell the NURLs that are to learn of the following, beside the reading of rows: one that
        does not answer delays nothing, and is tried again with the next request."""
        if self._unannounced and (self._announcing is None or self._announcing.done()):
            self._announcing = asyncio.get_running_loop().create_task(self._announce_all())
            self._announcing.add_done_callback(_log_failure)

    async def _announce_all(self) -> None:
        for nurl in list(self._unannounced):
            reason = await self._announce(nurl)
            if nurl not in self._unannounced:
                continue  # It was removed meanwhile.
            if reason:
                self._unannounced[nurl] += 1
                shown = shown_url(nurl)
                _log.warning("cannot announce %s to %s: %s", self.follow.table, shown, reason)
            is_last = self._unannounced[nurl] >= self._settings.notify_attempts_max
            # The NURL that an operator has named is tried for ever; one of a peer is not.
            if not reason or (is_last and nurl != self.follow.nurl):
                del self._unannounced[nurl]

    async def _announce(self, nurl: str) -> str:
        """Tell a NURL that its table is followed, and where changes of it are to be told; return
        why that failed."""
        headers = {"content-type": FORM, **self._peers.headers(parse_url(nurl))}
        callbacks = ((EVENT, self._own_nurl),) if self._own_nurl else ()
        body = form(self.follow.surl, callbacks)
        if self._settings.notify_secret:
            now_s = self._clock.now_us() // 1_000_000
            headers[SIGNATURE] = sign(self._settings.notify_secret, body, now_s)
        try:
            answer = await self._egress.request("POST", nurl, headers=headers, body=body)
        except PenstockError as error:
            return error.detail
        return "" if answer.is_success else f"it answered {answer.status}"


def _last_seqno(answer: Streamed) -> int | None:
    """Return the SeqNo where the table ended when it was asked for, if the server says so."""
    return parse_last_seqno(answer.headers.get("stp-last-seqno"))


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        _log.error("announcing a following ended", exc_info=task.exception())
