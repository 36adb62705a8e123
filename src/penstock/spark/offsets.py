"""How far a query has read each stream, and the JSON object that Spark's checkpoint holds of it.

Pure values; sends no request.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final, Literal, NamedTuple, get_args

from penstock.errors import InvalidOffset, InvalidOption
from penstock.protocol.offsets import START, Offset, parse_offset

Kind = Literal["penstock", "other"]
VERSION: Final = 1


@lru_cache(maxsize=1 << 16)  # Planning asks many times for each stream.
def _parsed(token: str) -> Offset | None:
    try:
        offset = parse_offset(token)
    except InvalidOffset:
        return None
    return offset if isinstance(offset, Offset) else None


class Position(NamedTuple):
    """A point between two messages of a stream.

    `seq` is the number of messages (of a byte stream: bytes) before it. Other servers have offsets
    only where one of their answers ends: then the point is `skip` messages after the offset.
    """

    offset: str
    seq: int = 0
    skip: int = 0

    @property
    def parsed(self) -> Offset | None:
        """Generation and byte of a Penstock offset; None for any other offset."""
        return _parsed(self.offset)

    @property
    def byte(self) -> int:
        parsed = self.parsed
        return 0 if parsed is None else parsed.position

    @property
    def generation(self) -> int | None:
        """The generation of the stream at this path; None at the start of any generation."""
        parsed = self.parsed
        return None if parsed is None or parsed == (0, 0) else parsed.generation

    @property
    def is_after_deletion(self) -> bool:
        """Whether the stream was deleted: a successor is read from its start, counted from here."""
        return self.offset == START and self.seq > 0 and self.skip == 0

    def after_deletion(self) -> Position:
        """The position from which a successor at the same path is counted.

        It is after the reset row, which has the number of this position: servers without
        generations do not tell the two streams apart.
        """
        return Position(START, self.seq + 1)

    def within(self, stream: Position) -> Position:
        """The same position, with the generation of another position's stream.

        A fork returns the offsets of its source for inherited messages, and accepts its own.
        """
        ours, theirs = self.parsed, stream.parsed
        if ours is None or theirs is None or ours.generation == theirs.generation:
            return self
        return self._replace(offset=Offset(theirs.generation, ours.position).token)

    def to_text(self) -> str:
        skip = f"+{self.skip}" if self.skip else ""
        return f"{self.offset}@{self.seq}{skip}"


BEGINNING: Final = Position(START)


class SourceOffsets(NamedTuple):
    """The position of a query in each stream that it has read from."""

    kind: Kind
    streams: Mapping[str, Position]

    def of(self, stream: str) -> Position:
        return self.streams.get(stream, BEGINNING)

    def select(self, is_selected: Callable[[str], bool]) -> SourceOffsets:
        """The offsets of the selected streams alone."""
        streams = {name: position for name, position in self.streams.items() if is_selected(name)}
        return SourceOffsets(self.kind, streams)

    def to_spark(self) -> dict[str, Any]:
        """The JSON object for Spark. Sorted, because Spark compares its text to detect progress."""
        streams = {name: self.streams[name].to_text() for name in sorted(self.streams)}
        return {"version": VERSION, "server": self.kind, "streams": streams}


def from_spark(document: Mapping[str, Any]) -> SourceOffsets:
    """The offsets in a JSON object of Spark's checkpoint."""
    if document.get("version") != VERSION:
        raise InvalidOption(
            f"The checkpoint has offsets of version {document.get('version')!r}, and this source "
            f"reads version {VERSION}: another source or a newer Penstock wrote it. Use that one, "
            "or begin with a new checkpoint."
        )
    kind = document["server"]
    if kind not in get_args(Kind):
        raise ValueError(f"unknown kind of server {kind!r}")
    return SourceOffsets(kind, {name: parse(text) for name, text in document["streams"].items()})


def parse(text: str) -> Position:
    offset, _, numbers = text.rpartition("@")
    seq, _, skip = numbers.partition("+")
    return Position(offset, int(seq), int(skip or 0))
