"""The sockets and pipes between the supervisor and its workers, as the system's files."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

PRIVATE: Final = 0o600
FOLDER_MAX: Final = 90
"""Characters of a folder for sockets: the paths of UNIX sockets have about a hundred."""


@contextlib.contextmanager
def socket_folder() -> Iterator[str]:
    """Provide a folder for sockets that only this user may enter. It is not in the data folder,
    whose path may be too long for a socket."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    base = runtime if runtime and os.access(runtime, os.W_OK) else None
    folder = tempfile.mkdtemp(prefix="penstock-", dir=base)
    if len(folder) > FOLDER_MAX:
        os.rmdir(folder)
        folder = tempfile.mkdtemp(prefix="penstock-", dir="/tmp")
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def private_socket(path: str, kind: socket.SocketKind) -> socket.socket:
    """Return a bound UNIX socket that only this user may use; one that is left over gives way."""
    Path(path).unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, kind)
    try:
        sock.bind(path)
        os.chmod(path, PRIVATE)
        sock.setblocking(False)
    except BaseException:
        sock.close()
        raise
    return sock


def has_parent() -> bool:
    """Whether the supervisor is still there, when there is something to read from it."""
    return bool(os.read(sys.stdin.fileno(), 4096))


def say(line: bytes) -> None:
    """Write a line for the supervisor, who may have gone."""
    with contextlib.suppress(OSError):
        os.write(sys.stdout.fileno(), line)
