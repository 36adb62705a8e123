"""The journal truncated, deleted, renamed or altered: a start says so, and removes no record.

What a crash can leave starts without a complaint (`test_power_loss`, `test_torn_tail`); whatever
else is missing is refused with nothing changed. A last batch that is not whole is the one case that
nobody can tell apart: it is cut off, logged and counted.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock.errors import StoreDamaged
from penstock.log.disk import journal
from penstock.log.disk.journal_recovery import SET_ASIDE
from penstock.log.offline.verify import verify
from tests.crash.engines import BYTES, abandon, append, disk, observe, small_settings, start
from tests.crash.scenario import Operation, is_same, states_after
from tests.crash.small_store import make_operations, read_journal, write_operations
from tests.helpers.folders import fingerprint, flip

BURSTS = 60
OPERATIONS = [each for burst in make_operations(BURSTS, size_max=200) for each in burst]
ALL = states_after(OPERATIONS)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a killed server, with several journal files and nothing in its catalog."""
    folder = tmp_path_factory.mktemp("written") / "data"
    asyncio.run(write_operations(folder, make_operations(BURSTS, size_max=200)))
    assert len(read_journal(folder)) > 2
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "data"))


@pytest.fixture
def stopped(folder: Path) -> Path:
    """A folder of a server that was stopped; its last journal file is still there."""

    async def run() -> None:
        engine = await start(small_settings(folder))
        await engine.create("stopped", BYTES, b"la", closed=False)
        await engine.append("stopped", append(b"st"))
        await engine.stop()

    asyncio.run(run())
    assert len(list((folder / "journal").glob("*.journal"))) == 1
    return folder


def last_file(folder: Path) -> Path:
    return sorted((folder / "journal").glob("*.journal"))[-1]


def truncate(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)


def journal_of(folder: Path) -> dict[str, str]:
    return {
        name: digest
        for name, digest in fingerprint(folder).items()
        if name.startswith(("journal/", "JOURNAL", SET_ASIDE))
    }


def assert_refused(folder: Path, words: str = "") -> None:
    """The start is refused and leaves the journal alone, and `verify` has said so before."""
    assert verify(folder).problem_count > 0
    before = journal_of(folder)

    async def run() -> None:
        with pytest.raises(StoreDamaged, match=words):
            await start(small_settings(folder))

    asyncio.run(run())
    assert journal_of(folder) == before


def assert_starts(folder: Path, count: int = len(OPERATIONS), **options: object) -> None:
    """A server has the first `count` operations, takes more, and has them after a kill."""
    states = states_after(OPERATIONS[:count])

    async def run() -> None:
        engine = await start(small_settings(folder, **options))
        assert is_same(await observe(engine), states)
        more = Operation("more", "create", b"more")
        await more.submit(engine)
        await abandon(engine)
        engine = await start(small_settings(folder))
        assert is_same(await observe(engine), states_after([*OPERATIONS[:count], more]))
        await engine.stop()

    asyncio.run(run())
    assert verify(folder).problems == []


# -- shorter, gone, renamed


