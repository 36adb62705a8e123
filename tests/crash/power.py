"""A disk that can lose its power: `Files` that record every step, and what survives a cut.

Steps are recorded once; the disk after any number of them is rebuilt from the record. What no sync
has covered may be lost: bytes by the page and in any order, names one by one. A catalog commit is
one step that happened or did not. Nothing here knows what the bytes mean.
"""

from __future__ import annotations

import copy
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from typing import NamedTuple, TypeVar

from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.direct_batches import WriteQueue
from penstock.log.disk.files import File, Files
from penstock.log.disk.store import CATALOG_FILE, DiskStore
from penstock.object_store import Data, MemoryStore, ObjectStore
from tests.crash.engines import QuickCatalog
from tests.helpers.write_queue import HookedQueue

PAGE_BYTES = 4096
FOLDER = 0
"""What a name of a folder stands for, instead of the number of a file."""

T = TypeVar("T")


class Luck:
    """Decides what of the unsynced survives: `odds` 0 is nothing, 1 is everything."""

    def __init__(self, seed: int, odds: float) -> None:
        self._random = random.Random(seed)
        self._odds = odds

    def keeps(self) -> bool:
        return self._random.random() < self._odds

    def pick(self, durable: T, later: Sequence[T]) -> T:
        """One of the states a page went through since it was synced."""
        if not later or not self.keeps():
            return durable
        return later[-1] if self._odds == 1 else self._random.choice([later[-1], *later])


# -- steps: what one call did to the disk


class Write(NamedTuple):
    file: int
    position: int
    data: bytes


class Truncate(NamedTuple):
    file: int
    length: int


class Sync(NamedTuple):
    file: int


class Link(NamedTuple):
    name: PurePath
    file: int


class Unlink(NamedTuple):
    name: PurePath


class Rename(NamedTuple):
    source: PurePath
    target: PurePath
    file: int


class SyncFolder(NamedTuple):
    name: PurePath


class SyncAll(NamedTuple):
    but: frozenset[PurePath]
    """Folders that are never really synced."""


class Commit(NamedTuple):
    """A catalog transaction, with the whole database as it was afterwards."""

    database: bytes
    is_synced: bool


class PutObject(NamedTuple):
    """An object of the object store, which is another machine: it has all of it, or nothing."""

    key: str
    data: bytes


class DeleteObjects(NamedTuple):
    keys: tuple[str, ...]


NameChange = Link | Unlink | Rename
Step = (
    Write | Truncate | Sync | NameChange | SyncFolder | SyncAll | Commit | PutObject | DeleteObjects
)


