"""The catalog: rows come back whole or not at all, and a commit is all or nothing."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import Damaged
from penstock.log.disk import catalog as module
from penstock.log.disk.catalog import Catalog, Changes
from penstock.log.disk.catalog_rows import Row
from penstock.log.disk.segment import SegmentInfo
from penstock.log.stream import ForkPoint
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.producer import ProducerState

CONFIG = StreamConfig("application/json", None, None)


def make_row(stream_id: int, path: str, **values: object) -> Row:
    row = Row(stream_id, path, CONFIG, 1, 2, None, 0, 0, 0, False, None, None, 0, 1, {}, b"", ())
    return row._replace(**values)  # type: ignore[arg-type]


def changes(
    rows: list[Row] | None = None,
    *,
    segments: list[tuple[int, SegmentInfo]] | None = None,
    producers: list[tuple[int, str, ProducerState]] | None = None,
    deleted: list[int] | None = None,
    meta: dict[str, int | str] | None = None,
) -> Changes:
    return Changes(rows or [], segments or [], producers or [], deleted or [], meta or {})


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(tmp_path / "catalog.sqlite")
    yield opened
    opened.close()


ROWS = [
    make_row(1, "empty"),
    make_row(2, "in-segments", inline=None, tail=10**15, messages=10**12),
    make_row(3, "a/%C3%A9", inline=bytes(range(256)), tail=256),
    make_row(4, "123", config=StreamConfig("text/plain; charset=utf-8", 2**53 - 1, None)),
    make_row(5, "e", config=StreamConfig("x/y", None, 253402300799999999), deadline_us=5),
    make_row(6, "c", closed=True, closed_by=Producer('é"\\', 2**53 - 1, 0), stream_seq="007"),
    make_row(8, "m", meta={"é": b"\0\xff", "schema": b"{}"}),
    make_row(9, "f", fork=ForkPoint(3, "a/%C3%A9", 2**50, 7), tail=2**50, messages=7),
    make_row(10, "k", soft_deleted=True, forks=3, pinned=0, earliest=9, earliest_ordinal=2),
    make_row(7, "s", stream_seq='quote " and \\ and é', producer_total=9, applied_lsn=2**62),
]


@pytest.mark.parametrize("row", ROWS, ids=[row.path for row in ROWS])
def test_a_row_comes_back_as_it_was_written(catalog: Catalog, row: Row) -> None:
    catalog.commit(changes([row]))
    assert catalog.by_path(row.path) == (row if row.inline else row._replace(inline=_kept(row)))
    assert catalog.by_id(row.id) == catalog.by_path(row.path)


def _kept(row: Row) -> bytes | None:
    """An empty inline value may come back as no value: both mean no bytes."""
    return None if row.inline is None else row.inline or None


def test_rows_written_together_keep_their_own_inline_bytes(catalog: Catalog) -> None:
    rows = [make_row(n, f"p{n}", inline=bytes([n]) * n, tail=n) for n in range(1, 40)]
    catalog.commit(changes(rows))
    for row in rows:
        assert catalog.by_id(row.id) == row


def test_more_rows_than_fit_one_statement_are_all_written(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ROWS_A_STATEMENT", 3)
    rows = [make_row(n, f"p{n}", inline=b"%d" % n) for n in range(1, 11)]
    catalog.commit(changes(rows))
    assert [catalog.by_id(row.id) for row in rows] == rows


def test_a_later_row_replaces_the_earlier_one(catalog: Catalog) -> None:
    catalog.commit(changes([make_row(1, "a", inline=b"old", tail=3)]))
    newer = make_row(1, "a", inline=None, tail=500)
    catalog.commit(changes([newer]))
    assert catalog.by_path("a") == newer


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE streams SET tail = tail + 1",
        "UPDATE streams SET closed = 1",
        "UPDATE streams SET applied_lsn = applied_lsn + 1",
        "UPDATE streams SET inline = x'00'",
        "UPDATE streams SET stream_seq = 'z'",
        "UPDATE streams SET crc = crc + 1",
        "UPDATE streams SET content_type = 'x/y'",
    ],
)
def test_a_row_that_does_not_match_its_checksum_is_not_used(
    tmp_path: Path, catalog: Catalog, damage: str
) -> None:
    catalog.commit(changes([make_row(1, "a", inline=b"bytes")]))
    with sqlite3.connect(tmp_path / "catalog.sqlite") as other:
        other.execute(damage)
    other.close()
    with pytest.raises(Damaged, match="'a'"):
        catalog.by_path("a")


def test_segments_come_back_in_order_with_their_row(catalog: Catalog) -> None:
    infos = [SegmentInfo(base, 10, base, base + 1, 10**15, 2**32 - 1) for base in (0, 10, 20)]
    catalog.commit(
        changes(
            [make_row(1, "a", inline=None, segments=tuple(infos)), make_row(2, "b")],
            segments=[(1, infos[2]), (1, infos[0]), (1, infos[1])],
        )
    )
    stored = catalog.by_path("a")
    assert stored is not None
    assert stored.segments == tuple(infos)
    grown = infos[2]._replace(length=15)
    row = make_row(1, "a", inline=None, segments=(*infos[:2], grown))
    catalog.commit(changes([row], segments=[(1, grown)]))
    stored = catalog.by_path("a")
    assert stored is not None
    assert stored.segments[-1] == grown


def test_a_deleted_stream_takes_its_segments_and_producers_along(catalog: Catalog) -> None:
    info = SegmentInfo(0, 10, 0, 0, 0, 0)
    state = ProducerState(1, 2)
    catalog.commit(
        changes(
            [make_row(1, "a"), make_row(2, "b")],
            segments=[(1, info), (2, info)],
            producers=[(1, "p", state), (2, "p", state)],
        )
    )
    catalog.commit(changes(deleted=[1]))
    assert catalog.by_path("a") is None
    assert catalog.segment_names() == {(2, 0)}
    assert catalog.producer(1, "p") is None
    assert catalog.producer(2, "p") == state


def test_a_path_changes_hands_in_one_commit(catalog: Catalog) -> None:
    catalog.commit(changes([make_row(1, "a")]))
    catalog.commit(changes([make_row(2, "a")], deleted=[1]))
    stored = catalog.by_path("a")
    assert stored is not None
    assert stored.id == 2
    assert list(catalog.ids()) == [2]


def test_a_commit_that_fails_changes_nothing(catalog: Catalog) -> None:
    first = make_row(1, "a", inline=b"first")
    catalog.commit(changes([first], producers=[(1, "p", ProducerState(0, 0))], meta={"x": 1}))
    with pytest.raises(sqlite3.IntegrityError):
        catalog.commit(
            changes(
                [make_row(2, "b"), make_row(3, None)],  # type: ignore[arg-type]
                producers=[(1, "p", ProducerState(9, 9))],
                deleted=[1],
                meta={"x": 2},
            )
        )
    assert catalog.by_path("a") == first
    assert catalog.by_path("b") is None
    assert catalog.producer(1, "p") == ProducerState(0, 0)
    assert catalog.meta() == {"x": 1}
    catalog.commit(changes([make_row(2, "b")]))
    assert catalog.by_path("b") is not None


def test_a_commit_between_a_row_and_its_segments_is_not_seen(
    catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = make_row(1, "a", inline=None, segments=(SegmentInfo(0, 10, 0, 0, 0, 0),))
    catalog.commit(changes([row], segments=[(1, row.segments[0])]))
    read = catalog._segments

    def commit_first(stream_id: int) -> tuple[SegmentInfo, ...]:
        catalog.commit(changes(deleted=[1]))
        return read(stream_id)

    monkeypatch.setattr(catalog, "_segments", commit_first)
    assert catalog.by_path("a") == row
    assert catalog.by_path("a") is None


def test_producers_are_kept_by_their_exact_id(catalog: Catalog) -> None:
    states = {
        name: ProducerState(n, 2**53 - 1) for n, name in enumerate(["1", "01", "A", "a", "é"])
    }
    catalog.commit(changes(producers=[(1, name, state) for name, state in states.items()]))
    assert {name: catalog.producer(1, name) for name in states} == states
    assert catalog.producer(1, "b") is None


def test_meta_values_keep_their_type(catalog: Catalog) -> None:
    catalog.commit(changes(meta={"lsn": 2**60, "name": "7"}))
    catalog.commit(changes(meta={"lsn": 2**60 + 1}))
    assert catalog.meta() == {"lsn": 2**60 + 1, "name": "7"}


def test_expired_streams_come_in_the_order_of_their_deadlines(catalog: Catalog) -> None:
    deadlines = [(1, 30), (2, 10), (3, None), (4, 10), (5, 20)]
    catalog.commit(changes([make_row(n, f"p{n}", deadline_us=at) for n, at in deadlines]))
    assert [each.id for each in catalog.expired(30, (-1, -1), 9)] == [2, 4, 5, 1]
    assert [each.id for each in catalog.expired(29, (-1, -1), 9)] == [2, 4, 5]
    assert [each.id for each in catalog.expired(30, (10, 2), 2)] == [4, 5]
    assert catalog.expired(9, (-1, -1), 9) == []


def test_what_was_committed_is_there_after_reopening(tmp_path: Path) -> None:
    path = tmp_path / "catalog.sqlite"
    first = Catalog(path)
    first.commit(changes([ROWS[2]], meta={"clean": 0}))
    first.close()
    second = Catalog(path, read_only=True)
    assert second.by_id(3) == ROWS[2]
    assert second.meta() == {"clean": 0}
    assert second.totals() == (1, 256)
    assert second.integrity() == []
    second.close()
