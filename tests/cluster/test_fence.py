"""The fence: nothing that was acknowledged is lost, doubled or reordered, whatever the schedule.

The code of `slots` and `catalog` runs on a stand-in for PostgreSQL. Each safeguard is taken away
once, and has to be missed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from penstock.errors import ClusterUnavailable
from penstock.log.cluster import catalog, slots
from penstock.log.cluster.catalog import Checkpoint, write_checkpoint
from penstock.log.cluster.database import Fenced, OutcomeUnknown, Rows
from penstock.log.cluster.slots import Batch, Claim, Journal, Place
from tests.cluster.stand_in import READ, StandIn, World

SCHEDULES = 600
SHARD_SCHEDULES = 50
SHARDS = 3
OWNERS = 3
BATCHES = 4


class Violation(AssertionError):
    """A promise was broken."""


class Owner:
    """A node that claims the shard, reads what there is, and appends until it is fenced."""

    def __init__(self, world: World, name: str, acknowledged: list[bytes], shard: int = 0) -> None:
        self.world = world
        self.shard = shard
        self.name = name
        self.acknowledged = acknowledged
        self.history: list[bytes] = []
        self.checkpoints = 0
        self.written = 0

    async def run(self) -> None:
        for _ in range(20):
            try:
                claim = await self.claim()
                if claim is not None:
                    await self.append_all(claim)
                    if self.written == BATCHES:
                        return
            except (OutcomeUnknown, Fenced):
                pass

    async def claim(self) -> Claim | None:
        session = await self.world.session()
        epoch = (await session.fetch(catalog.PROGRESS, self.shard))[0][0]
        claim = await slots.claim(session, epoch, self.name, self.shard)
        if claim is None:
            return None
        before = len(self.acknowledged)
        (trimmed, history), *rows = await session.fetch(READ, self.shard)
        progress = (await session.fetch(catalog.PROGRESS, self.shard))[0]
        if progress[0] != claim.epoch:
            raise Fenced("claimed again")
        self.checkpoints = progress[1]
        self.history = [*history]
        for seq, slot in rows:
            if trimmed < seq < claim.seq and slot.first_lsn > len(self.history):
                if slot.first_lsn != len(self.history) + 1:
                    raise Violation(f"a gap before {slot.body!r}")
                self.history.append(slot.body)
        check(self.history, self.acknowledged[:before])
        return claim

    async def append_all(self, claim: Claim) -> None:
        journal = Journal(self.world.session, claim, pause=self.world.turn)
        while self.written < BATCHES:
            body = f"{self.name}-{claim.epoch}-{self.written}".encode()
            batch = Batch(len(self.history) + 1, 1, body)
            try:
                await journal.append(batch)
            except ClusterUnavailable:
                continue  # nothing of it was sent
            self.history.append(body)
            self.written += 1
            self.acknowledged.append(body)
            if self.world.chance.random() < 0.4:
                await self.checkpoint(claim)

    async def checkpoint(self, claim: Claim) -> None:
        session = await self.world.session()
        session.known = self.history
        lsn = len(self.history)
        plan = Checkpoint(
            self.checkpoints, claim.epoch, lsn, 1, [], [], [], [], [], shard=self.shard
        )
        try:
            await write_checkpoint(session, plan)
            self.checkpoints += 1
        except OutcomeUnknown:
            session = await self.world.session()
            await slots.barrier(session, claim.epoch, self.shard)
            self.checkpoints = (await session.fetch(catalog.PROGRESS, self.shard))[0][1]


def check(history: list[bytes], acknowledged: list[bytes]) -> None:
    """Raise Violation unless everything that was acknowledged is there once, in its order."""
    if len(set(history)) != len(history):
        raise Violation(f"twice: {history}")
    places = {body: place for place, body in enumerate(history)}
    missing = [body for body in acknowledged if body not in places]
    if missing:
        raise Violation(f"lost: {missing} of {acknowledged}, there is {history}")
    by_epoch: dict[bytes, list[int]] = {}
    for body in acknowledged:
        by_epoch.setdefault(body.rpartition(b"-")[0], []).append(places[body])
    if any(order != sorted(order) for order in by_epoch.values()):
        raise Violation(f"reordered: {history}")


def run_schedule(seed: int, *, faults: float = 0.08) -> list[bytes]:
    """Run one schedule; return what was acknowledged, after it was found to be there."""

    async def run() -> list[bytes]:
        world = World(seed, faults=faults)
        acknowledged: list[bytes] = []
        await world.run(*(Owner(world, f"n{n}", acknowledged).run() for n in range(OWNERS)))
        world.faults = 0.0
        world.fail_over()  # what is only on one server may go
        last = Owner(world, "last", acknowledged)
        last.written = BATCHES
        await world.run(_claim_and_check(last))
        return acknowledged

    return asyncio.run(run())


async def _claim_and_check(owner: Owner) -> None:
    assert await owner.claim() is not None
    check(owner.history, owner.acknowledged)


def violations(run: Callable[[int], object] = run_schedule, *, first: int = 0) -> int:
    """Return whether one of hundreds of schedules breaks a promise. `first` is shortly before one
    that does, so that a run takes no longer than it has to."""
    for seed in range(first, first + SCHEDULES):
        try:
            run(seed)
        except Violation:
            return 1
    return 0


def test_nothing_acknowledged_is_lost_in_hundreds_of_schedules() -> None:
    acknowledged = sum(len(run_schedule(seed)) for seed in range(SCHEDULES // 3))
    assert acknowledged > SCHEDULES // 3  # the schedules get somewhere


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 200_000, 20_000))
def test_nothing_acknowledged_is_lost_in_very_many_schedules(first: int) -> None:
    for seed in range(first + 10_000_000, first + 10_020_000):
        run_schedule(seed, faults=0.02 + seed % 10 / 50)


# -- several shards


class ManyOwner:
    """A node that claims some shards, and appends to several of them in one transaction, until all
    of its batches are there. A shard that it loses fences itself alone."""

    def __init__(self, world: World, name: str, acknowledged: list[list[bytes]]) -> None:
        self.world = world
        self.owners = [
            Owner(world, name, acknowledged[shard], shard) for shard in range(len(acknowledged))
        ]
        self.place = Place(world.session)
        self.journals: dict[int, tuple[Claim, Journal]] = {}

    async def run(self) -> None:
        for _ in range(30):
            for owner in self.owners:
                if owner.shard not in self.journals and self.world.chance.random() < 0.5:
                    await self.claim(owner)
            await self.append()
            if all(owner.written >= BATCHES for owner in self.owners):
                return

    async def claim(self, owner: Owner) -> None:
        try:
            claim = await owner.claim()
        except (OutcomeUnknown, Fenced):
            return
        if claim is not None:
            journal = Journal(self.world.session, claim, pause=self.world.turn)
            self.journals[owner.shard] = (claim, journal)

    async def append(self) -> None:
        """Append a batch to each of some shards, and checkpoint some of them."""
        chosen = [self.owners[shard] for shard in self.journals if self.world.chance.random() < 0.8]
        waiting = [(self.journals[each.shard][1], self.batch(each)) for each in chosen]
        if not waiting:
            return
        results = await slots.append_together(self.place, waiting)
        for owner, (_, batch), error in zip(chosen, waiting, results, strict=True):
            if error is None:
                owner.history.append(batch.body)
                owner.written += 1
                owner.acknowledged.append(batch.body)
            elif isinstance(error, Fenced):
                del self.journals[owner.shard]
        for owner in chosen:
            if owner.shard in self.journals and self.world.chance.random() < 0.3:
                try:
                    await owner.checkpoint(self.journals[owner.shard][0])
                except (OutcomeUnknown, Fenced):
                    self.journals.pop(owner.shard)

    def batch(self, owner: Owner) -> Batch:
        epoch = self.journals[owner.shard][0].epoch
        body = f"{owner.name}-{owner.shard}-{epoch}-{owner.written}".encode()
        return Batch(len(owner.history) + 1, 1, body)


def run_shards(seed: int, *, faults: float = 0.08) -> list[list[bytes]]:
    """Run a schedule over several shards; return what each has acknowledged, after it was found to
    be there."""

    async def run() -> list[list[bytes]]:
        world = World(seed, faults=faults)
        acknowledged: list[list[bytes]] = [[] for _ in range(SHARDS)]
        await world.run(*(ManyOwner(world, f"n{n}", acknowledged).run() for n in range(OWNERS)))
        world.faults = 0.0
        world.fail_over()
        for shard in range(SHARDS):
            await world.run(_claim_and_check(Owner(world, "last", acknowledged[shard], shard)))
        return acknowledged

    return asyncio.run(run())


def test_nothing_acknowledged_is_lost_in_schedules_over_several_shards() -> None:
    acknowledged = [run_shards(seed) for seed in range(SHARD_SCHEDULES)]
    for shard in range(SHARDS):
        assert sum(len(each[shard]) for each in acknowledged) > SHARD_SCHEDULES


@pytest.mark.soak
@pytest.mark.parametrize("first", range(0, 50_000, 10_000))
def test_nothing_acknowledged_is_lost_in_very_many_schedules_over_several_shards(
    first: int,
) -> None:
    for seed in range(first + 10_000_000, first + 10_010_000):
        run_shards(seed, faults=0.02 + seed % 10 / 50)


def test_without_the_barrier_an_append_to_one_of_several_shards_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slots, "barrier", no_barrier)
    assert violations(run_shards, first=45) == 1


def test_without_looking_at_which_rows_came_back_an_append_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The statement of several shards counts for those only that it returns."""
    insert = StandIn._insert_many

    async def believed(self: StandIn, *arguments: Any) -> Rows:
        await insert(self, *arguments)
        return [(shard,) for shard in arguments[-1][0]]

    monkeypatch.setattr(StandIn, "_insert_many", believed)
    assert violations(run_shards) == 1


