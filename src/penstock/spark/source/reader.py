"""The work of a task: read its ranges over HTTP and turn each answer into one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import groupby, repeat
from typing import Final

import pyarrow as pa

from penstock.client import requests
from penstock.client.answers import Answer
from penstock.errors import DataLost, Gone, ProtocolError, StreamNotFound, StreamTrimmed
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import START
from penstock.spark.error_text import data_lost
from penstock.spark.offsets import Kind, Position
from penstock.spark.options import SourceOptions
from penstock.spark.server import Server
from penstock.spark.source.arrow import (
    Messages,
    Where,
    byte_messages,
    joined_messages,
    json_messages,
    located_messages,
    message_count,
    raw_batch,
    take,
)
from penstock.spark.source.bulk import BulkReads, Read
from penstock.spark.source.event_columns import reset_batch, state_batch, with_headers
from penstock.spark.source.filters import Filters
from penstock.spark.source.planning import Range

SMALL_BYTES_MAX: Final = 1024 * 1024  # ranges up to this size are read together
# Up to this size reading all of a range costs the server less than searching it.
UNFILTERED_BYTES_MAX: Final = 64 * 1024
# Answers of mode raw share a batch up to this size.
RAW_BATCH_BYTES: Final = 8 * 1024 * 1024
RAW_BATCH_MESSAGES: Final = 100_000
BATCH_BYTES: Final = 2 * 1024 * 1024  # small answers share a batch up to this size


class RangeReader:
    """Reads ranges of one server. Holds only values, because it is sent to executors."""

    def __init__(
        self, server: Server, kind: Kind, options: SourceOptions, filters: Filters
    ) -> None:
        self._server = server
        self._kind = kind
        self._options = options
        self._filters = filters

    def read(self, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
        for batch in self._batches(ranges):
            filtered = self._filters.apply(batch)
            if filtered.num_rows:
                yield filtered

    def _batches(self, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
        """Batches in the order of the ranges; small neighbours share requests and batches."""
        for small, group in groupby(ranges, self._is_small):
            if small:
                yield from self._together(list(group))
            else:
                for each in group:
                    yield from self._read(each)

    def _is_small(self, each: Range) -> bool:
        is_filtered = self._filters.for_server != requests.EVERYTHING
        most = UNFILTERED_BYTES_MAX if is_filtered else SMALL_BYTES_MAX
        return self._is_measured and each.reset is None and each.size <= most

    def _together(self, ranges: list[Range]) -> Iterator[pa.RecordBatch]:
        """Read small ranges, many answers in one batch. A range whose answer is not whole is read
        by itself."""
        server = self._server
        reads = [
            Read(server.stream_url(each.stream), each.start.offset, each.end.offset)
            for each in ranges
        ]
        answers: Iterable[Answer | None] = repeat(None)
        if len(reads) > 1:
            answers = BulkReads(server.token, timeout_s=server.timeout_s).read_all(reads)
        pending: list[tuple[bytes, Where]] = []
        size = 0
        for each, answer in zip(ranges, answers, strict=False):
            if answer is None or not self._is_whole(each, answer):
                yield from self._joined(pending)
                pending, size = [], 0
                yield from self._read(each)
                continue
            where = self._where(each, each.start, answer)
            if where.position > each.start.byte:
                # The stream was trimmed, so that messages are counted back from the range's end.
                where = where._replace(seq=each.end.seq - message_count(answer.body))
            pending.append((answer.body, where))
            size += len(answer.body)
            if size > BATCH_BYTES:
                yield from self._joined(pending)
                pending, size = [], 0
        yield from self._joined(pending)

    def _is_whole(self, each: Range, answer: Answer) -> bool:
        """Whether an answer is all of a range of JSON messages."""
        next_offset = answer.headers.get("stream-next-offset")
        if next_offset is None or not is_json(answer.content_type) or len(answer.body) <= 2:
            return False
        return Position(next_offset).within(each.end).offset == each.end.offset

    def _joined(self, pending: list[tuple[bytes, Where]]) -> Iterator[pa.RecordBatch]:
        if pending:
            messages = joined_messages(pending)
            yield raw_batch(messages) if self._options.mode == "raw" else self._events(messages)

    def _read(self, each: Range) -> Iterator[pa.RecordBatch]:
        if each.reset is not None:
            yield from self._reset(each, each.reset)
        if each.start == each.end:
            return
        remaining = each
        try:
            for batch, position in self._messages(each):
                yield batch
                remaining = remaining._replace(start=position)
        except StreamTrimmed as error:
            yield from self._trimmed(remaining, error)
        except (Gone, StreamNotFound) as error:
            self._check_loss(each.stream, error)

    def _check_loss(self, stream: str, error: Gone | StreamNotFound) -> None:
        """Raise DataLost, unless the query continues: then the next batch plans what remains."""
        if self._options.fail_on_data_loss:
            raise data_lost(stream, error.detail) from error

    def _trimmed(self, each: Range, error: StreamTrimmed) -> Iterator[pa.RecordBatch]:
        """The batches of a range whose beginning was trimmed: a reset, then what remains."""
        self._check_loss(each.stream, error)
        yield from self._reset(each, "stream-trimmed")
        try:
            first = self._server.cuts(each.stream, START, each.end.offset).position(0)
        except (Gone, StreamNotFound):
            return  # Meanwhile it was trimmed beyond the range, or deleted.
        yield from self._read(each._replace(start=first, reset=None))

    def _reset(self, each: Range, reason: str) -> Iterator[pa.RecordBatch]:
        if self._options.mode == "raw":
            return  # A reset is not a message; the column `generation` shows it.
        deleted = each.start == each.end
        # The row is before all messages of a new stream, and after all messages of a deleted one.
        start = each.start
        position = start.byte if deleted else start.byte - 1
        seq = start.seq if deleted else start.seq - 1
        generation = (each.end if start.generation is None else start).generation
        offset: str | None = start.offset
        if not self._is_measured:
            generation, position, offset = None, seq, None  # as in the other rows of the stream
        row = reset_batch(each.stream, generation, position, seq, offset, reason)
        yield with_headers(row, None) if self._options.include_headers else row

    def _messages(self, each: Range) -> Iterator[tuple[pa.RecordBatch, Position]]:
        """The batches of a range, each with the position after it."""
        position = each.start
        if not self._is_measured:
            while position.seq < each.end.seq:
                answer = self._answer(each, position)
                messages, position = self._in_range(each, position, answer)
                yield self._batch(messages, answer), position
            return
        # The next answer arrives while this one is turned into a batch.
        with (
            closing(BulkReads(self._server.token, timeout_s=self._server.timeout_s)) as bulk,
            ThreadPoolExecutor(1, "penstock-read-ahead") as read_ahead,
        ):
            pending = read_ahead.submit(self._answer, each, position, bulk)
            while position.offset != each.end.offset:
                answer = pending.result()
                after = Position(answer.offset).within(each.end)
                if after.offset != each.end.offset:
                    pending = read_ahead.submit(self._answer, each, after, bulk)
                if _is_located(answer):
                    where = self._where(each, position, answer)
                    position = after._replace(seq=position.seq)
                    yield self._events(located_messages(answer.body, where)), position
                    continue
                if position.offset == START and _first_byte(answer) > 0:
                    # The stream was trimmed: only the server knows how many messages are gone.
                    cuts = self._server.cuts(each.stream, START, each.end.offset)
                    position = position._replace(seq=cuts.position(0).seq)
                messages, position = self._in_range(each, position, answer)
                yield self._batch(messages, answer), position

    @property
    def _is_measured(self) -> bool:
        """Whether offsets are bytes, which only those of Penstock are."""
        return self._kind == "penstock"

    def _answer(self, each: Range, position: Position, bulk: BulkReads | None = None) -> Answer:
        url = self._server.stream_url(each.stream)
        until, selection = None, requests.EVERYTHING
        if self._is_measured:
            until = each.end.offset
            if self._options.mode != "raw":
                selection = self._filters.for_server
        answer = None
        if bulk is not None and until is not None and selection == requests.EVERYTHING:
            read = Read(url, position.offset, until)
            if self._options.mode == "raw":
                messages_bytes = RAW_BATCH_MESSAGES * each.size // each.messages
                answer = bulk.read_on(read, min(RAW_BATCH_BYTES, messages_bytes))
            else:
                answer = bulk.read(read)
        if answer is None:
            located = selection != requests.EVERYTHING
            request = requests.read(
                url, position.offset, until=until, filter=selection, located=located
            )
            answer = self._server.send(request)
        if Position(answer.offset).within(position).offset == position.offset:
            raise ProtocolError(
                f"Stream {each.stream} ends at {answer.offset}, and ended at {each.end.offset} "
                "before: the server has lost data, or is another one."
            )
        return answer

    def _in_range(
        self, each: Range, position: Position, answer: Answer
    ) -> tuple[Messages, Position]:
        """The messages of an answer that belong to the range, and the position after them."""
        end = self._end(each, answer)
        where = self._where(each, position, answer)
        is_array = is_json(answer.content_type)
        read = json_messages if is_array else byte_messages
        messages = read(answer.body, where)
        if self._is_measured:
            size = len(messages) if is_array else len(answer.body)
            return messages, end._replace(seq=position.seq + size)
        if is_array:
            messages = take(messages, position.skip, each.end.seq - position.seq)
            return messages, end._replace(seq=position.seq + len(messages))
        body = answer.body[position.skip : position.skip + each.end.seq - position.seq]
        messages = byte_messages(body, where._replace(position=position.seq, seq=position.seq))
        return messages, end._replace(seq=position.seq + len(body))

    def _where(self, each: Range, position: Position, answer: Answer) -> Where:
        end = self._end(each, answer)
        seq = position.seq - position.skip  # An answer begins before the messages to skip.
        byte = _first_byte(answer) if position.offset == START else position.byte
        return Where(
            stream=each.stream,
            generation=end.generation if self._is_measured else None,
            position=byte if self._is_measured else seq,
            seq=seq,
            end_offset=end.offset,
            end_byte=end.byte if self._is_measured else None,
        )

    def _end(self, each: Range, answer: Answer) -> Position:
        end = Position(answer.offset)
        return end.within(each.end) if self._is_measured else end

    def _batch(self, messages: Messages, answer: Answer) -> pa.RecordBatch:
        if self._options.mode == "raw":
            return raw_batch(messages)
        if not is_json(answer.content_type):
            raise DataLost(
                f"A stream of type {answer.content_type} has no state events: read it with the "
                "option mode=raw."
            )
        return self._events(messages)

    def _events(self, messages: Messages) -> pa.RecordBatch:
        events = state_batch(messages)
        return with_headers(events, messages) if self._options.include_headers else events


def _is_located(answer: Answer) -> bool:
    """Whether the server has applied the filter; one that does not know it sends every message."""
    return answer.headers.get("stream-filter", "").endswith(", positions")


def _first_byte(answer: Answer) -> int:
    """The first byte of an answer from the start of a stream: above 0 if that was trimmed."""
    return Position(answer.offset).byte - (0 if answer.body == b"[]" else len(answer.body))
