"""Syncs that reach the disk, on every system.

`fdatasync` does on Linux. On macOS `fsync` and `fdatasync` leave the bytes in the cache of the
drive, and `fcntl(F_FULLFSYNC)` empties it. Windows cannot sync a folder.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    HAS_FCNTL = False
else:
    HAS_FCNTL = True

# What a file system without F_FULLFSYNC answers, such as a network share.
_NOT_SUPPORTED = (errno.ENOTSUP, errno.EINVAL, errno.ENOTTY)


def sync_data(fd: int) -> None:
    """Return when the content of an open file is on the disk."""
    if not _full_sync(fd):
        # What fdatasync leaves out is times and modes; a new length it does sync.
        (os.fdatasync if hasattr(os, "fdatasync") else os.fsync)(fd)


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk; at once where a folder has no sync."""
    if not hasattr(os, "O_DIRECTORY"):  # Windows
        return
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not _full_sync(fd):
            os.fsync(fd)
    finally:
        os.close(fd)


def _full_sync(fd: int) -> bool:
    """Empty the cache of the drive, too; False where that is neither needed nor possible."""
    command = getattr(fcntl, "F_FULLFSYNC", None) if HAS_FCNTL else None
    if command is None:
        return False
    try:
        fcntl.fcntl(fd, command)
    except OSError as error:
        if error.errno not in _NOT_SUPPORTED:
            raise
        return False
    return True
