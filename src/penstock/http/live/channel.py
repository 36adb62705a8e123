"""The live channel of a stream: each commit is encoded once and written to every joined reader.

A reader that is behind is brought up from the log at its own pace, then joins without a gap or a
repetition. Knows the engine, sinks and an encoder; nothing of requests, SSE or rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from enum import Enum, auto
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from penstock.http.live.response import CatchUp, LiveReader
from penstock.http.message import Sink

if TYPE_CHECKING:
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

R = TypeVar("R", bound=LiveReader)


class Progress(Enum):
    """How far a reader is."""

    BEHIND = auto()
    """The log has more for it."""
    UP_TO_DATE = auto()
    """It has everything up to the tail."""
    AHEAD = auto()
    """It has seen more than there is, and waits for what comes after that."""


class Frame(NamedTuple, Generic[R]):
    """The bytes of one commit: `shared` for every joined reader but those with `own` bytes."""

    shared: bytes
    own: Mapping[R, bytes]


class Encoder(Protocol[R]):
    """One kind of live response of one stream: its bytes, its positions and its counters.

    Joined readers share a position, which the encoder holds; a reader that is behind has its own.
    """

    publish_bytes_max: int
    """A commit with more bytes is read from the log by each reader at its own pace."""

    def wakes(self, wire: bytes, end: int, closed: bool) -> bool:
        """Whether long-polls are answered when a commit that ends at `end` arrives."""

    def publish(self, wire: bytes, end: int, closed: bool) -> Frame[R] | None:
        """Encode a commit that ends at `end` for all joined readers; None if there is nothing to
        write yet."""

    def share(self, reader: R) -> None:
        """Take the position of `reader`, the first to join, as the shared one."""

    def is_level(self, reader: R) -> bool:
        """Whether a reader that is up to date is at the shared position."""

    def rewind(self, reader: R) -> None:
        """Set the position of a reader that has been joined to the shared one."""

    def is_lost(self, reader: R) -> bool:
        """Whether the log no longer has what the reader is to get next."""

    def send_now(self, reader: R, sink: Sink) -> Progress:
        """Write everything up to the tail if that needs no waiting; BEHIND if it does."""

    async def send(self, reader: R, sink: Sink) -> Progress:
        """Write the next piece from the log."""

    def added(self, reader: R) -> None:
        """Count a new reader."""

    def removed(self, reader: R) -> None:
        """Count a reader that has left."""

    def dropped(self) -> None:
        """Count a reader that was ended for being slow."""

    def written(self, frame: bytes, readers: int) -> None:
        """Count a frame that was written to so many readers."""


class Channels:
    """The open channels of one kind of live response, by key."""

    __slots__ = ("_channels", "buffer_bytes_max", "draining", "engine", "traffic")

    def __init__(self, engine: Engine, traffic: Traffic, *, buffer_bytes_max: int) -> None:
        self.engine = engine
        self.traffic = traffic
        self.buffer_bytes_max = buffer_bytes_max
        self.draining = False
        self._channels: dict[Hashable, Channel[Any]] = {}

    def get(self, key: Hashable) -> Channel[Any] | None:
        return self._channels.get(key)

    def open(self, key: Hashable, stream: Stream, encoder: Encoder[R]) -> Channel[R]:
        channel = self._channels[key] = Channel(self, key, stream, encoder)
        self.engine.watch(stream, channel)
        return channel

    def close(self, channel: Channel[Any]) -> None:
        """Forget a channel that nobody waits at any more."""
        if self._channels.get(channel.key) is channel:
            del self._channels[channel.key]
            self.engine.unwatch(channel.stream, channel)

    def drain(self) -> None:
        """End every response and every wait, because the server stops."""
        self.draining = True
        for channel in list(self._channels.values()):
            channel.wake()
            channel.finish_readers()


class Channel(Generic[R]):
    """The engine's watcher of one stream, with the readers and the long-polls that wait there."""

    __slots__ = (
        "_behind",
        "_channels",
        "_consumed",
        "_joined",
        "_waiting",
        "encoder",
        "key",
        "published_s",
        "stream",
    )

    def __init__(
        self, channels: Channels, key: Hashable, stream: Stream, encoder: Encoder[R]
    ) -> None:
        self.key = key
        self.stream = stream
        self.published_s = 0.0  # the loop's time of the last shared frame
        self._channels = channels
        self.encoder = encoder
        # The encoder has been given everything up to `_consumed` for the joined readers. Those
        # that are behind have a task, or wait for the next commit.
        self._joined: dict[R, None] = {}
        self._behind: dict[R, None] = {}
        self._consumed = stream.tail
        self._waiting: dict[asyncio.Future[None], None] = {}

    @property
    def readers(self) -> int:
        """The number of responses and long-polls that the channel feeds."""
        return len(self._joined) + len(self._behind) + len(self._waiting)

    def __len__(self) -> int:
        return len(self._joined) + len(self._behind) + len(self._waiting)

    # -- called by the engine

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        if self._waiting and self.encoder.wakes(wire, end, closed):
            self.wake()
        if self._joined:
            if start == self._consumed and len(wire) <= self.encoder.publish_bytes_max:
                self._publish(wire, end, closed)
            else:
                self._resume_joined()
        for reader in [reader for reader in self._behind if reader.catch_up is None]:
            self._bring_up(reader)

    def ended(self) -> None:
        """End every response at once: a stream that is gone has nothing to resume from."""
        self.wake()
        self.finish_readers()

    # -- called by long-polls

    def wait(self) -> asyncio.Future[None]:
        """Return a future that is done when the stream moves or ends, or the server stops."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        return future

    def stop_waiting(self, future: asyncio.Future[None]) -> None:
        self._waiting.pop(future, None)
        self._close_if_empty()

    def wake(self) -> None:
        """Answer every long-poll."""
        for future in self._waiting:
            if not future.done():
                future.set_result(None)

    # -- called by readers and their owner

    def add(self, reader: R) -> None:
        self._behind[reader] = None
        self.encoder.added(reader)
        self._bring_up(reader)

    def remove(self, reader: R) -> None:
        self._joined.pop(reader, None)
        self._behind.pop(reader, None)
        self.encoder.removed(reader)
        self._close_if_empty()

    def finish_readers(self) -> None:
        for reader in [*self._joined, *self._behind]:
            reader.finish()

    # -- readers that are behind

    def _bring_up(self, reader: R) -> None:
        """Write what a reader is missing: at once if that needs no waiting, else in a task."""
        sink = reader.sink
        assert sink is not None
        try:
            if self.encoder.is_lost(reader):
                # The client comes again with its offset, and is answered why that is gone.
                reader.finish()
                return
            progress = self.encoder.send_now(reader, sink)
        except Exception as error:  # noqa: BLE001 - a commit must not fail for one of its readers
            self._fail(error, [reader])
            return
        if progress is Progress.BEHIND:
            reader.catch_up = CatchUp()
            reader.catch_up.task = asyncio.get_running_loop().create_task(
                self._catch_up(reader, reader.catch_up)
            )
        else:
            self._settle(reader, sink, progress)

    async def _catch_up(self, reader: R, catch_up: CatchUp) -> None:
        try:
            # `catch_up` is removed when the reader joins, and `sink` when it leaves.
            while reader.catch_up is catch_up and (sink := reader.sink) is not None:
                if sink.congested:
                    await catch_up.room()
                elif self.encoder.is_lost(reader):
                    reader.finish()
                else:
                    self._settle(reader, sink, await self.encoder.send(reader, sink))
                    # Reads from memory never wait, and other tasks need a turn too.
                    await asyncio.sleep(0)
        except Exception as error:  # noqa: BLE001 - no response can carry it any more
            self._fail(error, [reader])

    def _settle(self, reader: R, sink: Sink, progress: Progress) -> None:
        """Join a reader that has everything, or end its response if nothing can follow."""
        if progress is Progress.BEHIND or reader.sink is not sink:
            return
        if self.stream.closed:
            reader.finish()
        elif progress is Progress.AHEAD:
            reader.catch_up = None
        elif reader.catch_up is None or not sink.congested:
            # A congested reader stays in its task, where nothing piles up for it.
            self._join(reader)

    def _join(self, reader: R) -> None:
        reader.catch_up = None
        if not self._joined:
            self._consumed = self.stream.tail
            self.encoder.share(reader)
        elif not self.encoder.is_level(reader):
            return  # It started after the shared position: the next commit brings it up alone.
        self._behind.pop(reader, None)
        self._joined[reader] = None

    # -- joined readers

    def _publish(self, wire: bytes, end: int, closed: bool) -> None:
        """Write one commit to all joined readers, and end their responses if it is the last."""
        try:
            self._consumed = end
            frame = self.encoder.publish(wire, end, closed)
            if frame is not None:
                self._write(frame)
        except Exception as error:  # noqa: BLE001 - the commit is done, its readers are cut off
            self._fail(error, list(self._joined))
        if closed:
            for reader in list(self._joined):
                reader.finish()

    def _write(self, frame: Frame[R]) -> None:
        shared, own = frame
        bytes_max = self._channels.buffer_bytes_max
        readers = list(self._joined)
        written = len(readers)
        for reader in readers:
            sink = reader.sink
            if sink is None:
                written -= 1
            elif sink.congested and sink.buffered > bytes_max:
                written -= 1
                self.encoder.dropped()
                reader.finish()
            else:
                sink.write(own.get(reader, shared) if own else shared)
        self.published_s = asyncio.get_running_loop().time()
        self.encoder.written(shared, written)

    def _resume_joined(self) -> None:
        """Put all joined readers behind, at what they have: the commit does not follow that, or is
        too large to publish."""
        readers, self._joined = list(self._joined), {}
        for reader in readers:
            self.encoder.rewind(reader)
            self._behind[reader] = None

    def _fail(self, error: Exception, readers: Iterable[R]) -> None:
        self._channels.traffic.failed(error)
        for reader in readers:
            reader.abort()

    def _close_if_empty(self) -> None:
        if not self:
            self._channels.close(self)
