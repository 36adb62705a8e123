"""The tail of a stream on its way from its owner to another node: a hello, then frames.

Pure. A frame has the bytes of the log between two positions and says what the owner knew when it
was sent; a beat has none, and only says that the owner is there.
"""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

import msgspec

from penstock.log.stream import Renewals

CLOSED: Final = 1
CURRENT: Final = 2
"""The owner knew that there was no more."""
BEAT: Final = 4

_FRAME: Final = Struct(">BIQQ")
_LENGTH: Final = Struct(">I")
FRAME_BYTES_MAX: Final = 1 << 30
"""More than any commit has: a longer frame is no frame."""


class Hello(msgspec.Struct, frozen=True):
    """The stream, and where its frames begin."""

    id: int
    content_type: str
    ttl_s: int | None
    expires_at_us: int | None
    created_us: int
    own_start: int
    renewals: Renewals
    start: int


class TailFrame(NamedTuple):
    flags: int
    wire: bytes
    end: int
    earliest: int

    @property
    def is_closed(self) -> bool:
        return bool(self.flags & CLOSED)

    @property
    def is_current(self) -> bool:
        return bool(self.flags & CURRENT)

    @property
    def is_beat(self) -> bool:
        return bool(self.flags & BEAT)


def encode_hello(hello: Hello) -> bytes:
    content = msgspec.json.encode(hello)
    return _LENGTH.pack(len(content)) + content


def encode_frame(wire: bytes, end: int, earliest: int, *, closed: bool, current: bool) -> bytes:
    flags = (CLOSED if closed else 0) | (CURRENT if current else 0)
    return _FRAME.pack(flags, len(wire), end, earliest) + wire


ONE_BEAT: Final = _FRAME.pack(BEAT, 0, 0, 0)


class TailParser:
    """Puts pieces of a response together again. ValueError for what is no tail."""

    __slots__ = ("_data", "hello")

    def __init__(self) -> None:
        self._data = bytearray()
        self.hello: Hello | None = None

    def feed(self, data: bytes) -> list[TailFrame]:
        """Return the frames that have become whole; `hello` is there before the first."""
        buffer = self._data
        buffer += data
        at = 0
        if self.hello is None:
            if len(buffer) < _LENGTH.size:
                return []
            at = _LENGTH.size + _LENGTH.unpack_from(buffer)[0]
            _check(at)
            if len(buffer) < at:
                return []
            try:
                self.hello = msgspec.json.decode(buffer[_LENGTH.size : at], type=Hello)
            except msgspec.MsgspecError as error:
                raise ValueError("no hello") from error
        frames = []
        while len(buffer) - at >= _FRAME.size:
            flags, length, end, earliest = _FRAME.unpack_from(buffer, at)
            _check(length)
            begin = at + _FRAME.size
            if len(buffer) - begin < length:
                break
            at = begin + length
            frames.append(TailFrame(flags, bytes(buffer[begin:at]), end, earliest))
        del buffer[:at]
        return frames


def _check(length: int) -> None:
    if length > FRAME_BYTES_MAX:
        raise ValueError("too long for a frame")