class Content:
    """The bytes of one file: as synced, as written, and every state its pages had in between."""

    def __init__(self, data: bytes = b"") -> None:
        self.durable = data
        self.live = bytearray(data)
        self._pages: dict[int, list[bytes]] = {}
        self._sizes: list[int] = []

    def write(self, position: int, data: bytes) -> None:
        first = min(position, len(self.live))
        if len(self.live) < position + len(data):
            self.live.extend(bytes(position + len(data) - len(self.live)))
            self._sizes.append(len(self.live))
        self.live[position : position + len(data)] = data
        self._note(first, position + len(data))

    def truncate(self, length: int) -> None:
        old = len(self.live)
        del self.live[length:]
        self.live.extend(bytes(length - len(self.live)))
        self._sizes.append(length)
        self._note(min(old, length), max(old, length))

    def _note(self, start: int, end: int) -> None:
        for page in range(start // PAGE_BYTES, (end + PAGE_BYTES - 1) // PAGE_BYTES):
            data = bytes(self.live[page * PAGE_BYTES : (page + 1) * PAGE_BYTES])
            self._pages.setdefault(page, []).append(data)

    def sync(self) -> None:
        self.durable = bytes(self.live)
        self._pages, self._sizes = {}, []

    def survivor(self, luck: Luck) -> bytes:
        size = luck.pick(len(self.durable), self._sizes)
        data = bytearray(self.durable[:size].ljust(size, b"\0"))
        for page, states in sorted(self._pages.items()):
            start = page * PAGE_BYTES
            old = self.durable[start : start + PAGE_BYTES]
            data[start : start + PAGE_BYTES] = luck.pick(old, states).ljust(PAGE_BYTES, b"\0")
        return bytes(data[:size])


class Image:
    """A disk at one moment: files, their names, and the catalog beside them."""

    def __init__(self) -> None:
        self.contents: dict[int, Content] = {}
        self.names: dict[PurePath, int] = {}
        self.catalog: bytes | None = None
        self._durable_names: dict[PurePath, int] = {}
        self._changes: dict[PurePath, list[NameChange]] = {}
        self._durable_catalog: bytes | None = None
        self._catalogs: list[bytes] = []
        self.objects: dict[str, bytes] = {}

    def apply(self, step: Step) -> None:
        match step:
            case Write(file, position, data):
                self.contents[file].write(position, data)
            case Truncate(file, length):
                self.contents[file].truncate(length)
            case Sync(file):
                self.contents[file].sync()
            case SyncFolder(name):
                self._sync_folder(name)
            case SyncAll(but):
                for content in self.contents.values():
                    content.sync()
                for name in [name for name in self._changes if name not in but]:
                    self._sync_folder(name)
            case Commit(database, is_synced):
                self.catalog = database
                self._catalogs.append(database)
                if is_synced:
                    self._durable_catalog, self._catalogs = database, []
            case PutObject(key, data):
                self.objects[key] = data
            case DeleteObjects(keys):
                for key in keys:
                    self.objects.pop(key, None)
            case Link() | Unlink() | Rename():
                self._change_name(step)

    def _change_name(self, step: NameChange) -> None:
        if isinstance(step, Link) and step.file != FOLDER:
            self.contents[step.file] = Content()
        folder = step.target.parent if isinstance(step, Rename) else step.name.parent
        self._changes.setdefault(folder, []).append(step)
        _rename(self.names, step)

    def _sync_folder(self, folder: PurePath) -> None:
        for step in self._changes.pop(folder, []):
            _rename(self._durable_names, step)

    def after_power_loss(self, luck: Luck) -> Image:
        """What is there when the power is back; all of that is durable."""
        names = dict(self._durable_names)
        for steps in self._changes.values():
            for step in steps:
                if luck.keeps():
                    _rename(names, step)
        image = Image()
        image.objects = dict(self.objects)
        image.names = {
            name: file
            for name, file in names.items()
            if all(folder in names for folder in name.parents if folder != PurePath())
        }
        for file in sorted(set(image.names.values()) - {FOLDER}):
            image.contents[file] = Content(self.contents[file].survivor(luck))
        image._durable_names = dict(image.names)
        image.catalog = image._durable_catalog = luck.pick(self._durable_catalog, self._catalogs)
        return image

    def write_to(self, base: Path, *, root: PurePath) -> None:
        """Make it a real folder; `root` is where the catalog stands."""
        for name, file in sorted(self.names.items()):
            if file == FOLDER:
                (base / name).mkdir(parents=True, exist_ok=True)
            else:
                (base / name).write_bytes(self.contents[file].live)
        if self.catalog is not None and root in self.names:
            (base / root / CATALOG_FILE).write_bytes(self.catalog)


def _rename(names: dict[PurePath, int], step: NameChange) -> None:
    match step:
        case Link(name, file):
            names[name] = file
        case Unlink(name):
            names.pop(name, None)
        case Rename(_, target, file):
            # A file has one name, whichever of its earlier renames were lost.
            for name in [name for name, known in names.items() if known == file]:
                del names[name]
            names[target] = file


class Record:
    """Every step in order, from a disk that it started with."""

    def __init__(self, start: Image | None = None) -> None:
        self.start = start or Image()
        self.steps: list[Step] = []
        self.lock = threading.RLock()

    def __len__(self) -> int:
        return len(self.steps)

    def add(self, step: Step) -> None:
        self.steps.append(step)

    def images(self, cuts: Iterable[int]) -> Iterator[tuple[int, Image]]:
        """The disk after so many steps, for each of the ascending `cuts`. Not to be changed."""
        image, done = copy.deepcopy(self.start), 0
        for cut in cuts:
            for step in self.steps[done:cut]:
                image.apply(step)
            done = cut
            yield cut, image


class PowerFile(File):
    __slots__ = ("_is_synced", "_number", "_record")

    def __init__(
        self, path: Path, fd: int, *, number: int, record: Record, is_synced: bool
    ) -> None:
        super().__init__(path, fd)
        self._number = number
        self._record = record
        self._is_synced = is_synced

    def _pwritev(self, parts: list[memoryview], position: int) -> int:
        with self._record.lock:
            written = super()._pwritev(parts, position)
            data = b"".join(parts)[:written]
            self._record.add(Write(self._number, position, data))
            return written

    def truncate(self, length: int) -> None:
        with self._record.lock:
            super().truncate(length)
            self._record.add(Truncate(self._number, length))

    def sync_data(self) -> None:
        if self._is_synced:
            self._record.add(Sync(self._number))


class DirectPowerFile(PowerFile):
    """One whose every write is synced when it returns. The power may fail in between."""

    __slots__ = ()

    def _pwritev(self, parts: list[memoryview], position: int) -> int:
        written = super()._pwritev(parts, position)
        self.sync_data()
        return written


class PowerFiles(Files):
    """Works in `base` and records what it does. `skips` names what is never really synced. With
    `queued`, there is a queue for the journal."""

    def __init__(
        self,
        base: Path,
        record: Record,
        *,
        skips: Callable[[Path], bool] = lambda path: False,
        queued: bool = False,
    ) -> None:
        self._queued = queued
        self._base = base
        self._record = record
        self._skips = skips
        self._numbers = dict(record.start.names)
        self._folders = {name for name, file in self._numbers.items() if file == FOLDER}
        self._next = max(record.start.contents, default=FOLDER) + 1

    def _name(self, path: Path) -> PurePath:
        return PurePath(path.relative_to(self._base))

    def open_write(self, path: Path) -> File:
        with self._record.lock:
            name = self._name(path)
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            if name not in self._numbers:
                self._numbers[name] = self._next
                self._next += 1
                self._record.add(Link(name, self._numbers[name]))
            return PowerFile(
                path,
                fd,
                number=self._numbers[name],
                record=self._record,
                is_synced=not self._skips(path),
            )

    def write_queue(self) -> WriteQueue | None:
        return HookedQueue() if self._queued else None

    def open_direct(self, path: Path) -> File:
        with self._record.lock:
            return DirectPowerFile(
                path,
                os.open(path, os.O_RDWR | os.O_CLOEXEC),
                number=self._numbers[self._name(path)],
                record=self._record,
                is_synced=not self._skips(path),
            )

    def make_folder(self, path: Path) -> None:
        if path != self._base and not path.is_dir():
            self.make_folder(path.parent)
            path.mkdir()
            self._folders.add(self._name(path))
            self._record.add(Link(self._name(path), FOLDER))

    def sync_folder(self, path: Path) -> None:
        if path.is_relative_to(self._base) and not self._skips(path):
            self._record.add(SyncFolder(self._name(path)))

    def sync_all(self, path: Path) -> None:
        if not self._skips(path):
            skipped = {name for name in self._folders if self._skips(self._base / name)}
            self._record.add(SyncAll(frozenset(skipped)))

    def rename(self, source: Path, target: Path) -> None:
        with self._record.lock:
            super().rename(source, target)
            number = self._numbers.pop(self._name(source))
            self._numbers[self._name(target)] = number
            self._record.add(Rename(self._name(source), self._name(target), number))

    def remove(self, path: Path) -> None:
        with self._record.lock:
            super().remove(path)
            if self._numbers.pop(self._name(path), None) is not None:
                self._record.add(Unlink(self._name(path)))


class PowerCatalog(QuickCatalog):
    def __init__(self, path: Path, record: Record, *, is_synced: bool) -> None:
        super().__init__(path)
        self._record = record
        self._is_synced = is_synced

    def commit(self, changes: Changes) -> None:
        with self._record.lock:
            super().commit(changes)
            self._record.add(Commit(self._writer.serialize(), self._is_synced))


class PowerObjects(MemoryStore):
    """An object store whose every change is recorded."""

    def __init__(self, record: Record) -> None:
        super().__init__()
        self._record = record
        for key, data in record.start.objects.items():
            super().put(key, data)

    def put(self, key: str, data: Data | Iterable[Data]) -> None:
        with self._record.lock:
            super().put(key, data)
            self._record.add(PutObject(key, self.get(key)))

    def delete(self, keys: Iterable[str]) -> None:
        keys = tuple(keys)
        with self._record.lock:
            super().delete(keys)
            self._record.add(DeleteObjects(keys))


class PowerStore(DiskStore):
    """A disk store whose every step is recorded."""

    record: Record
    skips: Callable[[Path], bool]

    def open_catalog(self) -> Catalog:
        path = self._root / CATALOG_FILE
        return PowerCatalog(path, self.record, is_synced=not self.skips(path))

    def open_objects(self) -> ObjectStore:
        return PowerObjects(self.record)

    async def checkpoint(self) -> bool:
        done = await super().checkpoint()
        if done and self.tier is not None:
            await self.tier.tiering.round()
        return done
