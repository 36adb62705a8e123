"""Writes one backup of a cut: the catalog, and of every segment what no earlier backup has.

Runs on a thread of its own. What is read is checked against its checksums, what is written is
read back, and the manifest comes last.
"""

from __future__ import annotations

import secrets
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, NamedTuple

import penstock
from penstock.errors import BackupDamaged, BackupLocked, BackupMismatch, Damaged
from penstock.log.background import Pace
from penstock.log.backup.manifest import (
    FORMAT,
    Chunk,
    Contents,
    Manifest,
    Part,
    SegmentParts,
    sha256,
)
from penstock.log.backup.repository import Keep, Repository, RepositoryLock, pack_key
from penstock.log.disk import segment
from penstock.log.disk.cut import Cut
from penstock.log.disk.files import File
from penstock.log.disk.recovery import read_format
from penstock.log.disk.segment import ENTRY, SegmentInfo, decode_entry
from penstock.log.disk.tiered.cold_file import ColdFile
from penstock.log.offline.folder import CatalogView

PACK_BYTES: Final = 8 * 1024 * 1024
CHUNK_BYTES: Final = 256 * 1024
READ_BLOCKS: Final = 16
PARTS_MAX: Final = 64
"""A segment that grew in more parts than this is copied whole."""
SCRATCH_FILE: Final = "backup.sqlite"
DAMAGED_MAX: Final = 100

Phase = str
"""catalog, segments, finish or done: as progress is shown."""


@dataclass(slots=True)
class Progress:
    """Where a backup is. Written by its thread and read by others."""

    phase: Phase = "checkpoint"
    bytes_total: int = 0
    bytes_done: int = 0
    new_bytes: int = 0
    damaged: list[str] = field(default_factory=list)


class Earlier(NamedTuple):
    """What the last backup has, as far as it can be used again."""

    packs: list[tuple[str, int]]
    segments: dict[tuple[int, int], SegmentParts]
    chunks: dict[str, Part]
    usable: frozenset[int]
    """Numbers of packs that are there, and mostly still needed."""


NOTHING: Final = Earlier([], {}, {}, frozenset())


class Packs:
    """Collects bytes into packs, each of which is written when it is full."""

    def __init__(self, repository: Repository, step: Callable[[int], None]) -> None:
        self._repository = repository
        self._step = step
        self._numbers: dict[str, int] = {}
        self._buffer = bytearray()
        self._open = -1
        self.named: list[tuple[str, int]] = []
        self.new_bytes = 0

    def earlier(self, pack: tuple[str, int]) -> int:
        """Return the number of a pack that is there already."""
        number = self._numbers.get(pack[0])
        if number is None:
            number = self._numbers[pack[0]] = len(self.named)
            self.named.append(pack)
        return number

    def add(self, data: bytes, parts: list[Part]) -> None:
        """Store bytes, and note their place behind the last one of `parts`."""
        if self._open < 0:
            self._open = len(self.named)
            self.named.append(("", 0))
        at = len(self._buffer)
        self._buffer += data
        self.new_bytes += len(data)
        last = parts[-1] if parts else None
        if last is not None and last.pack == self._open and last.at + last.length == at:
            parts[-1] = Part(last.pack, last.at, last.length + len(data))
        else:
            parts.append(Part(self._open, at, len(data)))
        if len(self._buffer) >= PACK_BYTES:
            self.flush()

    def flush(self) -> None:
        if self._open < 0:
            return
        digest = sha256(self._buffer)
        self._step(0)
        self._repository.put_verified(pack_key(digest), self._buffer)
        self.named[self._open] = (digest, len(self._buffer))
        self._numbers[digest] = self._open
        self._buffer, self._open = bytearray(), -1


