"""A seeded run of subscriptions and their workers, and what may be left of them after a crash.

Everything that is kept of subscriptions is written in one order, so what survives is the effect of
the first so many writes: of all that were durable, and of none that came later. Those that met a
full disk or an overload are not among them. Beside that, what somebody was told is noted as it was
told: positions, generations, keys.
"""

from __future__ import annotations

import asyncio
import errno
import os
import queue
import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from penstock.clock import ManualClock
from penstock.errors import PenstockError
from penstock.log.engine import Engine
from penstock.protocol.offsets import Offset, parse_offset
from penstock.protocol.subscription import Ack, Config, Report
from penstock.protocol.wakes import token_generation
from penstock.subscriptions.service import Subscriptions
from tests.crash.engines import JSON, append, disk
from tests.crash.power import Record
from tests.subscriptions.desk import Call, Receiver

PATHS = ("events/a", "events/b", "listed/c")
PULLS = ("p", "q")
HOOK = "h"
LEASE_MS = 1000
QUEUE_BYTES = 1500
CROWD_BYTES = 600
TURNS_MAX = 100


class Said(NamedTuple):
    """What was told of a subscription: of the one of that age, at which step of the disk."""

    at: int
    id: str
    created_us: int
    what: Any


class Written(msgspec.Struct):
    """One write of rows: queued, and durable, at which steps."""

    rows: list[dict[str, Any]]
    submitted_at: int
    answered_at: int | None = None
    failed: bool = False


def fold(
    rows: list[dict[str, Any]], into: dict[str, dict[str, Any]], drafts: dict[str, dict[str, Any]]
) -> None:
    """What rows say: by subscription, its own row, its wake and its links. Links that are written
    before the row of their subscription are drafts."""
    for row in rows:
        kind, key, value = row["type"], row["key"], row.get("value")
        if kind == "draft":
            assert value is not None
            if drafts.get(key, {}).get("created_us") != value["created_us"]:
                drafts[key] = {"created_us": value["created_us"], "links": {}}
            drafts[key]["links"].update(value["links"])
            continue
        if kind == "subscription":
            known = into.pop(key, None)
            if value is not None:
                is_same = known is not None and known["row"]["created_us"] == value["created_us"]
                draft = drafts.get(key, {"created_us": 0, "links": {}})
                is_drafted = draft["created_us"] == value["created_us"]
                links = dict(draft["links"]) if is_drafted else {}
                kept = known if is_same and known is not None else {"wake": {}, "links": links}
                into[key] = {**kept, "row": value}
            continue
        path, _, id = key.partition(" ") if kind == "link" else ("", "", key)
        if id not in into:
            continue
        if kind == "wake":
            into[id]["wake"] = value
        elif value is None:
            into[id]["links"].pop(path, None)
        else:
            into[id]["links"][path] = value


def position(offset: str) -> tuple[int, int]:
    """Which stream an offset is of, and where in it."""
    parsed = parse_offset(offset)
    return (parsed.generation, parsed.position) if isinstance(parsed, Offset) else (0, 0)


