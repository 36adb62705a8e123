"""Keeping offsets: the same promise in memory, in a file and in SQLite."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from penstock import Checkpoint, FileCheckpoint, MemoryCheckpoint, SqliteCheckpoint

KINDS: list[Callable[[Path], Checkpoint]] = [
    lambda folder: MemoryCheckpoint(),
    lambda folder: FileCheckpoint(folder / "offsets.json"),
    lambda folder: SqliteCheckpoint(folder / "offsets.db"),
]


@pytest.fixture(params=KINDS, ids=["memory", "file", "sqlite"])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Checkpoint:
    store: Checkpoint = request.param(tmp_path)
    return store


def test_last_offset_is_kept_for_each_key(checkpoint: Checkpoint) -> None:
    assert checkpoint.load("a") is None
    checkpoint.save("a", "1")
    checkpoint.save("b", "é 2")
    checkpoint.save("a", "3")
    assert (checkpoint.load("a"), checkpoint.load("b")) == ("3", "é 2")


def test_each_is_a_checkpoint(checkpoint: Checkpoint) -> None:
    assert isinstance(checkpoint, Checkpoint)


def test_threads_may_share_one(checkpoint: Checkpoint) -> None:
    def work(key: str) -> None:
        for number in range(20):
            checkpoint.save(key, str(number))

    threads = [threading.Thread(target=work, args=(f"k{i}",)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [checkpoint.load(f"k{i}") for i in range(4)] == ["19"] * 4


@pytest.mark.parametrize("make", KINDS[1:], ids=["file", "sqlite"])
def test_another_process_finds_what_was_saved(
    make: Callable[[Path], Checkpoint], tmp_path: Path
) -> None:
    make(tmp_path).save("a", "1")
    assert make(tmp_path).load("a") == "1"


def test_file_is_replaced_as_a_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "offsets.json"
    checkpoint = FileCheckpoint(path)
    checkpoint.save("a", "1")

    def fail(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            checkpoint.save("a", "2")
    assert checkpoint.load("a") == "1"
    assert os.listdir(tmp_path) == ["offsets.json"]  # nothing half-made is left


def test_file_is_synced_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def watch(name: str) -> None:
        real = getattr(os, name)

        def call(*args: object) -> object:
            calls.append(name)
            return real(*args)

        monkeypatch.setattr(os, name, call)

    for name in ("fdatasync", "fsync", "replace"):
        watch(name)
    FileCheckpoint(tmp_path / "offsets.json").save("a", "1")
    assert calls == ["fdatasync", "replace", "fsync"]  # the file, its name, the folder


@pytest.mark.parametrize("content", ["", "{", "[]"])
def test_file_that_is_no_checkpoint_is_not_overwritten(tmp_path: Path, content: str) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(content)
    with pytest.raises(ValueError, match="is no checkpoint"):
        FileCheckpoint(path).save("a", "1")
    assert path.read_text() == content
