"""The first and last messages of a stream, short and safe to print."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

from penstock.errors import Damaged
from penstock.log.disk.reader import Readback
from penstock.log.disk.segment import SegmentReader
from penstock.log.offline.folder import Folder
from penstock.log.stream import Stream

MESSAGES = 3
WINDOW_BYTES = 4096
BYTES_SHOWN = 64
CHARACTERS_MAX = 160
CUT = "…"


@dataclass(frozen=True, slots=True)
class Preview:
    """`last` has nothing that `first` shows already. `fault` says why there is nothing to see."""

    first: list[str]
    last: list[str]
    fault: str | None = None


def preview(folder: Folder, stream: Stream) -> Preview:
    reader = SegmentReader(folder.files, folder.segments, open_files_max=4)
    window = WINDOW_BYTES if stream.is_json else BYTES_SHOWN
    with closing(Readback(reader)) as readback:
        try:
            head_end = min(stream.earliest + window, stream.tail)
            tail_start = max(stream.earliest, stream.tail - window)
            head = readback.read_waiting(stream, stream.earliest, head_end)
            tail = readback.read_waiting(stream, tail_start, stream.tail)
        except (Damaged, OSError) as error:
            return Preview([], [], str(error))
    is_all = head_end == stream.tail
    if stream.is_json:
        return _messages(head, tail, stream.count, is_all=is_all)
    if is_all:
        return Preview([_printable(head)] if head else [], [])
    return Preview([_printable(head) + CUT], [CUT + _printable(tail)])


def _messages(head: bytes, tail: bytes, count: int, *, is_all: bool) -> Preview:
    """`head` starts with a message and `tail` ends with one; each may cut one at its other end."""
    *whole, rest = head.split(b"\n")
    first = [_shown(line) for line in whole[:MESSAGES]]
    if rest and not first:
        first = [_shown(rest)[:CHARACTERS_MAX] + CUT]
    if is_all:
        return Preview(first, [_shown(line) for line in whole[MESSAGES:]][-MESSAGES:])
    cut, *lines = tail[:-1].split(b"\n")
    unseen = max(count - len(first), 0)
    last = [_shown(line) for line in lines[-MESSAGES:]][-unseen:] if unseen else []
    if unseen and not last:
        last = [CUT + _printable(cut.removesuffix(b",")[-CHARACTERS_MAX:])]
    return Preview(first, last)


def _shown(line: bytes) -> str:
    text = _printable(line.removesuffix(b","))
    return text if len(text) <= CHARACTERS_MAX else text[:CHARACTERS_MAX] + CUT


def _printable(data: bytes) -> str:
    """No byte of a stream reaches a terminal as anything but a character."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
