"""What the commands ask of the operating system: files that survive a crash, stdin, pipes.

The one module of the command line that touches files.
"""

from __future__ import annotations

import errno
import hashlib
import os
import select
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from penstock.file_sync import sync_data, sync_folder

READ_BYTES = 256 * 1024


def columns() -> int:
    return shutil.get_terminal_size().columns


def terminal_size() -> tuple[int, int]:
    """Columns and lines."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines


def config_folder() -> Path:
    """Where a user's settings live, by the XDG rules."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "penstock"


def read_if_there(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def replace(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Write a file as a whole: a crash leaves the old one or the new one."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            if hasattr(os, "fchmod"):  # on Windows a file has the rights of its folder
                os.fchmod(handle, mode)
            file.write(content)
            file.flush()
            sync_data(handle)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    sync_folder(path.parent)


def replace_private(path: Path, content: bytes) -> None:
    """As `replace`, for what nobody else may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(path, content, mode=0o600)


def sync(file: BinaryIO) -> None:
    file.flush()
    sync_data(file.fileno())


def file_size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def open_for_append(path: Path, length: int) -> BinaryIO:
    """The file, cut or found to be `length` bytes long, to be written on from there."""
    file = open(path, "r+b" if length else "w+b")  # noqa: SIM115 - the caller closes it
    file.truncate(length)
    file.seek(length)
    return file


def open_for_read(path: Path) -> BinaryIO:
    return open(path, "rb")


def digest(file: BinaryIO) -> str:
    """The SHA-256 of all of it."""
    found = hashlib.sha256()
    file.seek(0)
    while piece := file.read(READ_BYTES):
        found.update(piece)
    return found.hexdigest()


def stdin_bytes() -> bytes:
    return sys.stdin.buffer.read()


def arriving_lines(lines_max: int, bytes_max: int) -> Iterator[list[bytes]]:
    """The lines of stdin without their ends, in lists: as many as have arrived, up to the bounds.

    A list is given out as soon as nothing more waits to be read, so that a line of `tail -f` is
    not held back, and a file is read in full lists. A last line needs no end.
    """
    descriptor = sys.stdin.fileno()
    rest = b""
    lines: list[bytes] = []
    held = 0
    while True:
        if lines and not _is_waiting(descriptor):
            yield lines
            lines, held = [], 0
        piece = os.read(descriptor, READ_BYTES)
        if not piece:
            break
        *whole, rest = (rest + piece).split(b"\n") if b"\n" in piece else (rest + piece,)
        for line in whole:
            lines.append(line)
            held += len(line) + 1
            if len(lines) >= lines_max or held >= bytes_max:
                yield lines
                lines, held = [], 0
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _is_waiting(descriptor: int) -> bool:
    """Whether a read would return at once; False where only sockets can be asked (Windows)."""
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    except OSError:
        return False


def silence_stdout() -> None:
    """Nobody reads stdout any more: what is left in its buffer goes nowhere, without complaint."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class _ReaderGoneError(BaseException):
    """Not an Exception: raised in the middle of a network read, it is no failure of the network."""


@contextmanager
def broken_pipe_noticed() -> Iterator[None]:
    """Raise BrokenPipeError in the main thread as soon as the reader of stdout has gone.

    Without it `penstock read -f logs | head -1` would stay until the next message is written, as
    it does on Windows, which has neither the signal nor `poll`.
    """
    if not (hasattr(signal, "SIGPIPE") and hasattr(select, "poll")):
        yield
        return
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        yield
        return
    main = threading.main_thread()
    done = threading.Event()

    def gone(signum: int, frame: FrameType | None) -> None:
        if not done.is_set():
            raise _ReaderGoneError

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # errors alone
        poll.poll()
        if not done.is_set() and main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGPIPE)

    before = signal.signal(signal.SIGPIPE, gone)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except _ReaderGoneError:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        done.set()
        signal.signal(signal.SIGPIPE, before)
