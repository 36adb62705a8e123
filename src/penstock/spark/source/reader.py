"""What a task does: read its ranges over HTTP and turn each answer into one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, repeat
from typing import Final

import pyarrow as pa

from penstock.client import requests
from penstock.client.answers import Answer
from penstock.errors import DataLost, Gone, ProtocolError, StreamNotFound, StreamTrimmed
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import START
from penstock.spark.error_text import data_lost
from penstock.spark.options import SourceOptions
from penstock.spark.server import Server
from penstock.spark.source.arrow import (
    Messages,
    Where,
    byte_messages,
    joined_messages,
    json_messages,
    message_count,
    raw_batch,
    take,
)
from penstock.spark.source.event_columns import reset_batch, state_batch
from penstock.spark.source.filters import Filters
from penstock.spark.source.offsets import Kind, Position
from penstock.spark.source.pipelined import Read, fetch
from penstock.spark.source.planning import Range

SMALL_BYTES_MAX: Final = 64 * 1024  # ranges up to this size are read together
BATCH_BYTES: Final = 2 * 1024 * 1024  # of small answers in one batch


class RangeReader:
    """Reads ranges of one server. Goes to executors, so it holds values alone."""

    def __init__(
        self, server: Server, kind: Kind, options: SourceOptions, filters: Filters
    ) -> None:
        self._server = server
        self._kind = kind
        self._options = options
        self._filters = filters

    def read(self, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(ranges):
            kept = self._filters.apply(batch)
            if kept.num_rows:
                yield kept

    def _batches(self, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
        """Batches in the order of the ranges; small neighbours share requests and batches."""
        for small, group in groupby(ranges, self._is_small):
            if small:
                yield from self._together(list(group))
            else:
                for wanted in group:
                    yield from self._read(wanted)

    def _is_small(self, wanted: Range) -> bool:
        return self._measured and wanted.reset is None and wanted.size <= SMALL_BYTES_MAX

    def _together(self, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
        """Small ranges: many answers in one batch. What does not go well is read by itself."""
        server = self._server
        reads = [
            Read(server.stream_url(each.stream), each.start.offset, each.end.offset)
            for each in ranges
        ]
        answers = fetch(reads, server.token) if len(reads) > 1 else repeat(None)
        found: list[tuple[bytes, Where]] = []
        size = 0
        for wanted, answer in zip(ranges, answers, strict=False):
            if answer is None or not self._is_whole(wanted, answer):
                yield from self._joined(found)
                found, size = [], 0
                yield from self._read(wanted)
                continue
            where = self._where(wanted, wanted.start, answer)
            if where.position > wanted.start.byte:
                # Of a trimmed stream: counted from the end, which is known.
                where = where._replace(seq=wanted.end.seq - message_count(answer.body))
            found.append((answer.body, where))
            size += len(answer.body)
            if size > BATCH_BYTES:
                yield from self._joined(found)
                found, size = [], 0
        yield from self._joined(found)

    def _is_whole(self, wanted: Range, answer: Answer) -> bool:
        """Whether an answer is all of a range of JSON messages."""
        told = answer.headers.get("stream-next-offset")
        if told is None or not is_json(answer.content_type) or len(answer.body) <= 2:
            return False
        return Position(told).within(wanted.end).offset == wanted.end.offset

    def _joined(self, found: list[tuple[bytes, Where]]) -> Iterator[pa.RecordBatch]:
        if found:
            body, messages = joined_messages(found)
            yield (
                raw_batch(messages) if self._options.mode == "raw" else state_batch(messages, body)
            )

    def _read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        if wanted.reset is not None:
            yield from self._reset(wanted, wanted.reset)
        if wanted.start == wanted.end:
            return
        left = wanted
        try:
            for batch, place in self._messages(wanted):
                yield batch
                left = left._replace(start=place)
        except StreamTrimmed as error:
            yield from self._trimmed(left, error)
        except (Gone, StreamNotFound) as error:
            self._lost(wanted.stream, error)

    def _lost(self, stream: str, error: Gone | StreamNotFound) -> None:
        """Say so, or go on with nothing: the next batch sees what has become of the stream."""
        if self._options.fail_on_data_loss:
            raise data_lost(stream, error.detail) from error

    def _trimmed(self, wanted: Range, error: StreamTrimmed) -> Iterator[pa.RecordBatch]:
        """The beginning of the range is gone: a reset, then what is left of it."""
        self._lost(wanted.stream, error)
        yield from self._reset(wanted, "stream-trimmed")
        try:
            first = self._server.cuts(wanted.stream, START, wanted.end.offset).position(0)
        except (Gone, StreamNotFound):
            return  # trimmed beyond the range, or gone by now
        yield from self._read(wanted._replace(start=first, reset=None))

    def _reset(self, wanted: Range, reason: str) -> Iterator[pa.RecordBatch]:
        if self._options.mode == "raw":
            return  # no event, so no row: the generation column tells
        deleted = wanted.start == wanted.end
        # Before everything of the new stream; after everything that was read of one that is gone.
        start = wanted.start
        position = start.byte if deleted else start.byte - 1
        seq = start.seq if deleted else start.seq - 1
        generation = (wanted.end if start.generation is None else start).generation
        offset: str | None = start.offset
        if not self._measured:
            generation, position, offset = None, seq, None  # as in its other rows
        yield reset_batch(wanted.stream, generation, position, seq, offset, reason)

    def _messages(self, wanted: Range) -> Iterator[tuple[pa.RecordBatch, Position]]:
        """The batches of a range, each with the place after it."""
        place = wanted.start
        if not self._measured:
            while place.seq < wanted.end.seq:
                answer = self._answer(wanted, place)
                messages, place = self._taken(wanted, place, answer)
                yield self._batch(messages, answer), place
            return
        # The next answer is on its way while this one is made into a batch.
        with ThreadPoolExecutor(1, "penstock-read-ahead") as ahead:
            coming = ahead.submit(self._answer, wanted, place)
            while place.offset != wanted.end.offset:
                answer = coming.result()
                after = Position(answer.offset).within(wanted.end)
                if after.offset != wanted.end.offset:
                    coming = ahead.submit(self._answer, wanted, after)
                if place.offset == START and _first_byte(answer) > 0:
                    # The stream has been trimmed: how many messages are gone, the server knows.
                    cuts = self._server.cuts(wanted.stream, START, wanted.end.offset)
                    place = place._replace(seq=cuts.position(0).seq)
                messages, place = self._taken(wanted, place, answer)
                yield self._batch(messages, answer), place

    @property
    def _measured(self) -> bool:
        return self._kind == "penstock"

    def _answer(self, wanted: Range, place: Position) -> Answer:
        url = self._server.stream_url(wanted.stream)
        until = wanted.end.offset if self._measured else None
        answer = self._server.send(requests.read(url, place.offset, until=until))
        if Position(answer.offset).within(place).offset == place.offset:
            raise ProtocolError(
                f"Stream {wanted.stream} ends at {answer.offset}, and {wanted.end.offset} was its "
                "end before: the server has lost data, or is another one."
            )
        return answer

    def _taken(self, wanted: Range, place: Position, answer: Answer) -> tuple[Messages, Position]:
        """The messages of an answer that belong to the range, and the place after them."""
        end = Position(answer.offset)
        if self._measured:
            end = end.within(wanted.end)
        where = self._where(wanted, place, answer)
        is_array = is_json(answer.content_type)
        read = json_messages if is_array else byte_messages
        messages = read(answer.body, where)
        if self._measured:
            size = len(messages) if is_array else len(answer.body)
            return messages, end._replace(seq=place.seq + size)
        if is_array:
            messages = take(messages, place.skip, wanted.end.seq - place.seq)
            return messages, end._replace(seq=place.seq + len(messages))
        body = answer.body[place.skip : place.skip + wanted.end.seq - place.seq]
        messages = byte_messages(body, where._replace(position=place.seq, seq=place.seq))
        return messages, end._replace(seq=place.seq + len(body))

    def _where(self, wanted: Range, place: Position, answer: Answer) -> Where:
        end = Position(answer.offset)
        if self._measured:
            end = end.within(wanted.end)
        counted = place.seq - place.skip  # an answer begins before what is to be skipped in it
        position = _first_byte(answer) if place.offset == START else place.byte
        return Where(
            stream=wanted.stream,
            generation=end.generation if self._measured else None,
            position=position if self._measured else counted,
            seq=counted,
            end_offset=end.offset,
            end_byte=end.byte if self._measured else None,
        )

    def _batch(self, messages: Messages, answer: Answer) -> pa.RecordBatch:
        if self._options.mode == "raw":
            return raw_batch(messages)
        if not is_json(answer.content_type):
            raise DataLost(
                f"A stream of type {answer.content_type} has no state events: read it with the "
                "option mode=raw."
            )
        return state_batch(messages, answer.body)


def _first_byte(answer: Answer) -> int:
    """Where an answer from the beginning of a stream begins: not at 0 if that was trimmed."""
    return Position(answer.offset).byte - (0 if answer.body == b"[]" else len(answer.body))