def test_without_the_epochs_of_several_shards_an_append_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimming = "DELETE FROM penstock.journal WHERE first_lsn + records - 1 <= $2"
    monkeypatch.setattr(catalog, "TRIM", trimming)  # claims go, too
    monkeypatch.setattr(slots, "APPEND", without_epoch(slots.APPEND))
    unfenced = slots.APPEND_MANY.replace("JOIN penstock.shard", "-- ")
    assert unfenced != slots.APPEND_MANY
    monkeypatch.setattr(slots, "APPEND_MANY", unfenced)
    assert violations(run_shards) == 1


# -- without each of the safeguards


async def no_barrier(session: StandIn, epoch: int, shard: int = 0) -> None:
    pass


def test_without_the_barrier_an_append_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "barrier", no_barrier)
    assert violations(first=240) == 1


def test_without_the_slot_of_a_claim_an_append_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    async def claim(session: StandIn, epoch: int, node: str, shard: int = 0) -> Claim | None:
        async with session.transaction():
            rows = await session.fetch(slots.CLAIM_EPOCH, shard, epoch, node)
            if not rows:
                return None
            last = (await session.fetch(slots.CLAIM_LAST, shard))[0][0]
        # It begins behind what it has seen, and takes nothing.
        return Claim(rows[0][0], max(last, rows[0][1]), shard)

    monkeypatch.setattr(slots, "claim", claim)
    assert violations() == 1


