"""Server-sent events from bytes: whole events out of the pieces that the network delivers.

Frames as servers write them are parsed by `bytes` methods; every other frame that the format allows
is parsed line by line, with the same result.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64
from typing import Final, NamedTuple

import msgspec

from penstock.errors import ProtocolError
from penstock.limits import MIB

EVENT_BYTES_MAX: Final = 256 * MIB

_BOM: Final = b"\xef\xbb\xbf"
_HEADS: Final = (
    (b"event: data\ndata:", "data"),
    (b"event: control\ndata:", "control"),
    (b"event:data\ndata:", "data"),
    (b"event:control\ndata:", "control"),
)


class Event(NamedTuple):
    type: str
    data: bytes


class Control(msgspec.Struct, frozen=True, rename="camel"):
    """The event that completes the data before it: nothing is delivered without one."""

    stream_next_offset: str
    stream_cursor: str | None = None
    up_to_date: bool = False
    stream_closed: bool = False


_decode_control = msgspec.json.Decoder(Control).decode


class EventParser:
    """Turns pieces into whole events, in order.

    With `json` the spaces after `data:` are not removed, since JSON ignores them.
    """

    __slots__ = ("_cr", "_held", "_held_bytes", "_json", "_started")

    def __init__(self, *, json: bool = False) -> None:
        self._json = json
        self._held: list[bytes] = []  # pieces of an event that has not ended
        self._held_bytes = 0
        self._cr = False  # the last piece ended in a CR that may be half of a CRLF
        self._started = False

    def feed(self, piece: bytes) -> list[Event]:
        frames = self._frames(piece)
        return [event for frame in frames if (event := self._event(frame)) is not None]

    def feed_with_ids(self, piece: bytes) -> list[tuple[Event, str]]:
        """Return whole events, each with the id that its own lines have, else an empty one."""
        frames = self._frames(piece)
        events = [_parse_lines(frame.strip(b"\n").removeprefix(_BOM)) for frame in frames]
        return [(event, id) for event, id in events if event is not None]

    def _frames(self, piece: bytes) -> list[bytes]:
        piece = self._with_lf_only(piece)
        frames: list[bytes] = []
        held = self._held
        if held and held[-1][-1:] == b"\n" == piece[:1]:
            # The blank line is divided between the last piece and this one.
            frames.append(b"".join(held))
            held.clear()
        end = piece.rfind(b"\n\n")
        if end < 0:
            self._hold(piece)
        else:
            frames += self._whole(piece, end)
            self._hold(piece[end + 2 :])
        return frames

    def _whole(self, piece: bytes, end: int) -> list[bytes]:
        """Return the frames that end in this piece, the last of them at `end`.

        The search runs from the back, which is more than twice as fast; no byte is searched twice.
        """
        frames = []
        while (start := piece.rfind(b"\n\n", 0, end)) >= 0:
            frames.append(piece[start + 2 : end])
            end = start
        self._held.append(piece[:end])
        frames.append(b"".join(self._held))
        self._held.clear()
        self._held_bytes = 0
        frames.reverse()
        return frames

    def _hold(self, rest: bytes) -> None:
        if not rest:
            return
        self._held.append(rest)
        self._held_bytes += len(rest)
        if self._held_bytes > EVENT_BYTES_MAX:
            raise ProtocolError(f"An event is longer than {EVENT_BYTES_MAX} bytes.")

    def _with_lf_only(self, piece: bytes) -> bytes:
        if self._cr:
            piece, self._cr = b"\r" + piece, False
        if b"\r" not in piece:
            return piece
        if piece[-1:] == b"\r":
            piece, self._cr = piece[:-1], True
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _event(self, frame: bytes) -> Event | None:
        frame = frame.strip(b"\n")
        if not self._started:
            self._started = True
            frame = frame.removeprefix(_BOM)
        last = frame.rfind(b"\n")
        if last > 0 and frame.startswith(b"id:", last + 1):
            frame = frame[:last]  # the control event has the offset too
        for head, kind in _HEADS:
            if frame.startswith(head):
                data = _joined(frame[len(head) :], exact=not self._json)
                if data is not None:
                    return Event(kind, data)
                break
        return _parse_lines(frame)[0]


def _joined(lines: bytes, *, exact: bool) -> bytes | None:
    """Return the payload of data lines, or None if there are lines of another kind.

    Each line loses one leading space if it has one. Without `exact` a line of another kind is
    noticed only at the end; in the middle it makes the JSON invalid.
    """
    parts = lines.split(b"\ndata:")
    if len(parts) == 1:
        if b"\n" in lines:
            return None
        return lines[1:] if lines[:1] == b" " else lines
    if not exact:
        return None if b"\n" in parts[-1] else b"\n".join(parts)
    if lines.count(b"\n") != len(parts) - 1:
        return None
    if lines[:1] == b" " or b"\ndata: " in lines:
        parts = [part[1:] if part[:1] == b" " else part for part in parts]
    return b"\n".join(parts)


def _parse_lines(frame: bytes) -> tuple[Event | None, str]:
    """Parse any frame line by line: other orders, comments, unknown fields."""
    kind, id = "message", ""
    data: list[bytes] = []
    for line in frame.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
        elif name == b"id":
            id = value.decode("utf-8", "replace")
    return Event(kind, b"\n".join(data)) if data else None, id


def parse_control(data: bytes) -> Control:
    try:
        return _decode_control(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"A control event cannot be decoded: {error}.") from error


def decode_base64(data: bytes) -> bytes:
    """Return the bytes of a binary stream's data event, whose base64 may be on several lines."""
    text = data.translate(None, b"\r\n")
    try:
        return a2b_base64(text, strict_mode=True) if text else b""
    except Base64Error as error:
        raise ProtocolError(f"A data event is not valid base64: {error}.") from error
