"""`inspect` shows what a server would serve from a folder at rest, and changes nothing in it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.errors import StoreDamaged, StoreError, StreamNotFound
from penstock.log import open_engine
from penstock.log.disk.store import CATALOG_FILE
from penstock.log.offline.inspect import (
    CHARACTERS_MAX,
    Overview,
    ProducerLine,
    StreamView,
    overview,
    stream_view,
)
from penstock.protocol.lifecycle import StreamConfig
from tests.helpers.folders import (
    JSON,
    MESSAGE_BYTES,
    append,
    change_row,
    fingerprint,
    flip,
    message,
    row_of,
    settings,
)

FAR_FUTURE_US = 250_000_000_000_000_000


def inspect_folder(folder: Path) -> Overview:
    before = fingerprint(folder)
    result = overview(folder)
    assert fingerprint(folder) == before
    return result


def inspect_stream(folder: Path, path: str) -> StreamView:
    before = fingerprint(folder)
    result = stream_view(folder, path)
    assert fingerprint(folder) == before
    return result


# -- the folder


def test_a_cleanly_stopped_folder(clean: Path) -> None:
    result = inspect_folder(clean)
    assert (result.format, result.clean, result.journal_problems) == (2, True, 0)
    assert (result.streams, result.messages) == (6, 400 + 40 + 3 + 1 + 1)
    assert result.unapplied_records == 0
    assert result.last_lsn == result.checkpoint_lsn
    assert [file.durability for file in result.journal] == ["fsync"]
    assert result.spare_journal_files > 0
    assert [line.path for line in result.largest[:3]] == ["json/big", "bin/big", "json/gone"]
    assert result.largest[0].bytes == 400 * MESSAGE_BYTES


def test_a_crashed_folder_is_shown_with_what_only_its_journal_has(crashed: Path) -> None:
    result = inspect_folder(crashed)
    assert result.clean is False
    assert (result.streams, result.messages) == (6, 520 + 40 + 3 + 2 + 1)
    assert result.bytes == 520 * MESSAGE_BYTES + 40 * 7000 + 25 + 12 + 8
    assert result.unapplied_records == result.last_lsn - result.checkpoint_lsn == 123
    assert {line.path for line in result.largest} == {
        *("json/big", "bin/big", "json/small", "bin/small", "json/empty", "json/late")
    }


def test_the_largest_streams_are_ten_at_most(tmp_path: Path) -> None:
    async def run() -> None:
        engine = open_engine(settings(tmp_path / "data"))
        await engine.start()
        for number in range(15):
            await engine.create(f"s/{number}", StreamConfig(JSON, None, None), b"", closed=False)
            await append(engine, f"s/{number}", b'"' + b"x" * number + b'"')
        await engine.stop()

    asyncio.run(run())
    result = inspect_folder(tmp_path / "data")
    assert [line.path for line in result.largest] == [f"s/{n}" for n in range(14, 4, -1)]


def test_a_damaged_journal_is_shown_as_far_as_it_goes(crashed: Path) -> None:
    journal = sorted((crashed / "journal").glob("*.journal"))[0]
    flip(journal, 100)
    assert inspect_folder(crashed).journal_problems > 0
    assert inspect_stream(crashed, "json/big").journal_problems > 0


def test_a_damaged_catalog_is_one_clear_error(clean: Path) -> None:
    (clean / CATALOG_FILE).write_bytes(b"not a database" * 1000)
    for ask in (lambda: overview(clean), lambda: stream_view(clean, "json/big")):
        with pytest.raises(StoreDamaged, match="penstock verify"):
            ask()


def test_any_other_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="not a Penstock data folder"):
        overview(tmp_path)


# -- one stream


def test_a_stream_in_segments(clean: Path) -> None:
    result = inspect_stream(clean, "json/big")
    row = row_of(clean, "json/big")
    assert (result.id, result.content_type, result.closed) == (row.id, JSON, False)
    assert result.earliest == f"{row.id:016d}_{0:016d}"
    assert result.tail == f"{row.id:016d}_{400 * MESSAGE_BYTES:016d}"
    assert (result.messages, result.bytes) == (400, 400 * MESSAGE_BYTES)
    assert (result.journal_bytes, result.journal_messages, result.inline_bytes) == (0, 0, 0)
    assert [line.first_byte for line in result.segments] == [s.base for s in row.segments]
    assert all(line.file_bytes == line.bytes for line in result.segments)
    assert result.producers == [ProducerLine("writer", 0, 7)]
    assert result.preview.first[0].startswith('{"n":0,')
    assert [line[:8] for line in result.preview.last] == [f'{{"n":{n}' for n in (397, 398, 399)]
    assert all(len(line) == CHARACTERS_MAX + 1 for line in result.preview.first)


def test_a_stream_whose_end_only_the_journal_has(crashed: Path) -> None:
    result = inspect_stream(crashed, "json/big")
    assert (result.messages, result.journal_messages) == (520, 120)
    assert result.journal_bytes == 120 * MESSAGE_BYTES
    assert result.preview.first[0].startswith('{"n":0,')
    assert result.preview.last[-1].startswith('{"n":519,')


def test_a_closed_stream_says_by_whom(clean: Path) -> None:
    result = inspect_stream(clean, "json/small")
    assert (result.closed, result.closed_by) == (True, ProducerLine("closer", 3, 0))
    assert result.preview.first == ['{"k":1}', '{"k":2}', '"bye"']
    assert result.preview.last == []
    assert result.inline_bytes == result.bytes == 25


def test_a_stream_that_only_the_journal_knows(crashed: Path) -> None:
    result = inspect_stream(crashed, "json/late")
    assert (result.journal_bytes, result.journal_messages, result.segments) == (8, 1, [])
    assert (result.closed, result.closed_by) == (True, None)
    assert result.preview.first == ['"late"']


@pytest.mark.parametrize("path", ["json/gone", "json/never"])
def test_a_deleted_stream_is_not_there(crashed: Path, path: str) -> None:
    with pytest.raises(StreamNotFound, match=path):
        inspect_stream(crashed, path)


def test_bytes_are_shown_without_control_characters(clean: Path) -> None:
    assert inspect_stream(clean, "bin/small").preview.first == ["\\x00\\x1b[31m\\xff"]


def test_catalog_and_journal_are_shown_as_one(crashed: Path) -> None:
    result = inspect_stream(crashed, "bin/small")
    assert result.preview.first == ["\\x00\\x1b[31m\\xffmore\\n"]
    assert result.producers == [ProducerLine("late", 2, 0)]


def test_a_long_byte_stream_shows_both_ends(clean: Path) -> None:
    shown = inspect_stream(clean, "bin/big").preview
    assert shown.first == ["\\x00" * 64 + "…"]
    assert shown.last == ["…" + "'" * 64]  # the fortieth append holds the byte 39


def test_a_message_longer_than_the_window_is_cut(tmp_path: Path) -> None:
    async def run() -> None:
        engine = open_engine(settings(tmp_path / "data"))
        await engine.start()
        await engine.create("long", StreamConfig(JSON, None, None), b"", closed=False)
        await append(engine, "long", b'"' + b"a" * 9000 + b'"')
        await engine.create("two", StreamConfig(JSON, None, None), message(1), closed=False)
        await append(engine, "two", b'"' + b"b" * 9000 + b'"')
        await engine.stop()

    asyncio.run(run())
    long = inspect_stream(tmp_path / "data", "long").preview
    assert long.first == ['"' + "a" * (CHARACTERS_MAX - 1) + "…"]
    assert long.last == []
    two = inspect_stream(tmp_path / "data", "two").preview
    assert [line[:6] for line in two.first] == ['{"n":1']
    assert two.last == ["…" + "b" * (CHARACTERS_MAX - 1) + '"']


def test_an_empty_stream_has_nothing_to_show(clean: Path) -> None:
    result = inspect_stream(clean, "json/empty")
    assert (result.bytes, result.preview.first, result.preview.last) == (0, [], [])


def test_damaged_bytes_are_not_shown(clean: Path) -> None:
    file = clean / inspect_stream(clean, "json/big").segments[0].file
    flip(file, 10)
    shown = inspect_stream(clean, "json/big").preview
    assert shown.first == []
    assert shown.fault is not None
    assert "checksum" in shown.fault


def test_a_missing_segment_is_said(clean: Path) -> None:
    file = clean / inspect_stream(clean, "json/big").segments[0].file
    file.unlink()
    result = inspect_stream(clean, "json/big")
    assert result.segments[0].file_bytes is None
    assert result.preview.fault is not None


def test_a_ttl_is_shown_with_its_end(clean: Path) -> None:
    row = row_of(clean, "bin/small")
    result = stream_view(clean, "bin/small", clock=ManualClock(row.touched_us))
    assert result.ttl_s == 1_000_000
    assert result.deadline_us == row.touched_us + 10**12
    assert result.is_expired is False
    assert stream_view(clean, "bin/small", clock=ManualClock(FAR_FUTURE_US)).is_expired is True


def test_a_damaged_row_is_one_clear_error(clean: Path) -> None:
    change_row(clean, "json/small", messages=3)  # the same row again: still whole
    assert inspect_stream(clean, "json/small").messages == 3
    data = (clean / CATALOG_FILE).read_bytes()
    (clean / CATALOG_FILE).write_bytes(data.replace(b'"bye"', b'"by!"'))
    with pytest.raises(StoreDamaged, match="checksum"):
        stream_view(clean, "json/small")
