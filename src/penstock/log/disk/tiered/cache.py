"""The pieces of cold segments that were read last, as files of a folder, bounded by bytes.

Nothing is synced, and nothing has to be there: what a crash leaves is checked before it is used.
Any thread may call. Knows nothing of the object store.
"""

from __future__ import annotations

import threading
from collections import OrderedDict, defaultdict
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from penstock.log.disk.files import Files
from penstock.log.stats import TierStats

_ID_DIGITS = 16


class _Piece(NamedTuple):
    size: int
    is_checked: bool


class PieceCache:
    """Pieces by name. A name begins with the id of the stream, as 16 hexadecimal digits."""

    def __init__(
        self, files: Files, folder: Path, stats: TierStats, *, bytes_max: int, reserve_bytes: int
    ) -> None:
        """Nothing is written when less than `reserve_bytes` would be free on the disk."""
        self._files = files
        self._stats = stats
        self._folder = folder
        self._bytes_max = bytes_max
        self._reserve_bytes = reserve_bytes
        self._pieces: OrderedDict[str, _Piece] = OrderedDict()
        self._names: defaultdict[str, set[str]] = defaultdict(set)
        self._lock = threading.Lock()

    def open(self) -> None:
        """Take over the pieces of the last run."""
        self._files.make_folder(self._folder)
        for name in self._files.list_folder(self._folder):
            with closing(self._files.open_read(self._folder / name)) as file:
                size = file.size()
            self._add(name, _Piece(size, is_checked=False))

    def holds(self, size: int) -> bool:
        """Whether so many bytes fit in."""
        return size <= self._bytes_max

    def has(self, name: str) -> bool:
        return name in self._pieces

    def has_stream(self, stream_id: int) -> bool:
        return f"{stream_id:0{_ID_DIGITS}x}" in self._names

    def is_checked(self, name: str) -> bool:
        piece = self._pieces.get(name)
        return piece is not None and piece.is_checked

    def read(self, name: str, start: int, end: int, *, wait: bool) -> bytes | None:
        """Return bytes of a piece, fewer at its end; None if it is not there, or `wait` is off and
        the disk would have to be waited for."""
        with self._lock:
            if name not in self._pieces:
                return None
            self._pieces.move_to_end(name)
        try:
            with closing(self._files.open_read(self._folder / name)) as file:
                if wait:
                    return file.read_at(start, end - start)
                return file.read_cached(start, end - start)
        except OSError:
            self.drop(name)
            return None

    def put(self, name: str, data: bytes) -> None:
        """Take a checked piece, unless it does not fit or the disk does not take it."""
        if not self.holds(len(data)):
            return
        path = self._folder / name
        try:
            if self._files.free_bytes(self._folder) < self._reserve_bytes + len(data):
                return
            with closing(self._files.open_write(path)) as file:
                file.truncate(0)
                file.write_at(0, [data])
        except OSError:
            self._remove([name])
            return
        self._add(name, _Piece(len(data), is_checked=True))

    def checked(self, name: str) -> None:
        """Note that a piece of the last run matches its checksums."""
        with self._lock:
            piece = self._pieces.get(name)
            if piece is not None:
                self._pieces[name] = piece._replace(is_checked=True)

    def drop(self, name: str) -> None:
        with self._lock:
            self._forget(name)
        self._remove([name])

    def drop_stream(self, stream_id: int, base: int | None = None) -> None:
        """Remove the pieces of a stream, or of one of its segments."""
        start = f"{stream_id:0{_ID_DIGITS}x}-" + ("" if base is None else f"{base:016x}-")
        with self._lock:
            cached = self._names.get(start[:_ID_DIGITS], ())
            names = [name for name in cached if name.startswith(start)]
            for name in names:
                self._forget(name)
        self._remove(names)

    def _add(self, name: str, piece: _Piece) -> None:
        evicted = []
        with self._lock:
            self._forget(name)
            self._pieces[name] = piece
            self._names[name[:_ID_DIGITS]].add(name)
            self._stats.cache_bytes += piece.size
            while self._stats.cache_bytes > self._bytes_max:
                oldest = next(iter(self._pieces))
                self._forget(oldest)
                evicted.append(oldest)
        self._remove(evicted)

    def _forget(self, name: str) -> None:
        piece = self._pieces.pop(name, None)
        if piece is not None:
            self._stats.cache_bytes -= piece.size
            names = self._names[name[:_ID_DIGITS]]
            names.discard(name)
            if not names:
                del self._names[name[:_ID_DIGITS]]

    def _remove(self, names: list[str]) -> None:
        for name in names:
            try:
                self._files.remove(self._folder / name)
            except OSError:
                pass  # the next start takes it over
