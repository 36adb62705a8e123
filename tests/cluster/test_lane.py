"""The batches of all shards of a node in one transaction: each counts for itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.errors import NotOwner
from penstock.log.cluster import schema, slots
from penstock.log.cluster.connections import Lane, SlotWriter
from penstock.log.cluster.database import Database, OutcomeUnknown, Rows, Session
from penstock.log.cluster.slots import Batch, Claim, Place, append_together
from tests.helpers.postgres import ON_POSTGRES, shared

pytestmark = list(ON_POSTGRES)

SHARDS = 3


class Losing:
    """A session that loses the answer to the first statement with several batches."""

    def __init__(self, session: Session, lost: list[str]) -> None:
        self._session = session
        self._lost = lost

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def fetch(self, statement: str, *values: Any) -> Rows:
        rows = await self._session.fetch(statement, *values)
        if statement == slots.APPEND_MANY and not self._lost:
            self._lost.append(statement)
            raise OutcomeUnknown("the answer was lost")
        return rows


class World:
    """A fresh cluster of three shards, all claimed by one node."""

    def __init__(self) -> None:
        self.dsn = shared().fresh_database()
        settings = Settings(cluster=self.dsn, cluster_durability="single")
        self.open: Callable[[], Awaitable[Session]] = Database(settings).open
        self.claims = asyncio.run(self._claim_all())

    async def _claim_all(self) -> list[Claim]:
        session = await self.open()
        await schema.prepare(session, "penstock", SHARDS)
        claims = [await slots.claim(session, 0, "one", shard) for shard in range(SHARDS)]
        session.abort()
        return [claim for claim in claims if claim is not None]

    async def take_away(self, shard: int) -> None:
        """Let another node have a shard."""
        session = await self.open()
        assert await slots.claim(session, self.claims[shard].epoch, "two", shard) is not None
        session.abort()

    def bodies(self) -> list[list[str]]:
        """Return what the journal of each shard has, in order."""
        text = "SELECT shard, convert_from(body, 'UTF8') FROM penstock.journal"
        rows = shared().query(
            f"{text} WHERE body IS NOT NULL ORDER BY shard, seq", self.dsn.rpartition("/")[2]
        )
        pairs = [row.split("|") for row in rows]
        return [[body for each, body in pairs if int(each) == shard] for shard in range(SHARDS)]


def batch(number: int) -> Batch:
    return Batch(number + 1, 1, f"{number}".encode())


def test_threads_share_transactions_and_keep_their_order() -> None:
    world = World()
    lane = Lane(world.open)
    writers = [SlotWriter(lane, claim) for claim in world.claims]
    count = 40

    def write(writer: SlotWriter) -> None:
        for number in range(count):
            writer.write(number + 1, [f"{number}".encode()])

    threads = [threading.Thread(target=write, args=(writer,)) for writer in writers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lane.close()
    assert world.bodies() == [[str(number) for number in range(count)]] * SHARDS
    assert lane.batches == SHARDS * count
    assert lane.transactions < lane.batches


def test_a_shard_that_was_lost_fences_itself_alone() -> None:
    world = World()
    lane = Lane(world.open)
    writers = [SlotWriter(lane, claim) for claim in world.claims]
    asyncio.run(world.take_away(1))

    async def run() -> list[Exception | None]:
        place = Place(world.open)
        results = await append_together(place, [(writer.journal, batch(0)) for writer in writers])
        place.drop()
        return results

    # The journals write with the session of their lane when they are alone.
    results = lane._loop.run(run)
    assert [type(each).__name__ for each in results] == ["NoneType", "Fenced", "NoneType"]
    assert world.bodies() == [["0"], [], ["0"]]
    with pytest.raises(NotOwner):
        writers[1].write(1, [b"again"])
    writers[2].write(2, [b"1"])
    lane.close()
    assert world.bodies() == [["0"], [], ["0", "1"]]


def test_a_lost_answer_is_found_out_for_every_shard() -> None:
    world = World()
    lost: list[str] = []

    async def open_session() -> Session:
        return Losing(await world.open(), lost)

    lane = Lane(open_session)
    journals = [lane.journal(claim) for claim in world.claims]

    async def run(number: int) -> list[Exception | None]:
        return await append_together(
            lane._place, [(journal, batch(number)) for journal in journals]
        )

    assert lane._loop.run(lambda: run(0)) == [None] * SHARDS
    assert len(lost) == 1
    assert lane._loop.run(lambda: run(1)) == [None] * SHARDS
    lane.close()
    assert world.bodies() == [["0", "1"]] * SHARDS
