"""The driver's side of a query: which streams it reads, where they end, how far a batch goes.

Reads no messages of a Penstock server; those of other servers it reads to count them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from penstock.client import requests
from penstock.errors import DataLost, Gone, InvalidOption, StreamNotFound, StreamRecreated
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import NOW, START
from penstock.spark.error_text import data_lost
from penstock.spark.offsets import BEGINNING, Kind, Position, SourceOffsets
from penstock.spark.options import (
    EARLIEST,
    LATEST,
    Offsets,
    SourceOptions,
    Times,
    is_pattern,
)
from penstock.spark.server import Server, Tail, selects
from penstock.spark.source.planning import is_recreated


class Limits(NamedTuple):
    """The admission limits of a batch; None is no limit."""

    messages: int | None = None
    bytes: int | None = None


NO_LIMITS = Limits()
_KINDS: Final = {"penstock": "is a Penstock server", "other": "is not a Penstock server"}
_ENDLESS: Final = "\uffff"  # sorts after every offset


class Driver:
    """One query's view of one server."""

    def __init__(self, server: Server, options: SourceOptions) -> None:
        self._server = server
        self._options = options
        self._kind: Kind | None = None
        self.unselected: list[str] = []  # existing streams that the query read before

    @property
    def kind(self) -> Kind:
        if self._kind is None:
            self._kind = self._server.kind()
        return self._kind

    def tails(self) -> dict[str, Tail]:
        """The current tail of each stream of the query."""
        tails = self._server.tails(self.kind, self._options.streams)
        if self._options.mode == "raw":
            return tails
        for name in self._options.streams:
            tail = tails.get(name)
            if tail is not None and not tail.is_json:
                raise InvalidOption(
                    f"Stream {name} is of type {tail.content_type} and has no state events: read "
                    "it with the option mode=raw."
                )
        return {name: tail for name, tail in tails.items() if tail.is_json}

    def missing(self, tails: Mapping[str, Tail]) -> list[str]:
        """The streams that the option names, without a pattern, and that do not exist."""
        names = (name for name in self._options.streams if not is_pattern(name))
        return [name for name in names if self._server.path(self.kind, name) not in tails]

    def starting(self, tails: Mapping[str, Tail]) -> SourceOffsets:
        """Where the query begins. A stream without an offset is read from its beginning."""
        starting = self._options.starting
        if isinstance(starting, SourceOffsets):
            return starting
        offsets = self._offsets(starting, tails, EARLIEST)
        times = self._times(self._options.starting_times, tails)
        positions = {
            name: self._at_time(name, times[name], tail)
            if name in times
            else self._position(name, offsets[name], tail)
            for name, tail in tails.items()
        }
        return SourceOffsets(
            self.kind, {name: at for name, at in positions.items() if at != BEGINNING}
        )

    def ending(
        self, start: SourceOffsets, latest: SourceOffsets, tails: Mapping[str, Tail]
    ) -> SourceOffsets:
        """Where a batch read ends: at the option's offsets, else at the latest ones."""
        offsets = self._offsets(self._options.ending, tails, LATEST)
        times = self._times(self._options.ending_times, tails)
        streams = dict(latest.streams)
        for name, offset in offsets.items():
            if name not in streams or (offset.lower() in (LATEST, NOW) and name not in times):
                continue
            before = start.of(name)
            if name in times:
                streams[name] = self._server.at_time(name, times[name], tails[name].position.offset)
            elif self.kind == "other":
                streams[name] = Position(offset, before.seq + self._between(name, before, offset))
            else:
                streams[name] = self._position(name, offset, tails[name])
            if streams[name].seq <= before.seq:
                streams[name] = before
        return SourceOffsets(self.kind, streams)

    def _offsets(
        self, offsets: Offsets, tails: Mapping[str, Tail], default: str
    ) -> Mapping[str, str]:
        """The offset of each stream, from an option that has one for all or one for each."""
        if isinstance(offsets, str):
            return dict.fromkeys(tails, offsets)
        unknown = [name for name in offsets if name not in tails]
        if unknown:
            raise InvalidOption(
                f"Offsets are given for {unknown[0]}, which is not among the streams of the query, "
                "or does not exist."
            )
        return {name: offsets.get(name, default) for name in tails}

    def _times(self, times: Times, tails: Mapping[str, Tail]) -> dict[str, str]:
        """The time of each stream that has one in the options."""
        unknown = [name for name in times.streams if name not in tails]
        if unknown:
            raise InvalidOption(
                f"A time is given for {unknown[0]}, which is not among the streams of the query, "
                "or does not exist."
            )
        by_stream = {name: time for name in tails if (time := times.of(name)) is not None}
        if by_stream and self.kind == "other":
            raise InvalidOption(
                f"{self._server.url} is not a Penstock server and finds no offset by time: give "
                "offsets instead of timestamps."
            )
        return by_stream

    def _at_time(self, stream: str, time: str, tail: Tail) -> Position:
        position = self._server.at_time(stream, time, tail.position.offset)
        if position.byte >= tail.position.byte and self._options.time_strategy == "error":
            raise InvalidOption(
                f"Stream {stream} has no message at or after {time}. Set an earlier time, or "
                "startingOffsetsByTimestampStrategy to latest, which begins with the next message."
            )
        return BEGINNING if position.byte == 0 else position

    def _position(self, stream: str, offset: str, tail: Tail) -> Position:
        if offset.lower() in (EARLIEST, START):
            return BEGINNING
        if self.kind == "other":
            # The number of messages before it is unknown: they are counted from there.
            return Position(tail.position.offset if offset.lower() in (LATEST, NOW) else offset)
        if offset.lower() in (LATEST, NOW):
            return tail.position
        position = Position(offset)
        if is_recreated(position, tail.position):
            if not tail.is_fork:
                return position  # Planning the range reports the loss, or makes it a reset.
            try:
                return self._server.cuts(stream, offset, tail.position.offset, size=1).position(0)
            except StreamRecreated:
                return position
        if position.byte < tail.first_byte:
            # Trimmed, which planning handles too. How many messages were before it is no longer
            # known, but at most those that were trimmed.
            return position._replace(seq=tail.first_seq)
        return self._server.cuts(stream, offset, tail.position.offset, size=1).position(0)

    def advance(
        self, start: SourceOffsets, tails: Mapping[str, Tail], limits: Limits
    ) -> SourceOffsets:
        """The end of the batch that begins at `start`."""
        if start.kind != self.kind:
            raise InvalidOption(
                f"The offsets of this query are from a server that {_KINDS[start.kind]}, and "
                f"{self._server.url} {_KINDS[self.kind]}. Begin with a new checkpoint, or set the "
                "url back."
            )
        streams = {name: at for name, at in start.streams.items() if name in tails}
        streams.update(self._absent(start, tails))
        begins = {name: self._begin(name, start, tail) for name, tail in tails.items()}
        if self.kind == "other":
            ends = self._advance_counting(begins, tails, limits)
        else:
            ends = self._advance_measured(begins, tails, limits, turn=_turn(start))
        for name, end in ends.items():
            if end != BEGINNING and (end.seq > 0 or name in streams):
                streams[name] = end
        return SourceOffsets(self.kind, streams)

    def _absent(self, start: SourceOffsets, tails: Mapping[str, Tail]) -> dict[str, Position]:
        """The positions that remain of streams that the query no longer reads.

        A stream that is no longer selected keeps its position, to resume from it if it is selected
        again. A deleted stream keeps none, except its number where the server has no generations.
        """
        absent = {name: at for name, at in start.streams.items() if name not in tails}
        unselected = [
            name for name in absent if not selects(self.kind, self._options.streams, name)
        ]
        existing = self._server.existing(self.kind, unselected) if unselected else set()
        self.unselected = sorted(existing)
        positions = {}
        for name, before in absent.items():
            if name in existing or before.is_after_deletion:
                positions[name] = before
            elif self._options.fail_on_data_loss:
                raise data_lost(name, "It was deleted.")
            elif self.kind == "other":
                positions[name] = before.after_deletion()
        return positions

    def _begin(self, stream: str, start: SourceOffsets, tail: Tail) -> Position:
        """Where the batch begins in a stream: at its first message if it was recreated or trimmed
        beyond `start`."""
        before = start.of(stream)
        if self.kind == "other":
            return before
        if is_recreated(before, tail.position):
            if self._options.fail_on_data_loss:
                raise data_lost(stream, "It was deleted, and another one created at its path.")
            return BEGINNING
        if before.byte > tail.position.byte:
            raise DataLost(
                f"Stream {stream} ends at {tail.position.offset}, and was read up to "
                f"{before.offset} before: the server has lost data, or is another one."
            )
        if before != BEGINNING and before.byte < tail.first_byte:
            if self._options.fail_on_data_loss:
                raise data_lost(stream, "It was trimmed beyond what was read of it.")
            return self._earliest(stream, tail)
        return before

    def _earliest(self, stream: str, tail: Tail) -> Position:
        """Where a trimmed stream begins; its tail, if it was trimmed beyond that meanwhile."""
        try:
            return self._server.cuts(stream, START, tail.position.offset, size=1).position(0)
        except (Gone, StreamNotFound):
            return tail.position

    def _advance_measured(
        self,
        begins: Mapping[str, Position],
        tails: Mapping[str, Tail],
        limits: Limits,
        *,
        turn: int,
    ) -> dict[str, Position]:
        ends = {name: tails[name].position for name in begins}
        messages = {name: _ahead(begins[name], tails[name]) for name in begins}
        sizes = {
            name: ends[name].byte - max(begins[name].byte, tails[name].first_byte)
            for name in begins
        }
        counts = None
        if limits.messages is not None and sum(messages.values()) > limits.messages:
            counts = shares(messages, limits.messages, turn=turn)
        budgets = None
        if limits.bytes is not None and sum(sizes.values()) > limits.bytes:
            budgets = shares(sizes, limits.bytes, turn=turn)
        for name, begin in begins.items():
            count = messages[name] if counts is None else counts.get(name, 0)
            size = sizes[name] if budgets is None else budgets.get(name, 0)
            if count >= messages[name] and size >= sizes[name]:
                continue
            ends[name] = self._limited(name, begin, tails[name], count, size)
        return ends

    def _limited(self, stream: str, begin: Position, tail: Tail, count: int, size: int) -> Position:
        """The position after at most `count` messages and `size` bytes, but after one message at
        least."""
        if count == 0 or size == 0:
            return begin
        size = min(size, count) if not tail.is_json else size
        try:
            cuts = self._server.cuts(
                stream,
                begin.offset,
                tail.position.offset,
                count=count if tail.is_json else None,
                size=size,
            )
        except (Gone, StreamNotFound) as error:
            if self._options.fail_on_data_loss:
                raise data_lost(stream, error.detail) from error
            return begin  # The next batch sees it as deleted or recreated.
        return cuts.position(len(cuts.offsets) - 1)

    def _advance_counting(
        self, begins: Mapping[str, Position], tails: Mapping[str, Tail], limits: Limits
    ) -> dict[str, Position]:
        ends = {}
        remaining = limits
        for name, begin in begins.items():
            ends[name] = self._counted(name, begin, tails[name].position.offset, remaining)
            if remaining.messages is not None:
                count = ends[name].seq - begin.seq
                remaining = remaining._replace(messages=remaining.messages - count)
        return ends

    def _counted(self, stream: str, begin: Position, target: str, limits: Limits) -> Position:
        try:
            return self._count(stream, begin, target, limits)
        except (Gone, StreamNotFound) as error:
            if self._options.fail_on_data_loss:
                raise data_lost(stream, error.detail) from error
            return begin.after_deletion()  # The next batch reads what is there now.

    def _between(self, stream: str, start: Position, end: str) -> int:
        """The number of messages between a position and an offset where no answer may end: those
        from the position to the tail, less those from the offset to the tail."""
        while True:
            behind = self._count(stream, start, _ENDLESS, NO_LIMITS)
            ahead = self._count(stream, Position(end), _ENDLESS, NO_LIMITS)
            if behind.offset == ahead.offset:  # else the stream has grown between the two
                return behind.seq - start.seq - ahead.seq

    def _count(self, stream: str, begin: Position, target: str, limits: Limits) -> Position:
        """Read from a position to an offset or a limit, only to count messages."""
        position, size = begin, 0
        most = limits.messages
        # Offsets sort as text, by the protocol; the start has two spellings.
        while position.offset == START or position.offset < target:
            total = position.seq - begin.seq
            if (most is not None and total >= most) or (limits.bytes or size + 1) <= size:
                return position
            request = requests.read(self._server.stream_url(stream), position.offset)
            answer = self._server.send(request)
            if answer.offset == position.offset:
                break
            count = _message_count(answer.body, answer.content_type) - position.skip
            if most is not None and total + count > most:
                step = most - total
                return position._replace(seq=position.seq + step, skip=position.skip + step)
            position = Position(answer.offset, position.seq + count)
            size += len(answer.body)
            if answer.up_to_date:
                break
        return position


