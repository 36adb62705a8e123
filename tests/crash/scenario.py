"""A seeded run of many operations on a few streams, and what may be there after a crash of it.

Operations reach the journal in the order in which they are submitted, so what survives is the
effect of the first so many of them: of all acknowledged ones, and of none that came later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable, Sequence
from typing import Any

from penstock.clock import ManualClock
from penstock.log.engine import Engine
from penstock.log.requests import Fork
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from tests.crash.engines import BYTES, JSON, SOFT_DELETED, Seen, append, disk
from tests.crash.power import Record

PATHS = ("a", "b", "j/c", "j/d", "e", "ttl/f")
TTL_S = 60
NO_WISHES = ForkConfig(None, None, None)


def config_of(path: str) -> StreamConfig:
    if path.startswith("j/"):
        return JSON
    return BYTES._replace(ttl_s=TTL_S) if path.startswith("ttl/") else BYTES


class Operation:
    """One create, fork, append, close, trim, snapshot or delete: asked for, and answered, when."""

    def __init__(
        self,
        path: str,
        kind: str,
        body: bytes = b"",
        *,
        close: bool = False,
        producer: Producer | None = None,
        source: str = "",
        fork_at: tuple[str, int] | None = None,
    ) -> None:
        self.source = source
        self.fork_at = fork_at
        """An offset of the source, and how many bytes it has up to there; None is its tail."""
        self.end = 0
        """The length of its stream with it."""
        self.path = path
        self.kind = kind
        self.body = body
        self.close = close
        self.producer = producer
        self.submitted_at = 0
        self.answered_at: int | None = None
        self.offset: str | None = None

    @property
    def wire(self) -> bytes:
        return self.body + b",\n" if config_of(self.path) is JSON and self.body else self.body

    def submit(self, engine: Engine) -> asyncio.Future[Any]:
        if self.kind == "create":
            return engine.create(self.path, config_of(self.path), self.body, closed=self.close)
        if self.kind == "fork":
            fork = Fork(self.source, self.fork_at[0] if self.fork_at else None, 0)
            return engine.fork(self.path, fork, NO_WISHES, self.body, closed=self.close)
        if self.kind == "trim":
            return engine.trim(self.path, "now")
        if self.kind == "snapshot":
            stream = engine._streams.pending(self.path)
            assert stream is not None
            recording = engine.record(stream)
            try:
                return engine.snapshot(recording, self.wire, 1)
            finally:
                engine.stop_recording(recording)
        if self.kind == "delete":
            return engine.delete(self.path)
        request = append(
            self.body, producer=self.producer, close=self.close, config=config_of(self.path)
        )
        return engine.append(self.path, request)

    def __repr__(self) -> str:
        return f"{self.kind} {self.path} {self.body[:12]!r} {self.producer} close={self.close}"


class State:
    """A stream as the operations left it."""

    def __init__(
        self, path: str, source: State | None = None, fork_at: tuple[str, int] | None = None
    ) -> None:
        self.path = path
        self.source = source
        self.payload: bytes = source.payload if source is not None else b""
        if fork_at is not None:
            self.payload = self.payload[: fork_at[1]]
        self.earliest: int = source.earliest if source is not None else 0
        self.soft_deleted = False
        """Deleted, but there are forks of it."""
        self.closed = False
        self.producers: dict[str, Operation] = {}
        self.appended: list[Operation] = []
        """What has put bytes of its own there."""

    @property
    def shown(self) -> tuple[bytes, bool]:
        return (
            (SOFT_DELETED, False)
            if self.soft_deleted
            else (self.payload[self.earliest :], self.closed)
        )


def _delete(states: dict[str, State], state: State) -> None:
    if any(each.source is state for each in states.values()):
        state.soft_deleted = True
        return
    del states[state.path]
    if state.source is not None and state.source.soft_deleted:
        _delete(states, state.source)


def apply(states: dict[str, State], operation: Operation) -> None:
    if operation.kind == "delete":
        _delete(states, states[operation.path])
        return
    if operation.kind == "trim":
        states[operation.path].earliest = len(states[operation.path].payload)
        return
    if operation.kind == "snapshot":
        state = states[operation.path]
        state.earliest = len(state.payload)
        state.payload += operation.wire
        return
    if operation.kind in ("create", "fork"):
        source = states.get(operation.source)
        states[operation.path] = State(operation.path, source, operation.fork_at)
    state = states[operation.path]
    state.payload += operation.wire
    operation.end = len(state.payload)
    state.appended.append(operation)
    state.closed = operation.close
    if operation.producer is not None:
        state.producers[operation.producer.id] = operation


def states_after(operations: Iterable[Operation]) -> dict[str, State]:
    states: dict[str, State] = {}
    for operation in operations:
        apply(states, operation)
    return states


def is_same(seen: dict[str, Seen], states: dict[str, State]) -> bool:
    return {path: (each.payload, each.closed) for path, each in seen.items()} == {
        path: each.shown for path, each in states.items()
    }


def surviving(operations: Sequence[Operation], seen: dict[str, Seen], cut: int) -> int:
    """How many operations survived a crash after `cut` steps; fails if that cannot be."""
    least = most = 0
    for count, operation in enumerate(operations, 1):
        if operation.answered_at is not None and operation.answered_at <= cut:
            least = count
        if operation.submitted_at <= cut:
            most = count
    states = states_after(operations[:least])
    for count in range(least, most + 1):
        if is_same(seen, states):
            return count
        if count < most:
            apply(states, operations[count])
    promised = states_after(operations[:least])
    raise AssertionError(
        f"after {cut} steps, {least} operations acknowledged of {most}: found "
        f"{_brief(seen)}, promised at least {_brief(promised)}"
    )


def _brief(states: dict[str, Any]) -> dict[str, tuple[int, bytes, bool]]:
    shown = {
        path: each.shown if isinstance(each, State) else (each.payload, each.closed)
        for path, each in states.items()
    }
    return {path: (len(data), data[-24:], closed) for path, (data, closed) in shown.items()}


class Scenario:
    """Submits random operations in bursts, and notes what was acknowledged when."""

    def __init__(
        self, seed: int, engine: Engine, clock: ManualClock, record: Record, *, tag: str = ""
    ) -> None:
        self._random = random.Random(seed)
        self._engine = engine
        self._clock = clock
        self._record = record
        self._tag = tag
        self.operations: list[Operation] = []
        self._states: dict[str, State] = {}

    def resume(self, operations: Sequence[Operation]) -> None:
        """Go on where other operations ended, all of them durable."""
        for operation in operations:
            done = Operation(
                operation.path,
                operation.kind,
                operation.body,
                close=operation.close,
                producer=operation.producer,
                source=operation.source,
                fork_at=operation.fork_at,
            )
            done.answered_at = 0
            self.operations.append(done)
            apply(self._states, done)

    async def run(self, bursts: int) -> None:
        waiting: list[asyncio.Future[Any]] = []
        for _ in range(bursts):
            waiting += [self._submit(self._choose()) for _ in range(self._random.choice((1, 1, 5)))]
            if self._random.random() < 0.1:
                assert await disk(self._engine).checkpoint()
            if self._random.random() < 0.7:
                await asyncio.gather(*waiting)
                waiting = []
        await asyncio.gather(*waiting)

    def _submit(self, operation: Operation) -> asyncio.Future[Any]:
        operation.submitted_at = len(self._record)
        self.operations.append(operation)
        apply(self._states, operation)
        future = operation.submit(self._engine)

        def answered(done: asyncio.Future[Any]) -> None:
            if done.exception() is None:
                operation.answered_at = len(self._record)
                operation.offset = getattr(done.result(), "offset", None)
                assert getattr(done.result(), "created", True)

        future.add_done_callback(answered)
        return future

    def _choose(self) -> Operation:
        path = self._random.choice(PATHS)
        state = self._states.get(path)
        if state is None:
            sources = [other for other in self._states if self._can_fork(other, path)]
            if sources and self._random.random() < 0.6:
                source = self._random.choice(sources)
                body = self._body(path) if self._random.random() < 0.5 else b""
                return Operation(path, "fork", body, source=source, fork_at=self._place(source))
            return Operation(
                path, "create", self._body(path) if self._random.random() < 0.5 else b""
            )
        chance = self._random.random()
        if config_of(path).ttl_s is not None and chance < 0.3 and not self._is_in_flight(path):
            self._clock.advance(TTL_S + 1)  # its time is over: the PUT deletes and creates
            return Operation(path, "create", self._body(path))
        if state.soft_deleted:
            return self._choose()
        if chance < 0.1 or (state.closed and chance < 0.8):
            return Operation(path, "delete")
        if chance > 0.8 and not state.closed and config_of(path) is JSON:
            return Operation(path, "snapshot", self._body(path))
        if chance > 0.95 and len(state.payload) > state.earliest:
            return Operation(path, "trim")
        if state.closed:
            return self._choose()
        if chance < 0.13:
            return Operation(path, "append", close=True)
        close = chance < 0.15
        producer = self._next(state) if chance > 0.5 else None
        return Operation(path, "append", self._body(path), close=close, producer=producer)

    def _can_fork(self, source: str, path: str) -> bool:
        """A stream that expires by being created anew would have to be there for its forks."""
        is_alike = config_of(source) == config_of(path) and config_of(path).ttl_s is None
        return is_alike and not self._states[source].soft_deleted

    def _place(self, source: str) -> tuple[str, int] | None:
        """Somewhere within the source, now and then. For JSON that is looked up first, and what is
        submitted later may come before it."""
        # Drawn in any case: what is known depends on timing, and the rest of the run must not.
        chance, which = self._random.random(), self._random.random()
        state = self._states[source]
        known = [
            (each.offset, each.end)
            for each in state.appended
            if each.offset is not None and each.end >= state.earliest
        ]
        if config_of(source) is JSON or not known or chance < 0.4:
            return None
        return known[int(which * len(known))]

    def _is_in_flight(self, path: str) -> bool:
        return any(each.path == path and each.answered_at is None for each in self.operations)

    def _next(self, state: State) -> Producer:
        name = self._random.choice(("p", "q"))
        last = state.producers.get(name)
        if last is None or last.producer is None:
            return Producer(name, 0, 0)
        if self._random.random() < 0.1:
            return Producer(name, last.producer.epoch + 1, 0)
        return last.producer._replace(seq=last.producer.seq + 1)

    def _body(self, path: str) -> bytes:
        """Unique, so that anything doubled or out of order shows; now and then over a page."""
        size = self._random.choice((5, 40, 40, 150, 150, 600, 600, 5000, 9000))
        text = f"{self._tag}{len(self.operations):04d}" + "x" * size
        return f'"{text}"'.encode() if config_of(path) is JSON else f"<{text}>".encode()
