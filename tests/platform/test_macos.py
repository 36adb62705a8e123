"""The disk store where a sync is `F_FULLFSYNC` and neither `RWF_NOWAIT` nor `syncfs` is there.

The names that macOS does not have are removed, those that it has alone are recorded: this shows
what Penstock asks of the system, not what macOS makes of it.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import inspect
import os
import random
import resource
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from penstock import FileCheckpoint
from penstock.cli.system import replace
from penstock.http.native import server
from penstock.log.disk import files
from penstock.log.disk.catalog import Catalog
from tests.contract import rig, test_disk, test_forks, test_mutations, test_reading
from tests.crash.engines import small_blocks
from tests.crash.power import SyncAll
from tests.crash.power_run import check_cuts, record_run

NAMES = (
    *("fdatasync", "posix_fadvise", "posix_fallocate", "preadv", "pwritev", "RWF_NOWAIT"),
    *("O_DIRECT", "eventfd"),
)
F_FULLFSYNC = 51
CUTS = 50
FIXTURES = {"kind", "tmp_path", "monkeypatch"}


class Call(NamedTuple):
    """A write or a sync of a file, or an acknowledgement, in the order in which they happened."""

    kind: str
    file: int = 0
    data: bytes = b""


class MacOS:
    """The system calls that were made."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.refuses: int | None = None
        """What F_FULLFSYNC fails with."""
        self._pwrite, self._fcntl = os.pwrite, fcntl.fcntl

    def pwrite(self, fd: int, data: bytes | memoryview, position: int) -> int:
        written = self._pwrite(fd, data, position)
        self.calls.append(Call("write", os.fstat(fd).st_ino, bytes(data)[:written]))
        return written

    def fcntl(self, fd: int, command: int, argument: int = 0) -> Any:
        if command != F_FULLFSYNC:
            return self._fcntl(fd, command, argument)
        if self.refuses is not None:
            raise OSError(self.refuses, os.strerror(self.refuses))
        self.calls.append(Call("full sync", os.fstat(fd).st_ino))
        return 0

    def fsync(self, fd: int) -> None:
        self.calls.append(Call("fsync", os.fstat(fd).st_ino))

    def kinds(self) -> list[str]:
        return [call.kind for call in self.calls]


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> MacOS:
    system = MacOS()
    for name in NAMES:
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(os, "pwrite", system.pwrite)
    monkeypatch.setattr(os, "fsync", system.fsync)
    monkeypatch.setattr(fcntl, "fcntl", system.fcntl)
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", F_FULLFSYNC, raising=False)
    monkeypatch.setattr(files, "_syncfs", lambda: None)
    return system


def contract(modules: Sequence[ModuleType]) -> Iterator[Callable[..., None]]:
    """Every test of the store's contract that runs on a disk."""
    for module in modules:
        for name, test in vars(module).items():
            is_test = name.startswith("test_") and inspect.isfunction(test)
            if is_test and inspect.signature(test).parameters.keys() == FIXTURES:
                yield test


CONTRACT = list(contract((test_disk, test_forks, test_mutations, test_reading)))


def test_the_contract_has_tests() -> None:
    assert len(CONTRACT) > 60


@pytest.mark.usefixtures("macos")
@pytest.mark.parametrize("test", CONTRACT, ids=lambda test: test.__name__)
def test_the_disk_store_keeps_its_contract(
    test: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    test("disk", tmp_path, monkeypatch)


def test_every_acknowledged_append_was_followed_by_a_full_sync(
    macos: MacOS, tmp_path: Path
) -> None:
    payloads = [b"<payload-%03d>" % number for number in range(200)]

    async def append_all(store: rig.Rig) -> None:
        stream = await store.create("a", config=rig.BYTES)

        async def append(mutation: Any, payload: bytes) -> None:
            await store.submit(mutation)
            macos.calls.append(Call("acknowledged", data=payload))

        position = stream.tail
        for first in range(0, len(payloads), 7):  # several share a batch, as with many writers
            group = []
            for payload in payloads[first : first + 7]:
                mutation = store.make_append(stream, [payload], start=position)
                position += len(payload)
                group.append(append(mutation, payload))
            await asyncio.gather(*group)

    asyncio.run(rig._run(append_all, rig.Rig("disk", tmp_path)))
    assert "fsync" not in macos.kinds()
    for payload in payloads:
        acknowledged = macos.calls.index(Call("acknowledged", data=payload))
        before = macos.calls[:acknowledged]
        written = next(
            place
            for place, call in enumerate(before)
            if call.kind == "write" and payload in call.data
        )
        assert Call("full sync", before[written].file) in before[written:], payload


def test_nothing_acknowledged_is_lost_when_the_power_fails(macos: MacOS, tmp_path: Path) -> None:
    """Checkpoints of many files sync each of them, where there is no sync of everything."""
    with small_blocks():
        run = asyncio.run(record_run(tmp_path, 1, 60))
        assert not any(isinstance(step, SyncAll) for step in run.record.steps)
        cuts = sorted(random.Random(1).sample(range(len(run.record) + 1), CUTS))
        asyncio.run(check_cuts(run, cuts, seed=1))


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_without_full_syncs_gets_plain_ones(
    macos: MacOS, tmp_path: Path, code: int
) -> None:
    macos.refuses = code
    files.Files().write_text(tmp_path / "a", "text")
    assert macos.kinds() == ["write", "fsync", "fsync"]  # the file, and the folder with its name


def test_a_full_sync_that_fails_is_an_error(macos: MacOS, tmp_path: Path) -> None:
    macos.refuses = errno.EIO
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        files.Files().write_text(tmp_path / "a", "text")
    assert "fsync" not in macos.kinds()


@pytest.mark.parametrize(
    "save",
    [
        lambda folder: FileCheckpoint(folder / "offsets.json").save("a", "1"),
        lambda folder: replace(folder / "export.state", b"1"),
    ],
    ids=["checkpoint of a reader", "file of a command"],
)
def test_files_of_clients_are_synced_fully_with_their_folder(
    macos: MacOS, tmp_path: Path, save: Callable[[Path], None]
) -> None:
    save(tmp_path)
    (path,) = tmp_path.iterdir()
    inodes = [path.stat().st_ino, tmp_path.stat().st_ino]
    assert macos.calls == [Call("full sync", inode) for inode in inodes]


def test_the_catalog_asks_sqlite_for_full_syncs(tmp_path: Path) -> None:
    with closing(Catalog(tmp_path / "catalog.sqlite")) as catalog:
        for connection in (catalog._reader, catalog._writer):
            assert _pragmas(connection) == (1, 1)


def _pragmas(connection: sqlite3.Connection) -> tuple[int, ...]:
    names = ("fullfsync", "checkpoint_fullfsync")
    return tuple(connection.execute(f"PRAGMA {name}").fetchone()[0] for name in names)


def test_open_files_are_raised_to_what_macos_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = 2**63 - 1
    limits = [256, unlimited]

    def setrlimit(kind: int, pair: tuple[int, int]) -> None:
        if pair[0] > 10_240:
            raise ValueError("current limit exceeds maximum limit")
        limits[:] = pair

    monkeypatch.setattr(resource, "getrlimit", lambda kind: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", setrlimit)
    server.raise_open_files()
    assert limits == [10_240, unlimited]
