"""The batches of all shards of a node in one transaction: each counts for itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Self

import pytest

from penstock.config.settings import Settings
from penstock.errors import PenstockError
from penstock.log.cluster import lane as lane_module
from penstock.log.cluster import schema, slots
from penstock.log.cluster.database import Database, OutcomeUnknown, Rows, Session
from penstock.log.cluster.lane import Lane, LaneCommitter
from penstock.log.cluster.slots import Claim
from penstock.log.disk.committer import Committed
from tests.helpers.postgres import WITH_FAULTS, shared

pytestmark = [*WITH_FAULTS, pytest.mark.anyio]

SHARDS = 3
Opener = Callable[[], Awaitable[Session]]


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
        self.open: Opener = Database(settings).open
        self.claims: list[Claim] = []

    @classmethod
    async def make(cls) -> Self:
        world = cls()
        world.claims = await world._claim_all()
        return world

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


class Item:
    def __init__(self, record: bytes) -> None:
        self.record = record


class Shard:
    """The committer of one shard, and what it has told."""

    def __init__(self, lane: Lane, claim: Claim) -> None:
        self.told: list[str] = []
        self.committer: LaneCommitter[Item] = LaneCommitter(
            lane,
            claim,
            next_lsn=1,
            batch_bytes_max=1000,
            on_committed=self._on_committed,
            on_failed=self._on_failed,
        )

    def submit(self, *texts: str) -> None:
        for text in texts:
            self.committer.submit(Item(text.encode()))

    def _on_committed(self, batch: Committed[Item]) -> None:
        self.told += [item.record.decode() for item in batch.entries]

    def _on_failed(self, entries: list[Item], error: PenstockError) -> None:
        self.told += [f"{item.record.decode()} {type(error).__name__}" for item in entries]


class Rig:
    """A lane with the shards of a world."""

    def __init__(self, world: World, open_session: Opener | None = None) -> None:
        self.lane = Lane(open_session or world.open)
        self.shards = [Shard(self.lane, claim) for claim in world.claims]

    async def drain(self) -> None:
        async with asyncio.timeout(30):
            for shard in self.shards:
                await shard.committer.drain()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for shard in self.shards:
            await shard.committer.stop()
        await self.lane.close()


async def test_what_arrives_together_is_one_transaction() -> None:
    world = await World.make()
    async with Rig(world) as rig:
        for shard in rig.shards:
            shard.submit("a", "b")
        await rig.drain()
        assert (rig.lane.transactions, rig.lane.batches) == (1, SHARDS)
        assert [shard.told for shard in rig.shards] == [["a", "b"]] * SHARDS
    assert world.bodies() == [["ab"]] * SHARDS


@pytest.mark.parametrize("entry_s", [0.0, 1.0])
async def test_every_shard_keeps_its_order(monkeypatch: pytest.MonkeyPatch, entry_s: float) -> None:
    # With the next transaction sent after the answers to the last, and before them.
    monkeypatch.setattr(lane_module, "ENTRY_S", entry_s)
    world = await World.make()
    count = 40
    numbers = [str(number) for number in range(count)]
    async with Rig(world) as rig:

        async def write(shard: Shard, pause: int) -> None:
            for number in numbers:
                shard.submit(number)
                for _ in range(pause):
                    await asyncio.sleep(0)

        await asyncio.gather(*(write(shard, 3 * n) for n, shard in enumerate(rig.shards)))
        await rig.drain()
        assert [shard.told for shard in rig.shards] == [numbers] * SHARDS
        assert rig.lane.transactions <= rig.lane.batches < SHARDS * count
    assert ["".join(bodies) for bodies in world.bodies()] == ["".join(numbers)] * SHARDS


async def test_a_shard_has_one_batch_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second one could be committed without the first, and after a claim that it has not seen."""
    monkeypatch.setattr(lane_module, "ENTRY_S", 1.0)
    world = await World.make()
    under_way: list[int] = []

    class Watched(Losing):
        async def fetch(self, statement: str, *values: Any) -> Rows:
            if statement not in (slots.APPEND, slots.APPEND_MANY):
                return await self._session.fetch(statement, *values)
            shards = values[0] if statement == slots.APPEND_MANY else [values[0]]
            assert not set(shards) & set(under_way)
            under_way.extend(shards)
            try:
                return await self._session.fetch(statement, *values)
            finally:
                for shard in shards:
                    under_way.remove(shard)

    async def open_session() -> Session:
        return Watched(await world.open(), [])

    async with Rig(world, open_session) as rig:
        for number in range(200):
            rig.shards[number % SHARDS].submit(str(number))
            await asyncio.sleep(0)
        await rig.drain()
        told = [text for shard in rig.shards for text in shard.told]
    assert sorted(told, key=int) == [str(number) for number in range(200)]


async def test_an_entry_without_a_record_takes_no_slot() -> None:
    world = await World.make()
    async with Rig(world) as rig:
        rig.shards[0].submit("")
        await rig.drain()
        rig.shards[0].submit("", "a")
        await rig.drain()
        assert rig.shards[0].told == ["", "", "a"]
    assert world.bodies() == [["a"], [], []]