def test_without_claims_that_stay_and_the_epoch_an_append_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trimming = "DELETE FROM penstock.journal WHERE first_lsn + records - 1 <= $2"
    monkeypatch.setattr(catalog, "TRIM", trimming)  # claims go, too
    monkeypatch.setattr(slots, "APPEND", without_epoch(slots.APPEND))
    assert violations(first=130) == 1


def test_without_the_epoch_a_checkpoint_of_an_older_owner_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unfenced = catalog.MARK.replace("AND epoch = $2 AND checkpoints = $5", "")
    assert unfenced != catalog.MARK
    monkeypatch.setattr(catalog, "MARK", unfenced)
    assert violations(first=165) == 1


def without_epoch(statement: str) -> str:
    head, _, tail = statement.partition("WHERE EXISTS")
    return head + tail.partition("epoch = $3)")[2]


@pytest.mark.parametrize("checks_epoch", [True, False])
def test_the_epoch_fences_an_owner_older_than_the_trim(
    monkeypatch: pytest.MonkeyPatch, checks_epoch: bool
) -> None:
    """Where the row of the claim is gone, too, only the epoch is left."""
    trimming = "DELETE FROM penstock.journal WHERE first_lsn + records - 1 <= $2"
    monkeypatch.setattr(catalog, "TRIM", trimming)
    if not checks_epoch:
        monkeypatch.setattr(slots, "APPEND", without_epoch(slots.APPEND))

    acknowledged: list[bytes] = []

    async def scenario(world: World) -> None:
        old, new = Owner(world, "old", acknowledged), Owner(world, "new", acknowledged)
        claim = await old.claim()
        assert claim is not None
        journal = Journal(world.session, claim, pause=world.turn)
        claim = await new.claim()
        assert claim is not None
        await new.append_all(claim)
        await new.checkpoint(claim)
        try:
            await journal.append(Batch(1, 1, b"zombie"))
        except Fenced:
            return
        acknowledged.append(b"zombie")

    async def run() -> None:
        world = World(1, faults=0.0)
        await world.run(scenario(world))

    asyncio.run(run())
    assert len(acknowledged) >= BATCHES
    assert (b"zombie" in acknowledged) is not checks_epoch
