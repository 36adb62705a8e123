"""Backups of a store in use, and restores from them: whole, incremental and checked."""

from __future__ import annotations

import asyncio
import errno
import json
import random
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from penstock.clock import SYSTEM_CLOCK, ManualClock
from penstock.errors import (
    BackupDamaged,
    BackupLocked,
    BackupMismatch,
    BackupNotFound,
    BackupRunning,
    FolderNotEmpty,
    NotOnDisk,
    StoreDamaged,
    StreamRecreated,
)
from penstock.log import open_engine
from penstock.log.backup import repository as repositories
from penstock.log.backup import writer as writers
from penstock.log.backup.jobs import BackupJob, Backups
from penstock.log.backup.manifest import Manifest
from penstock.log.backup.repository import Keep, Repository, RepositoryLock
from penstock.log.backup.restore import find_backup, restore, verify_backup
from penstock.log.disk import checkpoint_schedule
from penstock.log.disk.files import Files
from penstock.log.disk.recovery import FORMAT
from penstock.log.engine import Engine
from penstock.log.lineage import token
from penstock.log.offline.verify import verify
from penstock.log.requests import Fork
from penstock.object_store import Data, MemoryStore
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import ForkConfig
from tests.crash.engines import (
    BYTES,
    JSON,
    START_US,
    Seen,
    append,
    disk,
    observe,
    small_blocks,
    small_settings,
    start,
)
from tests.helpers.tiered import cold_store

KEEP_ALL = Keep()
QUIET: Callable[[int, int], None] = lambda done, total: None  # noqa: E731 - a value, not a function


@pytest.fixture(autouse=True)
def _small() -> Iterator[None]:
    with small_blocks():
        yield


@pytest.fixture
def place() -> MemoryStore:
    return MemoryStore("test")


class SlowPlace(MemoryStore):
    """A place that lets a writer begin only when the test says so: what happens until then happens
    between the cut and the copy."""

    def __init__(self) -> None:
        super().__init__("test")
        self.is_open = threading.Event()

    def put_if_absent(self, key: str, data: Data) -> bool:
        assert self.is_open.wait(60)
        return super().put_if_absent(key, data)


class Rig:
    """An engine over a folder, and a place for its backups."""

    def __init__(self, engine: Engine, place: MemoryStore, folder: Path) -> None:
        self.engine = engine
        self.place = place
        self.folder = folder
        self.repository = Repository(place)
        self.backups = Backups(engine.store, small_settings(folder), clock=SYSTEM_CLOCK)

    async def backup(self, *, keep: Keep = KEEP_ALL) -> Manifest:
        job = self.begin(keep=keep)
        await self.backups.wait()
        if job.error is not None:
            raise job.error
        assert job.manifest is not None
        return job.manifest

    def begin(self, *, keep: Keep = KEEP_ALL) -> BackupJob:
        MemoryStore._named["test"] = self.place
        return self.backups.start("memory://test", keep=keep, rate_bytes_s=0)

    async def fill(self, path: str, count: int, *, size: int = 100) -> None:
        for number in range(count):
            await self.engine.append(path, append(b"%d," % number + b"x" * size))

    def restored(self, name: str = "restored", *, id: str | None = None) -> Path:
        target = self.folder.parent / name
        restore(self.repository, find_backup(self.repository, id=id), target)
        assert verify(target).problems == []
        return target


Test = Callable[[Rig], Awaitable[None]]


def run(tmp_path: Path, place: MemoryStore, test: Test) -> None:
    async def main() -> None:
        engine = await start(small_settings(tmp_path / "data"))
        try:
            await test(Rig(engine, place, tmp_path / "data"))
        finally:
            await engine.stop()

    asyncio.run(main())


async def until_cut(engine: Engine) -> None:
    """Wait until a backup holds what it is about to copy."""
    while not disk(engine)._schedule.is_held:
        await asyncio.sleep(0)


async def seen_in(folder: Path) -> dict[str, Seen]:
    engine = await start(small_settings(folder))
    try:
        return await observe(engine)
    finally:
        await engine.stop()