async def test_a_large_queue_is_several_batches() -> None:
    world = await World.make()
    async with Rig(world) as rig:
        rig.shards[0].submit("a" * 600, "b" * 600, "c")
        await rig.drain()
        assert rig.shards[0].committer.queued_bytes == 0
    assert [len(body) for body in world.bodies()[0]] == [1200, 1]


async def test_a_shard_that_was_lost_fences_itself_alone() -> None:
    world = await World.make()
    async with Rig(world) as rig:
        await world.take_away(1)
        for shard in rig.shards:
            shard.submit("0")
        await rig.drain()
        assert [shard.told for shard in rig.shards] == [["0"], ["0 NotOwner"], ["0"]]
        assert world.bodies() == [["0"], [], ["0"]]
        rig.shards[1].submit("again")
        rig.shards[2].submit("1")
        await rig.drain()
        assert rig.shards[1].told == ["0 NotOwner", "again NotOwner"]
    assert world.bodies() == [["0"], [], ["0", "1"]]


async def test_what_is_queued_behind_a_failure_fails_with_it() -> None:
    world = await World.make()
    async with Rig(world) as rig:
        await world.take_away(0)
        rig.shards[0].submit("0")
        while not rig.shards[0].committer.entries:
            await asyncio.sleep(0)
        rig.shards[0].submit("1")
        await rig.drain()
        assert rig.shards[0].told == ["0 NotOwner", "1 NotOwner"]
        assert rig.shards[0].committer.queued_bytes == 0


async def test_a_lost_answer_is_found_out_for_every_shard() -> None:
    world = await World.make()
    lost: list[str] = []

    async def open_session() -> Session:
        return Losing(await world.open(), lost)

    async with Rig(world, open_session) as rig:
        for text in ("0", "1"):
            for shard in rig.shards:
                shard.submit(text)
            await rig.drain()
        assert len(lost) == 1
        assert [shard.told for shard in rig.shards] == [["0", "1"]] * SHARDS
    assert world.bodies() == [["0", "1"]] * SHARDS


async def test_a_batch_that_cannot_be_sent_fails_at_once() -> None:
    world = await World.make()

    async def open_session() -> Session:
        raise OutcomeUnknown("nobody is there")

    async with Rig(world, open_session) as rig:
        for shard in rig.shards:
            shard.submit("0")
        await rig.drain()
        assert [shard.told for shard in rig.shards] == [["0 ClusterUnavailable"]] * SHARDS
        assert rig.shards[0].committer.journal.is_away


async def test_writers_that_were_just_answered_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_module, "PATIENCE", 1e6)
    monkeypatch.setattr(lane_module, "PATIENCE_S_MAX", 30.0)
    world = await World.make()
    async with Rig(world) as rig:
        for shard in rig.shards:
            shard.submit("a")
        await rig.drain()
        for shard in rig.shards:
            shard.submit("b")
            for _ in range(50):
                await asyncio.sleep(0)
        await rig.drain()
        assert (rig.lane.transactions, rig.lane.batches) == (2, 2 * SHARDS)


async def test_writers_that_have_come_apart_come_together_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lane_module, "PATIENCE", 1e6)
    monkeypatch.setattr(lane_module, "PATIENCE_S_MAX", 30.0)
    world = await World.make()
    async with Rig(world) as rig:
        first, second, late = rig.shards
        for shard in (first, second):
            shard.submit("a")
        while not first.committer.entries:
            await asyncio.sleep(0)
        late.submit("a")
        async with asyncio.timeout(30):
            while not second.told:
                await asyncio.sleep(0)
        for shard in (first, second):
            shard.submit("b")
            for _ in range(50):
                await asyncio.sleep(0)
        await rig.drain()
        assert (rig.lane.transactions, rig.lane.batches) == (2, 5)


async def test_nobody_is_waited_for_after_a_wait_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_module, "PATIENCE", 1e6)
    monkeypatch.setattr(lane_module, "PATIENCE_S_MAX", 0.01)
    world = await World.make()
    async with Rig(world) as rig:
        for some in (rig.shards, rig.shards[:2]):
            for shard in some:
                shard.submit("a")
            await rig.drain()
        # A wait that would be noticed.
        monkeypatch.setattr(lane_module, "PATIENCE_S_MAX", 60.0)
        rig.shards[0].submit("b")
        await rig.drain()
        assert rig.lane.transactions == 3


@pytest.mark.parametrize(("entry_s", "expected"), [(0.0, ["a", "sent b"]), (1.0, ["sent b", "a"])])
async def test_the_next_transaction_is_sent_before_long_answers(
    monkeypatch: pytest.MonkeyPatch, entry_s: float, expected: list[str]
) -> None:
    monkeypatch.setattr(lane_module, "ENTRY_S", entry_s)
    world = await World.make()
    events: list[str] = []

    class Watched(Losing):
        async def fetch(self, statement: str, *values: Any) -> Rows:
            if statement == slots.APPEND:
                events.append(f"sent {values[-1].decode()}")
            return await self._session.fetch(statement, *values)

    async def open_session() -> Session:
        return Watched(await world.open(), [])

    async with Rig(world, open_session) as rig:
        shard = rig.shards[0]
        shard.told = events
        shard.submit("a")
        while not shard.committer.entries:
            await asyncio.sleep(0)
        shard.submit("b")
        await rig.drain()
    assert events == ["sent a", *expected, "b"]
