"""Access to the operating system: files that survive a crash, stdin, pipes.

The only module of the command line that opens files.
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
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import BinaryIO

from penstock.file_sync import sync_data, sync_folder

READ_BYTES = 256 * 1024


def columns() -> int:
    return shutil.get_terminal_size().columns


def terminal_size() -> tuple[int, int]:
    """Return the columns and lines of the terminal."""
    size = shutil.get_terminal_size()
    return size.columns, size.lines


def is_program(name: str) -> bool:
    """Whether a command of this name can be run."""
    return shutil.which(name) is not None


def config_folder() -> Path:
    """Return the folder of the user's settings, by the XDG rules."""
    home = os.environ.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(home) / "penstock"


def read_if_present(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def replace(path: Path, content: bytes, *, mode: int = 0o644) -> None:
    """Replace a file as a whole: a crash leaves the old one or the new one."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as error:  # it names the temporary file
        raise type(error)(error.errno, error.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            if hasattr(os, "fchmod"):  # Windows files have the rights of their folder
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
    """Replace a file that only its owner may read."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    replace(path, content, mode=0o600)


def sync(file: BinaryIO) -> None:
    file.flush()
    sync_data(file.fileno())


def file_size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None


def open_for_append(path: Path, length: int) -> BinaryIO:
    """Open a file for writing at `length`, after cutting off everything beyond."""
    file = open(path, "r+b" if length else "w+b")  # noqa: SIM115 - the caller closes it
    file.truncate(length)
    file.seek(length)
    return file


def open_for_read(path: Path) -> BinaryIO:
    return open(path, "rb")


def digest(file: BinaryIO, on_progress: Callable[[int], None]) -> str:
    """Return the SHA-256 of the whole file. The function is called with the bytes read so far."""
    sha256 = hashlib.sha256()
    file.seek(0)
    done = 0
    while piece := file.read(READ_BYTES):
        sha256.update(piece)
        done += len(piece)
        on_progress(done)
    return sha256.hexdigest()


def open_missing_streams() -> None:
    """Open the null device for each of stdin, stdout and stderr that was closed before the start.

    Otherwise the next file or connection would get its number, and be read or written for it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            descriptor = os.open(os.devnull, os.O_RDWR)
            if descriptor != number:
                os.dup2(descriptor, number)
                os.close(descriptor)
            setattr(sys, name, open(number, mode, encoding="utf-8"))  # noqa: SIM115 - stays open


def stdin_bytes() -> bytes:
    return sys.stdin.buffer.read()


def arriving_lines(
    lines_max: int, bytes_max: int, delimiter: bytes = b"\n"
) -> Iterator[list[bytes]]:
    """Yield the lines of stdin, without their ends, in lists up to the bounds.

    A list is yielded as soon as no more input is waiting, so that a line of `tail -f` is not
    delayed and a file is read in full lists. The last line needs no end.
    """
    descriptor = sys.stdin.fileno()
    rest = b""
    lines: list[bytes] = []
    pending_bytes = 0
    while True:
        if lines and not _is_readable(descriptor):
            yield lines
            lines, pending_bytes = [], 0
        piece = os.read(descriptor, READ_BYTES)
        if not piece:
            break
        # A delimiter of several bytes may have begun in the last piece.
        seam = rest[len(rest) - len(delimiter) + 1 :] if len(delimiter) > 1 else b""
        data = rest + piece
        *whole, rest = data.split(delimiter) if delimiter in seam + piece else (data,)
        for line in whole:
            lines.append(line)
            pending_bytes += len(line) + 1
            if len(lines) >= lines_max or pending_bytes >= bytes_max:
                yield lines
                lines, pending_bytes = [], 0
    if rest:
        lines.append(rest)
    if lines:
        yield lines


def _is_readable(descriptor: int) -> bool:
    """Whether a read returns at once. False on Windows, where only sockets can be polled."""
    try:
        return bool(select.select([descriptor], [], [], 0)[0])
    except OSError:
        return False


@contextmanager
def keys_unbuffered() -> Iterator[None]:
    """Let `pressed_key` see keys as they are pressed, if stdin is a terminal; Ctrl-C stays."""
    try:
        import termios
        import tty
    except ImportError:  # Windows has no such terminals
        yield
        return
    if not sys.stdin.isatty():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed_key(timeout_s: float) -> str:
    """Return the key that is pressed within a time; an empty text if none is."""
    if not sys.stdin.isatty() or os.name == "nt":
        time.sleep(timeout_s)
        return ""
    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 16).decode("utf-8", "replace")


def silence_stdout() -> None:
    """Redirect stdout to the null device, after its reader has closed the pipe."""
    try:
        descriptor = sys.stdout.fileno()
    except (OSError, ValueError):
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, descriptor)
    os.close(null)


class _ReaderGoneError(BaseException):
    """The reader of stdout has closed the pipe.

    Not an Exception: raised within a network read, it must not count as a failure of the network.
    """


@contextmanager
def broken_pipe_noticed() -> Iterator[None]:
    """Raise BrokenPipeError in the main thread as soon as the reader of stdout closes the pipe.

    Otherwise `penstock read -f logs | head -1` would end only when the next message is written, as
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

    def on_signal(signum: int, frame: FrameType | None) -> None:
        if not done.is_set():
            raise _ReaderGoneError

    def watch() -> None:
        poll = select.poll()
        poll.register(descriptor, 0)  # errors only
        poll.poll()
        if not done.is_set() and main.ident is not None:
            signal.pthread_kill(main.ident, signal.SIGPIPE)

    before = signal.signal(signal.SIGPIPE, on_signal)
    threading.Thread(target=watch, daemon=True).start()
    try:
        yield
    except _ReaderGoneError:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)) from None
    finally:
        done.set()
        signal.signal(signal.SIGPIPE, before)
