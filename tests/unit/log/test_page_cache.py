"""Bytes that are sent from the page cache: only if they are there, and as they are."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from penstock.log.disk import page_cache
from penstock.log.disk.files import File, Files

PAGE = 4096
DATA = bytes(range(256)) * 256  # 16 pages


@pytest.fixture
def file(tmp_path: Path) -> File:
    file = Files().open_write(tmp_path / "file")
    file.write_at(0, [DATA])
    if not page_cache.has(file.fileno(), 0, len(DATA)):
        pytest.skip("this kernel does not tell what is in its page cache")
    return file


def seen(file: File, position: int, length: int) -> bytes | None:
    view = file.view_cached(position, length)
    return None if view is None else bytes(view)


def drop(file: File) -> None:
    """Take a file out of the page cache."""
    file.sync_data()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file.read_cached(0, PAGE) is not None:
        pytest.skip("this file system keeps its files in memory")
    file.read_at(0, len(DATA))  # to be asked is enough for the kernel to begin to read
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_bytes_that_left_the_page_cache_are_not_there(file: File) -> None:
    drop(file)
    assert file.view_cached(0, PAGE) is None
    assert file.read_at(0, PAGE) == DATA[:PAGE]
    assert seen(file, 0, PAGE) == DATA[:PAGE]


def test_every_page_of_a_range_has_to_be_there(file: File) -> None:
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)  # nothing is read ahead
    drop(file)
    file.read_at(5 * PAGE, PAGE)
    assert page_cache.has(file.fileno(), 5 * PAGE, PAGE)
    assert page_cache.has(file.fileno(), 5 * PAGE + 7, 1)
    assert not page_cache.has(file.fileno(), 5 * PAGE - 1, 2)
    assert not page_cache.has(file.fileno(), 6 * PAGE - 1, 2)


@pytest.mark.parametrize(("start", "end"), [(0, len(DATA)), (1, 2), (PAGE - 1, 3 * PAGE + 1)])
def test_a_view_is_what_a_read_returns(file: File, start: int, end: int) -> None:
    assert seen(file, start, end - start) == DATA[start:end]


def test_a_file_that_has_grown_is_seen_whole(file: File) -> None:
    before = file.view_cached(0, len(DATA))
    file.write_at(len(DATA), [b"more"])
    assert seen(file, len(DATA) - 1, 5) == DATA[-1:] + b"more"
    assert before is not None
    assert bytes(before) == DATA


def test_there_is_nothing_beyond_the_end(file: File) -> None:
    assert file.view_cached(len(DATA) - 1, 2) is None


def test_a_view_outlives_its_file(file: File) -> None:
    view = file.view_cached(0, len(DATA))
    file.path.unlink()
    file.close()
    assert view is not None
    assert bytes(view) == DATA


def test_without_the_system_call_nothing_is_known_to_be_there(
    file: File, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_cache, "_call", lambda: None)
    assert file.view_cached(0, PAGE) is None
    monkeypatch.setattr(page_cache, "_call", lambda: lambda *_: -1)  # refused, as in a container
    assert file.view_cached(0, PAGE) is None
