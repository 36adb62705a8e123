"""A journal that ends anywhere is opened with the batches that are whole, and without an error.

What stands behind the cut does not matter: zeros, noise, or batches of another time. Only a file
whose head is unreadable while something follows it is called damaged: its head was synced before
its first batch, so that no crash can explain it.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import StoreDamaged
from penstock.log.disk.journal import HEAD_BYTES, encode_batch
from tests.crash.engines import abandon, observe, small_settings, start
from tests.crash.scenario import Operation, is_same, states_after
from tests.crash.small_store import (
    Bench,
    JournalFile,
    make_operations,
    read_journal,
    write_operations,
)

HEAD_USED = 52


@pytest.fixture(scope="module")
def operations() -> list[Operation]:
    return [operation for burst in make_operations(12, size_max=60) for operation in burst]


@pytest.fixture(scope="module")
def journal_file(tmp_path_factory: pytest.TempPathFactory) -> JournalFile:
    folder = tmp_path_factory.mktemp("written")
    asyncio.run(write_operations(folder, make_operations(12, size_max=60)))
    (file,) = read_journal(folder)
    assert len(file.ends) > 10
    return file


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path / "bench")
    yield bench
    bench.close()


def _whole(file: JournalFile, cut: int) -> int:
    return max((count for end, count in file.ends if end <= cut), default=0)


def _noise(file: JournalFile, cut: int) -> bytes:
    return random.Random(cut).randbytes(len(file.data) - cut)


def _zeros(file: JournalFile, cut: int) -> bytes:
    return bytes(len(file.data) - cut)


def _older_batches(file: JournalFile, cut: int) -> bytes:
    """Batches of this very file, as they stand before the cut."""
    return file.data[HEAD_BYTES:cut]


def _foreign_batches(file: JournalFile, cut: int) -> bytes:
    """What is left of a file that was recycled: right in every way but its file."""
    lsn = _whole(file, cut) + 1
    return b"".join(b"".join(encode_batch(4711, lsn + at, [b"x" * 40])) for at in range(9))


@pytest.mark.parametrize(
    "behind", [_zeros, _noise, _older_batches, _foreign_batches], ids=lambda f: f.__name__
)
def test_cut_at_every_byte(
    bench: Bench, journal_file: JournalFile, operations: list[Operation], behind: object
) -> None:
    assert callable(behind)
    last = journal_file.ends[-1][0]
    for cut in range(HEAD_BYTES, last + 1):
        content = journal_file.data[:cut] + behind(journal_file, cut)
        content = content.ljust(len(journal_file.data), b"\0")
        whole = _whole(journal_file, cut)
        seen = bench.replay({journal_file.name: content})
        assert is_same(seen, states_after(operations[:whole])), f"cut at {cut}"


def test_a_shorter_file_is_damage_once_it_has_a_batch(
    bench: Bench, journal_file: JournalFile
) -> None:
    """Its full size was synced before the first batch, so that no crash can explain it."""
    for cut in range(HEAD_BYTES, len(journal_file.data), 7):
        content = journal_file.data[:cut]
        if _whole(journal_file, cut) == 0:
            assert bench.replay({journal_file.name: content}) == {}
            continue
        with pytest.raises(StoreDamaged, match=f"it has {cut} bytes, not"):
            bench.replay({journal_file.name: content})
        assert (bench.folder / "journal" / journal_file.name).read_bytes() == content


def test_cut_inside_the_head(bench: Bench, journal_file: JournalFile) -> None:
    for cut in range(HEAD_USED):
        assert bench.replay({journal_file.name: journal_file.data[:cut]}) == {}
        zeros = bytes(len(journal_file.data) - cut)
        assert bench.replay({journal_file.name: journal_file.data[:cut] + zeros}) == {}
        noise = _noise(journal_file, cut)
        with pytest.raises(StoreDamaged, match=journal_file.name):
            bench.replay({journal_file.name: journal_file.data[:cut] + noise})


def test_engine_goes_on_after_a_torn_tail(
    tmp_path: Path, journal_file: JournalFile, operations: list[Operation]
) -> None:
    """Twice: what is written behind a torn tail does not make it look like damage next time."""

    async def run(folder: Path, cut: int) -> None:
        (folder / "journal").mkdir(parents=True)
        (folder / "PENSTOCK").write_text('{"format": 1, "store_id": "x"}')
        content = journal_file.data[:cut] + _noise(journal_file, cut)
        (folder / "journal" / journal_file.name).write_bytes(content)
        states = states_after(operations[: _whole(journal_file, cut)])
        for attempt in range(2):
            engine = await start(small_settings(folder))
            assert is_same(await observe(engine), states)
            more = Operation("a" if "a" in states else f"new{attempt}", "append", b"more")
            if more.path not in states:
                more = Operation(more.path, "create", b"more")
            await more.submit(engine)
            states = states_after([*operations[: _whole(journal_file, cut)], more])
            await (engine.stop() if attempt else abandon(engine))

    for cut in random.Random(2).sample(range(HEAD_BYTES, journal_file.ends[-1][0]), 12):
        asyncio.run(run(tmp_path / str(cut), cut))