@pytest.mark.parametrize("cuts", [pytest.param(12), pytest.param(600, marks=pytest.mark.soak)])
def test_a_truncated_last_file_is_refused(folder: Path, cuts: int) -> None:
    path = last_file(folder)
    whole = path.read_bytes()
    for size in [0, *random.Random(cuts).sample(range(1, len(whole)), cuts), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert_refused(folder, f"{path.name} is damaged: it has {size} bytes, not {len(whole)}")
    path.write_bytes(whole)
    assert_starts(folder)


@pytest.mark.parametrize("number", [0, 1, -1])
def test_a_deleted_file_is_refused(folder: Path, number: int) -> None:
    sorted((folder / "journal").glob("*.journal"))[number].unlink()
    assert_refused(folder, "missing")


def test_a_deleted_journal_folder_is_refused(folder: Path) -> None:
    shutil.rmtree(folder / "journal")
    assert_refused(folder, "missing")


@pytest.mark.parametrize("name", ["0000000000000099.journal", "saved.journal", "1.spare", "old"])
def test_a_renamed_last_file_is_refused_and_the_message_tells_its_name(
    folder: Path, name: str
) -> None:
    path = last_file(folder)
    other = path.rename(path.with_name(name))
    assert_refused(folder, f"{path.name} is missing: {name} is that file, so rename it back")
    other.rename(path)
    assert_starts(folder)


def test_files_that_changed_their_names_are_refused(folder: Path) -> None:
    one, two = sorted((folder / "journal").glob("*.journal"))[:2]
    saved = one.rename(one.with_name("saved"))
    two.rename(one)
    saved.rename(two)
    assert_refused(folder, "missing|named wrongly")


def test_a_copy_under_another_name_is_set_aside_and_not_removed(folder: Path) -> None:
    path = last_file(folder)
    data = path.read_bytes()
    for name in ("0000000000000099.journal", "saved.journal"):
        path.with_name(name).write_bytes(data)
    assert_starts(folder)
    for name in ("0000000000000099.journal", "saved.journal"):
        assert (folder / SET_ASIDE / name).read_bytes() == data


@pytest.mark.parametrize("spoil", [Path.unlink, lambda path: path.write_bytes(bytes(9000))])
def test_a_lost_mark_is_refused(folder: Path, spoil: Callable[[Path], object]) -> None:
    spoil(folder / "JOURNAL")
    assert_refused(folder, "JOURNAL is missing or damaged")


def test_one_copy_of_the_mark_is_enough(folder: Path) -> None:
    for at in (20, 4096 + 20):
        flip(folder / "JOURNAL", at)
        assert_starts(folder) if at == 20 else assert_refused_nothing(folder)


def assert_refused_nothing(folder: Path) -> None:
    """The start before has written both copies again, so that one flip is one flip."""
    assert verify(folder).problems == []


def test_records_that_the_catalog_has_seen_are_missed(folder: Path) -> None:
    """Batches that were there at the last checkpoint are gone, and with them what came later."""

    async def run() -> None:
        engine = await start(small_settings(folder, checkpoint_bytes=1 << 30))
        await engine.create("first", BYTES, b"", closed=False)
        await engine.append("first", append(b"1"))
        assert await disk(engine).checkpoint()
        await engine.append("first", append(b"2"))
        await abandon(engine)

    asyncio.run(run())
    path = last_file(folder)
    data = path.read_bytes()
    scan = journal.find_batches(data, path.name)
    assert scan is not None
    start_of_second = journal.HEAD_BYTES + journal.batch_bytes(scan.batches[0])
    path.write_bytes(data[:start_of_second].ljust(len(data), b"\0"))
    assert_refused(folder, "but the catalog has records up to")


# -- anything, anywhere


class Vandal:
    """Damages one file of a journal in a way that it draws; `what` says which."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._random = random.Random(seed)
        self._files = sorted((folder / "journal").glob("*.journal"))
        self._path = self._random.choice([*self._files, self._files[-1], folder / "JOURNAL"])
        self._act = self._random.choice(
            [self._truncate, self._delete, self._rename, self._flip, self._swap, self._grow]
        )
        self.what = f"seed {seed}: {self._act.__name__} {self._path.name}"

    def strike(self) -> None:
        self._act()

    def _truncate(self) -> None:
        truncate(self._path, self._random.randrange(self._path.stat().st_size))

    def _delete(self) -> None:
        self._path.unlink()

    def _rename(self) -> None:
        names = (f"{self._random.randrange(10, 99):016d}.journal", "x.journal", "9.spare", "x")
        self._path.rename(self._path.with_name(self._random.choice(names)))

    def _flip(self) -> None:
        for _ in range(self._random.choice((1, 1, 3))):
            flip(self._path, self._random.randrange(self._path.stat().st_size))

    def _swap(self) -> None:
        other = self._random.choice(self._files)
        one, two = self._path.read_bytes(), other.read_bytes()
        self._path.write_bytes(two)
        other.write_bytes(one)

    def _grow(self) -> None:
        with self._path.open("ab") as file:
            file.write(self._random.randbytes(self._random.randrange(1, 9000)))


@pytest.mark.parametrize(
    "seeds", [pytest.param(range(40)), pytest.param(range(100, 1100), marks=pytest.mark.soak)]
)
def test_no_record_is_lost_without_a_word(written: Path, tmp_path: Path, seeds: range) -> None:
    """Refused, or complete, or without one last batch that was logged and counted."""
    whole, less = len(OPERATIONS), read_journal(written)[-1].ends[-2][1]
    outcomes = Counter[str]()

    async def run(folder: Path, what: str, problems: int) -> None:
        try:
            engine = await start(small_settings(folder))
        except StoreDamaged:
            assert problems, f"{what}: verify is content"
            outcomes["refused"] += 1
            return
        seen, cut_bytes = await observe(engine), disk(engine).stats.journal_cut_bytes
        await engine.stop()
        count = less if cut_bytes else whole
        assert is_same(seen, states_after(OPERATIONS[:count])), what
        outcomes["cut" if cut_bytes else "complete"] += 1

    for seed in seeds:
        folder = Path(shutil.copytree(written, tmp_path / str(seed)))
        vandal = Vandal(folder, seed)
        vandal.strike()
        asyncio.run(run(folder, vandal.what, verify(folder).problem_count))
        shutil.rmtree(folder)
    assert outcomes["refused"] > len(seeds) // 4, outcomes
    assert outcomes["complete"] > 0, outcomes


# -- after a clean stop the catalog has everything


@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        lambda path: truncate(path, 0),
        lambda path: truncate(path, 100),
        lambda path: truncate(path, path.stat().st_size - 1),
        lambda path: path.rename(path.with_name("saved")),
        lambda path: path.write_bytes(path.read_bytes()[:64].ljust(4096, b"\0")),
        lambda path: flip(path, 64 + 40),
        lambda path: flip(path, 20),
    ],
)
def test_after_a_clean_stop_nothing_is_lost_and_the_damage_is_said(
    stopped: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    damage(last_file(stopped))
    assert verify(stopped).problem_count > 0

    async def run() -> None:
        for end in (abandon, abandon, None):
            engine = await start(small_settings(stopped))
            seen = await observe(engine)
            assert seen.pop("stopped").payload == b"last"
            assert is_same(seen, ALL)
            await (engine.stop() if end is None else end(engine))

    asyncio.run(run())
    assert "Nothing is lost" in caplog.text
    assert verify(stopped).problems == []


def test_a_lost_catalog_is_refused_also_if_there_is_no_journal_to_miss_it(stopped: Path) -> None:
    """An empty catalog would let the next checkpoint remove every segment as a stray file."""

    async def restart() -> None:
        engine = await start(small_settings(stopped))
        assert await disk(engine).checkpoint()
        await engine.stop()

    asyncio.run(restart())
    assert not list((stopped / "journal").glob("*.journal"))
    for path in stopped.glob("catalog.sqlite*"):
        path.unlink()
    assert_refused(stopped, "records 1 to [0-9]+ are missing")


# -- a last batch that is not whole


def test_an_incomplete_last_batch_is_cut_off_logged_and_counted(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = read_journal(folder)[-1]
    (begin, count), (end, _) = file.ends[-2:]
    flip(folder / "journal" / file.name, begin + 40)
    (note,) = verify(folder).notes
    assert f"{end - begin} bytes here are an incomplete or damaged batch" in note

    async def run() -> None:
        engine = await start(small_settings(folder))
        assert disk(engine).stats.journal_cut_bytes == end - begin
        await abandon(engine)

    asyncio.run(run())
    assert f"incomplete or damaged batch of {end - begin} bytes was cut off" in caplog.text
    assert_starts(folder, count)


def test_a_last_batch_that_an_earlier_start_had_is_missed(folder: Path) -> None:
    """No crash explains it: a start syncs what it serves, and writes to other files."""

    async def run() -> None:
        await abandon(await start(small_settings(folder)))

    asyncio.run(run())
    file = read_journal(folder)[-1]
    flip(folder / "journal" / file.name, file.ends[-2][0] + 40)
    assert_refused(folder, "records [0-9]+ to [0-9]+ are missing")


# -- a loss that is accepted


@pytest.mark.parametrize("number", [0, 1, 2])
def test_an_accepted_loss_cuts_at_the_damage_and_sets_the_rest_aside(
    folder: Path, number: int
) -> None:
    files = read_journal(folder)
    file = files[number]
    place, count = file.ends[len(file.ends) // 2]
    flip(folder / "journal" / file.name, place + 40)
    assert_refused(folder, f"{file.name} is damaged at byte {place}")
    later = {each.name: each.data for each in files[number + 1 :]}
    assert_starts(folder, count, journal_damage="cut")
    kept = {path.name: path.read_bytes() for path in (folder / SET_ASIDE).iterdir()}
    assert kept.keys() == {file.name, *later}
    assert all(kept[name] == data for name, data in later.items())
    assert any(str(SET_ASIDE) in note for note in verify(folder).notes)


def test_an_accepted_loss_of_the_last_file_keeps_what_is_before_it(folder: Path) -> None:
    *_, before, last = read_journal(folder)
    (folder / "journal" / last.name).unlink()
    assert_starts(folder, before.ends[-1][1], journal_damage="cut")


def test_an_accepted_loss_replays_what_a_truncated_file_still_has(folder: Path) -> None:
    last = read_journal(folder)[-1]
    end, count = last.ends[1]
    truncate(folder / "journal" / last.name, end + 5)
    assert_starts(folder, count, journal_damage="cut")


# -- a buffered journal


def test_a_buffered_journal_sets_aside_what_comes_behind_a_loss(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    operations = make_operations(BURSTS, size_max=200)
    asyncio.run(write_operations(folder, operations, durability="buffered"))
    first, second, *rest = read_journal(folder)
    assert rest
    (folder / "journal" / second.name).unlink()
    assert_starts(folder, first.ends[-1][1], durability="buffered")
    kept = {path.name: path.read_bytes() for path in (folder / SET_ASIDE).iterdir()}
    assert kept == {file.name: file.data for file in rest}
