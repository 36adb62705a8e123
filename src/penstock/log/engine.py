"""The engine: everything the rest of Penstock may ask of the log.

It composes the decisions of `decide`; reads see durable state only. Runs on the event loop and
knows neither HTTP nor files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import StreamNotFound
from penstock.log.active import ActiveStreams
from penstock.log.decide.append import Appends, Decided
from penstock.log.decide.checks import Check, Checks, Overtakes
from penstock.log.decide.committed import Commits, Listener
from penstock.log.decide.context import Context
from penstock.log.decide.create import create_stream
from penstock.log.decide.delete import delete_stream, expire_stream, readable_stream
from penstock.log.decide.fork import fork_stream
from penstock.log.decide.meta import set_meta
from penstock.log.decide.snapshot import Snapshots
from penstock.log.decide.trim import trim_at, trim_stream
from penstock.log.lineage import token
from penstock.log.pubsub import Callback, PubSub, Subscription
from penstock.log.quotas import quotas_of
from penstock.log.ranges import Ranges
from penstock.log.reaper import Reaper
from penstock.log.recording import Recording
from penstock.log.requests import Append, Appended, Created, Fork, Pending, Trimmed
from penstock.log.retention import Retention, rules_of
from penstock.log.stats import EngineStats
from penstock.log.store import Health, Store
from penstock.log.stream import Stream, StreamInfo, Watcher
from penstock.protocol.lifecycle import ForkConfig, StreamConfig
from penstock.protocol.offsets import START
from penstock.protocol.producer import ProducerState

PIECE_BYTES = 256 * 1024
"""Bytes that a store reads at a time."""


class Engine:
    append_quickly: Callable[[str, Append], Decided]
    """The same as `append`, for callers that need no future for what is accepted at once: the
    receipt calls them back when it is durable."""

    def __init__(self, store: Store, settings: Settings, *, clock: Clock) -> None:
        self.store = store
        self.stats = EngineStats()
        self._settings = settings
        self._clock = clock
        self._streams = ActiveStreams(
            store, clock, self.stats, active_streams_max=settings.active_streams_max
        )
        self._ranges = Ranges(store)
        # These raise before a folder is opened.
        self._rules = rules_of(settings)
        self.quotas = quotas_of(settings)

    async def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        context = self._context = Context(
            self._streams,
            self.store,
            self._settings,
            self.stats,
            clock=self._clock,
            ranges=self._ranges,
            quotas=self.quotas,
        )
        self._commits = Commits(self._streams, self.stats)
        self._checks = Checks()
        self._snapshots = Snapshots(context)
        self._appends = Appends(context, self._checks, self._snapshots.recordings)
        self.append_quickly = self._appends.decide
        self._pubsub = PubSub(self)
        recovered = await self.store.open(self._commits)
        for stream in recovered:
            stream.counted_bytes = stream.held_bytes
            self._streams.add(stream)
        for stream in recovered:
            self._streams.link(stream)
        reaper = Reaper(self._streams, self.store, self._clock, partial(expire_stream, context))
        self.reap = reaper.reap
        self.retention = Retention(
            self._streams,
            self.store,
            self._clock,
            self._settings,
            partial(trim_at, context),
            rules=self._rules,
        )
        self._retention_task = asyncio.create_task(
            self.retention.run(self._settings.retention_interval_s)
        )
        self._totals_task = asyncio.create_task(self._count_opened())
        self._count_task: asyncio.Task[None] | None = None
        if self.quotas is not None:
            self._commits.listen(self.quotas.committed)
            self._commits.listen_to_failures(self.quotas.failed)
            self._count_task = asyncio.create_task(self.quotas.count(self.store))
        self._reap_task = asyncio.create_task(reaper.run(self._settings.reap_interval_s))

    async def _count_opened(self) -> None:
        self.stats.opened = await self.store.count_opened()

    def drain(self) -> None:
        """Prepare to stop: refuse appends that wait for a check, which may take long, and finish
        all others."""
        self._context.waiting.end()

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Refuse new writes, finish those that are queued, checkpoint, release the store.

        After `timeout_s` the rest is left out: the next start replays the journal.
        """
        self._context.stop()
        self._reap_task.cancel()
        self._retention_task.cancel()
        self._totals_task.cancel()
        if self._count_task is not None:
            self._count_task.cancel()
        await self._pubsub.close()
        await self.store.close(timeout_s=timeout_s)

    @property
    def restore_generation(self) -> int:
        """The generation of the last restore from a backup: that of what was appended since to
        streams that were there before. 0 if there was none."""
        return self.store.restore_generation

    def health(self) -> Health:
        return self.store.health()

    # -- writing

    def create(
        self, path: str, config: StreamConfig, body: bytes = b"", *, closed: bool = False
    ) -> asyncio.Future[Created]:
        return create_stream(self._context, path, config, body, closed=closed)

    def fork(
        self, path: str, fork: Fork, config: ForkConfig, body: bytes, *, closed: bool
    ) -> asyncio.Future[Created]:
        return fork_stream(self._context, path, fork, config, body, closed=closed)

    def trim(self, path: str, before: str) -> asyncio.Future[Trimmed]:
        """Retain nothing before an offset; the answer is where the stream begins now."""
        return trim_stream(self._context, path, before)

    def record(self, stream: Stream) -> Recording:
        """Record what is appended to a stream from now on, until `stop_recording`."""
        return self._snapshots.record(stream)

    def stop_recording(self, recording: Recording) -> None:
        self._snapshots.stop_recording(recording)

    def snapshot(self, recording: Recording, payload: bytes, count: int) -> asyncio.Future[Trimmed]:
        """Append messages that stand for all before them, and trim those, in one step. They have to
        include everything that was recorded."""
        return self._snapshots.snapshot(recording, payload, count)

    def append(self, path: str, request: Append) -> asyncio.Future[Appended]:
        """Append to a stream, close it, or both. This is decided before the call returns, unless a
        check puts it off: the waiting appends of a stream are decided in the order of their
        arrival. Cancelling the future withdraws an append that waits."""
        return self._appends.append(path, request)

    def delete(self, path: str) -> asyncio.Future[None]:
        return delete_stream(self._context, path)

    def set_meta(self, path: str, name: str, value: bytes | None) -> asyncio.Future[None]:
        """Set a named value of a stream, durably; None removes it."""
        return set_meta(self._context, path, name, value)

    def add_check(
        self,
        name: str,
        check: Check,
        *,
        closes: bool = False,
        overtakes: Overtakes | None = None,
    ) -> None:
        """Let `check` refuse appends to streams that have the meta value `name`.

        With `closes` it is also asked about a close that appends nothing, with no bytes.
        `overtakes` says which appends are decided before earlier ones that wait.
        """
        self._checks.add(name, check, closes=closes, overtakes=overtakes)

    def pending(self, stream: Stream) -> Pending:
        """Return the pending half of a stream, for callers whose own decisions rest on it."""
        return Pending(
            stream.pending_tail,
            stream.pending_count,
            stream.pending_closed,
            stream.deleting,
            stream.pending_meta,
        )

    def changeable(self, stream: Stream) -> Pending:
        """Return the pending half of a stream that takes changes; StreamNotFound if its end was
        decided, though readers may still see it."""
        if stream.deleting or stream.deleted:
            raise StreamNotFound.at(stream.path)
        return self.pending(stream)

    def is_settled(self, stream: Stream) -> bool:
        """Whether everything that was decided about a stream is durable."""
        return not stream.in_flight

    # -- reading

    @property
    def needs_fetch(self) -> bool:
        """Whether streams that are not active have to be fetched before they are used."""
        return self.store.needs_fetch

    def is_at_hand(self, path: str, producer_id: str | None = None) -> bool:
        """Whether a stream, and one of its producers, can be used without a fetch."""
        return self._streams.is_at_hand(path, producer_id)

    async def fetch(self, path: str, producer_id: str | None = None) -> None:
        """Bring a stream that is not active next to the event loop, with its sources and one of
        its producers, so that nothing that is decided about it has to wait. Does nothing, and
        never waits, where the store is on this machine."""
        if not self.store.needs_fetch:
            return
        await self._streams.fetch(path)
        if producer_id is not None and not self._streams.is_at_hand(path, producer_id):
            stream = self._streams.pending(path)
            if stream is not None:
                await self.store.fetch_producer(stream, producer_id)

    def is_current(self) -> bool:
        """Whether the durable tail of a stream is known to be its last: false on a node of a
        cluster that may have been replaced."""
        return self.store.is_current()

    async def until_current(self, timeout_s: float) -> None:
        """Return when `is_current`; an error of 503 if that takes too long."""
        await self.store.until_current(timeout_s)

    def find(self, path: str, *, touch: bool) -> Stream:
        """Return the stream at `path` as readers see it."""
        return readable_stream(self._context, path, touch=touch)

    def token(self, stream: Stream, position: int) -> str:
        return token(stream, position)

    def earliest(self, stream: Stream) -> Trimmed:
        """Return where a stream begins, after what was trimmed."""
        return Trimmed(token(stream, stream.earliest), stream.earliest_ordinal)

    async def position(self, stream: Stream, offset: str) -> int:
        """Return the position of an offset exactly as the server returned it."""
        return await self._ranges.position(stream, offset)

    def position_in_memory(self, stream: Stream, offset: str) -> int | None:
        """Return the position of an offset in the memory tail of a JSON stream, else None."""
        return self._ranges.position_in_memory(stream, offset)

    async def read_start(self, stream: Stream, offset: str) -> int:
        """Return where a read from an offset starts. Other than `position` it takes an offset to
        which a client has added one."""
        return await self._ranges.read_start(stream, offset)

    async def plan(
        self,
        stream: Stream,
        start: int,
        *,
        max_bytes: int,
        until: int | None = None,
        count: int | None = None,
    ) -> int:
        return await self._ranges.plan(stream, start, max_bytes, until, count)

    async def splits(self, stream: Stream, parts: int, start: int, end: int) -> list[int]:
        return await self._ranges.splits(stream, parts, start, end)

    async def ordinal(self, stream: Stream, position: int) -> int:
        """Return the number of messages before a boundary of a JSON stream."""
        return await self._ranges.ordinal(stream, position)

    async def ordinals(self, stream: Stream, positions: list[int]) -> list[int]:
        """Return the number of messages before each of some boundaries, which ascend."""
        return await self._ranges.ordinals(stream, positions)

    async def seek(self, stream: Stream, ordinal: int) -> int:
        """Return where message `ordinal` (from 0) of a JSON stream starts."""
        return await self._ranges.seek(stream, ordinal)

    async def at_time(self, stream: Stream, time_us: int) -> int:
        """Return a position from which a read has every message appended at or after a time, and
        as few earlier ones as the log can tell apart."""
        return await self._ranges.at_time(stream, time_us)

    async def last_messages(self, stream: Stream, count: int) -> int:
        """Return where the last messages of a JSON stream start."""
        return await self._ranges.last_messages(stream, count)

    async def last_lines(self, stream: Stream, count: int, *, bytes_max: int) -> int | None:
        """Return where the last lines of text start; None if they are longer than `bytes_max`."""
        return await self._ranges.last_lines(stream, count, bytes_max=bytes_max)

    def read_now(self, stream: Stream, start: int, end: int) -> bytes | None:
        data = self.store.read_now(stream, start, end)
        if data is not None:
            self.stats.reads += 1
            self.stats.read_bytes += len(data)
        return data

    def views(self, stream: Stream, start: int, end: int) -> list[memoryview] | None:
        """Return bytes where they lie, without a copy, for the kernel to send and for nobody to
        look at; None if they have to be read."""
        views = self.store.views(stream, start, end)
        if views is not None:
            self.stats.reads += 1
            self.stats.read_bytes += end - start
        return views

    async def read(self, stream: Stream, start: int, end: int) -> bytes:
        data = await self.store.read(stream, start, end)
        self.stats.reads += 1
        self.stats.read_bytes += len(data)
        return data

    async def read_range(self, stream: Stream, start: int, end: int) -> bytes:
        """Return all of [start, end), however long it is; a store reads it in pieces."""
        if end - start <= PIECE_BYTES:
            data = self.read_now(stream, start, end) if end > start else b""
            return await self.read(stream, start, end) if data is None else data
        parts = []
        while start < end:
            stop = min(start + PIECE_BYTES, end)
            parts.append(await self.read(stream, start, stop))
            start = stop
        return b"".join(parts)

    def active_streams(self) -> list[Stream]:
        """Return the streams in memory; after a start, those that the journal has changes of."""
        return self._streams.all_active()

    async def list_meta(self, name: str, after: str, limit: int) -> list[str]:
        """Return the paths of streams that have the meta value `name`, in path order."""
        return await self.store.list_meta(name, after, limit)

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]:
        return await self._streams.list_streams(prefix, after, limit)

    async def list_forks(self, stream: Stream, after: str, limit: int) -> list[StreamInfo]:
        """Return the forks that were made of a stream, by the order of their paths."""
        # Most streams have none, and then nothing is looked up.
        return await self.store.list_forks(stream, after, limit) if stream.forks else []

    async def list_producers(
        self, stream: Stream, after: str, limit: int
    ) -> list[tuple[str, ProducerState]]:
        """Return the producers that a stream remembers, by the order of their ids."""
        return await self.store.list_producers(stream, after, limit)

    # -- waiting

    async def subscribe(
        self, path: str, callback: Callback, *, offset: str = START
    ) -> Subscription:
        """Call `callback` with what follows `offset` in a stream, now and as it becomes durable.

        Messages that are there already are delivered at once. After the last message of a closed
        stream the callback gets `closed`, and `deleted` when the stream is deleted or expires. It
        is never called within this call, nor within a commit. If it raises, the subscription ends.
        """
        return await self._pubsub.subscribe(path, callback, offset)

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every batch that is committed, until `unlisten`. Listeners are
        called in the order of their registration; what one raises is logged and does not stop the
        others."""
        self._commits.listen(listener)

    def unlisten(self, listener: Listener) -> None:
        """Stop calling `listener`; no error if it does not listen."""
        self._commits.unlisten(listener)

    def listen_to_failures(self, listener: Listener) -> None:
        """Call `listener` with every batch that cannot be written. It is called after the streams
        are as before the batch, and before anybody else runs who could see what was decided on
        it."""
        self._commits.listen_to_failures(listener)

    def watch(self, stream: Stream, watcher: Watcher) -> None:
        stream.watchers[watcher] = None
        self.stats.watchers += 1

    def unwatch(self, stream: Stream, watcher: Watcher) -> None:
        if stream.watchers.pop(watcher, False) is None:
            self.stats.watchers -= 1
            # The stream counted as read until now.
            self._streams.touch(stream, self._clock.now_us())

    async def wait(self, stream: Stream, position: int, timeout_s: float) -> None:
        """Return when there are bytes after `position`, the stream ends, or the time is over."""
        if stream.tail > position or stream.closed or stream.is_gone:
            return
        waiter = _Waiter(self._loop.create_future())
        self.watch(stream, waiter)
        timer = self._loop.call_later(timeout_s, waiter.ended)
        try:
            await waiter.future
        finally:
            timer.cancel()
            self.unwatch(stream, waiter)


class _Waiter:
    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[None]) -> None:
        self.future = future

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        self.ended()

    def ended(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
