"""The journal as slots that can be taken once, and the fence that follows from it.

A batch is one row `(shard, seq)`, and so is a claim of the shard. Whoever has claimed last owns the
shard: an older owner finds its next slot taken, or its epoch gone. Nothing here rests on a clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from penstock.errors import ClusterRefused, ClusterUnavailable
from penstock.log.cluster.database import Fenced, OutcomeUnknown, Refused, Session

APPEND: Final = """INSERT INTO penstock.journal (shard, seq, epoch, first_lsn, records, body)
SELECT $1::int, $2::bigint, $3::bigint, $4::bigint, $5::int, $6::bytea
WHERE EXISTS (SELECT FROM penstock.shard WHERE shard = $1 AND epoch = $3)
ON CONFLICT DO NOTHING RETURNING seq"""
APPEND_MANY: Final = """INSERT INTO penstock.journal (shard, seq, epoch, first_lsn, records, body)
SELECT batch.* FROM unnest($1::int[], $2::bigint[], $3::bigint[], $4::bigint[], $5::int[],
  $6::bytea[]) AS batch (shard, seq, epoch, first_lsn, records, body)
JOIN penstock.shard ON shard.shard = batch.shard AND shard.epoch = batch.epoch
ON CONFLICT DO NOTHING RETURNING shard"""
SLOT: Final = "SELECT epoch FROM penstock.journal WHERE shard = $1 AND seq = $2"
BARRIER: Final = """UPDATE penstock.shard SET barriers = barriers + 1
WHERE shard = $1 AND epoch = $2 RETURNING barriers"""
CLAIM_EPOCH: Final = """UPDATE penstock.shard SET epoch = epoch + 1, node = $3, claimed_at = now()
WHERE shard = $1 AND epoch = $2 RETURNING epoch, trimmed"""
CLAIM_LAST: Final = "SELECT coalesce(max(seq), 0) FROM penstock.journal WHERE shard = $1"
CLAIM_SLOT: Final = """INSERT INTO penstock.journal (shard, seq, epoch, first_lsn, records)
VALUES ($1, $2, $3, 0, 0) ON CONFLICT DO NOTHING RETURNING seq"""
RELEASE: Final = """UPDATE penstock.shard SET node = NULL WHERE shard = $1 AND epoch = $2
RETURNING epoch"""

PAUSE_S: Final = 0.05
PAUSE_MAX_S: Final = 1.0


class Claim(NamedTuple):
    """A shard that was claimed, and the slot that the claim has taken."""

    epoch: int
    seq: int
    shard: int = 0


async def claim(session: Session, epoch: int, node: str, shard: int = 0) -> Claim | None:
    """Claim a shard from whoever had it at `epoch`; None if somebody else was quicker.

    In one transaction the epoch is compared and set, and the slot taken after all that are there: a
    batch of the older owner that is on its way is waited for. When this returns, everything that
    the shard has is where the claim is: replicated.
    """
    async with session.transaction():
        rows = await session.fetch(CLAIM_EPOCH, shard, epoch, node)
        if not rows:
            return None
        claimed, trimmed = rows[0]
        last = (await session.fetch(CLAIM_LAST, shard))[0][0]
        # Slots that were trimmed are never given out again: an older owner may still want one.
        seq = max(last, trimmed) + 1
        while not await session.fetch(CLAIM_SLOT, shard, seq, claimed):
            seq += 1
    return Claim(claimed, seq, shard)


async def barrier(session: Session, epoch: int, shard: int = 0) -> None:
    """Return when everything that was committed before is replicated; Fenced if the shard is not
    ours any more."""
    if not await session.fetch(BARRIER, shard, epoch):
        raise Fenced(f"epoch {epoch} has ended")


class Batch(NamedTuple):
    first_lsn: int
    records: int
    body: bytes


class Place:
    """The session with which journals are written; opened again after its outcome was unknown."""

    def __init__(self, open_session: Callable[[], Awaitable[Session]]) -> None:
        self._open = open_session
        self._session: Session | None = None

    async def session(self) -> Session:
        session = self._session
        if session is None or session.is_closed:
            session = self._session = await self._open()
        return session

    def drop(self) -> None:
        if self._session is not None:
            self._session.abort()
            self._session = None


class Journal:
    """The journal of a shard, written by its owner, one batch at a time. Those of one node share
    places."""

    def __init__(
        self,
        open_session: Callable[[], Awaitable[Session]],
        claim: Claim,
        *,
        pause: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self.place = Place(open_session)
        """Where the next batch is written."""
        self._epoch = claim.epoch
        self._shard = claim.shard
        self._seq = claim.seq + 1
        self._pause = pause
        self.is_away = False
        """Whether PostgreSQL did not answer the last time it was asked."""
        self.is_ending = False
        """Whether what is unknown may stay so: nobody waits for an answer any more."""

    async def append(self, batch: Batch, *, is_doubtful: bool = False) -> None:
        """Return when a batch is durable. Fenced if it is not, and never will be by this owner.

        ClusterUnavailable only if nothing of it was sent. Once its outcome is unknown, as it is
        with `is_doubtful`, this goes on until it is known: what follows a batch rests on it.
        """
        sent = is_doubtful
        wait_s = PAUSE_S
        while True:
            try:
                session = await self.place.session()
                sent, is_doubtful = is_doubtful, True
                await self._take(session, batch)
                break
            except Refused as error:
                if not sent:
                    raise ClusterUnavailable(
                        f"PostgreSQL refuses to store a batch: {error}", Retry_After="1"
                    ) from None
            except (OutcomeUnknown, ClusterRefused) as error:
                self._drop()
                if not is_doubtful or self.is_ending:
                    raise ClusterUnavailable(
                        f"PostgreSQL does not answer: {error}", Retry_After="1"
                    ) from None
            await self._pause(wait_s)
            wait_s = min(2 * wait_s, PAUSE_MAX_S)
        self.took()

    async def _take(self, session: Session, batch: Batch) -> None:
        if await session.fetch(APPEND, self._shard, self._seq, self._epoch, *batch):
            return
        slot = await session.fetch(SLOT, self._shard, self._seq)
        if not slot or slot[0][0] != self._epoch:
            raise Fenced(f"slot {self._seq} or epoch {self._epoch} is another's")
        # An earlier try of ours, which may be on one server only: a commit of our own follows it.
        await barrier(session, self._epoch, self._shard)

    def _drop(self) -> None:
        self.is_away = True
        self.place.drop()

    def close(self) -> None:
        self.place.drop()

    # -- together with others

    def row(self, batch: Batch) -> tuple[int, int, int, int, int, bytes]:
        """Return the slot that a batch is to take."""
        return (self._shard, self._seq, self._epoch, *batch)

    def took(self) -> None:
        """Note that the next slot is taken by a batch of this owner, durably."""
        self.is_away = False
        self._seq += 1


async def append_together(
    place: Place, waiting: Sequence[tuple[Journal, Batch]]
) -> list[Exception | None]:
    """Append a batch each to several journals in one transaction; return what became of each.

    What is not known after it is found out one by one: a shard that was lost fences itself alone.
    """
    for journal, _ in waiting:
        journal.place = place
    if len(waiting) == 1:
        return [await _append_alone(*waiting[0])]
    taken: set[int] = set()
    is_doubtful = False
    try:
        session = await place.session()
        is_doubtful = True
        columns = zip(*(journal.row(batch) for journal, batch in waiting), strict=True)
        rows = await session.fetch(APPEND_MANY, *map(list, columns))
        taken = {row[0] for row in rows}
        is_doubtful = False
    except Refused:
        is_doubtful = False
    except (OutcomeUnknown, ClusterRefused):
        place.drop()
    results: list[Exception | None] = []
    for journal, batch in waiting:
        if journal.row(batch)[0] in taken:
            journal.took()
            results.append(None)
        else:
            results.append(await _append_alone(journal, batch, is_doubtful=is_doubtful))
    return results


async def _append_alone(
    journal: Journal, batch: Batch, *, is_doubtful: bool = False
) -> Exception | None:
    try:
        await journal.append(batch, is_doubtful=is_doubtful)
    except (Fenced, ClusterUnavailable) as failure:
        return failure
    return None
