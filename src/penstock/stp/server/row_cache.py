"""A cache of encoded rows, in blocks that all readers of a table share.

A block has the messages that start in one stretch of the log; once a message starts after the
stretch, the block never changes. The cache is bounded in bytes and drops the least recently used.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

BLOCK_BYTES: Final = 256 * 1024
"""Bytes of the log that become one block."""
OVERHEAD_BYTES: Final = 300
"""Memory of an entry beside its rows."""


class Block(NamedTuple):
    """The rows of the messages from `position`, with `ordinal` messages before it, to `end`."""

    position: int
    ordinal: int
    data: bytes
    end: int
    end_ordinal: int

    @property
    def ends_stretch(self) -> bool:
        """Whether the next block of the stream starts where this one ends. A block that was cut by
        the tail, or by the request, ends inside its stretch."""
        return self.end // BLOCK_BYTES > self.position // BLOCK_BYTES


Key = tuple[int, str, int]
"""The stream's id, the table's name, and the number of the stretch."""


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
        existing = self._blocks.pop(key, None)
        if existing is not None:
            self.size -= _cost(existing)
        if _cost(block) > self._bytes_max:
            return
        self._blocks[key] = block
        self.size += _cost(block)
        while self.size > self._bytes_max:
            _, oldest = self._blocks.popitem(last=False)
            self.size -= _cost(oldest)


def after(data: bytes, seqno: int) -> bytes:
    """Return the rows with a greater SeqNo, by binary search: rows are in order."""
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
