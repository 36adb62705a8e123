"""Messages of a stream as rows of the index: their changes, and the entities at the end.

Parses events; does not know the database.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from msgspec import UNSET

from penstock.errors import BadRequest, InvalidEvent
from penstock.protocol.json_mode import unframe
from penstock.protocol.offsets import Offset, parse_offset
from penstock.state.event import OPERATIONS, ControlEvent
from penstock.state.expiry import deadline_us
from penstock.state.parsing import decode_exactly, decode_loosely, odd_timestamps, parse

VALUE_BYTES_MAX: Final = 4096
"""Larger values are not indexed, and read from the log."""
DELETE: Final = OPERATIONS.index("delete")
NOTHING: Final[Mapping[int, int]] = {}


class EntityRow(NamedTuple):
    """An entity as the index stores it."""

    position: int
    length: int
    value: bytes | None
    """None if it is too large."""
    ordinal: int
    expires_us: int | None


class Batch:
    """The rows of consecutive messages of a stream."""

    __slots__ = (
        "_entities",
        "_inherited",
        "_stream",
        "changes",
        "deadline_us",
        "floor",
        "numbered",
        "odd_timestamps",
        "ordinal",
        "position",
        "resets",
        "skip_until",
        "skipped",
    )

    def __init__(
        self,
        stream: int,
        position: int,
        ordinal: int,
        skip_until: int,
        *,
        inherited: Mapping[int, int] = NOTHING,
    ) -> None:
        """`inherited` has the generations that a fork inherits from, and where each of them ends
        for it."""
        self._stream = stream
        self._inherited = inherited
        self.position = position
        self.ordinal = ordinal
        self.skip_until = skip_until
        self.skipped = 0
        self.odd_timestamps = 0
        self.deadline_us: int | None = None  # the earliest of all events
        self.changes: list[tuple[object, ...]] = []
        self.resets: list[tuple[int, int, int, int, int]] = []
        self.floor = 0  # nothing before this position counts, because of the resets
        self.numbered: dict[str, list[tuple[int, int]]] = {}
        self._entities: dict[tuple[str, str], EntityRow | None] = {}

    @property
    def entities(self) -> dict[tuple[str, str], EntityRow | None]:
        """The changed entities at the end of the batch; None if deleted."""
        return self._entities

    def set_entities(self) -> list[tuple[object, ...]]:
        return sorted(
            ((self._stream, *key, *last) for key, last in self._entities.items() if last),
            key=lambda row: row[1:3],
        )

    def deleted_entities(self) -> list[tuple[object, ...]]:
        return [(self._stream, *key) for key, last in self._entities.items() if last is None]

    def add_all(self, wire: bytes) -> None:
        """Add the messages of wire bytes."""
        lines = wire.split(b",\n")[:-1]  # messages contain no line feed
        array = unframe(wire)
        events: list[Any] | None = decode_exactly(array, strict_timestamp=False)
        if events is None:
            events = decode_loosely(array)
        if events is None:
            events = [_parsed(line) for line in lines]
        self.odd_timestamps = odd_timestamps(filter(None, events))
        for line, event in zip(lines, events, strict=True):
            length = len(line) + 2
            if event is None:
                self.skipped += 1
            elif self.position >= self.skip_until:
                self._add(event, length)
            self.position += length
            self.ordinal += 1

    def _add(self, event: Any, length: int) -> None:
        location = (self.position, length, self.ordinal)
        if not isinstance(event, ControlEvent):
            operation = OPERATIONS.index(event.headers.operation)
            self.changes.append((self._stream, event.type, event.key, *location, operation))
            self.numbered.setdefault(event.type, []).append((self.position, self.ordinal))
            value = event._value
            small = bytes(value) if len(value) <= VALUE_BYTES_MAX else None
            last = None
            if operation != DELETE:
                deadline = None if event.headers.expires_at is UNSET else self._deadline(event)
                last = EntityRow(self.position, length, small, self.ordinal, deadline)
            self._entities[event.type, event.key] = last
        elif event.control == "reset":
            floor = self._floor(event.offset, self.position + length)
            self.resets.append((self._stream, *location, floor))
            self.floor = max(self.floor, floor)
            self.skip_until = floor
            for entity, last in self._entities.items():
                if last is not None and last.position < floor:
                    self._entities[entity] = None

    def _deadline(self, event: Any) -> int | None:
        deadline = deadline_us(event)
        if deadline is not None and (self.deadline_us is None or deadline < self.deadline_us):
            self.deadline_us = deadline
        return deadline

    def _floor(self, offset: str | None, end: int) -> int:
        """Return the position that a reset names, ahead or behind; else that of its end. Nothing
        before it counts any more."""
        try:
            parsed = parse_offset(offset or "")
        except BadRequest:
            return end
        if not isinstance(parsed, Offset):
            return end
        generation, position = parsed
        if generation == self._stream or position <= self._inherited.get(generation, -1):
            return position
        return end


def _parsed(line: bytes) -> Any:
    try:
        return parse(line, strict_timestamp=False)
    except InvalidEvent:
        return None
