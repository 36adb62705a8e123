"""What a task does: read its ranges over HTTP and turn each answer into one Arrow batch."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from penstock.client import _requests
from penstock.client._answers import Answer
from penstock.errors import DataLost, Gone, ProtocolError, StreamNotFound, StreamTrimmed
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import START
from penstock.spark.arrow import Messages, Where, byte_messages, json_messages, raw_batch, take
from penstock.spark.events import reset_batch, state_batch
from penstock.spark.filters import Filters
from penstock.spark.options import SourceOptions
from penstock.spark.planning import Range, lost
from penstock.spark.positions import Kind, Position
from penstock.spark.server import Server


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
        for wanted in ranges:
            for batch in self._read(wanted):
                kept = self._filters.apply(batch)
                if kept.num_rows:
                    yield kept

    def _read(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        if wanted.reset is not None:
            yield from self._reset(wanted, wanted.reset)
        if wanted.start == wanted.end:
            return
        try:
            yield from self._messages(wanted)
        except StreamTrimmed as error:
            yield from self._trimmed(wanted, error)
        except (Gone, StreamNotFound) as error:
            self._lost(wanted.stream, error)

    def _lost(self, stream: str, error: Gone | StreamNotFound) -> None:
        """Say so, or go on with nothing: the next batch sees what has become of the stream."""
        if self._options.fail_on_data_loss:
            raise lost(stream, error.detail) from error

    def _trimmed(self, wanted: Range, error: StreamTrimmed) -> Iterator[pa.RecordBatch]:
        """The beginning of the range is gone: a reset, then what is left of it."""
        self._lost(wanted.stream, error)
        yield from self._reset(wanted, "stream-trimmed")
        try:
            first = self._server.cuts(wanted.stream, START, wanted.end.offset).position(0)
            yield from self._messages(wanted._replace(start=first))
        except (Gone, StreamNotFound):
            return  # trimmed beyond the range, or gone by now

    def _reset(self, wanted: Range, reason: str) -> Iterator[pa.RecordBatch]:
        if self._options.mode == "raw":
            return  # no event, so no row: the generation column tells
        deleted = wanted.start == wanted.end
        # Before everything of the new stream; after everything that was read of one that is gone.
        start = wanted.start
        position = start.byte if deleted else start.byte - 1
        seq = start.seq if deleted else start.seq - 1
        generation = (wanted.end if start.generation is None else start).generation
        yield reset_batch(wanted.stream, generation, position, seq, wanted.start.offset, reason)

    def _messages(self, wanted: Range) -> Iterator[pa.RecordBatch]:
        place = wanted.start
        while place.offset != wanted.end.offset if self._measured else place.seq < wanted.end.seq:
            answer = self._answer(wanted, place)
            messages, place = self._taken(wanted, place, answer)
            yield self._batch(messages, answer)

    @property
    def _measured(self) -> bool:
        return self._kind == "penstock"

    def _answer(self, wanted: Range, place: Position) -> Answer:
        url = self._server.stream_url(wanted.stream)
        until = wanted.end.offset if self._measured else None
        answer = self._server.send(_requests.read(url, place.offset, until=until))
        if answer.offset == place.offset:
            raise ProtocolError(
                f"Stream {wanted.stream} ends at {answer.offset}, and {wanted.end.offset} was its "
                "end before: the server has lost data, or is another one."
            )
        return answer

    def _taken(self, wanted: Range, place: Position, answer: Answer) -> tuple[Messages, Position]:
        """The messages of an answer that belong to the range, and the place after them."""
        end = Position(answer.offset)
        counted = place.seq - place.skip  # an answer begins before what is to be skipped in it
        where = Where(
            stream=wanted.stream,
            generation=end.generation if self._measured else None,
            position=place.byte if self._measured else counted,
            seq=counted,
            end_offset=answer.offset,
            end_byte=end.byte if self._measured else None,
        )
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

    def _batch(self, messages: Messages, answer: Answer) -> pa.RecordBatch:
        if self._options.mode == "raw":
            return raw_batch(messages)
        if not is_json(answer.content_type):
            raise DataLost(
                f"A stream of type {answer.content_type} has no state events: read it with the "
                "option mode=raw."
            )
        return state_batch(messages, answer.body)
