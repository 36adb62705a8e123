"""Encoded rows in blocks: what one reader had transcoded is there for all others.

A block is the messages that start in one stretch of the log; once a message starts after it, it
never changes. The cache is bounded in bytes, and the longest unused goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 256 * 1024
"""Bytes of the log that become one block."""
OVERHEAD_BYTES: Final = 300
"""What an entry costs beside its rows."""


class Block(NamedTuple):
    """Rows of the messages from a position (with `ordinal` messages before it) to another."""

    position: int
    ordinal: int
    data: bytes
    end: int
    end_ordinal: int

    @property
    def ends_stretch(self) -> bool:
        """Whether the next block of the stream starts where this one ends. One that was cut short,
        by the tail or by what was asked for, ends inside its stretch."""
        return self.end // BLOCK_BYTES > self.position // BLOCK_BYTES


Key = tuple[int, str, int]
"""Stream, table, and number of the stretch."""


class BlockCache:
    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._blocks: OrderedDict[Key, Block] = OrderedDict()
        self.size = 0
        self.hits = 0
        self.misses = 0

    def get(self, key: Key) -> Block | None:
        block = self._blocks.get(key)
        if block is None:
            self.misses += 1
            return None
        self.hits += 1
        self._blocks.move_to_end(key)
        return block

    def put(self, key: Key, block: Block) -> None:
        known = self._blocks.pop(key, None)
        if known is not None:
            self.size -= _cost(known)
        if _cost(block) > self._bytes_max:
            return
        self._blocks[key] = block
        self.size += _cost(block)
        while self.size > self._bytes_max:
            _, gone = self._blocks.popitem(last=False)
            self.size -= _cost(gone)


def after(data: bytes, seqno: int) -> bytes:
    """The rows with a greater SeqNo; found by halving, since rows are in order."""
    low, high = 0, len(data)
    while low < high:
        middle = data.rfind(b"\n", low, (low + high) // 2) + 1 or low
        if int(data[middle : data.index(b"\t", middle)]) > seqno:
            high = middle
        else:
            low = data.index(b"\n", middle) + 1
    return data[low:]


def _cost(block: Block) -> int:
    return len(block.data) + OVERHEAD_BYTES
