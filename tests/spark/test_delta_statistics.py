"""Bounds of long texts: short, and true for every text between them."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable

from penstock.spark.warehouse.delta import TEXT_MAX, above, below
from tests.spark.warehouse_bench import WarehouseBench, put

LAST = "\U0010ffff"
HEAD = "x" * TEXT_MAX


@pytest.mark.parametrize(
    ("value", "low", "high"),
    [
        ("", "", ""),
        ("short", "short", "short"),
        (HEAD, HEAD, HEAD),
        (HEAD + "a", HEAD, HEAD + "\x7f"),
        (HEAD + "\x7f", HEAD, HEAD + LAST),
        (HEAD + "é", HEAD, HEAD + LAST),
        (HEAD + "\uffff", HEAD, HEAD + LAST),  # in UTF-16 above what comes next
        (HEAD + "😀" * 9, HEAD, HEAD + LAST),
        (HEAD + LAST + "a", HEAD, HEAD + LAST + "\x7f"),
        (HEAD + LAST + LAST, HEAD, HEAD + LAST + LAST),
        ("😀" * (TEXT_MAX + 1), "😀" * TEXT_MAX, "😀" * TEXT_MAX + LAST),
        (7, 7, 7),
    ],
)
def test_a_long_text_is_told_by_one_below_and_one_above_it(
    value: str | int, low: str | int, high: str | int
) -> None:
    assert (below(value), above(value)) == (low, high)
    if isinstance(value, str) and isinstance(low, str) and isinstance(high, str):
        assert low.encode() <= value.encode() <= high.encode()


def test_other_engines_find_rows_by_long_texts(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {})
    keys = [HEAD + "a", HEAD + LAST, "a" + HEAD]
    bench.batch(*(put(key, "1") for key in keys))
    bench.fold()
    bench.duck.close()
    table = DeltaTable(bench.warehouse.state_uri("user"))
    actions = table.get_add_actions(flatten=True)
    assert (actions["min._key"][0].as_py(), actions["max._key"][0].as_py()) == (
        ("a" + HEAD)[:TEXT_MAX],
        HEAD + LAST,
    )
    for key in keys:
        assert table.to_pyarrow_dataset().to_table(filter=_is(key)).num_rows == 1


def _is(key: str) -> object:
    from pyarrow import compute

    return compute.field("_key") == key
