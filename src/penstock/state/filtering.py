"""Filters of state events by type and key, over messages in wire shape: one a line, as the log has
them.

Pure, and exactly the rules of `parsing`. Most lines are passed over by a search for the bytes that
an event needs to have; only the others are parsed.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from hashlib import blake2s
from typing import Any, Final

import msgspec

from penstock.errors import InvalidEvent
from penstock.state.event import ChangeEvent, StateEvent
from penstock.state.parsing import decode_exactly, decode_names, parse

_SEPARATOR: Final = b",\n"
_ESCAPE: Final = b"\\"
# Control events have this name, or an escape somewhere: readers that fold have to see a reset.
_CONTROL: Final = b'"control"'


class _Probe(msgspec.Struct):
    type: Any = None
    key: Any = None
    headers: Any = None


_decode_probe: Final = msgspec.json.Decoder(_Probe).decode


class EventFilter(msgspec.Struct, frozen=True, dict=True):
    """Change events of one of `types` and with one of `keys`, where empty is any, and all control
    events. Messages that are no state events are left out."""

    types: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()

    @cached_property
    def names(self) -> str:
        """The parameters that the filter has."""
        return ", ".join(name for name in ("type", "key") if getattr(self, f"{name}s"))

    @cached_property
    def digest(self) -> str:
        """A short text that differs from that of any other filter."""
        content = msgspec.json.encode([sorted(self.types), sorted(self.keys)])
        return blake2s(content, digest_size=8).hexdigest()

    def matches(self, event: StateEvent) -> bool:
        if not isinstance(event, ChangeEvent):
            return True
        return _is_one(event.type, self.types) and _is_one(event.key, self.keys)

    def spans(self, wire: bytes) -> list[tuple[int, int]]:
        """Return where the messages of `wire` are that pass, each with its separator."""
        lines, messages = [], []
        for start, end in self._candidates(wire):
            message = wire[start : end - len(_SEPARATOR)]
            if self._may_pass(message):
                lines.append((start, end))
                messages.append(message)
        if not lines:
            return []
        array = b"[" + b",".join(messages) + b"]"
        # One decoding of them all is several times faster than one of each.
        events = decode_exactly(array, strict_timestamp=False) or decode_names(array)
        if events is not None:
            return [line for line, event in zip(lines, events, strict=True) if self.matches(event)]
        return [
            line for line, message in zip(lines, messages, strict=True) if self._passes(message)
        ]

    def apply(self, wire: bytes) -> bytes:
        """Return the messages of `wire` that pass."""
        return b"".join([wire[start:end] for start, end in self.spans(wire)])

    def _may_pass(self, message: bytes) -> bool:
        """Whether a message has a type and a key of the filter, or control: if it is an event at
        all, which takes longer to tell, it passes."""
        try:
            event = _decode_probe(message)
        except msgspec.DecodeError:  # no object, or odd enough for the careful parser
            return message.lstrip()[:1] == b"{"
        if isinstance(event.headers, dict) and "control" in event.headers:
            return True
        return _is_one(event.type, self.types) and _is_one(event.key, self.keys)

    def _passes(self, message: bytes) -> bool:
        try:
            return self.matches(parse(message, strict_timestamp=False))
        except InvalidEvent:
            return False

    @cached_property
    def _needles(self) -> tuple[bytes, ...]:
        """Bytes of which a message that passes has some. A text is spelled as it is, or with an
        escape."""
        texts = self.keys or self.types
        spelled = (b'"' + text.encode() + b'"' for text in sorted(texts))
        return (_ESCAPE, _CONTROL, *spelled)

    def _candidates(self, wire: bytes) -> list[tuple[int, int]]:
        if not self.types and not self.keys:
            return list(_lines(wire))
        lines: dict[int, int] = {}
        for needle in self._needles:
            at = wire.find(needle)
            while at >= 0:
                start = wire.rfind(b"\n", 0, at) + 1
                end = lines[start] = wire.find(b"\n", at) + 1
                at = wire.find(needle, end)
        return sorted(lines.items())


def _is_one(value: Any, texts: frozenset[str]) -> bool:
    """Whether a value of any kind is one of the texts, of which none is any."""
    return not texts or (isinstance(value, str) and value in texts)


def _lines(wire: bytes) -> Iterable[tuple[int, int]]:
    start = 0
    while start < len(wire):
        end = wire.find(b"\n", start) + 1
        yield start, end
        start = end