def test_a_restored_folder_has_what_the_server_had(tmp_path: Path, place: MemoryStore) -> None:
    async def test(rig: Rig) -> None:
        engine = rig.engine
        for path, config in (("small", BYTES), ("large", BYTES), ("j", JSON)):
            await engine.create(path, config)
        await rig.fill("small", 1)
        await rig.fill("large", 120)
        for number in range(50):
            producer = Producer("p", 0, number)
            await engine.append("j", append(b'{"n": %d}' % number, config=JSON, producer=producer))
        await engine.fork(
            "fork", Fork("large", None, 0), ForkConfig(None, None, None), b"", closed=False
        )
        await engine.append("fork", append(b"of the fork"))
        await engine.trim("large", token(engine.find("large", touch=False), 3000))
        await engine.append("small", append(b"", close=True))
        before = await observe(engine)
        manifest = await rig.backup()
        assert (manifest.streams, manifest.damaged) == (4, [])
        await rig.fill("large", 5)

        restored = rig.restored()
        assert await seen_in(restored) == before
        again = await start(small_settings(restored))
        try:
            last = append(b'{"n": 49}', config=JSON, producer=Producer("p", 0, 49))
            assert (await again.append("j", last)).duplicate
        finally:
            await again.stop()

    run(tmp_path, place, test)


def test_a_second_backup_copies_only_what_is_new(tmp_path: Path, place: MemoryStore) -> None:
    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        await rig.fill("a", 200, size=1000)
        first = await rig.backup()
        await rig.fill("a", 3)
        second = await rig.backup()
        before = await observe(rig.engine)
        assert first.new_bytes > 200_000
        assert second.new_bytes < 60_000  # the catalog, and the end of the last segment
        assert second.bytes > first.bytes
        assert await seen_in(rig.restored()) == before

    run(tmp_path, place, test)


