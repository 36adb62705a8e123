"""The tails of this process's streams, sent to nodes that have readers of them: each commit once,
however many readers a node has.

Knows streams and frames; who may read is decided where the readers are.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import ClusterUnavailable, PenstockError, StreamNotFound
from penstock.http.bodies import LogBody
from penstock.http.forwarding.tail_frames import ONE_BEAT, Hello, encode_frame, encode_hello
from penstock.http.live.channel import Channel, Channels, Frame, Progress
from penstock.http.live.log_reader import LogEncoder, LogReader
from penstock.http.live.response import LiveReader
from penstock.http.message import Response, Sink
from penstock.log.lineage import trimmed

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.http.forwarding.control import Control
    from penstock.http.streams.read import Reads
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

TAIL: Final = "tail"
"""The question for a tail; its answer stays open."""
WORD: Final = "word"
"""The question how far a stream is."""
BYTES: Final = "bytes"
"""The question for a range of a stream."""
WINDOW_BYTES: Final = 256 * 1024
"""How far before the end a tail may begin."""
OCTETS: Final = (b"content-type", b"application/octet-stream")
ONE_BY_ONE: Final = 204
"""The status of a stream whose readers have to be forwarded one by one."""


def beat_s(settings: Settings) -> float:
    """Return the time between two beats of a tail, by which another node knows a silent stream from
    a silent owner. It need not know earlier than the owner, whose lease ends then."""
    return settings.cluster_lease_s


class Tails:
    """The tails that other nodes follow."""

    def __init__(
        self,
        engine: Engine,
        reads: Reads,
        settings: Settings,
        traffic: Traffic,
        control: Control,
    ) -> None:
        self._engine = engine
        self._reads = reads
        self._settings = settings
        self._channels = Channels(engine, traffic, buffer_bytes_max=settings.sse_buffer_bytes_max)
        self._readers: set[TailReader] = set()
        self._timer: asyncio.TimerHandle | None = None
        control.add_stream(TAIL, self._open)
        control.add(WORD, self._word)
        control.add_stream(BYTES, self._bytes)

    def drain(self) -> None:
        """End all tails: this process serves the streams no more."""
        self._channels.drain()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # -- questions

    async def _open(self, question: dict[str, Any]) -> Response:
        """Begin a tail: at the position where one of the same stream has ended, or at the offset of
        the first reader if that is near the end."""
        if self._channels.draining:
            raise self._unavailable()
        stream = await self._find(question)
        position = question.get("position")
        if position is None:
            if stream.closed:
                return Response(ONE_BY_ONE)
            position = await self._start(stream, question.get("offset"))
        elif not self._engine.is_current():
            raise self._unavailable()
        elif not stream.earliest <= position <= stream.tail:
            raise trimmed(stream)
        return Response(
            200,
            [OCTETS],
            TailReader(self, stream, position),
        )

    async def _start(self, stream: Stream, offset: str | None) -> int:
        if offset is None:
            return stream.tail
        position = await self._position(stream, offset)
        if position is None or position < stream.own_start:
            return stream.tail
        return position if stream.tail - position <= WINDOW_BYTES else stream.tail

    async def _word(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return how far a stream is, and the positions of some offsets: null for one that has to
        be refused, or looked at by the owner. If it `reads`, that restarts the TTL of the stream;
        while its tail is followed it does not run anyway."""
        stream = await self._find(question)
        positions = [await self._position(stream, offset) for offset in question["offsets"]]
        if question["sure"]:
            await self._engine.until_current(self._settings.long_poll_timeout_s)
        return {
            "tail": stream.tail,
            "earliest": stream.earliest,
            "closed": stream.closed or stream.is_gone,
            "current": self._engine.is_current(),
            "positions": positions,
        }

    async def _bytes(self, question: dict[str, Any]) -> Response:
        """Return a range as it is in the log."""
        stream = await self._find(question)
        start, end = question["start"], question["end"]
        if start < stream.earliest:
            raise trimmed(stream)
        if end > stream.tail:
            raise self._unavailable()  # Another node has had more.
        body = LogBody(self._engine, stream, start, end, framed=False)
        return Response(200, [OCTETS], body)

    async def _find(self, question: dict[str, Any]) -> Stream:
        """Return the stream of a question; StreamNotFound if it is not the one that was meant, and
        never while another node may know better."""
        try:
            await self._engine.fetch(question["path"])
            stream = self._engine.find(question["path"], touch=question.get("reads", False))
            stream_id = question.get("id")
            if stream_id is not None and stream_id != stream.id:
                raise StreamNotFound("Another stream is at the path now.")
        except PenstockError as error:
            if error.status < 500 and not self._engine.is_current():
                raise self._unavailable() from None
            raise
        return stream

    async def _position(self, stream: Stream, offset: str) -> int | None:
        position = self._reads.known_position(stream, offset)
        if position is not None:
            return position
        try:
            return await self._reads.start(stream, offset)
        except PenstockError:
            return None

    def _unavailable(self) -> ClusterUnavailable:
        return ClusterUnavailable("This node does not know whether it still owns the stream.")

    # -- readers

    def attached(self, reader: TailReader, sink: Sink) -> None:
        stream = reader.stream
        sink.write(
            encode_hello(
                Hello(
                    stream.id,
                    stream.config.content_type,
                    stream.config.ttl_s,
                    stream.config.expires_at_us,
                    stream.created_us,
                    stream.own_start,
                    stream.renewals,
                    reader.position,
                )
            )
        )
        # One that ended, or left memory, while the head was sent is asked for again.
        if self._channels.draining or stream.is_gone or not self._is_active(stream):
            reader.finish()
            return
        self._readers.add(reader)
        reader.on_leave = self._left
        channel: Channel[TailReader] | None = self._channels.get(stream.id)
        if channel is None:
            channel = self._channels.open(stream.id, stream, TailEncoder(self._engine, stream))
        reader.channel = channel
        channel.add(reader)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(beat_s(self._settings), self._beat)

    def _is_active(self, stream: Stream) -> bool:
        try:
            return self._engine.find(stream.path, touch=False) is stream
        except PenstockError:
            return False

    def _left(self, reader: LiveReader) -> None:
        assert isinstance(reader, TailReader)
        self._readers.discard(reader)

    def _beat(self) -> None:
        self._timer = None
        for reader in self._readers:
            # A node that is behind has enough to read.
            if reader.sink is not None and not reader.sink.congested:
                reader.sink.write(ONE_BEAT)
        if self._readers:
            self._timer = asyncio.get_running_loop().call_later(beat_s(self._settings), self._beat)


