"""`penstock inspect`: a data folder at rest, and one stream of it, as values for a person to read.

Catalog and journal are read together, so that the result is what a server would serve after its
start. Reads only; whether the bytes are intact is checked by `verify`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.errors import ColdDataUnavailable, Damaged, StoreDamaged, StreamNotFound
from penstock.log.disk.catalog import CATALOG_ERRORS
from penstock.log.disk.catalog_rows import Row, stream_from_row
from penstock.log.disk.files import Files
from penstock.log.disk.reader import StreamReader
from penstock.log.disk.recovery import read_format
from penstock.log.disk.segment import SegmentInfo, SegmentReader
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.disk.tiered.tiering import TIER_URL
from penstock.log.lineage import token
from penstock.log.offline.folder import Folder, file_bytes, open_folder
from penstock.log.offline.report import Progress, Report
from penstock.log.offline.verify_journal import JournalCheck, JournalFile
from penstock.log.stream import Stream
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import expires_at_us

LARGEST = 10
PRODUCERS = 20
MESSAGES = 3
WINDOW_BYTES = 4096
BYTES_SHOWN = 64
CHARACTERS_MAX = 160
CUT = "…"


@dataclass(frozen=True, slots=True)
class StreamLine:
    path: str
    id: int
    content_type: str
    bytes: int
    messages: int
    closed: bool


@dataclass(frozen=True, slots=True)
class Overview:
    folder: str
    format: int
    store_id: str
    clean: bool
    streams: int
    messages: int
    bytes: int
    catalog_bytes: int
    segments: int
    segment_bytes: int
    cold_segments: int
    cold_bytes: int
    cold_url: str | None
    """Where the cold segments are."""
    checkpoint_lsn: int
    last_lsn: int
    unapplied_records: int
    journal: list[JournalFile]
    spare_journal_files: int
    journal_problems: int
    largest: list[StreamLine]


@dataclass(frozen=True, slots=True)
class SegmentLine:
    file: str
    first_byte: int
    bytes: int
    first_message: int
    file_bytes: int | None
    """None if the file is missing."""
    object: str | None
    """The name of the object of a cold segment."""


@dataclass(frozen=True, slots=True)
class ProducerLine:
    id: str
    epoch: int
    seq: int


@dataclass(frozen=True, slots=True)
class Preview:
    """The first and last messages of a stream, short and safe to print. `last` repeats nothing of
    `first`; `fault` says why there is neither."""

    first: list[str]
    last: list[str]
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class StreamView:
    path: str
    id: int
    content_type: str
    created_us: int
    touched_us: int
    ttl_s: int | None
    expires_at_us: int | None
    deadline_us: int | None
    is_expired: bool
    earliest: str
    tail: str
    bytes: int
    messages: int
    forked_from: str | None
    fork_offset: str | None
    forks: int
    soft_deleted: bool
    closed: bool
    closed_by: ProducerLine | None
    stream_seq: str | None
    producer_count: int
    producers: list[ProducerLine]
    inline_bytes: int
    segments: list[SegmentLine]
    journal_bytes: int
    """Number of bytes that only the journal has so far."""
    journal_messages: int
    journal_problems: int
    preview: Preview


def overview(data_dir: Path, files: Files | None = None) -> Overview:
    with _reading(data_dir, files) as folder:
        content = read_format(folder.files, folder.root)
        journal, problems = _replayed(folder, ())
        meta, catalog = folder.catalog.meta(), folder.catalog
        (streams, size), messages = catalog.totals(), catalog.messages()
        for stream in (*journal.streams.values(), *journal.deleted.values()):
            row = catalog.by_id(stream.id)
            if not stream.deleted:
                streams, size = streams + 1, size + stream.own_bytes
                messages += stream.own_messages
            if row is not None:
                streams, size = streams - 1, size - row.own_bytes
                messages -= row.own_messages
        names = folder.files.list_folder(folder.root / "journal")
        segments, segment_bytes = catalog.segment_totals()
        cold = catalog.cold_totals()
        return Overview(
            folder=str(data_dir),
            format=int(str(content["format"])),
            store_id=str(content.get("store_id", "")),
            clean=bool(meta.get("clean", 1)),
            streams=streams,
            messages=messages,
            bytes=size,
            catalog_bytes=_size(folder, folder.root / CATALOG_FILE) or 0,
            segments=segments,
            segment_bytes=segment_bytes,
            cold_segments=cold.cold_segments,
            cold_bytes=cold.cold_bytes,
            cold_url=_text(meta.get(TIER_URL)) if cold.cold_segments else None,
            checkpoint_lsn=int(meta.get("checkpoint_lsn", 0)),
            last_lsn=journal.last_lsn,
            unapplied_records=journal.records,
            journal=journal.files,
            spare_journal_files=sum(name.endswith(".spare") for name in names),
            journal_problems=problems,
            largest=_largest(folder, journal),
        )


def _largest(folder: Folder, journal: JournalCheck) -> list[StreamLine]:
    streams = dict(journal.streams)
    for stream_id in folder.catalog.largest(LARGEST + len(journal.deleted)):
        if stream_id not in streams and stream_id not in journal.deleted:
            row = folder.catalog.by_id(stream_id)
            if row is not None:
                streams[stream_id] = stream_from_row(row)
    ordered = sorted(streams.values(), key=lambda stream: (-stream.tail, stream.path))
    return [
        StreamLine(
            *(s.path, s.id, s.config.content_type, s.tail - s.earliest),
            *(s.count - s.earliest_ordinal, s.closed),
        )
        for s in ordered[:LARGEST]
    ]


def stream_view(
    data_dir: Path, path: str, files: Files | None = None, *, clock: Clock = SYSTEM_CLOCK
) -> StreamView:
    """Return the stream at `path`, a canonical path; StreamNotFound if there is none."""
    with _reading(data_dir, files) as folder:
        journal, problems = _replayed(folder, (path,))
        stream = _find_stream(folder, journal, path)
        if stream is None:
            raise StreamNotFound(f"There is no stream {path} in {data_dir}.")
        if stream.fork is not None:
            # Replayed once more, with the bytes that the fork inherited.
            journal, problems = _replayed(folder, _paths(folder, journal, stream))
            stream = _find_stream(folder, journal, path)
            assert stream is not None
            _paths(folder, journal, stream)
        return _view(folder, stream, folder.catalog.by_id(stream.id), problems, clock.now_us())


def _find_stream(folder: Folder, journal: JournalCheck, path: str) -> Stream | None:
    for stream in journal.streams.values():
        if stream.path == path:
            return stream
    row = folder.catalog.by_path(path)
    return None if row is None or row.id in journal.deleted else stream_from_row(row)


def _paths(folder: Folder, journal: JournalCheck, stream: Stream) -> list[str]:
    """Link a stream to its sources; return the paths of all of them."""
    paths = [stream.path]
    while stream.fork is not None:
        source = _find_stream(folder, journal, stream.fork.source_path)
        if source is None or source.id != stream.fork.source_id:
            raise StoreDamaged(
                f"The source of {stream.path}, {stream.fork.source_path}, does not exist. "
                "Run `penstock verify`."
            )
        stream.source = source
        stream = source
        paths.append(stream.path)
    return paths


def _view(
    folder: Folder, stream: Stream, row: Row | None, problems: int, now_us: int
) -> StreamView:
    config = stream.config
    deadline_us = None if stream.soft_deleted else expires_at_us(config, stream.touched_us)
    inherited = 0 if stream.fork is None else stream.fork.ordinal
    states = folder.catalog.producers(stream.id, PRODUCERS) | stream.producers
    return StreamView(
        path=stream.path,
        id=stream.id,
        content_type=config.content_type,
        created_us=stream.created_us,
        touched_us=stream.touched_us,
        ttl_s=config.ttl_s,
        expires_at_us=config.expires_at_us,
        deadline_us=deadline_us,
        is_expired=deadline_us is not None and now_us >= deadline_us,
        earliest=token(stream, stream.earliest),
        tail=token(stream, stream.tail),
        bytes=stream.tail - stream.earliest,
        messages=stream.count - stream.earliest_ordinal,
        forked_from=None if stream.fork is None else stream.fork.source_path,
        fork_offset=None if stream.fork is None else token(stream, stream.fork.position),
        forks=stream.forks,
        soft_deleted=stream.soft_deleted,
        closed=stream.closed,
        closed_by=_producer_line(stream.closed_by),
        stream_seq=stream.stream_seq,
        producer_count=stream.producer_total,
        producers=[ProducerLine(name, *state) for name, state in sorted(states.items())][
            :PRODUCERS
        ],
        inline_bytes=len(row.inline or b"") if row is not None else 0,
        segments=_segment_lines(folder, stream),
        journal_bytes=stream.tail - (stream.own_start if row is None else row.tail),
        journal_messages=stream.count - (inherited if row is None else row.messages),
        journal_problems=problems,
        preview=_preview(folder, stream),
    )


def _producer_line(producer: Producer | None) -> ProducerLine | None:
    return None if producer is None else ProducerLine(*producer)


def _segment_lines(folder: Folder, stream: Stream) -> list[SegmentLine]:
    lines = []
    for info in stream.segments:
        path = folder.segments.data_path(stream.id, info.base)
        size, cold = _size(folder, path), folder.catalog.cold(stream.id, info.base)
        lines.append(
            SegmentLine(
                *(folder.name(path), info.base, info.length, info.first_ordinal, size),
                None if cold is None else cold.segment.object,
            )
        )
    return lines


def _size(folder: Folder, path: Path) -> int | None:
    try:
        return file_bytes(folder.files, path)
    except FileNotFoundError:
        return None


@contextmanager
def _reading(data_dir: Path, files: Files | None) -> Iterator[Folder]:
    """Open a folder; turn every error of reading its catalog into StoreDamaged."""
    try:
        with open_folder(data_dir, files) as folder:
            yield folder
    except (Damaged, *CATALOG_ERRORS) as error:
        raise StoreDamaged(
            f"The catalog of {data_dir} is damaged ({error}). Run `penstock verify`."
        ) from None


def _replayed(folder: Folder, keep: Collection[str]) -> tuple[JournalCheck, int]:
    """Return the journal, replayed as far as possible, and the number of problems."""
    report = Report()
    journal = JournalCheck(folder, report, Progress(), keep=keep)
    journal.run()
    return journal, report.problem_count


class _NotRead:
    """Cold segments, which a look at the folder does not fetch."""

    def __init__(self, folder: Folder) -> None:
        self._catalog = folder.catalog

    def has(self, stream_id: int, base: int) -> bool:
        return self._catalog.cold(stream_id, base) is not None

    def read_now(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes | None:
        raise ColdDataUnavailable("It is in the object store. Read the stream from a server.")

    async def read(self, stream_id: int, info: SegmentInfo, start: int, end: int) -> bytes:
        raise NotImplementedError

    def forget(self, stream_id: int, base: int | None = None) -> None:
        raise NotImplementedError


def _text(value: object) -> str | None:
    return None if value is None else str(value)


def _preview(folder: Folder, stream: Stream) -> Preview:
    segments = SegmentReader(folder.files, folder.segments, open_files_max=4)
    segments.cold = _NotRead(folder)
    window = WINDOW_BYTES if stream.is_json else BYTES_SHOWN
    with closing(StreamReader(segments)) as reader:
        try:
            head_end = min(stream.earliest + window, stream.tail)
            tail_start = max(stream.earliest, stream.tail - window)
            head = reader.read_waiting(stream, stream.earliest, head_end)
            tail = reader.read_waiting(stream, tail_start, stream.tail)
        except (Damaged, ColdDataUnavailable, OSError) as error:
            return Preview([], [], str(error))
    is_all = head_end == stream.tail
    if stream.is_json:
        return _messages(head, tail, stream.count, is_all=is_all)
    if is_all:
        return Preview([_printable(head)] if head else [], [])
    return Preview([_printable(head) + CUT], [CUT + _printable(tail)])


def _messages(head: bytes, tail: bytes, count: int, *, is_all: bool) -> Preview:
    """Return the preview of a JSON stream. `head` starts with a message and `tail` ends with one;
    each may cut a message at its other end."""
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
    """Return bytes as text without control characters, so that a terminal obeys none of them."""
    text = data.decode("utf-8", "backslashreplace")
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )
