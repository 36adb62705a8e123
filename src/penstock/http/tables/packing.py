"""Compression of rows that are streamed: each piece off the loop, one encoding for all of them."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any, Final

import zstandard

_LEVEL: Final = 1
_GZIP: Final = 16 + zlib.MAX_WBITS


class Packer:
    """Encodes the pieces of one answer, in order."""

    __slots__ = ("_packer",)

    def __init__(self, coding: str) -> None:
        self._packer: Any
        if coding == "zstd":
            self._packer = zstandard.ZstdCompressor(level=_LEVEL).compressobj()
        else:
            window = _GZIP if coding == "gzip" else zlib.MAX_WBITS
            self._packer = zlib.compressobj(_LEVEL, zlib.DEFLATED, window)

    async def pack(self, data: bytes) -> bytes:
        packed: bytes = await asyncio.to_thread(self._packer.compress, data)
        return packed

    def end(self) -> bytes:
        packed: bytes = self._packer.flush()
        return packed
