"""Server-sent events from bytes: whole events out of whatever pieces the network gives.

Written for the frames that servers send, with the work done by `bytes` methods; every other frame
that the format allows takes the slow way and means the same.
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
_CR: Final = 0x0D
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
    """Feed it pieces; it gives the events that are whole, in order."""

    __slots__ = ("_held", "_held_bytes", "_last", "_started")

    def __init__(self) -> None:
        self._held: list[bytes] = []  # pieces of an event that has not ended
        self._held_bytes = 0
        self._last = b""  # a CR that may be half of a CRLF
        self._started = False

    def feed(self, piece: bytes) -> list[Event]:
        piece = self._with_lf_only(piece)
        held = self._held
        # The blank line may be divided between the last piece and this one.
        ends_here = b"\n\n" in piece or (held and held[-1][-1:] == b"\n" == piece[:1])
        if not ends_here:
            if piece:
                held.append(piece)
                self._held_bytes += len(piece)
                if self._held_bytes > EVENT_BYTES_MAX:
                    raise ProtocolError(f"An event is longer than {EVENT_BYTES_MAX} bytes.")
            return []
        held.append(piece)
        frames = b"".join(held).split(b"\n\n")
        rest = frames.pop()
        self._held = [rest] if rest else []
        self._held_bytes = len(rest)
        events = []
        for frame in frames:
            event = _event(frame)
            if event is not None:
                events.append(event)
        return events

    def _with_lf_only(self, piece: bytes) -> bytes:
        if not self._started and piece:
            self._started = True
            piece = piece.removeprefix(_BOM)
        if self._last:
            piece, self._last = self._last + piece, b""
        if _CR not in piece:
            return piece
        if piece[-1] == _CR:
            piece, self._last = piece[:-1], b"\r"
        return piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _event(frame: bytes) -> Event | None:
    for head, kind in _HEADS:
        if frame.startswith(head):
            lines = frame[len(head) :]
            breaks = lines.count(b"\n")
            if breaks == 0:
                return Event(kind, lines[1:] if lines[:1] == b" " else lines)
            if breaks == lines.count(b"\ndata:"):
                return Event(kind, _joined(lines, breaks))
            break
    return _slowly(frame)


def _joined(lines: bytes, breaks: int) -> bytes:
    """The payload of data lines, of which each loses one space at its start, if it has one."""
    spaced = lines.count(b"\ndata: ")
    if spaced == 0:
        joined = lines.replace(b"\ndata:", b"\n")
    elif spaced == breaks:
        joined = lines.replace(b"\ndata: ", b"\n")
    else:
        first, *others = lines.split(b"\ndata:")
        joined = b"\n".join([first, *(line[1:] if line[:1] == b" " else line for line in others)])
    return joined[1:] if joined[:1] == b" " else joined


def _slowly(frame: bytes) -> Event | None:
    """Any frame, line by line: other orders, comments, unknown fields."""
    kind = "message"
    data: list[bytes] = []
    for line in frame.split(b"\n"):
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            data.append(value)
        elif name == b"event":
            kind = value.decode("utf-8", "replace")
    return Event(kind, b"\n".join(data)) if data else None


def parse_control(data: bytes) -> Control:
    try:
        return _decode_control(data)
    except msgspec.DecodeError as error:
        raise ProtocolError(f"A control event cannot be understood: {error}") from error


def decode_base64(data: bytes) -> bytes:
    """The bytes of a binary stream's data event, whose base64 may be on several lines."""
    text = data.translate(None, b"\r\n")
    try:
        return a2b_base64(text, strict_mode=True) if text else b""
    except Base64Error as error:
        raise ProtocolError(f"A data event is not valid base64: {error}") from error
