"""A queue of writes for tests: it writes at once, by the method of the file that it is given; its
result is asked for in a later turn of the event loop."""

from __future__ import annotations

import os
from collections.abc import Callable
from mmap import mmap

from penstock.log.disk.files import File


class HookedQueue:
    """As `kernel_queue.KernelQueue`."""

    def __init__(self, buffer_bytes: int = 64 * 1024) -> None:
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.buffer = mmap(-1, buffer_bytes)
        self.submitted = 0
        self._result: int | None = None

    def submit(self, file: File, position: int, size: int) -> None:
        assert self._result is None
        assert position % 4096 == size % 4096 == 0
        self.submitted += 1
        try:
            result = file._pwritev([memoryview(self.buffer[:size])], position)
        except OSError as error:
            result = -(error.errno or 0)
        self._result = result
        os.eventfd_write(self.descriptor, 1)

    def take(self) -> int | None:
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return None
        result, self._result = self._result, None
        return result

    def wait(self) -> int:
        result = self.take()
        assert result is not None
        return result

    def close(self) -> None:
        os.close(self.descriptor)


class HeldQueue(HookedQueue):
    """Gives a result only when `release` says so, as a slow disk does; `results` replace what the
    write would have returned."""

    def __init__(self, buffer_bytes: int = 64 * 1024) -> None:
        super().__init__(buffer_bytes)
        self.results: list[int] = []
        self.refusals: list[int] = []
        self._write: Callable[[], int] | None = None

    @property
    def is_busy(self) -> bool:
        return self._write is not None

    def submit(self, file: File, position: int, size: int) -> None:
        if self.refusals:
            raise OSError(self.refusals.pop(0), "refused")
        assert self._write is None
        self.submitted += 1
        data = self.buffer[:size]
        self._write = lambda: file._pwritev([memoryview(data)], position)

    def release(self) -> None:
        assert self._write is not None
        write, self._write = self._write, None
        self._result = write()
        if self.results:
            self._result = self.results.pop(0)
        os.eventfd_write(self.descriptor, 1)

    def wait(self) -> int:
        if self._write is not None:
            self.release()
        return super().wait()


SHORT = 512
"""A result of a write that was cut short."""
