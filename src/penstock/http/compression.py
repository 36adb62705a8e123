"""Content codings: which one a client prefers, and encoding without stalling the event loop.

Knows bytes and header values; nothing of streams. Small bodies are encoded in place, larger ones
in a small thread pool, and the memory that encoded bodies hold is bounded: beyond the bound the
body simply goes out as it is.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import zstandard

from penstock.http.message import RangeBody
from penstock.protocol.headers import media_type

HELD_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES = 256 * 1024

_THREADS = 2
_LEVEL = 1  # streams are encoded once per reader: speed matters more than the last per cent
_CHOICES_MAX = 256
_GZIP = 16 + zlib.MAX_WBITS

# In order of preference between codings to which the client gives the same weight. At this level
# br is faster than gzip and its result smaller.
CODINGS = ("zstd", "br", "gzip", "deflate")

_INCOMPRESSIBLE = ("image/", "video/", "audio/", "font/")
_INCOMPRESSIBLE_TYPES = frozenset(
    f"application/{name}" for name in ("gzip", "zip", "zstd", "x-gzip", "x-7z-compressed", "pdf")
)


def choose_coding(accept_encoding: str) -> str | None:
    """Return the best coding that an Accept-Encoding value allows; None is no coding."""
    weights: dict[str, float] = {}
    for part in accept_encoding.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        weight = 1.0
        for parameter in parameters:
            key, _, value = parameter.partition("=")
            if key.strip() == "q":
                weight = _weight(value.strip())
        if name:
            weights["gzip" if name == "x-gzip" else name] = weight
    anything = weights.get("*", 0.0)
    best, best_weight = None, weights.get("identity", 0.0)
    for coding in CODINGS:
        weight = weights.get(coding, anything)
        if weight > best_weight or (weight == best_weight > 0 and best is None):
            best, best_weight = coding, weight
    return best


def compressible(content_type: str) -> bool:
    """Whether a body of this type may become smaller: media and archives are compressed already."""
    media = media_type(content_type)
    return not media.startswith(_INCOMPRESSIBLE) and media not in _INCOMPRESSIBLE_TYPES


def encode(coding: str, data: bytes) -> bytes:
    """Return `data` in one of CODINGS."""
    if coding == "zstd":
        # Unlike the pieces of an encoder, whole data is written with its size in the frame.
        return zstandard.ZstdCompressor(level=_LEVEL).compress(data)
    encoder = _encoder(coding)
    encoded: bytes = encoder.compress(data) + encoder.flush()
    return encoded


def _encoder(coding: str) -> Any:
    if coding == "zstd":
        return zstandard.ZstdCompressor(level=_LEVEL).compressobj()
    if coding == "br":
        return BrotliEncoder()
    window = _GZIP if coding == "gzip" else zlib.MAX_WBITS
    return zlib.compressobj(_LEVEL, zlib.DEFLATED, window)


class BrotliEncoder:
    """brotli's compressor with the methods of zlib's; loaded only when a client asks for it."""

    __slots__ = ("_compressor",)

    def __init__(self) -> None:
        import brotli

        self._compressor = brotli.Compressor(quality=_LEVEL)

    def compress(self, data: bytes) -> bytes:
        encoded: bytes = self._compressor.process(data)
        return encoded

    def flush(self) -> bytes:
        encoded: bytes = self._compressor.finish()
        return encoded


class StreamEncoder:
    """Encodes the pieces of one response in order, each off the loop, as one encoded body."""

    __slots__ = ("_encoder",)

    def __init__(self, coding: str) -> None:
        self._encoder = _encoder(coding)

    async def encode(self, data: bytes) -> bytes:
        """Return the encoded bytes that are complete after `data`; there may be none yet."""
        packed: bytes = await asyncio.to_thread(self._encoder.compress, data)
        return packed

    def end(self) -> bytes:
        """Return the remaining bytes of the encoded body."""
        packed: bytes = self._encoder.flush()
        return packed


class EncodedBody(RangeBody):
    """A large encoded body, which releases its share of the memory bound when it is closed."""

    __slots__ = ("_compressor", "_data", "_reserved")

    def __init__(self, data: bytes, compressor: Compressor, reserved: int) -> None:
        self.length = len(data)
        self._data = data
        self._compressor = compressor
        self._reserved = reserved

    async def pieces(self) -> AsyncIterator[bytes]:
        data = self._data
        for at in range(0, len(data), PIECE_BYTES):
            yield data[at : at + PIECE_BYTES]

    def close(self) -> None:
        self._compressor.release(self._reserved)
        self._reserved = 0
        self._data = b""


class Compressor:
    """One per App: the choice cache, the thread pool and the memory bound."""

    __slots__ = ("_bytes_min", "_choices", "_held", "_held_max", "_pool")

    def __init__(self, bytes_min: int, *, held_bytes_max: int = HELD_BYTES_MAX) -> None:
        self._bytes_min = bytes_min
        self._held_max = held_bytes_max
        self._held = 0
        self._choices: dict[bytes, str | None] = {}
        self._pool: ThreadPoolExecutor | None = None

    @property
    def held_bytes(self) -> int:
        return self._held

    def applies(self, content_type: str, size: int) -> bool:
        """Whether a response may come in several encodings (and so needs `Vary`)."""
        return size >= self._bytes_min and compressible(content_type)

    def choose(self, accept_encoding: bytes | None) -> str | None:
        if accept_encoding is None:
            return None
        try:
            return self._choices[accept_encoding]
        except KeyError:
            pass
        choice = choose_coding(accept_encoding.decode("latin-1"))
        if len(self._choices) >= _CHOICES_MAX:
            self._choices.clear()
        self._choices[accept_encoding] = choice
        return choice

    def reserve(self, size: int) -> bool:
        """Take a share of the memory bound; False when the remaining memory is too little."""
        if self._held + size > self._held_max:
            return False
        self._held += size
        return True

    def release(self, size: int) -> None:
        self._held -= size

    async def encode(self, coding: str, data: bytes) -> bytes:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="penstock-compress")
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, encode, coding, data)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None


def _weight(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        return 0.0
    return value if 0.0 <= value <= 1.0 else 0.0
