"""Where a query stands in each stream, and how that is kept in Spark's checkpoint: a small JSON
object. Pure values; asks no server.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args

from penstock.errors import InvalidOffset, InvalidOption
from penstock.protocol.offsets import START, Offset, parse_offset

Kind = Literal["penstock", "other"]
VERSION: Final = 1


class Position(NamedTuple):
    """A place between two messages.

    `seq` is the number of messages (of a byte stream: bytes) before it. Other servers have offsets
    only where one of their answers ends: then `skip` messages after the offset come before it.
    """

    offset: str
    seq: int = 0
    skip: int = 0

    @property
    def parsed(self) -> Offset | None:
        """Generation and byte, of an offset as Penstock spells them."""
        try:
            found = parse_offset(self.offset)
        except InvalidOffset:
            return None
        return found if isinstance(found, Offset) else None

    @property
    def byte(self) -> int:
        parsed = self.parsed
        return 0 if parsed is None else parsed.position

    @property
    def generation(self) -> int | None:
        """Which of the streams that this path has had, or None for the start of any."""
        parsed = self.parsed
        return None if parsed is None or parsed == (0, 0) else parsed.generation

    @property
    def begins_anew(self) -> bool:
        """Whether it is after the end of a stream that was deleted: what is made there next is read
        from its start, and counted from here."""
        return self.offset == START and self.seq > 0 and self.skip == 0

    def after_deletion(self) -> Position:
        """Where another stream at the same path is counted from: after the reset, which has the
        number of this place. For servers that have no generations to tell the two apart."""
        return Position(START, self.seq + 1)

    def within(self, stream: Position) -> Position:
        """The same place, spelled with the generation of the stream that the other one is of.

        A fork gives out the offsets of its source for what it has from there, and takes its own.
        """
        ours, theirs = self.parsed, stream.parsed
        if ours is None or theirs is None or ours.generation == theirs.generation:
            return self
        return self._replace(offset=Offset(theirs.generation, ours.position).token)

    def spell(self) -> str:
        tail = f"+{self.skip}" if self.skip else ""
        return f"{self.offset}@{self.seq}{tail}"


BEGINNING: Final = Position(START)


class Place(NamedTuple):
    """Where a query stands: a position for each stream that it has read from."""

    kind: Kind
    streams: Mapping[str, Position]

    def of(self, stream: str) -> Position:
        return self.streams.get(stream, BEGINNING)

    def where(self, wanted: Callable[[str], bool]) -> Place:
        return Place(self.kind, {name: at for name, at in self.streams.items() if wanted(name)})

    def to_spark(self) -> dict[str, Any]:
        """As Spark keeps it. Ordered, since Spark sees by the text whether there is news."""
        spelled = {name: self.streams[name].spell() for name in sorted(self.streams)}
        return {"version": VERSION, "server": self.kind, "streams": spelled}


def from_spark(kept: Mapping[str, Any]) -> Place:
    if kept.get("version") != VERSION:
        raise InvalidOption(
            f"The checkpoint has offsets of version {kept.get('version')!r}, and this one reads "
            f"version {VERSION}: it was written by another source, or a newer Penstock."
        )
    if kept["server"] not in get_args(Kind):
        raise ValueError(f"unknown kind of server {kept['server']!r}")
    return Place(kept["server"], {name: parse(text) for name, text in kept["streams"].items()})


def parse(text: str) -> Position:
    offset, _, numbers = text.rpartition("@")
    seq, _, skip = numbers.partition("+")
    return Position(offset, int(seq), int(skip or 0))