class TailReader(LogReader):
    """One node that follows a stream, and how far it is."""

    __slots__ = ("_tails",)

    def __init__(self, tails: Tails, stream: Stream, position: int) -> None:
        super().__init__(stream, position)
        self._tails = tails

    def attach(self, sink: Sink) -> None:
        self.sink = sink
        self._tails.attached(self, sink)


class TailEncoder(LogEncoder[TailReader]):
    """The frames of one stream."""

    __slots__ = ()

    def wakes(self, wire: bytes, end: int, closed: bool) -> bool:
        return False

    def publish(self, wire: bytes, end: int, closed: bool) -> Frame[TailReader] | None:
        self._sent = end
        return Frame(self._frame(wire, end, closed=closed, is_all=True), {})

    def share(self, reader: TailReader) -> None:
        self._sent = reader.position

    def added(self, reader: TailReader) -> None:
        """Tails are not counted: their readers are, where they are."""

    def removed(self, reader: TailReader) -> None:
        """See `added`."""

    def dropped(self) -> None:
        """A node that was too slow asks again from where it is."""

    def written(self, frame: bytes, readers: int) -> None:
        """See `added`."""

    def _write(self, reader: TailReader, sink: Sink, wire: bytes, end: int) -> Progress:
        is_all = end == self._stream.tail
        reader.position = end
        sink.write(self._frame(wire, end, closed=is_all and self._stream.closed, is_all=is_all))
        return Progress.UP_TO_DATE if is_all else Progress.BEHIND

    def _frame(self, wire: bytes, end: int, *, closed: bool, is_all: bool) -> bytes:
        current = is_all and self._engine.is_current()
        return encode_frame(wire, end, self._stream.earliest, closed=closed, current=current)
