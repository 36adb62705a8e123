"""Reads of a state stream through a filter: pages of the events that pass, and their live encoder.

The offset moves over everything, so that a reader resumes without loss. Work is bounded per turn of
the event loop and per response.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.errors import InvalidParameter
from penstock.http.bodies import read_range
from penstock.http.live.channel import Frame, Progress
from penstock.http.streams.sse import SseEncoder, SseReader
from penstock.state.filtering import EventFilter

if TYPE_CHECKING:
    from penstock.http.message import Sink
    from penstock.http.traffic import Traffic
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.protocol.sse import SseForm

PIECE_BYTES: Final = 64 * 1024
"""The size of what is searched in one turn of the event loop. A piece is longer if one message is:
that is searched on a thread."""
PAGE_BYTES_MAX: Final = 1024 * 1024
"""Bytes of matching messages after which a page ends: it is in memory as a whole."""
SILENT_BYTES: Final = 1024 * 1024
SILENT_S: Final = 5.0
"""After so many bytes without a match a live reader that is behind, and after so much time one that
is not, gets the offset: what it has to search again after a reconnect."""
MEMO_MAX: Final = 2
"""Pieces of which a channel remembers what passes, for readers that search the same ones."""


def filter_of(values: Mapping[str, list[str]]) -> EventFilter | None:
    """Return the filter that the parameters `type` and `key` make; None without any."""
    if not values:
        return None
    for name, texts in values.items():
        if "" in texts:
            raise InvalidParameter(f"`{name}` is empty; leave it out to read every {name}.")
        if len(texts) > limits.FILTER_VALUES_MAX:
            raise InvalidParameter(
                f"`{name}` can come {limits.FILTER_VALUES_MAX} times; read without it, and filter "
                "what comes."
            )
    return EventFilter(frozenset(values.get("type", ())), frozenset(values.get("key", ())))


def check_filterable(stream: Stream) -> None:
    if not stream.is_json:
        raise InvalidParameter(
            "`type` and `key` filter state events, and only application/json streams have those; "
            f"this one is {stream.config.content_type}."
        )


class Page(NamedTuple):
    """Messages that pass a filter, in wire shape, and the position up to which was searched.

    `starts` are the positions of the messages, `lines` the numbers of messages between the start of
    the search and each.
    """

    wire: bytes
    end: int
    starts: Sequence[int] = ()
    lines: Sequence[int] = ()

    def located(self, ordinal: int, messages: bytes) -> bytes:
        """Return a document with the array `messages` and the location of each; `ordinal` is that
        of the first message of the search."""
        ordinals = [ordinal + line for line in self.lines]
        fields = (msgspec.json.encode(self.starts), msgspec.json.encode(ordinals), messages)
        return b'{"positions":%b,"ordinals":%b,"messages":%b}' % fields


async def search(
    engine: Engine,
    stream: Stream,
    event_filter: EventFilter,
    start: int,
    *,
    until: int,
    count: int | None,
    bytes_max: int,
) -> Page:
    """Return what passes from `start` on: up to `until`, a full page, or `count` messages, and at
    most `bytes_max` further."""
    parts: list[bytes] = []
    starts: list[int] = []
    lines: list[int] = []
    size, position, passed = 0, start, 0
    is_full = False
    while position < min(until, start + bytes_max) and size < PAGE_BYTES_MAX and not is_full:
        end = await engine.plan(stream, position, max_bytes=PIECE_BYTES, until=until)
        wire = await read_range(engine, stream, position, end)
        at = 0
        for first, last in await _spans(event_filter, wire):
            passed += wire.count(b"\n", at, first)
            starts.append(position + first)
            lines.append(passed)
            parts.append(wire[first:last])
            size += last - first
            at = first
            if len(starts) == count:
                is_full, end = True, position + last
                break
        passed += wire.count(b"\n", at)
        position = end
        await asyncio.sleep(0)  # reads from memory never wait, and other tasks need a turn too
    return Page(b"".join(parts), position, starts, lines)


async def _spans(event_filter: EventFilter, wire: bytes) -> list[tuple[int, int]]:
    if len(wire) > PIECE_BYTES:
        return await asyncio.to_thread(event_filter.spans, wire)
    return event_filter.spans(wire)


class FilteredEncoder(SseEncoder):
    """The events of one stream that pass one filter: each piece is searched once for all readers
    and long-polls."""

    __slots__ = ("_bytes_max", "_filter", "_memo", "_quiet", "_searches", "_spoken_s")

    def __init__(
        self,
        engine: Engine,
        traffic: Traffic,
        stream: Stream,
        form: SseForm,
        event_filter: EventFilter,
        *,
        cursor: Callable[[int], int],
        bytes_max: int,
    ) -> None:
        super().__init__(engine, traffic, stream, form, cursor=cursor)
        self.publish_bytes_max = PIECE_BYTES
        self._filter = event_filter
        self._bytes_max = bytes_max
        self._memo: OrderedDict[tuple[int, int], bytes] = OrderedDict()
        self._searches: dict[tuple[int, int], asyncio.Task[bytes]] = {}
        self._quiet = (stream.tail, stream.tail)  # a range in which nothing passes
        self._spoken_s = 0.0

    def wakes(self, wire: bytes, end: int, closed: bool) -> bool:
        start = end - len(wire)
        if closed or len(wire) > self.publish_bytes_max or self._matching(wire, end):
            return True
        first, last = self._quiet
        self._quiet = (first if last == start else start, end)
        return False

    def after_quiet(self, position: int) -> int:
        """Return how far nothing passes from `position` on, as long-polls were not woken there."""
        first, last = self._quiet
        return last if first <= position <= last else position

    def publish(self, wire: bytes, end: int, closed: bool) -> Frame[SseReader] | None:
        matching = self._matching(wire, end)
        now_s = asyncio.get_running_loop().time()
        if not matching and not closed and now_s - self._spoken_s < SILENT_S:
            self._sent = end
            return None
        self._spoken_s = now_s
        return super().publish(matching, end, closed)

    def rewind(self, reader: SseReader) -> None:
        super().rewind(reader)
        reader.searched_from = reader.position

    async def prepare(self, wire: bytes, end: int) -> None:
        key = (end - len(wire), end)
        if len(wire) <= PIECE_BYTES or key in self._memo:
            return
        search = self._searches.get(key)
        if search is None:
            # One for all readers, who are behind by the same commit.
            search = asyncio.ensure_future(asyncio.to_thread(self._filter.apply, wire))
            self._searches[key] = search
            search.add_done_callback(lambda done: self._searches.pop(key))
        self._remember(key, await asyncio.shield(search))

    def _write(self, reader: SseReader, sink: Sink, wire: bytes, end: int) -> Progress:
        matching = self._matching(wire, end)
        is_over = end - reader.searched_from >= self._bytes_max and end < self._stream.tail
        if not (matching or is_over or end == self._stream.tail):
            before, reader.position = reader.position, end
            if before // SILENT_BYTES == end // SILENT_BYTES:
                return Progress.BEHIND
        progress = super()._write(reader, sink, matching, end)
        if is_over:
            reader.finish()  # it comes again from there, as after any end of a response
        return progress

    def _matching(self, wire: bytes, end: int) -> bytes:
        key = (end - len(wire), end)
        matching = self._memo.get(key)
        if matching is None:
            matching = self._filter.apply(wire)
            self._remember(key, matching)
        return matching

    def _remember(self, key: tuple[int, int], matching: bytes) -> None:
        self._memo[key] = matching
        if len(self._memo) > MEMO_MAX:
            self._memo.popitem(last=False)
