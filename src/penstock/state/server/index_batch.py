"""Messages of a stream as rows of the index: what each says, and what is left of it at the end.

Parses events; knows nothing of the database.
"""

from __future__ import annotations

from typing import Any, Final

from penstock.errors import BadRequest, InvalidEvent
from penstock.protocol.json_mode import unframe
from penstock.protocol.offsets import Offset, parse_offset
from penstock.state.event import OPERATIONS, ControlEvent
from penstock.state.parsing import decode_exactly, decode_loosely, odd_timestamps, parse

VALUE_BYTES_MAX: Final = 4096
"""Larger values stay in the log alone."""
DELETE: Final = OPERATIONS.index("delete")


class Batch:
    """Rows for consecutive messages of a stream."""

    __slots__ = (
        "_entities",
        "_stream",
        "changes",
        "numbered",
        "odd_timestamps",
        "ordinal",
        "position",
        "resets",
        "skip_until",
        "skipped",
    )

    def __init__(self, stream: int, position: int, ordinal: int, skip_until: int) -> None:
        self._stream = stream
        self.position = position
        self.ordinal = ordinal
        self.skip_until = skip_until
        self.skipped = 0
        self.odd_timestamps = 0
        self.changes: list[tuple[object, ...]] = []
        self.resets: list[tuple[int, int, int, int]] = []
        self.numbered: dict[str, list[tuple[int, int]]] = {}
        # What is left of them at the end: position, length, value, ordinal, or None if deleted.
        self._entities: dict[tuple[str, str], tuple[int, int, bytes | None, int] | None] = {}

    @property
    def entities(self) -> dict[tuple[str, str], tuple[int, int, bytes | None, int] | None]:
        """What is left of each entity that was changed: position, length, value if small, ordinal;
        None if it was deleted."""
        return self._entities

    def set_entities(self) -> list[tuple[object, ...]]:
        return sorted(
            ((self._stream, *key, *last) for key, last in self._entities.items() if last),
            key=lambda row: row[1:3],
        )

    def gone_entities(self) -> list[tuple[object, ...]]:
        return [(self._stream, *key) for key, last in self._entities.items() if last is None]

    def add_all(self, wire: bytes) -> None:
        lines = wire.split(b",\n")[:-1]  # no line feed is part of a message
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
        place = (self.position, length, self.ordinal)
        if not isinstance(event, ControlEvent):
            operation = OPERATIONS.index(event.headers.operation)
            self.changes.append((self._stream, event.type, event.key, *place, operation))
            self.numbered.setdefault(event.type, []).append((self.position, self.ordinal))
            value = event._value
            kept = bytes(value) if len(value) <= VALUE_BYTES_MAX else None
            is_gone = operation == DELETE
            last = None if is_gone else (self.position, length, kept, self.ordinal)
            self._entities[event.type, event.key] = last
        elif event.control == "reset":
            self.resets.append((self._stream, *place))
            self._entities.clear()
            self.skip_until = self._resumes_at(event.offset)

    def _resumes_at(self, offset: str | None) -> int:
        """A reset can name a place ahead of it: what lies between does not count."""
        try:
            parsed = parse_offset(offset or "")
        except BadRequest:
            return 0
        if isinstance(parsed, Offset) and parsed.generation == self._stream:
            return parsed.position
        return 0


def _parsed(line: bytes) -> Any:
    try:
        return parse(line, strict_timestamp=False)
    except InvalidEvent:
        return None
