"""A stand-in for PostgreSQL and asyncpg: the statements of the fence, on tables in memory.

Every statement takes its turns when a schedule says so. Answers get lost, statements are executed
long after their client has given up, commits stay on one server, and a failover leaves a prefix of
what was committed. What PostgreSQL promises holds: row locks, a primary key, statements that see a
snapshot, and that a commit which is answered is on a standby.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from penstock.log.cluster import catalog, slots
from penstock.log.cluster.database import OutcomeUnknown, Refused, Rows


class Slot(NamedTuple):
    epoch: int
    first_lsn: int
    records: int
    body: bytes | None


class ShardRows:
    """The rows of one shard."""

    def __init__(self) -> None:
        self.epoch = self.trimmed = self.checkpoint_lsn = self.checkpoints = 0
        self.journal: dict[int, Slot] = {}
        self.history: list[bytes] = []
        """What the checkpoint has of the journal: the bodies up to its LSN."""


class Tables:
    """The rows that a server has."""

    def __init__(self) -> None:
        self._shards: dict[int, ShardRows] = {}

    def of(self, shard: int) -> ShardRows:
        return self._shards.setdefault(shard, ShardRows())


Change = Callable[[Tables], None]


class Transaction:
    def __init__(self) -> None:
        self.changes: list[Change] = []
        self.locks: set[object] = set()
        self.waits_for: Transaction | None = None
        self.done = asyncio.Event()

    def waits(self, other: Transaction) -> bool:
        """Whether it waits for another one, if only for one that does."""
        each: Transaction | None = self
        while each is not None and each is not other:
            each = each.waits_for
        return each is not None


class World:
    """The servers of one schedule."""

    def __init__(self, seed: int, *, faults: float) -> None:
        self.chance = random.Random(seed)
        self.faults = faults
        self.wal: list[list[Change]] = []
        self.replicated = 0
        self.tables = Tables()
        self.holders: dict[object, Transaction] = {}
        self.generation = 0
        self._waiting: list[asyncio.Future[None]] = []
        self.tasks: set[asyncio.Task[Any]] = set()

    # -- turns

    async def turn(self, *_: object) -> None:
        """Wait until the schedule says that it is this one's turn."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    async def run(self, *work: Any, steps: int = 3000) -> None:
        tasks = {asyncio.ensure_future(each) for each in work}
        for _ in range(steps):
            for _ in range(3):
                await asyncio.sleep(0)
            if all(task.done() for task in tasks) or not self._waiting:
                break
            future = self._waiting.pop(self.chance.randrange(len(self._waiting)))
            if not future.done():
                future.set_result(None)
            if self.faults and self.chance.random() < 0.01:
                self.fail_over()
        for task in (*tasks, *self.tasks):
            task.cancel()
        results = await asyncio.gather(*tasks, *self.tasks, return_exceptions=True)
        self._waiting.clear()
        self.tasks.clear()
        for result in results:
            if isinstance(result, Exception) and not isinstance(result, OutcomeUnknown):
                raise result

    def is_faulty(self, share: float = 1.0) -> bool:
        return self.chance.random() < self.faults * share

    # -- commits

    def commit_locally(self, transaction: Transaction) -> int:
        self.wal.append(transaction.changes)
        return len(self.wal)

    def show(self, transaction: Transaction) -> None:
        """Let others see a transaction, and have what it has locked."""
        for change in transaction.changes:
            change(self.tables)
        self.release(transaction)

    def release(self, transaction: Transaction) -> None:
        for lock in transaction.locks:
            if self.holders.get(lock) is transaction:
                del self.holders[lock]
        transaction.done.set()

    async def lock(self, transaction: Transaction, name: object) -> None:
        while (holder := self.holders.get(name)) is not None and holder is not transaction:
            if holder.waits(transaction):
                raise Refused("deadlock detected")
            transaction.waits_for = holder
            await holder.done.wait()
            transaction.waits_for = None
            await self.turn()
        self.holders[name] = transaction
        transaction.locks.add(name)

    def fail_over(self) -> None:
        """Promote a standby: it has all that is replicated, and some of the rest."""
        kept = self.chance.randint(self.replicated, len(self.wal))
        del self.wal[kept:]
        self.replicated = kept
        self.generation += 1
        self.tables = Tables()
        for changes in self.wal:
            for change in changes:
                change(self.tables)
        for holder in set(self.holders.values()):
            holder.done.set()
        self.holders.clear()

    async def session(self) -> StandIn:
        await self.turn()
        if self.is_faulty(0.2):
            raise OutcomeUnknown("cannot be reached")
        return StandIn(self)


class StandIn:
    """A session of the stand-in."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._generation = world.generation
        self._transaction: Transaction | None = None
        self.is_closed = False
        self.known: list[bytes] = []
        """What the node of this session has: a checkpoint stores it."""

    def abort(self) -> None:
        self.is_closed = True

    def _check(self) -> None:
        if self._generation != self._world.generation:
            raise OutcomeUnknown("the primary is gone")

    async def execute_many(self, statement: str, values: Any) -> None:
        raise AssertionError(statement)

    async def fetch(self, statement: str, *values: Any) -> Rows:
        world = self._world
        await world.turn()
        if self._transaction is not None:
            return await self._execute(self._transaction, statement, values)
        if world.is_faulty(0.5):
            # The client gives up; the statement arrives now, later, or never.
            if world.chance.random() < 0.7:
                world.tasks.add(asyncio.ensure_future(self._alone(statement, values, late=True)))
            self.abort()
            raise OutcomeUnknown("the answer was lost")
        return await self._alone(statement, values)

    async def _alone(self, statement: str, values: Any, *, late: bool = False) -> Rows:
        """Run a statement as a transaction of its own."""
        if late:
            for _ in range(self._world.chance.randrange(20)):
                await self._world.turn()
        transaction = Transaction()
        try:
            rows = await self._execute(transaction, statement, values)
            await self._commit(transaction)
        except BaseException:
            self._world.release(transaction)
            raise
        return rows

    async def _commit(self, transaction: Transaction) -> None:
        world = self._world
        self._check()
        if not transaction.changes:
            world.release(transaction)
            return
        end = world.commit_locally(transaction)
        await world.turn()
        self._check()
        if world.is_faulty(0.5):
            world.show(transaction)
            self.abort()
            raise OutcomeUnknown("canceling wait for synchronous replication")
        world.replicated = max(world.replicated, end)
        world.show(transaction)
        await world.turn()
        if world.is_faulty(0.5):
            self.abort()
            raise OutcomeUnknown("the answer was lost")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        self._transaction = transaction = Transaction()
        try:
            yield
            self._transaction = None
            await self._commit(transaction)
        except BaseException:
            self._world.release(transaction)
            raise
        finally:
            self._transaction = None

    # -- statements

    async def _execute(self, transaction: Transaction, statement: str, values: Any) -> Rows:
        world = self._world
        self._check()
        if statement.startswith("INSERT INTO penstock.journal") and "unnest" in statement:
            return await self._insert_many(transaction, statement, values)
        if statement.startswith("INSERT INTO penstock.journal"):
            return await self._insert(transaction, statement, values)
        if statement.startswith("UPDATE penstock.shard"):
            return await self._update(transaction, statement, values)
        shard = values[0]
        tables = world.tables.of(shard)
        if statement == slots.SLOT:
            slot = tables.journal.get(values[1])
            return [] if slot is None else [(slot.epoch,)]
        if statement == slots.CLAIM_LAST:
            return [(max(tables.journal, default=0),)]
        if statement.startswith("DELETE FROM penstock.journal"):
            keeps_claims = "body IS NOT NULL" in statement
            transaction.changes.append(
                lambda tables: _trim(tables.of(shard), values[1], keeps_claims)
            )
            return []
        if statement == catalog.PROGRESS:
            return [(tables.epoch, tables.checkpoints, tables.checkpoint_lsn, 1)]
        if statement == READ:
            rows = sorted(item for item in tables.journal.items() if item[1].body is not None)
            return [(tables.trimmed, list(tables.history)), *rows]
        raise AssertionError(statement)

    async def _insert(self, transaction: Transaction, statement: str, values: Any) -> Rows:
        shard, seq, epoch, *rest = values
        if "WHERE EXISTS" in statement:
            # By the statement's snapshot: others may commit before the row is there.
            if self._world.tables.of(shard).epoch != epoch:
                return []
            await self._world.turn()
            self._check()
        slot = Slot(epoch, *rest) if rest else Slot(epoch, 0, 0, None)
        return [(seq,)] if await self._put(transaction, shard, seq, slot) else []

    async def _insert_many(self, transaction: Transaction, statement: str, values: Any) -> Rows:
        """Insert rows of several shards, each under a check of its own."""
        rows = list(zip(*values, strict=True))
        if "JOIN penstock.shard" in statement:
            tables = self._world.tables
            rows = [row for row in rows if tables.of(row[0]).epoch == row[2]]
            await self._world.turn()
            self._check()
        inserted = []
        for shard, seq, *rest in rows:
            if await self._put(transaction, shard, seq, Slot(*rest)):
                inserted.append((shard,))
        return inserted

    async def _put(self, transaction: Transaction, shard: int, seq: int, slot: Slot) -> bool:
        """Insert a row; False if there is one, or another transaction was quicker."""
        await self._world.lock(transaction, (shard, seq))
        self._check()
        if seq in self._world.tables.of(shard).journal:
            return False
        transaction.changes.append(lambda tables: _put(tables.of(shard), seq, slot))
        return True

    async def _update(self, transaction: Transaction, statement: str, values: Any) -> Rows:
        world = self._world
        shard = values[0]
        await world.lock(transaction, shard)
        self._check()
        tables = world.tables.of(shard)
        if "epoch = $2" in statement and tables.epoch != values[1]:
            return []
        if statement.startswith("UPDATE penstock.shard SET epoch"):
            epoch = tables.epoch + 1
            transaction.changes.append(lambda tables: setattr(tables.of(shard), "epoch", epoch))
            return [(epoch, tables.trimmed)]
        if statement.startswith("UPDATE penstock.shard SET checkpoint_lsn"):
            if "checkpoints = $5" in statement and tables.checkpoints != values[4]:
                return []
            lsn, history = values[2], self.known[: values[2]]
            transaction.changes.append(lambda tables: _mark(tables.of(shard), lsn, history))
            return [(tables.checkpoints + 1,)]
        transaction.changes.append(lambda tables: None)  # a barrier is a commit, too
        return [(1,)]


READ = "history"
"""The statement by which a node reads what the owners before have left."""


def _put(tables: ShardRows, seq: int, slot: Slot) -> None:
    tables.journal[seq] = slot


def _covered(tables: ShardRows, lsn: int) -> list[int]:
    return [
        seq
        for seq, slot in tables.journal.items()
        if slot.body is not None and slot.first_lsn + slot.records - 1 <= lsn
    ]


def _mark(tables: ShardRows, lsn: int, history: list[bytes]) -> None:
    tables.checkpoint_lsn, tables.history = lsn, history
    tables.checkpoints += 1
    tables.trimmed = max([tables.trimmed, *_covered(tables, lsn)])


def _trim(tables: ShardRows, lsn: int, keeps_claims: bool) -> None:
    for seq in _covered(tables, lsn):
        del tables.journal[seq]
    if not keeps_claims:
        for seq in [seq for seq, slot in tables.journal.items() if slot.body is None]:
            del tables.journal[seq]