def pending(start: SourceOffsets, tails: Mapping[str, Tail]) -> int:
    """The number of messages that a batch from `start` could have."""
    return sum(lag(start, tails).values())


def lag_bytes(offsets: SourceOffsets, tails: Mapping[str, Tail]) -> dict[str, int]:
    """The number of bytes after the offsets, for each stream that has any; none of servers whose
    offsets are not bytes."""
    behind = {}
    for name, tail in tails.items():
        before = offsets.of(name)
        first = 0 if is_recreated(before, tail.position) else before.byte
        size = tail.position.byte - max(first, tail.first_byte)
        if size > 0:
            behind[name] = size
    return behind


def lag(offsets: SourceOffsets, tails: Mapping[str, Tail]) -> dict[str, int]:
    """The number of messages (of byte streams: bytes) after the offsets, for each stream that has
    any."""
    behind = {}
    for name, tail in tails.items():
        before = offsets.of(name)
        ahead = _ahead(BEGINNING if is_recreated(before, tail.position) else before, tail)
        if ahead > 0:
            behind[name] = ahead
    return behind


def shares(pending: Mapping[str, int], limit: int, *, turn: int) -> dict[str, int]:
    """The share of each stream in a limit: max-min fair, so that a flooded stream delays no other.

    Streams with little pending get all of it, the others get equal shares. With more streams than
    the limit, some get 1 and the rest nothing: `turn` selects which, and has to differ from batch
    to batch.
    """
    names = sorted(name for name, count in pending.items() if count > 0)
    if len(names) > limit:
        first = turn % len(names)
        return dict.fromkeys((names[first:] + names[:first])[:limit], 1)
    result: dict[str, int] = {}
    remaining = limit
    names.sort(key=lambda name: (pending[name], name))
    for index, name in enumerate(names):
        result[name] = min(pending[name], remaining // (len(names) - index))
        remaining -= result[name]
    return result


def _ahead(before: Position, tail: Tail) -> int:
    """The number of messages after a position; trimmed messages do not count."""
    return tail.position.seq - max(before.seq, tail.first_seq)


def _message_count(body: bytes, content_type: str) -> int:
    if not is_json(content_type):
        return len(body)
    return len(msgspec.json.decode(body, type=list[msgspec.Raw])) if body else 0


def _turn(start: SourceOffsets) -> int:
    return sum(position.seq for position in start.streams.values())
