"""The archive of Spark's Java classes: when it is written, used, passed over and removed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from penstock.limits import SPARK_CLASS_ARCHIVES_MAX
from penstock.spark.sessions.class_archive import class_archive_options, remove_old
from penstock.spark.sessions.launchers import provide_java

MAGIC = (0xF00BABA8).to_bytes(4, "little")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    java = provide_java()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return java


def archive_of(options: tuple[str, ...]) -> Path:
    return Path(options[-1].partition("=")[2])


def test_it_is_written_once_and_then_used(home: str) -> None:
    first = class_archive_options(home, {})
    assert first[-1].startswith("-XX:ArchiveClassesAtExit=")
    archive = archive_of(first)
    archive.write_bytes(b"\0" * 100)  # Java writes the head last
    assert class_archive_options(home, {}) == ()
    archive.write_bytes(MAGIC + b"\0" * 100)
    assert class_archive_options(home, {})[-1] == f"-XX:SharedArchiveFile={archive}"


def test_what_a_killed_java_left_behind_is_written_again(home: str) -> None:
    archive = archive_of(class_archive_options(home, {}))
    archive.write_bytes(b"\0" * 100)
    os.utime(archive, (0, 0))
    assert class_archive_options(home, {})[-1] == f"-XX:ArchiveClassesAtExit={archive}"


def test_options_of_the_user_win(home: str) -> None:
    chosen = {"SPARK_SUBMIT_OPTS": "-XX:SharedArchiveFile=/mine.jsa"}
    assert class_archive_options(home, chosen) == ()
    assert class_archive_options(home, {"SPARK_SUBMIT_OPTS": "-Xmx1g"}) != ()


def test_there_is_none_where_nothing_can_be_written(
    home: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert class_archive_options(home, {}) == ()


def test_the_ones_that_were_not_used_for_longest_go(tmp_path: Path) -> None:
    archives = [tmp_path / f"{number}.jsa" for number in range(SPARK_CLASS_ARCHIVES_MAX + 2)]
    for number, archive in enumerate(archives):
        archive.touch()
        os.utime(archive, (number, number))
    remove_old(archives, keep=archives[0])
    left = [archive for archive in archives if archive.exists()]
    assert left == [archives[0], *archives[-(SPARK_CLASS_ARCHIVES_MAX - 1) :]]


def test_java_takes_the_options(home: str) -> None:
    """A damaged archive, and one of other classes, are passed over without a word."""
    java = f"{home}/bin/java"
    options = class_archive_options(home, {})
    archive = archive_of(options)
    for content in (MAGIC + b"\0" * 5000, b"\0" * 5000):
        archive.write_bytes(content)
        options = (*options[:-1], f"-XX:SharedArchiveFile={archive}")
        done = subprocess.run(
            [java, *options, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
