"""Batches of one journal file on their way past the page cache, which takes whole blocks only: the
bytes of the last block stay in memory, and are written again with the batch that follows them.

Apart from `journal`, because it is compiled. It knows batches as bytes only.
"""

from __future__ import annotations

from mmap import mmap
from typing import Final, Protocol

from penstock.log.disk.files import File

BLOCK_BYTES: Final = 4096
_BELOW_BLOCK: Final = BLOCK_BYTES - 1
_ZEROS: Final = bytes(BLOCK_BYTES)


class WriteQueue(Protocol):
    """See `kernel_queue.KernelQueue`."""

    descriptor: int
    buffer: mmap
    """It begins at a multiple of BLOCK_BYTES."""

    def submit(self, file: File, position: int, size: int) -> None: ...
    def take(self) -> int | None: ...
    def wait(self) -> int: ...
    def close(self) -> None: ...


class DirectBatches:
    """The batches of one file, one at a time: `stage`, then `submit` or `write`, then `landed`."""

    def __init__(self, queue: WriteQueue, file: File, file_bytes: int, before: bytes) -> None:
        """`before` is what the file begins with; the first batch follows it."""
        self.file = file
        self._queue = queue
        self._buffer = queue.buffer
        self._room = min(len(queue.buffer), file_bytes & ~_BELOW_BLOCK)
        self._file_bytes = file_bytes & ~_BELOW_BLOCK
        self._start = 0  # where in the file the buffer begins
        self._end = len(before)  # of the bytes in the buffer that are durable
        self._staged_end = 0
        self._size = 0  # of the blocks that the staged batch is in
        self._buffer[0 : len(before)] = before

    def stage(self, head: bytes, body: bytes) -> bool:
        """Put the next batch behind the last one; False if it is too large for the buffer, or its
        last block would not be whole."""
        middle = self._end + len(head)
        end = middle + len(body)
        size = (end + _BELOW_BLOCK) & ~_BELOW_BLOCK
        if size > self._room or self._start + size > self._file_bytes:
            return False
        buffer = self._buffer
        buffer[self._end : middle] = head
        buffer[middle:end] = body
        if end < size:
            buffer[end:size] = _ZEROS[: size - end]
        self._staged_end, self._size = end, size
        return True

    def submit(self) -> None:
        """Begin to write the staged batch; OSError if the queue does not take it."""
        self._queue.submit(self.file, self._start, self._size)

    def is_whole(self, result: int) -> bool:
        """Whether the result of the queue says that all of the staged batch is durable."""
        return result == self._size

    def write(self) -> None:
        """Write and sync the staged batch now."""
        with memoryview(self._buffer) as view:
            self.file.write_at(self._start, [view[: self._size]])

    def landed(self) -> None:
        """The staged batch is durable: the next one follows it."""
        end = self._staged_end
        kept = end & _BELOW_BLOCK
        first = end - kept
        if first:
            buffer = self._buffer
            buffer[0:kept] = buffer[first:end]
            self._start += first
        self._end = kept

    def passed(self, position: int, file: File) -> None:
        """Another way of writing has brought the end of the batches to `position` of the file,
        which `file` reads."""
        self._start = position & ~_BELOW_BLOCK
        self._end = position - self._start
        self._buffer[0 : self._end] = file.read_at(self._start, self._end)
