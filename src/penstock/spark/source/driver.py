"""What the driver does for a query: find the streams and their ends, and decide how far the next
batch goes. Reads no messages of a Penstock server; of others it has to, to count them.
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
from penstock.spark.options import EARLIEST, LATEST, Offsets, SourceOptions, is_pattern
from penstock.spark.server import Server, Tail, selects
from penstock.spark.source.admission import shares
from penstock.spark.source.offsets import BEGINNING, Kind, Place, Position
from penstock.spark.source.planning import is_recreated


class Limits(NamedTuple):
    """The most that a batch may take; None is no limit."""

    messages: int | None = None
    bytes: int | None = None


NO_LIMITS = Limits()
_KINDS: Final = {"penstock": "is Penstock's", "other": "is none of Penstock's"}
_ENDLESS: Final = "\uffff"  # sorts after every offset


class Driver:
    """One query's view of one server."""

    def __init__(self, server: Server, options: SourceOptions) -> None:
        self._server = server
        self._options = options
        self._kind: Kind | None = None
        self.unselected: list[str] = []  # streams that were read, and are not any more

    @property
    def kind(self) -> Kind:
        if self._kind is None:
            self._kind = self._server.kind()
        return self._kind

    def tails(self) -> dict[str, Tail]:
        """The streams of the query, and where they end now."""
        found = self._server.tails(self.kind, self._options.streams)
        if self._options.mode == "raw":
            return found
        for name in self._options.streams:
            tail = found.get(name)
            if tail is not None and not tail.is_json:
                raise InvalidOption(
                    f"Stream {name} is of type {tail.content_type} and has no state events: read "
                    "it with the option mode=raw."
                )
        return {name: tail for name, tail in found.items() if tail.is_json}

    def missing(self, tails: Mapping[str, Tail]) -> list[str]:
        """Streams that are named, not matched, and do not exist."""
        names = (name for name in self._options.streams if not is_pattern(name))
        return [name for name in names if self._server.path(self.kind, name) not in tails]

    def starting(self, tails: Mapping[str, Tail]) -> Place:
        """Where the query begins. A stream that is not in it is read from its beginning."""
        given = self._options.starting
        if isinstance(given, Place):
            return given
        chosen = self._chosen(given, tails, EARLIEST)
        places = {name: self._place(name, chosen[name], tail) for name, tail in tails.items()}
        return Place(self.kind, {name: at for name, at in places.items() if at != BEGINNING})

    def ending(self, start: Place, reached: Place, tails: Mapping[str, Tail]) -> Place:
        """Where a batch read ends: where its option says, else where the streams do."""
        chosen = self._chosen(self._options.ending, tails, LATEST)
        streams = dict(reached.streams)
        for name, offset in chosen.items():
            if name not in streams or offset.lower() in (LATEST, NOW):
                continue
            before = start.of(name)
            if self.kind == "other":
                streams[name] = Position(offset, before.seq + self._between(name, before, offset))
            else:
                streams[name] = self._place(name, offset, tails[name])
            if streams[name].seq <= before.seq:
                streams[name] = before
        return Place(self.kind, streams)

    def _chosen(
        self, offsets: Offsets, tails: Mapping[str, Tail], default: str
    ) -> Mapping[str, str]:
        if isinstance(offsets, str):
            return dict.fromkeys(tails, offsets)
        unknown = [name for name in offsets if name not in tails]
        if unknown:
            raise InvalidOption(
                f"Offsets are given for {unknown[0]}, which is not among the streams of the query, "
                "or does not exist."
            )
        return {name: offsets.get(name, default) for name in tails}

    def _place(self, stream: str, offset: str, tail: Tail) -> Position:
        if offset.lower() in (EARLIEST, START):
            return BEGINNING
        if self.kind == "other":
            # How many messages are before it is not known: they are counted from there.
            return Position(tail.position.offset if offset.lower() in (LATEST, NOW) else offset)
        if offset.lower() in (LATEST, NOW):
            return tail.position
        given = Position(offset)
        if is_recreated(given, tail.position):
            if not tail.is_fork:
                return given  # reported, or made a reset, when the range is planned
            try:
                return self._server.cuts(stream, offset, tail.position.offset, size=1).position(0)
            except StreamRecreated:
                return given
        if given.byte < tail.first_byte:
            # So are trimmed ones. How many messages were before it is not known any more, but not
            # more than are gone.
            return given._replace(seq=tail.first_seq)
        return self._server.cuts(stream, offset, tail.position.offset, size=1).position(0)

    def advance(self, start: Place, tails: Mapping[str, Tail], limits: Limits) -> Place:
        """The end of the batch that begins at `start`."""
        if start.kind != self.kind:
            raise InvalidOption(
                f"The offsets of this query are of a server that {_KINDS[start.kind]}, and "
                f"{self._server.url} {_KINDS[self.kind]}: it is another one. Begin with a new "
                "checkpoint, or set the url back."
            )
        streams = {name: at for name, at in start.streams.items() if name in tails}
        streams.update(self._left(start, tails))
        fresh = {name: self._before(name, start, tail) for name, tail in tails.items()}
        if self.kind == "other":
            moved = self._advance_counting(fresh, tails, limits)
        else:
            moved = self._advance_measured(fresh, tails, limits, turn=_turn(start))
        for name, place in moved.items():
            if place != BEGINNING and (place.seq > 0 or name in streams):
                streams[name] = place
        return Place(self.kind, streams)

    def _left(self, start: Place, tails: Mapping[str, Tail]) -> dict[str, Position]:
        """What stays known of streams that are not among those of the query.

        One that is not selected any more is kept as it is, to go on from there if it is selected
        again; of one that was deleted nothing is, but the number to go on from where the server
        has no generations.
        """
        away = {name: at for name, at in start.streams.items() if name not in tails}
        unselected = [name for name in away if not selects(self.kind, self._options.streams, name)]
        there = self._server.existing(self.kind, unselected) if unselected else set()
        self.unselected = sorted(there)
        kept = {}
        for name, before in away.items():
            if name in there or before.begins_anew:
                kept[name] = before
            elif self._options.fail_on_data_loss:
                raise data_lost(name, "It was deleted.")
            elif self.kind == "other":
                kept[name] = before.after_deletion()
        return kept

    def _before(self, stream: str, start: Place, tail: Tail) -> Position:
        """Where the batch begins in a stream: the start of it if it was made anew."""
        before = start.of(stream)
        if self.kind == "other":
            return before
        if is_recreated(before, tail.position):
            if self._options.fail_on_data_loss:
                raise data_lost(stream, "It was deleted, and another one made at its path.")
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
        """Where a trimmed stream begins; its end, if it was trimmed beyond that since."""
        try:
            return self._server.cuts(stream, START, tail.position.offset, size=1).position(0)
        except (Gone, StreamNotFound):
            return tail.position

    def _advance_measured(
        self, fresh: Mapping[str, Position], tails: Mapping[str, Tail], limits: Limits, *, turn: int
    ) -> dict[str, Position]:
        moved = {name: tails[name].position for name in fresh}
        messages = {name: _ahead(fresh[name], tails[name]) for name in fresh}
        sizes = {
            name: moved[name].byte - max(fresh[name].byte, tails[name].first_byte) for name in fresh
        }
        counts = None
        if limits.messages is not None and sum(messages.values()) > limits.messages:
            counts = shares(messages, limits.messages, turn=turn)
        budgets = None
        if limits.bytes is not None and sum(sizes.values()) > limits.bytes:
            budgets = shares(sizes, limits.bytes, turn=turn)
        for name, before in fresh.items():
            count = messages[name] if counts is None else counts.get(name, 0)
            size = sizes[name] if budgets is None else budgets.get(name, 0)
            if count >= messages[name] and size >= sizes[name]:
                continue
            moved[name] = self._bite(name, before, tails[name], count, size)
        return moved

    def _bite(self, stream: str, before: Position, tail: Tail, count: int, size: int) -> Position:
        """The place after so many messages, and so many bytes, but after one at least."""
        if count == 0 or size == 0:
            return before
        size = min(size, count) if not tail.is_json else size
        try:
            cuts = self._server.cuts(
                stream,
                before.offset,
                tail.position.offset,
                count=count if tail.is_json else None,
                size=size,
            )
        except (Gone, StreamNotFound) as error:
            if self._options.fail_on_data_loss:
                raise data_lost(stream, error.detail) from error
            return before  # seen as deleted, or as made anew, by the next batch
        return cuts.position(len(cuts.offsets) - 1)

    def _advance_counting(
        self, fresh: Mapping[str, Position], tails: Mapping[str, Tail], limits: Limits
    ) -> dict[str, Position]:
        moved = {}
        left = limits
        for name, before in fresh.items():
            moved[name] = self._counted(name, before, tails[name].position.offset, left)
            if left.messages is not None:
                left = left._replace(messages=left.messages - (moved[name].seq - before.seq))
        return moved

    def _counted(self, stream: str, before: Position, target: str, limits: Limits) -> Position:
        try:
            return self._count(stream, before, target, limits)
        except (Gone, StreamNotFound) as error:
            if self._options.fail_on_data_loss:
                raise data_lost(stream, error.detail) from error
            return before.after_deletion()  # and what is there now is for the next batch

    def _between(self, stream: str, start: Position, end: str) -> int:
        """How many messages are from a place to an offset, on a server that ends answers elsewhere:
        those up to the end of the stream from the one, less those from the other."""
        while True:
            behind = self._count(stream, start, _ENDLESS, NO_LIMITS)
            ahead = self._count(stream, Position(end), _ENDLESS, NO_LIMITS)
            if behind.offset == ahead.offset:  # else the stream has grown between the two
                return behind.seq - start.seq - ahead.seq

    def _count(self, stream: str, before: Position, target: str, limits: Limits) -> Position:
        """Read on from a place, up to an offset or a limit, for the number of messages alone."""
        place, size = before, 0
        most = limits.messages
        # Offsets sort as text, by the protocol; the start is spelled in two ways.
        while place.offset == START or place.offset < target:
            taken = place.seq - before.seq
            if (most is not None and taken >= most) or (limits.bytes or size + 1) <= size:
                return place
            request = requests.read(self._server.stream_url(stream), place.offset)
            answer = self._server.send(request)
            if answer.offset == place.offset:
                break
            count = _messages(answer.body, answer.content_type) - place.skip
            if most is not None and taken + count > most:
                bite = most - taken
                return place._replace(seq=place.seq + bite, skip=place.skip + bite)
            place = Position(answer.offset, place.seq + count)
            size += len(answer.body)
            if answer.up_to_date:
                break
        return place


def lag(place: Place, tails: Mapping[str, Tail]) -> dict[str, int]:
    """How many messages (of byte streams: bytes) each stream has beyond a place, if any."""
    behind = {}
    for name, tail in tails.items():
        before = place.of(name)
        ahead = _ahead(BEGINNING if is_recreated(before, tail.position) else before, tail)
        if ahead > 0:
            behind[name] = ahead
    return behind


def _ahead(before: Position, tail: Tail) -> int:
    """How many messages there are after a place; what was trimmed is not."""
    return tail.position.seq - max(before.seq, tail.first_seq)


def _messages(body: bytes, content_type: str) -> int:
    if not is_json(content_type):
        return len(body)
    return len(msgspec.json.decode(body, type=list[msgspec.Raw])) if body else 0


def _turn(start: Place) -> int:
    return sum(place.seq for place in start.streams.values())