def test_backups_while_streams_grow_shrink_and_end_are_each_restored_as_they_were(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "PACK_BYTES", 5000)
    monkeypatch.setattr(writers, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(writers, "PARTS_MAX", 4)
    chance = random.Random(7)

    async def test(rig: Rig) -> None:
        engine, copies = rig.engine, []
        for round in range(12):
            for path in ("a", "b", "c"):
                await engine.create(path, BYTES)
                await rig.fill(path, chance.randrange(30))
            if round % 3 == 2:
                await engine.delete("c")
            stream = engine.find("a", touch=False)
            position = stream.earliest + chance.randrange(stream.tail - stream.earliest)
            await engine.trim("a", token(stream, position))
            before = await observe(engine)
            copies.append(((await rig.backup()).id, before))
        assert verify_backup(rig.repository, rig.repository.manifests()[0], on_progress=QUIET) == []
        for number, (id, before) in enumerate(copies):
            assert await seen_in(rig.restored(f"copy-{number}", id=id)) == before

    run(tmp_path, place, test)


def test_all_streams_are_shown_at_the_same_moment(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer counts, each number in another stream: no backup has a number without all before."""
    monkeypatch.setattr(checkpoint_schedule, "PLAN_SLICE", 1)

    async def test(rig: Rig) -> None:
        engine, streams = rig.engine, [f"s/{number}" for number in range(300)]
        for path in streams:
            await engine.create(path, BYTES)
        chance, stopping = random.Random(1), False

        async def write() -> None:
            number = 0
            while not stopping:
                await engine.append(chance.choice(streams), append(b"%d " % number))
                number += 1

        writing = asyncio.create_task(write())
        ids = [(await rig.backup()).id for _ in range(4)]
        stopping = True
        await writing
        for id in ids:
            seen = await seen_in(rig.restored(id, id=id))
            numbers = sorted(int(text) for each in seen.values() for text in each.payload.split())
            assert numbers == list(range(len(numbers)))

    run(tmp_path, place, test)


def test_a_cut_is_planned_without_letting_anything_else_run(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_schedule, "PLAN_SLICE", 1)

    async def test(rig: Rig) -> None:
        for path in ("a", "b", "c"):
            await rig.engine.create(path, BYTES)
        schedule = disk(rig.engine)._schedule
        planning = schedule._plan(at_once=True)
        with pytest.raises(StopIteration) as done:
            planning.send(None)
        assert len(done.value.value.streams) == 3
        schedule._failed(OSError(errno.ENOSPC, "as if it had not been made"))

    run(tmp_path, place, test)


def test_what_is_removed_while_it_is_copied_is_in_the_backup(tmp_path: Path) -> None:
    place = SlowPlace()

    async def test(rig: Rig) -> None:
        engine = rig.engine
        await engine.create("a", BYTES)
        await engine.create("b", BYTES)
        await rig.fill("a", 100)
        await rig.fill("b", 100)
        before = await observe(engine)
        job = rig.begin()
        await until_cut(engine)
        await engine.delete("a")
        await engine.trim("b", "now")
        assert await disk(engine).checkpoint()
        place.is_open.set()
        await rig.backups.wait()
        assert job.error is None
        assert job.manifest is not None
        assert job.manifest.damaged == []
        assert await seen_in(rig.restored()) == before
        assert list((rig.folder / "segments").rglob("*.segment")) == []

    run(tmp_path, place, test)


def test_cold_segments_are_backed_up_and_restored_as_files(tmp_path: Path) -> None:
    place = SlowPlace()

    async def main() -> None:
        clock = ManualClock(START_US)
        folder = tmp_path / "data"
        store = cold_store(folder, clock)
        engine = Engine(store, store._settings, clock=clock)
        await engine.start()
        try:
            rig = Rig(engine, place, folder)
            await engine.create("a", BYTES)
            await engine.create("b", BYTES)
            for _ in range(8):  # each checkpoint begins segments, so that those before are cold
                await rig.fill("a", 15)
                await rig.fill("b", 15)
                await store.checkpoint()
            await rig.fill("a", 30)
            before = await observe(engine)
            cold = len(store.objects.names)
            job = rig.begin()
            await until_cut(engine)
            # Files become cold, and objects are not needed any more, while they are copied.
            await store.move()
            await engine.delete("b")
            await engine.trim("a", "now")
            await store.checkpoint()
            place.is_open.set()
            await rig.backups.wait()
            assert (job.error, cold > 10) == (None, True)
            assert job.manifest is not None
            assert job.manifest.damaged == []
            await store.checkpoint()
            assert (store.objects.names, list(folder.rglob("*.segment"))) == ([], [])
            store.objects.fail("get", "head")
            restored = rig.restored()
            assert json.loads((restored / "PENSTOCK").read_text())["format"] == FORMAT
            assert await seen_in(restored) == before
        finally:
            await engine.stop()

    asyncio.run(main())


def test_a_backup_that_is_called_off_leaves_garbage_that_the_next_one_removes(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "PACK_BYTES", 3000)

    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        await rig.fill("a", 100)
        first = await rig.backup()
        await rig.fill("a", 100)
        packs = len(rig.repository.pack_sizes())
        puts = 0

        def put(key: str, data: bytes) -> None:
            nonlocal puts
            puts += key.startswith("packs/")
            if puts == 2:
                rig.backups.cancel()
            MemoryStore.put(place, key, data)

        with monkeypatch.context() as patch:
            patch.setattr(place, "put", put)
            job = rig.begin()
            await rig.backups.wait()
        assert (job.outcome, job.error) == ("canceled", None)
        assert rig.repository.ids() == [first.id]
        assert len(rig.repository.pack_sizes()) > packs
        second = await rig.backup(keep=Keep(newest=1))
        assert rig.repository.ids() == [second.id]
        named = {digest for digest, _ in rig.repository.contents(second).packs}
        assert rig.repository.pack_sizes().keys() == named
        assert not (rig.folder / writers.SCRATCH_FILE).exists()

    run(tmp_path, place, test)


def test_a_store_that_loses_bits_is_noticed_when_it_is_written_to(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def put(key: str, data: bytes) -> None:
        MemoryStore.put(place, key, bytes(data)[:-1] + b"?" if key.startswith("packs/") else data)

    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        monkeypatch.setattr(place, "put", put)
        with pytest.raises(Exception, match="as it was written"):
            await rig.backup()
        assert rig.repository.ids() == []

    run(tmp_path, place, test)


@pytest.mark.parametrize("kind", ["packs", "contents", "backups"])
@pytest.mark.parametrize("harm", ["flip", "lose"])
def test_damage_of_a_backup_is_found_and_never_restored(
    tmp_path: Path, place: MemoryStore, kind: str, harm: str
) -> None:
    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        await rig.fill("a", 50)
        manifest = await rig.backup()
        key = next(blob.key for blob in place.list(kind))
        if harm == "lose":
            place.delete([key])
        else:
            data = bytearray(place.get(key))
            data[len(data) // 2] ^= 4
            place.put(key, data)
        target = tmp_path / "restored"
        if kind == "backups":
            with pytest.raises((BackupNotFound, BackupDamaged)):
                find_backup(rig.repository, id=manifest.id)
            return
        assert verify_backup(rig.repository, [manifest], on_progress=QUIET) != []
        with pytest.raises(BackupDamaged):
            restore(rig.repository, manifest, target)
        with pytest.raises(StoreDamaged, match="not finished"):
            verify(target)
        with pytest.raises(StoreDamaged, match="not finished"):
            await start(small_settings(target))

    run(tmp_path, place, test)


def test_a_damaged_backup_is_no_reason_not_to_make_the_next(
    tmp_path: Path, place: MemoryStore
) -> None:
    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        await rig.fill("a", 50)
        first = await rig.backup()
        for kind in ("packs", "contents"):
            place.delete([blob.key for blob in place.list(kind)])
            second = await rig.backup()
            assert second.new_bytes == first.new_bytes
            assert verify_backup(rig.repository, [second], on_progress=QUIET) == []

    run(tmp_path, place, test)


@pytest.mark.parametrize("stage", ["contents/", "backups/"])
def test_a_writer_that_has_lost_its_lock_publishes_nothing(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """Another writer may have removed what its manifest names."""

    def put(key: str, data: bytes) -> None:
        MemoryStore.put(place, key, data)
        if key.startswith(stage):
            MemoryStore.put(place, repositories.LOCK, b'{"owner": "another"}')

    async def test(rig: Rig) -> None:
        monkeypatch.setattr(place, "put", put)
        with pytest.raises(BackupLocked, match="taken the lock over"):
            await rig.backup()
        assert rig.repository.ids() == []
        assert json.loads(place.get(repositories.LOCK)) == {"owner": "another"}

    run(tmp_path, place, test)


def test_a_damaged_block_is_named_and_the_rest_is_backed_up(
    tmp_path: Path, place: MemoryStore
) -> None:
    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        await rig.engine.create("b", BYTES)
        await rig.fill("a", 60)
        await rig.fill("b", 60)
        await disk(rig.engine).checkpoint()
        path = min((rig.folder / "segments").rglob("*.segment"))
        data = bytearray(path.read_bytes())
        data[700] ^= 1
        path.write_bytes(data)
        manifest = await rig.backup()
        assert len(manifest.damaged) == 1
        assert path.name in manifest.damaged[0]
        assert "byte 512" in manifest.damaged[0]
        target = tmp_path / "restored"
        restore(rig.repository, manifest, target)
        assert [problem.code for problem in verify(target).problems] == ["block-damaged"]

    run(tmp_path, place, test)


def test_a_restore_that_was_killed_is_begun_again(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writers, "PACK_BYTES", 3000)

    class Killed(Exception):
        pass

    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        await rig.fill("a", 100)
        manifest = await rig.backup()
        before = await observe(rig.engine)
        target, steps = tmp_path / "restored", 0

        class KilledFiles(Files):
            """Fails at the Nth step; nothing is cleaned up afterwards."""

            def open_write(self, path: Path):  # type: ignore[no-untyped-def]  # as in Files
                nonlocal steps
                steps -= 1
                if steps <= 0:
                    raise Killed
                return super().open_write(path)

        for last in range(1, 60):
            steps = last
            try:
                restore(rig.repository, manifest, target, files=KilledFiles())
            except Killed:
                if (target / "RESTORING").exists():
                    with pytest.raises(StoreDamaged, match="not finished"):
                        verify(target)
                else:
                    assert not (target / "PENSTOCK").exists()
            else:
                break
        assert last > 5
        assert verify(target).problems == []
        assert await seen_in(target) == before

    run(tmp_path, place, test)


def test_a_restore_needs_an_empty_folder(tmp_path: Path, place: MemoryStore) -> None:
    async def test(rig: Rig) -> None:
        manifest = await rig.backup()
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "letter").write_text("dear")
        for folder, name in ((rig.folder, "JOURNAL"), (tmp_path / "other", "letter")):
            with pytest.raises(FolderNotEmpty, match=name):
                restore(rig.repository, manifest, folder)
        (tmp_path / "volume" / "lost+found").mkdir(parents=True)
        restore(rig.repository, manifest, tmp_path / "volume")

    run(tmp_path, place, test)


def test_offsets_of_lost_data_are_refused_for_ever(tmp_path: Path, place: MemoryStore) -> None:
    async def test(rig: Rig) -> None:
        engine = rig.engine
        await engine.create("a", BYTES)
        await rig.fill("a", 10)
        kept = token(engine.find("a", touch=False), engine.find("a", touch=False).tail)
        await rig.backup()
        await rig.fill("a", 10)
        lost = token(engine.find("a", touch=False), engine.find("a", touch=False).tail)
        recreated = (await engine.create("later", BYTES, b"x")).offset

        again = await start(small_settings(rig.restored()))
        try:
            assert await again.position(again.find("a", touch=False), kept) == int(kept[17:])
            for _ in range(3):
                with pytest.raises(StreamRecreated, match="restored from a backup"):
                    await again.position(again.find("a", touch=False), lost)
                for _ in range(10):  # beyond the lost offset, with other bytes
                    await again.append("a", append(b"y" * 150))
            stream = again.find("a", touch=False)
            fresh = token(stream, stream.tail)
            assert fresh > lost
            assert await again.position(stream, fresh) == stream.tail
            # Readers that split a range know its end, and spell everything like that.
            inner = f"{fresh[:16]}_{int(kept[17:]):016d}"
            assert await again.position(stream, inner) == int(kept[17:])
            await again.create("later", BYTES, b"other")
            with pytest.raises(StreamRecreated):
                await again.position(again.find("later", touch=False), recreated)
            info = next(i for i in await again.list_streams("", "", 10) if i.path == "a")
            assert info.renewals == stream.renewals != ()
        finally:
            await again.stop()
        # It stays so over a restart, and over a second restore.
        once_more = await start(small_settings(tmp_path / "restored"))
        try:
            stream = once_more.find("a", touch=False)
            assert token(stream, stream.tail) == fresh
            with pytest.raises(StreamRecreated):
                await once_more.position(stream, lost)
        finally:
            await once_more.stop()

    run(tmp_path, place, test)


def test_a_restored_server_goes_on_in_the_same_place(tmp_path: Path, place: MemoryStore) -> None:
    """Its segments have the names of segments that the place has, with other bytes."""

    async def test(rig: Rig) -> None:
        await rig.engine.create("a", BYTES)
        await rig.fill("a", 40)
        first = await rig.backup()
        await rig.fill("a", 40)
        lost = await rig.backup()
        folder = rig.restored(id=first.id)
        engine = await start(small_settings(folder))
        try:
            other = Rig(engine, place, folder)
            for _ in range(60):
                await engine.append("a", append(b"other bytes" * 9))
            before = await observe(engine)
            manifest = await other.backup()
            assert await seen_in(other.restored("third", id=manifest.id)) == before
        finally:
            await engine.stop()
        assert len(rig.repository.ids()) == 3
        manifests = rig.repository.manifests()[0]
        assert lost in manifests
        assert verify_backup(rig.repository, manifests, on_progress=QUIET) == []

    run(tmp_path, place, test)


def test_one_backup_runs_at_a_time(tmp_path: Path, place: MemoryStore) -> None:
    async def test(rig: Rig) -> None:
        rig.begin()
        with pytest.raises(BackupRunning, match="memory://test"):
            rig.begin()
        await rig.backups.wait()
        await rig.backup()

    run(tmp_path, place, test)


def test_a_place_belongs_to_one_server(tmp_path: Path, place: MemoryStore) -> None:
    async def test(rig: Rig) -> None:
        await rig.backup()
        engine = await start(small_settings(tmp_path / "another"))
        try:
            with pytest.raises(BackupMismatch, match="another server"):
                await Rig(engine, place, tmp_path / "another").backup()
        finally:
            await engine.stop()

    run(tmp_path, place, test)


def test_a_place_that_another_writer_uses_is_left_alone_until_that_is_dead(
    tmp_path: Path, place: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(rig: Rig) -> None:
        store_id = json.loads((rig.folder / "PENSTOCK").read_text())["store_id"]
        RepositoryLock(rig.repository, store_id=store_id, folder="/elsewhere").acquire()
        with pytest.raises(BackupLocked, match="/elsewhere"):
            await rig.backup()
        assert rig.repository.ids() == []
        monkeypatch.setattr(repositories, "LOCK_STALE_S", 0.0)
        await rig.backup()
        monkeypatch.undo()
        # One of the same folder is dead: only one process can have it.
        RepositoryLock(rig.repository, store_id=store_id, folder=str(rig.folder)).acquire()
        await rig.backup()
        assert place.head(repositories.LOCK) is None

    run(tmp_path, place, test)


def test_a_server_in_memory_has_nothing_to_back_up() -> None:
    async def main() -> None:
        settings = small_settings(Path("unused"), memory=True)
        engine = open_engine(settings)
        await engine.start()
        try:
            with pytest.raises(NotOnDisk):
                Backups(engine.store, settings, clock=SYSTEM_CLOCK).start(
                    "memory://x", keep=KEEP_ALL, rate_bytes_s=0
                )
        finally:
            await engine.stop()

    asyncio.run(main())


def _manifest(day: int) -> Manifest:
    return Manifest(
        format=1,
        id=str(day),
        store_id="",
        version="",
        cut_us=day * repositories.DAY_US,
        finished_us=0,
        checkpoint_lsn=0,
        next_id=0,
        streams=0,
        segments=0,
        bytes=0,
        new_bytes=0,
        folder={},
        contents_sha256="",
        contents_bytes=0,
    )


@pytest.mark.parametrize(
    ("keep", "expired"),
    [
        (Keep(), []),
        (Keep(newest=2), [1, 2, 3]),
        (Keep(newest=9), []),
        (Keep(days=2.5), [1, 2]),
        (Keep(days=0), [1, 2, 3, 4]),  # the last one always stays
        (Keep(newest=1, days=1.5), [1, 2, 3]),
        (Keep(newest=4, days=1.5), [1]),
    ],
)
def test_backups_expire_by_number_and_by_age(keep: Keep, expired: list[int]) -> None:
    manifests = [_manifest(day) for day in range(1, 6)]
    names = [int(each.id) for each in keep.expired(manifests, 5 * repositories.DAY_US)]
    assert names == expired


@pytest.mark.parametrize(("day", "expected"), [(0.5, None), (1, "1"), (2.7, "2"), (9, "5")])
def test_a_time_names_the_newest_backup_that_is_not_after_it(
    day: float, expected: str | None
) -> None:
    manifests = [_manifest(day) for day in range(1, 6)]
    chosen = repositories.choose(manifests, id=None, at_us=int(day * repositories.DAY_US))
    assert (chosen and chosen.id) == expected
