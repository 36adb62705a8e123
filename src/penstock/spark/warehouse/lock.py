"""The note in a warehouse that names the process which writes it, and whether that process is still
alive. Numbers of processes are used again, the moments that they started at are not.

The note only spares users a mistake on one machine; the writer number that every commit repeats is
what keeps two writers apart (`warehouse`). Knows no tables.
"""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path
from typing import Final

import msgspec
from pyarrow import fs

from penstock.spark.error_text import translates_storage_errors

_NOTE: Final = "_penstock/writer.json"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Owner(msgspec.Struct, frozen=True):
    """The process that writes a warehouse, as the note in the warehouse names it."""

    host: str
    process: int
    started: str = ""  # notes of earlier versions do not have it

    @property
    def is_here(self) -> bool:
        """Whether it is another process of this machine, and alive.

        A process of another machine cannot be checked: its warehouse is taken over, and its next
        batch fails.
        """
        if self.host != socket.gethostname() or self.process == os.getpid():
            return False  # an earlier run of this very process
        return is_same_process_alive(self.process, self.started)


class WriterNote:
    """The note of one warehouse."""

    def __init__(self, uri: str, files: fs.FileSystem, root: str) -> None:
        self.uri = uri  # for the errors of `translates_storage_errors`
        self._files = files
        self._path = f"{root}/{_NOTE}"

    @property
    def location(self) -> str:
        return f"{self.uri}/{_NOTE}"

    @translates_storage_errors
    def read(self) -> Owner | None:
        """The owner, or None if nobody has written the note, or only a part of it."""
        if self._files.get_file_info(self._path).type == fs.FileType.NotFound:
            return None
        with self._files.open_input_stream(self._path) as file:
            try:
                return msgspec.json.decode(file.read(), type=Owner)
            except msgspec.DecodeError:
                return None  # its writer was killed while it wrote

    @translates_storage_errors
    def write(self) -> None:
        """Name this process as the owner."""
        owner = Owner(socket.gethostname(), os.getpid(), process_start_id(os.getpid()))
        self._files.create_dir(self._path.rpartition("/")[0], recursive=True)
        with self._files.open_output_stream(self._path) as file:
            file.write(msgspec.json.encode(owner))

    def remove(self) -> None:
        """Delete the note if it names this process."""
        owner = self.read()
        if owner is not None and owner.process == os.getpid():
            self._files.delete_file(self._path)


def process_start_id(process: int) -> str:
    """A text for the moment at which a process of this machine was started; empty if there is no
    such process, or the moment is not known."""
    try:
        # The name of the process, in brackets, may contain anything; the start time is the 20th
        # field after it.
        stat = Path(f"/proc/{process}/stat").read_text(encoding="utf-8")
        return f"{_BOOT.read_text(encoding='ascii').strip()}/{stat.rpartition(')')[2].split()[19]}"
    except (OSError, IndexError, UnicodeDecodeError):
        return _start_id_from_ps(process)


def _start_id_from_ps(process: int) -> str:
    """The same on systems without /proc."""
    command = ["ps", "-o", "lstart=", "-p", str(process)]
    try:
        result = subprocess.run(  # noqa: S603 - a fixed command and a number
            command, capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return " ".join(result.stdout.split())


def is_same_process_alive(process: int, start_id: str) -> bool:
    """Whether the process that had this `process_start_id` is alive; if either moment is not known,
    whether any process has this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    current = process_start_id(process)
    return not start_id or not current or current == start_id
