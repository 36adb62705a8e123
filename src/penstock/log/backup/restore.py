"""Restores a backup into an empty folder, checked while it is read.

A marker stands in the folder from the first step to the last, so that nothing takes half of a
restore for a data folder. Offsets that were handed out after the backup stay refused for ever:
every stream continues under a generation of the restore.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from penstock.errors import BackupDamaged, BackupNotFound, FolderNotEmpty
from penstock.log.backup.manifest import Contents, Manifest, Part
from penstock.log.backup.repository import Repository, choose
from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.catalog_rows import Row
from penstock.log.disk.files import File, Files
from penstock.log.disk.recovery import FORMAT, FORMAT_FILE, HAS_MARK, RESTORED, RESTORING_FILE
from penstock.log.disk.segment import SegmentFolder
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.disk.tiered.tiering import TIER_URL
from penstock.log.disk.worker_folders import LOCK_FILE, worker_folder, write_root
from penstock.log.stream import renewed
from penstock.protocol.shards import Shard

GENERATIONS_SKIPPED: Final = 1_000_000_000
"""How far a restore raises the counter of generations: more streams than any server has created
since the backup."""
ROWS_AT_ONCE: Final = 2000
HARMLESS: Final = {"lost+found", "LOCK", RESTORING_FILE}
"""Names that an empty folder may have: file systems put the first into a new volume, and a server
that could not start leaves the second."""
OURS: Final = {"segments", "journal", CATALOG_FILE, FORMAT_FILE}

OnProgress = Callable[[int, int], None]


class Restored(NamedTuple):
    manifest: Manifest
    generation: int
    """The generation under which streams continue."""


def find_backup(
    repository: Repository, *, id: str | None = None, at_us: int | None = None
) -> Manifest:
    """Return the backup to restore: by id, or the newest that is not after a time."""
    manifests, faults = repository.manifests()
    manifest = choose(manifests, id=id, at_us=at_us)
    if manifest is not None:
        return manifest
    if id is not None and faults:
        repository.manifest(id)  # says what is wrong with it
    if not manifests:
        reason = f" ({faults[0]})" if faults else ""
        raise BackupNotFound(f"{repository.store.url} has no backup{reason}.")
    names = f"{manifests[0].id} to {manifests[-1].id}"
    what = f"backup {id!r}" if id is not None else "backup of that time or before"
    raise BackupNotFound(f"{repository.store.url} has no {what}; it has {names}.")


def restore(
    repository: Repository,
    manifest: Manifest,
    root: Path,
    *,
    files: Files | None = None,
    on_progress: OnProgress = lambda done, total: None,
) -> Restored:
    """Write a backup into an empty folder, or into one that an unfinished restore has left."""
    files = files or Files()
    files.check_system()
    _check_empty(files, root)
    files.make_folder(root)
    with closing(files.lock(root / "LOCK")):
        _check_empty(files, root)
        files.write_text(root / RESTORING_FILE, json.dumps({"backup": manifest.id}) + "\n")
        files.sync_above(root)
        contents = repository.contents(manifest)
        _Writer(files, root, repository, contents, on_progress).run()
        generation = _continue_streams(files, root, manifest)
        files.make_folder(root / "journal")
        files.sync_everything(root)
        folder = {**manifest.folder, "format": FORMAT, "restored_from": manifest.id}
        files.write_text(root / FORMAT_FILE, json.dumps(folder) + "\n")
        files.remove(root / RESTORING_FILE)
        files.sync_folder(root)
    return Restored(manifest, generation)


def _check_empty(files: Files, root: Path) -> None:
    names = set(files.list_folder(root)) if files.exists(root) else set()
    if RESTORING_FILE in names:
        names -= OURS
    others = sorted(names - HARMLESS)
    if others:
        raise FolderNotEmpty(
            f"{root} is not empty: it has {others[0]!r}. Restore into a new folder, and move the "
            "old one away rather than remove it."
        )


class _Writer:
    """Writes the files of a backup, pack by pack: each pack is read once."""

    def __init__(
        self,
        files: Files,
        root: Path,
        repository: Repository,
        contents: Contents,
        on_progress: OnProgress,
    ) -> None:
        self._files = files
        self._root = root
        self._repository = repository
        self._contents = contents
        self._on_progress = on_progress
        self._folder = SegmentFolder(root / "segments")

    def run(self) -> None:
        for name in (CATALOG_FILE, f"{CATALOG_FILE}-wal", f"{CATALOG_FILE}-shm"):
            self._files.remove(self._root / name)  # of an unfinished restore
        places: list[list[tuple[Path, int, Part]]] = [[] for _ in self._contents.packs]
        for path, parts, length in self._targets():
            self._prepare(path, length)
            position = 0
            for part in parts:
                places[part.pack].append((path, position, part))
                position += part.length
            if position != length:
                raise BackupDamaged(f"The backup has {position} of {length} bytes of {path.name}.")
        total = sum(size for _, size in self._contents.packs)
        done = 0
        for (digest, size), targets in zip(self._contents.packs, places, strict=True):
            data = memoryview(self._repository.pack(digest, size))
            self._write(data, targets)
            done += size
            self._on_progress(done, total)

    def _targets(self) -> list[tuple[Path, list[Part], int]]:
        chunks = [chunk.part for chunk in self._contents.catalog]
        targets = [(self._root / CATALOG_FILE, chunks, sum(part.length for part in chunks))]
        for each in self._contents.segments:
            data = self._folder.data_path(each.stream_id, each.base)
            index = self._folder.index_path(each.stream_id, each.base)
            targets.append((data, each.data, each.length))
            if each.index:
                targets.append((index, each.index, sum(part.length for part in each.index)))
        return targets

    def _prepare(self, path: Path, length: int) -> None:
        self._files.make_folder(path.parent)
        with closing(self._files.open_write(path)) as file:
            file.truncate(0)
            file.truncate(length)

    def _write(self, data: memoryview, targets: list[tuple[Path, int, Part]]) -> None:
        file: File | None = None
        try:
            for path, position, part in targets:
                if file is None or file.path != path:
                    if file is not None:
                        file.close()
                    file = self._files.open_write(path)
                file.write_at(position, [data[part.at : part.at + part.length]])
        finally:
            if file is not None:
                file.close()


def _continue_streams(files: Files, root: Path, manifest: Manifest) -> int:
    """Let every stream that can grow continue under a new generation; return that."""
    with closing(Catalog(root / CATALOG_FILE)) as catalog:
        catalog.forget_cold()  # what was in the object store is in files now
        meta = catalog.meta()
        folder = manifest.folder
        shard = Shard(int(str(folder.get("worker", 0))), int(str(folder.get("workers", 1))))
        generation = shard.next_id(int(meta.get("next_id", 1)) + GENERATIONS_SKIPPED)
        last_lsn = int(meta.get("checkpoint_lsn", 0))
        rows: list[Row] = []
        for stream_id in list(catalog.ids()):
            row = catalog.by_id(stream_id)
            assert row is not None
            last_lsn = max(last_lsn, row.applied_lsn)
            if row.closed or row.soft_deleted:
                continue
            rows.append(row._replace(meta=renewed(row.meta, row.tail, generation)))
            if len(rows) == ROWS_AT_ONCE:
                catalog.commit(Changes(rows, [], [], [], {}))
                rows = []
        values: dict[str, int | str] = {
            "checkpoint_lsn": last_lsn,
            "next_id": generation + 1,
            "clean": 1,
            HAS_MARK: 0,
            RESTORED: generation,
        }
        if TIER_URL in meta:
            values[TIER_URL] = ""
        catalog.commit(Changes(rows, [], [], [], values))
    return generation


def is_restored(files: Files, root: Path, manifest: Manifest) -> bool:
    """Whether a folder was restored from this backup, completely."""
    path = root / FORMAT_FILE
    if not files.exists(path) or files.exists(root / RESTORING_FILE):
        return False
    return bool(json.loads(files.read_text(path)).get("restored_from") == manifest.id)


def restore_workers(
    repositories: list[Repository],
    manifests: list[Manifest],
    root: Path,
    *,
    on_progress: OnProgress = lambda done, total: None,
) -> None:
    """Write the backups of all workers of a server into an empty folder, or go on with it."""
    files = Files()
    files.check_system()
    if not files.exists(root / RESTORING_FILE):
        _check_empty(files, root)
    files.make_folder(root)
    with closing(files.lock(root / LOCK_FILE)):
        files.write_text(root / RESTORING_FILE, json.dumps({"workers": len(manifests)}) + "\n")
        for index, (repository, manifest) in enumerate(zip(repositories, manifests, strict=True)):
            folder = worker_folder(root, index)
            if not is_restored(files, folder, manifest):
                restore(repository, manifest, folder, files=files, on_progress=on_progress)
        write_root(files, root, len(manifests))
        files.remove(root / RESTORING_FILE)
        files.sync_folder(root)


def verify_backup(
    repository: Repository, manifests: list[Manifest], *, on_progress: OnProgress
) -> list[str]:
    """Read every object that backups name; return what is wrong, by backup."""
    faults: list[str] = []
    named: dict[tuple[str, int], list[str]] = {}
    for manifest in manifests:
        try:
            contents = repository.contents(manifest)
        except BackupDamaged as error:
            faults.append(error.detail)
            continue
        for pack in contents.packs:
            named.setdefault(pack, []).append(manifest.id)
        faults += _check_parts(manifest, contents)
    total, done = sum(size for _, size in named), 0
    for (digest, size), ids in named.items():
        try:
            repository.pack(digest, size)
        except BackupDamaged as error:
            faults.append(f"{error.detail} It is part of {', '.join(ids)}.")
        done += size
        on_progress(done, total)
    return faults


def _check_parts(manifest: Manifest, contents: Contents) -> list[str]:
    """Return what is wrong with the places that a list of contents names."""
    sizes = [size for _, size in contents.packs]
    parts = [chunk.part for chunk in contents.catalog]
    faults = []
    for segment in contents.segments:
        parts += [*segment.data, *segment.index]
        if sum(part.length for part in segment.data) != segment.length:
            faults.append(
                f"Backup {manifest.id} does not have all of segment {segment.stream_id:016x}-"
                f"{segment.base:016x}."
            )
    if any(part.pack >= len(sizes) or part.at + part.length > sizes[part.pack] for part in parts):
        faults.append(f"Backup {manifest.id} names bytes that its packs do not have.")
    return faults
