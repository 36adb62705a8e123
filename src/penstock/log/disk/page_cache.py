"""Whether bytes of a file are in the page cache, so that nobody would wait for the disk."""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from functools import cache

from penstock.log.disk.system_call import SystemCall, system_call

_CACHESTAT = 451  # on both machines; Linux has it since 6.5
_MACHINES = ("x86_64", "aarch64")
_RANGE = struct.Struct("=QQ")  # position, length
_COUNTS = struct.Struct("=5Q")  # pages in the cache, dirty, being written, evicted, evicted lately


def has(descriptor: int, position: int, length: int) -> bool:
    """Whether all of the bytes are in the page cache; False where the system does not tell."""
    call = _call()
    if call is None:
        return False
    asked = ctypes.create_string_buffer(_RANGE.pack(position, length), _RANGE.size)
    counts = ctypes.create_string_buffer(_COUNTS.size)
    if call(_CACHESTAT, descriptor, ctypes.addressof(asked), ctypes.addressof(counts), 0, 0) != 0:
        return False
    first = position // mmap.PAGESIZE
    pages = (position + length - 1) // mmap.PAGESIZE - first + 1
    cached: int = _COUNTS.unpack(counts)[0]
    return cached >= pages


@cache
def _call() -> SystemCall | None:
    is_known = sys.platform == "linux" and platform.machine() in _MACHINES
    return system_call(waits=False) if is_known else None
