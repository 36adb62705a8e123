"""Folds of states that are too large for one piece: range by range of their keys, and nothing lost,
doubled or out of order where two ranges meet.
"""

from __future__ import annotations

import random
import uuid
from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.spark.warehouse import duckdb as duck_module
from penstock.spark.warehouse.delta import TableFile
from penstock.spark.warehouse.state import key_ranges
from tests.spark.warehouse_bench import USER, WarehouseBench, gone, put

ROWS = 2048  # that DuckDB gives at once, at least
# Quotes, signs of SQL's, a NUL, letters whose order is not that of their bytes in UTF-16.
ODD = ["'", "it's", "a\\b", "\\", "%", "a\0b", "\0", "é", "￿", "😀", "😀😀"]


def file(least: str | None, most: str | None, rows: int = 10) -> TableFile:
    low, high = ({} if key is None else {"_key": key} for key in (least, most))
    return TableFile(f"{least}-{most}", rows, low, high, {})


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ([], [("", None, None)]),
        ([file("a", "c")], [("a-c", None, None)]),
        ([file("d", "f"), file("a", "c")], [("a-c", None, "d"), ("d-f", "d", None)]),
        # Rows of one key in two files, of two streams: they stay together.
        ([file("a", "c"), file("c", "f")], [("a-c c-f", None, None)]),
        ([file("a", "z"), file("c", "d"), file("x", "zz")], [("a-z c-d x-zz", None, None)]),
        # Small files share a range.
        (
            [file("a", "b", 4), file("c", "d", 4), file("e", "f", 4), file("g", "h", 4)],
            [("a-b c-d e-f", None, "g"), ("g-h", "g", None)],
        ),
        ([file("a", "c"), file("d", None)], [("a-c d-None", None, None)]),
        ([file("a", "c"), file("d\0", "e")], [("a-c d\0-e", None, None)]),
    ],
)
def test_files_are_put_together_by_their_keys(
    files: list[TableFile], wanted: list[tuple[str, str | None, str | None]]
) -> None:
    found = key_ranges(files, 10)
    parts = [(" ".join(each.path for each in part.files), part.low, part.high) for part in found]
    assert parts == wanted


@pytest.mark.parametrize("entity", ["user", "flag"])
def test_a_fold_in_pieces_comes_to_what_a_replay_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entity: str
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_BUCKET_ROWS", ROWS)
    monkeypatch.setattr(duck_module, "_ROWS_AT_ONCE", ROWS)
    chance = random.Random(4)
    keys = [*ODD, *(f"{chance.choice(ODD)}{number}" for number in range(4000))]
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})

    def change(number: int) -> dict[str, Any]:
        key, place = chance.choice(keys), {"stream": chance.choice("st"), "type": entity}
        if chance.random() < 0.25:
            return gone(key, **place)
        return put(key, f'{{"name":"{number}","age":1}}', **place)

    bench.batch(*(put(key, "{}", stream=stream, type=entity) for key in keys for stream in "st"))
    bench.fold(entity)
    for number in range(4):
        resets = [{"control": "reset", "stream": "s"}] if number == 2 else []
        bench.batch(*map(change, range(600)), *resets)
        assert len(list(bench.duck.merged_in_order(entity))) > 1
        state = bench.fold(entity)
        assert bench.state(entity) == bench.replay.state_rows(entity)
        assert state.folded.rows == len(bench.replay.state_rows(entity))
    bench.duck.close()


TENANT = "tenant-00000000-0000-4000-8000-000000000000/user-"


@pytest.mark.parametrize("kind", ["uuid", "prefix"])
def test_a_fold_goes_range_by_range_whatever_the_keys_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_BUCKET_ROWS", ROWS)
    monkeypatch.setattr(duck_module, "_ROWS_AT_ONCE", ROWS)
    chance = random.Random(7)
    made = (f"{chance.getrandbits(128):032x}" for _ in range(4 * ROWS))
    keys = [
        str(uuid.UUID(each)) if kind == "uuid" else f"{TENANT}{each}-with-a-tail" for each in made
    ]
    bench = WarehouseBench(tmp_path / "warehouse", {})
    bench.batch(*(put(key, "1") for key in keys))
    bench.fold()
    bench.batch(*(put(key, "2") for key in keys[::3]), *(gone(key) for key in keys[1::3]))
    pieces = [bench.duck.table(piece) for piece in bench.duck.merged_in_order("user")]
    assert len(pieces) > 2
    assert max(piece.num_rows for piece in pieces) < 2 * ROWS
    assert bench.fold().folded.rows == len(bench.replay.state_rows("user"))
    assert bench.state() == bench.replay.state_rows("user")
    bench.duck.close()


def test_one_key_of_very_many_streams_is_one_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_BUCKET_ROWS", 10)
    bench = WarehouseBench(tmp_path / "warehouse", {})
    bench.batch(*(put("one", "1", stream=f"s{number}") for number in range(50)), put("two", "2"))
    bench.fold()
    bench.fold()
    assert bench.state() == bench.replay.state_rows("user")
    bench.duck.close()
