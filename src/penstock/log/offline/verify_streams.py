"""Checks every stream of the catalog: its row, its producers, its bytes, its forks; stray files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from penstock.errors import Damaged
from penstock.log.disk.catalog import CATALOG_ERRORS
from penstock.log.disk.catalog_rows import Row
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.offline.folder import Folder, file_bytes
from penstock.log.offline.report import Progress, Report
from penstock.log.offline.verify_journal import JournalCheck
from penstock.log.offline.verify_segments import Owner, SegmentCheck
from penstock.log.stream import Stream
from penstock.protocol.headers import is_json
from penstock.protocol.lifecycle import expires_at_us

Wrong = Callable[[str, int, str | None, str], None]


class ForksCheck:
    """Collects every stream as it will be after a start, then compares forks with their sources."""

    def __init__(self, wrong: Wrong) -> None:
        self._wrong = wrong
        self._streams: dict[int, tuple[str, int, int]] = {}
        self._forks: list[Stream | Row] = []

    def add(self, stream: Stream | Row) -> None:
        self._streams[stream.id] = (stream.path, stream.tail, stream.forks)
        if stream.fork is not None:
            self._forks.append(stream)

    def run(self) -> None:
        forks: Counter[int] = Counter()
        for stream in self._forks:
            fault = self._fault(stream)
            if fault is not None:
                self._wrong("fork-wrong", stream.id, stream.path, fault)
            assert stream.fork is not None
            forks[stream.fork.source_id] += 1
        for stream_id, (path, _, claimed) in self._streams.items():
            if claimed != forks[stream_id]:
                what = f"it claims {claimed} forks, there are {forks[stream_id]}"
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


class StreamsCheck:
    def __init__(
        self, folder: Folder, report: Report, progress: Progress, journal: JournalCheck
    ) -> None:
        self._folder = folder
        self._report = report
        self._progress = progress
        self._journal = journal
        self._forks = ForksCheck(self._wrong)

    def run(self) -> None:
        only_journal = dict(self._journal.streams)
        for stream_id in self._folder.catalog.ids():
            if stream_id in self._journal.deleted:
                continue
            self._stream(stream_id, only_journal.pop(stream_id, None))
        for stream in only_journal.values():
            self._count(stream)
        self._forks.run()
        self._check_paths(list(only_journal.values()))
        self._check_tables()
        self._check_orphans()

    def _count(self, stream: Stream | Row) -> None:
        """Count what a stream has of its own: inherited bytes belong to the source."""
        self._forks.add(stream)
        self._report.streams += 1
        self._report.messages += stream.own_messages
        self._report.bytes += stream.own_bytes

    def _stream(self, stream_id: int, replayed: Stream | None) -> None:
        report = self._report
        try:
            row = self._folder.catalog.by_id(stream_id)
        except (Damaged, *CATALOG_ERRORS):
            row = None
        if row is None:
            report.streams += 1
            self._wrong("row-damaged", stream_id, None, "it does not match its checksum")
            return
        self._count(row if replayed is None else replayed)
        # Segment rows have no checksum of their own, so anything could be in them.
        if any(type(value) is not int for info in row.segments for value in info):
            self._wrong("row-damaged", row.id, row.path, "its segments are not numbers")
            return
        faults = [*self._row_faults(row), *_segment_faults(row)]
        for fault in faults:
            self._wrong("row-inconsistent", row.id, row.path, fault)
        lines = self._bytes(row, self._covered_to(row if replayed is None else replayed))
        if lines is not None and not faults and lines != row.messages:
            what = f"it claims {row.messages} messages, its bytes hold {lines}"
            self._wrong("count-wrong", row.id, row.path, what)

    def _row_faults(self, row: Row) -> Iterator[str]:
        if row.id >= self._journal.next_id:
            yield f"the next stream would get the id {self._journal.next_id}"
        if not 0 <= row.earliest <= row.tail or row.own_start > row.tail:
            yield f"it starts at {row.earliest} and ends at {row.tail}"
        if row.fork is None and (row.messages > 0) != (row.tail > 0):
            yield f"it has {row.tail} bytes and {row.messages} messages"
        if not 0 <= row.earliest_ordinal <= row.messages:
            yield f"it starts with message {row.earliest_ordinal} and has {row.messages}"
        if (row.forks > 0) != (row.pinned is not None) or (row.soft_deleted and not row.forks):
            yield f"it has {row.forks} forks, which keep it from {row.pinned}"
        deadline_us = None if row.soft_deleted else expires_at_us(row.config, row.touched_us)
        if row.deadline_us != deadline_us:
            yield f"its deadline {row.deadline_us} does not follow from its TTL or expiry"
        if row.applied_lsn > self._journal.last_lsn and self._journal.is_whole:
            yield (
                f"it is true up to record {row.applied_lsn}, but the journal ends with "
                f"{self._journal.last_lsn}"
            )
        if row.closed_by is not None:
            try:
                state = self._folder.catalog.producer(row.id, row.closed_by.id)
            except Damaged:
                return  # reported with the producers
            if not row.closed or state != row.closed_by[1:]:
                yield f"it was closed by {row.closed_by}, whose state is {state}"

    def _covered_to(self, stream: Stream | Row) -> int | None:
        is_buffered = any(file.durability != "fsync" for file in self._journal.files)
        return None if is_buffered or not self._journal.is_whole else stream.tail

    def _bytes(self, row: Row, covered_to: int | None) -> int | None:
        """Return the number of messages in the stored bytes of a JSON stream; None if unknown."""
        in_messages = is_json(row.config.content_type)
        if not row.segments:
            self._report.inline += 1
            self._progress.add(len(row.inline or b""))
            first = _first_ordinal(row)
            if not in_messages or first is None:
                return None
            return first + (row.inline or b"").count(b"\n")
        owner = Owner(row.id, row.path, in_messages, covered_to)
        total: int | None = row.segments[0].first_ordinal
        for info in row.segments:
            lines = SegmentCheck(self._folder, self._report, self._progress, owner, info).run()
            if total is not None and total != info.first_ordinal and in_messages:
                self._wrong(
                    "ordinal-wrong",
                    row.id,
                    row.path,
                    f"the segment at {info.base} is said to start with message "
                    f"{info.first_ordinal}, but it is message {total}",
                )
                total = None
            total = None if lines is None or total is None else total + lines
        return total if in_messages else None

    def _check_paths(self, streams: list[Stream]) -> None:
        """Report streams that are at the same path."""
        seen: dict[str, int] = {}
        for stream in streams:
            other = seen.setdefault(stream.path, stream.id)
            try:
                row = self._folder.catalog.by_path(stream.path)
            except (Damaged, *CATALOG_ERRORS):
                continue  # reported already
            if other == stream.id and row is not None and row.id not in self._journal.deleted:
                other = row.id
            if other != stream.id:
                what = f"streams {other} and {stream.id} are both at this path"
                self._report.problem("path-taken", "journal", what, stream=stream.path)

    def _check_tables(self) -> None:
        catalog = self._folder.catalog
        for stream_id, claimed, count in catalog.wrong_producers():
            what = f"it claims {claimed} producers, the catalog has {count}"
            self._wrong("producers-wrong", stream_id, None, what)
        for stream_id, producer_id in catalog.damaged_producers():
            what = f"the row of producer {producer_id!r} does not match its checksum"
            self._wrong("producer-damaged", stream_id, None, what)
        for stream_id, base in catalog.damaged_cold():
            what = f"that of its cold segment at {base} does not match its checksum"
            self._wrong("cold-damaged", stream_id, None, what)
        for table, stream_id in catalog.strays():
            self._wrong("row-stray", stream_id, None, f"{table} has rows, but there is no stream")

    def _check_orphans(self) -> None:
        """Note files that no row names: a crash before the commit of a checkpoint leaves them."""
        files, folder = self._folder.files, self._folder.segments
        orphans, size, example = 0, 0, ""
        for shard in files.list_folder(folder.folder):
            for name in files.list_folder(folder.folder / shard):
                path = folder.folder / shard / name
                parsed = folder.parse_name(name)
                if parsed is None or folder.shard(parsed[0]).name != shard:
                    self._report.note(f"{self._folder.name(path)} is not a file of Penstock's")
                elif not self._folder.catalog.has_segment(*parsed):
                    orphans, size = orphans + 1, size + file_bytes(files, path)
                    example = example or self._folder.name(path)
        if orphans:
            self._report.note(
                f"{orphans} segment or index files ({size} bytes) belong to no stream, such as "
                f"{example}; a server that starts after an unclean stop removes them"
            )

    def _wrong(self, code: str, stream_id: int, path: str | None, what: str) -> None:
        self._report.problem(code, CATALOG_FILE, f"row of stream {stream_id}: {what}", stream=path)


def _first_ordinal(row: Row) -> int | None:
    """Return the ordinal of the first message that a row holds; None if it is not stored."""
    if row.keep_from == row.earliest:
        return row.earliest_ordinal
    if row.keep_from == row.own_start:
        return 0 if row.fork is None else row.fork.ordinal
    return None


def _segment_faults(row: Row) -> Iterator[str]:
    """Yield what is wrong with the segments: every byte that is needed has to be in one of them."""
    segments = row.segments
    if not segments:
        if len(row.inline or b"") != row.tail - row.keep_from:
            yield f"it holds {len(row.inline or b'')} bytes, not {row.tail - row.keep_from}"
        return
    if row.inline is not None:
        yield "it holds bytes and has segments too"
    # A trim removes whole segments, so the first may begin before what is needed.
    if not row.own_start <= segments[0].base <= row.keep_from < segments[0].end:
        yield f"its first segment starts at {segments[0].base}, not at {row.keep_from}"
    for one, two in pairwise(segments):
        if one.end != two.base:
            yield f"a segment ends at {one.end} and the next starts at {two.base}"
    if segments[-1].end != row.tail:
        yield f"its last segment ends at {segments[-1].end}, not at the tail, {row.tail}"
    ordinals = [0]
    for info in segments:
        ordinals += [info.first_ordinal, info.open_ordinal]
    ordinals.append(row.messages)
    first = 0 if row.fork is None else row.fork.ordinal
    is_first = segments[0].base == row.own_start and is_json(row.config.content_type)
    if ordinals != sorted(ordinals) or (is_first and segments[0].first_ordinal != first):
        yield f"the message numbers of its segments are out of order: {ordinals[1:]}"