class BackupWriter:
    def __init__(
        self,
        repository: Repository,
        cut: Cut,
        *,
        cut_us: int,
        now_us: Callable[[], int],
        pace: Pace,
        keep: Keep,
        progress: Progress,
    ) -> None:
        self._repository = repository
        self._cut = cut
        self._cut_us = cut_us
        self._now_us = now_us
        self._pace = pace
        self._keep = keep
        self._progress = progress
        self._folder = read_format(cut.files, cut.root)
        self._lock = RepositoryLock(repository, store_id=self._store_id, folder=str(cut.root))
        self._packs = Packs(repository, self._step)

    @property
    def _store_id(self) -> str:
        return str(self._folder.get("store_id", ""))

    def run(self) -> Manifest:
        """Write the backup; CalledOff if it was called off. Afterwards the earlier ones are as they
        were, and what was written of this one is garbage, which the next one removes."""
        self._lock.acquire()
        try:
            return self._run()
        finally:
            self._lock.release()

    def _run(self) -> Manifest:
        files, scratch = self._cut.files, self._cut.root / SCRATCH_FILE
        manifests, _ = self._repository.manifests()
        self._check_owner(manifests)
        self._progress.phase = "catalog"
        try:
            files.remove(scratch)
            self._cut.catalog.copy_to(scratch, lambda: self._step(0))
            self._cut.catalog.close()
            with closing(CatalogView(scratch, read_only=True)) as catalog:
                earlier = self._earlier(manifests[-1] if manifests else None, catalog)
                count, size = catalog.segment_totals()
                with closing(files.open_read(scratch)) as file:
                    self._progress.bytes_total = size + file.size()
                    chunks = self._copy_catalog(file, earlier)
                self._packs.flush()  # the catalog changes sooner than segments do
                self._progress.phase = "segments"
                segments = self._copy_segments(catalog, earlier)
                meta, (streams, _) = catalog.meta(), catalog.totals()
        finally:
            files.remove(scratch)
        self._packs.flush()
        self._progress.phase = "finish"
        digest, contents_bytes = self._repository.put_contents(
            Contents(self._packs.named, chunks, segments)
        )
        manifest = Manifest(
            format=FORMAT,
            id=_new_id(self._cut_us),
            store_id=self._store_id,
            version=penstock.__version__,
            cut_us=self._cut_us,
            finished_us=self._now_us(),
            checkpoint_lsn=int(meta.get("checkpoint_lsn", 0)),
            next_id=int(meta.get("next_id", 1)),
            streams=streams,
            segments=count,
            bytes=self._progress.bytes_total,
            new_bytes=self._packs.new_bytes,
            folder=self._folder,
            contents_sha256=digest,
            contents_bytes=contents_bytes,
            damaged=self._progress.damaged,
        )
        self._publish(manifest)
        return manifest

    def _publish(self, manifest: Manifest) -> None:
        """Make the backup true, then remove what is not needed any more."""
        self._pace.take()
        self._lock.check()
        self._repository.put_manifest(manifest)
        try:
            self._lock.check()
        except BackupLocked:
            # Whoever has it may have removed what the manifest names.
            self._repository.remove(manifest)
            raise
        self._repository.remove_expired(self._keep, self._now_us())
        self._repository.collect()

    def _check_owner(self, manifests: list[Manifest]) -> None:
        other = next((each for each in manifests if each.store_id != self._store_id), None)
        if other is not None:
            raise BackupMismatch(
                f"{self._repository.store.url} has backups of another server (store "
                f"{other.store_id}, this one is {self._store_id}). Use another folder or prefix."
            )

    def _step(self, size: int) -> None:
        self._pace.take(size)
        self._lock.renew()

    def _earlier(self, manifest: Manifest | None, catalog: CatalogView) -> Earlier:
        """Return what of the last backup can be named again. A pack of which less than half is
        needed is left to expire: its bytes are copied once more."""
        if manifest is None:
            return NOTHING
        try:
            contents = self._repository.contents(manifest)
        except BackupDamaged:
            return NOTHING
        existing = self._repository.pack_sizes()
        segments = {
            each.key: each
            for each in contents.segments
            if catalog.has_segment(each.stream_id, each.base)
        }
        used: Counter[int] = Counter()
        for each in segments.values():
            for part in (*each.data, *each.index):
                used[part.pack] += part.length
        for chunk in contents.catalog:
            used[chunk.part.pack] += chunk.part.length
        usable = frozenset(
            number
            for number, (digest, size) in enumerate(contents.packs)
            if existing.get(digest) == size and used[number] * 2 >= size
        )
        chunks = {
            chunk.sha256: chunk.part for chunk in contents.catalog if chunk.part.pack in usable
        }
        return Earlier(contents.packs, segments, chunks, usable)

    def _again(self, earlier: Earlier, parts: list[Part]) -> list[Part]:
        """Return parts of the last backup with the numbers that their packs have in this one."""
        return [
            Part(self._packs.earlier(earlier.packs[part.pack]), part.at, part.length)
            for part in parts
        ]

    def _copy_catalog(self, file: File, earlier: Earlier) -> list[Chunk]:
        chunks = []
        for position in range(0, file.size(), CHUNK_BYTES):
            data = file.read_at(position, CHUNK_BYTES)
            self._step(len(data))
            digest = sha256(data)
            part = earlier.chunks.get(digest)
            parts = [] if part is None else self._again(earlier, [part])
            if part is None:
                self._packs.add(data, parts)
            chunks.append(Chunk(digest, parts[0]))
            self._progress.bytes_done += len(data)
        return chunks

    def _copy_segments(self, catalog: CatalogView, earlier: Earlier) -> list[SegmentParts]:
        segments = []
        for stream_id, path, info in catalog.all_segments():
            before = self._progress.bytes_done
            try:
                segments.append(self._copy_segment(catalog, stream_id, path, info, earlier))
            except (OSError, Damaged) as error:
                self._damaged(f"{path}: segment {stream_id:016x}-{info.base:016x}: {error}")
            self._progress.bytes_done = before + info.length
            self._progress.new_bytes = self._packs.new_bytes
        return segments

    def _copy_segment(
        self, catalog: CatalogView, stream_id: int, path: str, info: SegmentInfo, earlier: Earlier
    ) -> SegmentParts:
        folder, files = self._cut.segments, self._cut.files
        full = info.length // segment.BLOCK_BYTES
        data_path = folder.data_path(stream_id, info.base)
        with ExitStack() as cleanup:
            cold = catalog.cold(stream_id, info.base)
            data: File | ColdFile
            if cold is not None and self._cut.objects is not None:
                data = ColdFile(self._cut.objects, cold.segment)
            else:
                data = files.open_read(data_path)
            cleanup.callback(data.close)
            entries = b""
            if full:
                index = files.open_read(folder.index_path(stream_id, info.base))
                cleanup.callback(index.close)
                entries = index.read_at(0, full * ENTRY.size)
                self._step(len(entries))
            known = earlier.segments.get((stream_id, info.base))
            if known is not None and not self._is_same(known, info, data, entries):
                known = None
            parts = self._reusable(earlier, known.data if known else [])
            index_parts = self._reusable(earlier, known.index if known else [])
            start = sum(part.length for part in parts)
            where = f"{path}: {data_path.name}"
            for position, piece in self._blocks(data, info, entries, start, where):
                self._packs.add(piece[max(0, start - position) :], parts)
            rest = entries[sum(part.length for part in index_parts) :]
            if rest:
                self._packs.add(rest, index_parts)
        return SegmentParts(
            stream_id,
            info.base,
            info.length,
            zlib.crc32(entries),
            info.open_crc,
            parts,
            index_parts,
        )

    def _is_same(
        self, known: SegmentParts, info: SegmentInfo, data: File | ColdFile, entries: bytes
    ) -> bool:
        """Whether a segment begins with what the last backup has of it: by the checksums of its
        full blocks, and of the block that was open then. A folder that was restored, or copied and
        used twice, has segments of the same names with other bytes."""
        full = known.length // segment.BLOCK_BYTES
        if known.length > info.length or len(known.data) > PARTS_MAX:
            return False
        if zlib.crc32(entries[: full * ENTRY.size]) != known.index_crc:
            return False
        if known.length == info.length:
            return known.open_crc == info.open_crc
        piece = data.read_at(full * segment.BLOCK_BYTES, known.length - full * segment.BLOCK_BYTES)
        self._step(len(piece))
        return zlib.crc32(piece) == known.open_crc

    def _reusable(self, earlier: Earlier, parts: list[Part]) -> list[Part]:
        """Return the first parts, up to one whose pack is left to expire."""
        usable = []
        for part in parts:
            if part.pack not in earlier.usable:
                break
            usable.append(part)
        return self._again(earlier, usable)

    def _blocks(
        self, data: File | ColdFile, info: SegmentInfo, entries: bytes, start: int, where: str
    ) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of a segment from the block of `start` on, a few blocks at a time, each
        with its position. A block that does not match its checksum is noted and copied: a restored
        folder is then as damaged as this one, and no more."""
        if start == info.length:
            return
        block_bytes = segment.BLOCK_BYTES
        step = READ_BLOCKS * block_bytes
        for position in range(start // block_bytes * block_bytes, info.length, step):
            length = min(step, info.length - position)
            piece = data.read_at(position, length)
            self._step(length)
            if len(piece) < length:
                raise Damaged(f"it ends at byte {position + len(piece)}, not at {info.length}")
            for at in range(0, length, block_bytes):
                block = (position + at) // block_bytes
                if zlib.crc32(piece[at : at + block_bytes]) != _crc(info, entries, block):
                    self._damaged(
                        f"{where}, byte {position + at}: the block does not match its checksum"
                    )
            yield position, piece
            self._progress.bytes_done += length

    def _damaged(self, what: str) -> None:
        if len(self._progress.damaged) < DAMAGED_MAX:
            self._progress.damaged.append(what)


def _crc(info: SegmentInfo, entries: bytes, block: int) -> int | None:
    """Return the checksum of a block; None if its index entry is damaged."""
    if block == info.length // segment.BLOCK_BYTES:
        return info.open_crc
    try:
        return decode_entry(entries[block * ENTRY.size : (block + 1) * ENTRY.size], "").crc
    except Damaged:
        return None


def _new_id(cut_us: int) -> str:
    moment = datetime.fromtimestamp(cut_us / 1_000_000, UTC)
    return f"{moment:%Y%m%dT%H%M%SZ}-{secrets.token_hex(3)}"