class Scenario:
    """Appends, wakes, claims, acks and the rest at random, with a receiver that fails now and
    then; notes what was written, and what was told, when."""

    def __init__(
        self,
        seed: int,
        engine: Engine,
        service: Subscriptions,
        clock: ManualClock,
        record: Record,
        hook: Receiver,
    ) -> None:
        self._random = random.Random(seed)
        self._engine = engine
        self._service = service
        self._clock = clock
        self._record = record
        self._hook = hook
        self._offsets: dict[str, list[str]] = {path: [] for path in PATHS}
        self._claims: dict[str, tuple[int, Any]] = {}
        self.writes: list[Written] = []
        self.acked: list[Said] = []
        self.asked: list[Said] = []
        self.generations: list[Said] = []
        self.ended: list[Said] = []
        self.kids: list[tuple[int, str]] = []
        self.counts: dict[str, int] = {}
        self._full = 0
        self._fill_disk()
        self._note_writes()
        hook.calls = _Calls(self)

    def _fill_disk(self) -> None:
        """Let the journal meet a full disk `_full` times."""
        journal = disk(self._engine)._journal
        write = journal.write

        def refuse(first_lsn: int, parts: Sequence[bytes]) -> None:
            if self._full:
                self._full -= 1
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            write(first_lsn, parts)

        journal.write = refuse  # type: ignore[method-assign] # a full disk

    def _note_writes(self) -> None:
        # Of the stream and not of the store: rows that are rewritten count, too.
        stream = self._service.store._stream
        write = stream.write

        def noted(events: list[dict[str, Any]], *, undo: Any = None) -> Any:
            written = Written(msgspec.to_builtins(events), len(self._record))
            self.writes.append(written)
            future = write(events, undo=undo)
            future.add_done_callback(lambda done: self._answered(written, done))
            return future

        stream.write = noted  # type: ignore[method-assign]

    def _answered(self, written: Written, done: asyncio.Future[Any]) -> None:
        # Nobody is told of one whose subscription is gone meanwhile.
        if done.cancelled():
            return
        if done.exception() is None:
            written.answered_at = len(self._record)
        else:
            written.failed = True

    def called(self, call: Call) -> None:
        """The receiver was told of a wake; on a thread of its own."""
        at, wake = len(self._record), call.wake
        age = self._age(wake["callback_token"])
        self.generations.append(Said(at, HOOK, age, wake["generation"]))
        for each in wake["streams"]:
            if each["has_pending"]:
                self.asked.append(Said(at, HOOK, age, (each["path"], each["tail_offset"])))

    def _age(self, token: str) -> int:
        """When the webhook's subscription was made that a token is of."""
        secret = self._service.store.secret
        for written in self.writes:
            for row in written.rows:
                if row["type"] == "subscription" and row["key"] == HOOK and "value" in row:
                    age: int = row["value"]["created_us"]
                    if token_generation(secret, f"{age}\n{HOOK}", token) is not None:
                        return age
        raise AssertionError("a token of nobody")

    # -- what happens

    async def run(self, bursts: int) -> None:
        await self._engine.create("wake", JSON, b"", closed=False)
        for id in (*PULLS, HOOK):
            await self._put(id)
        actions = (
            *(self._append,) * 16,
            *(self._claim,) * 14,
            *(self._report,) * 24,
            *(self._wait,) * 4,
            self._remake,
            self._drop,
            self._join,
            *(self._rotate,) * 2,
            *(self._fill,) * 3,
            *(self._crowd,) * 3,
        )
        waiting: list[asyncio.Task[None]] = []
        for _ in range(bursts):
            for _ in range(self._random.choice((1, 1, 4))):
                self._clock.advance(0.001)
                action = self._random.choice(actions)
                waiting.append(asyncio.ensure_future(self._attempt(action)))
            if self._random.random() < 0.1:
                assert await disk(self._engine).checkpoint()
            if self._random.random() < 0.6:
                await asyncio.gather(*waiting)
                waiting = []
            self._hook.answers.put(self._random.choice(((200, {"done": True}), (500, {}))))
        await asyncio.gather(*waiting)

    async def _attempt(self, action: Any) -> None:
        name = action.__name__
        try:
            await action()
        except PenstockError as error:
            name = error.code  # a refusal, which is told as well
        self.counts[name] = self.counts.get(name, 0) + 1

    async def _append(self) -> None:
        path = self._random.choice(PATHS)
        body = b'"%s"' % (b"x" * self._random.choice((3, 60, 700)))
        await self._engine.create(path, JSON, b"", closed=False)
        appended = await self._engine.append(path, append(body, config=JSON))
        self._offsets[path].append(appended.offset)

    async def _put(self, id: str) -> None:
        kind: dict[str, Any] = {"type": "pull-wake", "wake_stream": "wake"}
        if id == HOOK:
            kind = {"type": "webhook", "webhook_url": self._hook.url}
        config = Config(pattern="events/*", streams=("listed/c",), lease_ttl_ms=LEASE_MS, **kind)
        made, _ = await self._service.put(id, config, "http://127.0.0.1:1")
        at = len(self._record)
        self.generations.append(Said(at, id, made.row.created_us, 0))
        for path, link in made.links.items():
            linked = Offset(link.stream, link.position).token
            self.asked.append(Said(0, id, made.row.created_us, (path, linked)))
        if id == HOOK:
            self._note_keys()

    async def _claim(self) -> None:
        id = self._random.choice(PULLS)
        subscription = await self._service.get(id)
        claimed = await self._service.workers.claim(subscription, "w")
        at, age = len(self._record), subscription.row.created_us
        self.generations.append(Said(at, id, age, claimed["generation"]))
        self._claims[id] = (age, claimed)

    async def _report(self) -> None:
        """Ack some of what was claimed, and perhaps end it."""
        id = self._random.choice(PULLS)
        age, claimed = self._claims.get(id, (0, None))
        if claimed is None:
            return
        subscription = await self._service.get(id)
        acks = []
        for each in claimed["streams"]:
            known = [at for at in self._offsets[each["path"]] if at > each["acked_offset"]]
            if each["has_pending"] and known and self._random.random() < 0.8:
                acks.append(Ack(each["path"], self._random.choice([known[-1], *known])))
        done = self._random.random() < 0.5
        asked_at = len(self._record)
        self.asked += [Said(asked_at, id, age, (ack.stream, ack.offset)) for ack in acks]
        report = Report(claimed["wake_id"], claimed["generation"], acks, done)
        if not acks and self._random.random() < 0.3:
            await self._service.workers.release(subscription, claimed["token"], report)
            done = True
        else:
            await self._service.workers.ack(subscription, claimed["token"], report)
        at = len(self._record)
        self.acked += [Said(at, id, age, (ack.stream, ack.offset)) for ack in acks]
        if done:
            self.ended.append(Said(at, id, age, claimed))
            if self._random.random() < 0.8:  # else it is reported on once more
                self._claims.pop(id, None)

    async def _wait(self) -> None:
        """Leases run out, and it is time for webhooks to be tried again."""
        for _ in range(TURNS_MAX):
            if not self._service.webhooks.in_flight:
                break
            await asyncio.sleep(0.001)  # the receiver is on a thread of its own
        self._clock.advance(self._random.choice((0.3, 2.0)))
        self._service.wakes.tick()

    async def _remake(self) -> None:
        path = self._random.choice(PATHS)
        await self._engine.delete(path)
        self._offsets[path] = []

    async def _drop(self) -> None:
        id = self._random.choice((*PULLS, HOOK))
        await self._service.delete(id)
        self._clock.advance(0.001)
        await self._put(id)

    async def _join(self) -> None:
        id, path = self._random.choice(PULLS), self._random.choice(PATHS)
        if self._random.random() < 0.5:
            await self._service.add_members(id, [path])
        else:
            await self._service.remove_member(id, path)
        subscription = await self._service.get(id)
        link = subscription.links.get(path)
        if link is not None:
            linked = Offset(link.stream, link.position).token
            self.asked.append(Said(0, id, subscription.row.created_us, (path, linked)))

    async def _rotate(self) -> None:
        await self._service.rotate_key()
        self._note_keys()
        self._clock.advance(400)

    async def _fill(self) -> None:
        """The disk is full for the next writes."""
        self._full = self._random.choice((1, 1, 2))

    async def _crowd(self) -> None:
        """Everybody at once, more than the queue takes."""
        actions = [self._random.choice((self._report, self._claim, self._join)) for _ in range(4)]
        body = b'"%s"' % (b"x" * CROWD_BYTES)
        await self._engine.create("noise", JSON, b"", closed=False)
        noise = [self._noise(body) for _ in range(3)]
        await asyncio.gather(*noise, *(self._attempt(action) for action in actions))

    async def _noise(self, body: bytes) -> None:
        with suppress(PenstockError):
            await self._engine.append("noise", append(body, config=JSON))

    def _note_keys(self) -> None:
        at = len(self._record)
        self.kids += [(at, key["kid"]) for key in self._service.keys.jwks()["keys"]]


class _Calls(queue.SimpleQueue):  # type: ignore[type-arg]
    """Where a receiver puts what it was called with."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def put(self, item: Call, block: bool = True, timeout: float | None = None) -> None:
        self._scenario.called(item)
