"""Checks what streams say about each other: forks have their sources, and sources count them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from penstock.log.disk.catalog_rows import Row
from penstock.log.stream import Stream

Wrong = Callable[[str, int, str | None, str], None]


class ForksCheck:
    """Gathers every stream as it will be after a start, then compares."""

    def __init__(self, wrong: Wrong) -> None:
        self._wrong = wrong
        self._streams: dict[int, tuple[str, int, int]] = {}
        self._forks: list[Stream | Row] = []

    def add(self, stream: Stream | Row) -> None:
        self._streams[stream.id] = (stream.path, stream.tail, stream.forks)
        if stream.fork is not None:
            self._forks.append(stream)

    def run(self) -> None:
        found: Counter[int] = Counter()
        for stream in self._forks:
            fault = self._fault(stream)
            if fault is not None:
                self._wrong("fork-wrong", stream.id, stream.path, fault)
            assert stream.fork is not None
            found[stream.fork.source_id] += 1
        for stream_id, (path, _, claimed) in self._streams.items():
            if claimed != found[stream_id]:
                what = f"it claims {claimed} forks, there are {found[stream_id]}"
                self._wrong("forks-wrong", stream_id, path, what)

    def _fault(self, stream: Stream | Row) -> str | None:
        fork = stream.fork
        assert fork is not None
        source = self._streams.get(fork.source_id)
        if source is None:
            return f"its source, {fork.source_path!r} ({fork.source_id}), is not there"
        path, tail, _ = source
        if path != fork.source_path or fork.source_id >= stream.id:
            return f"its source {fork.source_id} is {path!r}, not {fork.source_path!r}"
        if fork.position > tail:
            return f"it left its source at {fork.position}, but that ends at {tail}"
        return None
