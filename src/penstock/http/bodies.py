"""Ranges of the log as response bodies: whole when small, piece by piece when large.

Knows the engine's reads and JSON framing; nothing of requests and headers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from penstock.http.message import RangeBody
from penstock.protocol.json_mode import unframe

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

PIECE_BYTES = 256 * 1024
VIEWS_BYTES = 2 * 1024 * 1024  # the same for a piece that is in memory anyway, and not copied
SMALL_BYTES_MAX = 64 * 1024  # bodies up to this size are whole bytes, read at once


class LogBody(RangeBody):
    """A range of the log, read piece by piece while it is sent. Without `framed` it is as it lies
    there, whatever its content type."""

    __slots__ = ("_at", "_begun", "_engine", "_has_ended", "_is_framed", "_stop", "_stream")

    def __init__(
        self, engine: Engine, stream: Stream, start: int, end: int, *, framed: bool = True
    ) -> None:
        self.length = end - start  # for JSON: two brackets in, the last ",\n" out
        self._engine = engine
        self._stream = stream
        self._at = start
        self._is_framed = framed and stream.is_json
        self._stop = end - 2 if self._is_framed else end
        self._begun = False
        self._has_ended = not self._is_framed  # with a bracket

    @property
    def range(self) -> tuple[Stream, int, int]:
        """The stream and the bytes of it that are to be sent, without the brackets of JSON."""
        return self._stream, self._at, self._stop

    def first(self) -> bytes | None:
        end = self._next()
        data = self._engine.read_now(self._stream, self._at, end)
        return None if data is None else self._advance(data, end)

    def parts(self) -> list[bytes | memoryview] | None:
        if self._at >= self._stop:
            return None
        end = min(self._at + VIEWS_BYTES, self._stop)
        views = self._engine.views(self._stream, self._at, end)
        if views is None:
            return None
        parts: list[bytes | memoryview] = [*views]
        if self._is_framed and not self._begun:
            parts.insert(0, b"[")
        self._begun = True
        self._at = end
        if end == self._stop and not self._has_ended:
            self._has_ended = True
            parts.append(b"]")
        return parts

    async def pieces(self) -> AsyncIterator[bytes]:
        while self._at < self._stop:
            end = self._next()
            yield self._advance(await self._engine.read(self._stream, self._at, end), end)
        if not self._has_ended:
            self._has_ended = True
            yield b"]"  # by itself: to add it to the last piece would copy that once more

    def _next(self) -> int:
        return min(self._at + PIECE_BYTES - 1, self._stop)  # room for the bracket

    def _advance(self, data: bytes, end: int) -> bytes:
        if self._is_framed and not self._begun:
            data = b"[" + data
        self._begun = True
        self._at = end
        return data


def whole(stream: Stream, wire: bytes) -> bytes:
    """Return wire bytes as a body in one piece."""
    if not stream.is_json:
        return wire
    return unframe(wire) if wire else b"[]"


async def read_range(engine: Engine, stream: Stream, start: int, end: int) -> bytes:
    """Return all of [start, end), read in pieces that the engine allows."""
    return await engine.read_range(stream, start, end)
