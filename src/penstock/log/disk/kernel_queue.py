"""The kernel's own queue of writes (Linux AIO): a write that is done, synced included, while the
event loop goes on, without a thread that would have to share the interpreter with it.

It knows nothing of what the bytes mean.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import struct
import sys
from typing import NamedTuple

from penstock import limits
from penstock.log.disk.direct_batches import WriteQueue
from penstock.log.disk.files import File, Files
from penstock.log.disk.system_call import SystemCall, system_call

BUFFER_BYTES = limits.MIB
"""The largest write of the queue. What is larger takes the way through the page cache."""

_PWRITE = 1
_RESFD = 1  # the flag that asks for a signal of the eventfd
# data, key, flags of the write, operation, priority, descriptor, buffer, size, position, reserved,
# flags, eventfd
_IOCB = struct.Struct("=QIiHhiQQqQII")
_EVENT = struct.Struct("=QQqq")


class _Calls(NamedTuple):
    setup: int
    destroy: int
    get_events: int
    submit: int


_NUMBERS = {"x86_64": _Calls(206, 207, 208, 209), "aarch64": _Calls(0, 1, 4, 2)}


class KernelQueue:
    """At most one write at a time, from `buffer`. `descriptor` is readable when it is done."""

    def __init__(self, *, buffer_bytes: int) -> None:
        """Raises OSError where the system has no such queue, or none is left."""
        numbers = _NUMBERS.get(platform.machine())
        is_known = sys.platform == "linux" and sys.byteorder == "little" and hasattr(os, "eventfd")
        if not is_known or numbers is None:
            raise OSError("there is no queue of writes on this system")
        self._numbers = numbers
        self._call = system_call(waits=False)
        self._waiting_call = system_call(waits=True)
        self._context = self._set_up()
        self.descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.buffer = mmap.mmap(-1, buffer_bytes)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self.buffer))
        self._request = ctypes.create_string_buffer(_IOCB.size)
        self._requests = (ctypes.c_void_p * 1)(ctypes.addressof(self._request))
        self._event = ctypes.create_string_buffer(_EVENT.size)
        self._requests_address = ctypes.addressof(self._requests)
        self._event_address = ctypes.addressof(self._event)

    def _set_up(self) -> int:
        context = ctypes.c_ulong(0)
        self._checked(self._call(self._numbers.setup, 1, ctypes.addressof(context), 0, 0, 0))
        return context.value

    def submit(self, file: File, position: int, size: int) -> None:
        """Begin to write the first `size` bytes of the buffer; OSError if that is not possible.
        The buffer must not change until the result is there."""
        address, descriptor = self._address, file.fileno()
        _IOCB.pack_into(
            self._request, 0, 0, 0, 0, _PWRITE, 0, descriptor, address, size, position, 0, _RESFD,
            self.descriptor,
        )  # fmt: skip
        self._checked(
            self._call(self._numbers.submit, self._context, 1, self._requests_address, 0, 0)
        )

    def take(self) -> int | None:
        """Return how many bytes were written, or the number of an error, negative; None if the
        write is not done yet."""
        try:
            os.eventfd_read(self.descriptor)
        except BlockingIOError:
            return None
        return self._get_event(self._call, least=0)

    def wait(self) -> int:
        """Wait for the write to be done; return as `take` does."""
        while (result := self._get_event(self._waiting_call, least=1)) is None:
            pass  # interrupted by a signal
        return result

    def close(self) -> None:
        """Give everything back. A write that is not done is waited for."""
        self._waiting_call(self._numbers.destroy, self._context, 0, 0, 0, 0)
        os.close(self.descriptor)
        self.descriptor = -1

    def _get_event(self, call: SystemCall, *, least: int) -> int | None:
        count: int = call(self._numbers.get_events, self._context, least, 1, self._event_address, 0)
        if count != 1:
            return None
        result: int = _EVENT.unpack(self._event)[2]
        return result

    def _checked(self, result: int) -> None:
        if result < 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code))


class QueueFiles(Files):
    """The real file system, with the kernel's queue where there is one."""

    def write_queue(self) -> WriteQueue | None:
        try:
            return KernelQueue(buffer_bytes=BUFFER_BYTES)
        except OSError:
            return None  # the commit thread writes and syncs
