"""Dead letters over a long life: counted as they are, replayed in pieces, and never a burden for
the batches that come after them. Without Spark.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from penstock import limits
from penstock.errors import InvalidPipeline
from penstock.spark.config import Pipeline, make_pipeline
from penstock.spark.pipeline.status import status_of
from penstock.spark.type_schema import type_schema
from penstock.spark.warehouse.dead_letters import recount, replay_dead_letters
from penstock.spark.warehouse.delta import TableFile
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.rebuild import check_tables
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.warehouse_bench import USER, WarehouseBench, gone, put


def pipeline(bench: WarehouseBench, **types: str) -> Pipeline:
    """The pipeline of a warehouse that was fed by hand; its server does not answer."""
    return make_pipeline(
        {
            "source": {"url": "http://127.0.0.1:9", "streams": ["s"], "attempts": 1},
            "warehouse": {"path": str(bench.path)},
            "types": {name: {"schema": schema} for name, schema in types.items()},
        }
    )


def dead_letters(chosen: Pipeline) -> list[dict[str, Any]]:
    duck = Duck(Warehouse(chosen.warehouse.path), chosen.types)
    try:
        found: list[dict[str, Any]] = duck.sql("SELECT * FROM dead_letters").to_pylist()
        return found
    finally:
        duck.close()


class Counting(Duck):
    """Counts the files of events that are looked at."""

    def __init__(self, bench: WarehouseBench) -> None:
        super().__init__(bench.warehouse, bench.types)
        self.looked_at = 0

    def files(self, files: Sequence[TableFile], schema: pa.Schema) -> str:
        self.looked_at += sum("/events/" in each.path for each in files)
        return super().files(files, schema)


@pytest.mark.parametrize(
    "trickle",
    [
        put("x", '{"name":1}'),
        {"kind": "invalid", "value": "zzz", "error": "This is not JSON."},
        {"control": "up-to-date"},
    ],
)
def test_a_fold_reads_new_files_alone_though_every_batch_has_a_dead_letter(
    tmp_path: Path, trickle: dict[str, Any]
) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    bench.duck.close()
    bench.duck = counting = Counting(bench)
    looked_at = []
    for number in range(6):
        bench.batch(put("a", f'{{"name":"{number}"}}'), trickle)
        counting.looked_at = 0
        bench.fold()
        looked_at.append(counting.looked_at)
    assert looked_at == looked_at[:1] * len(looked_at), looked_at
    bench.agree()
    bench.duck.close()


def test_deleted_keys_are_remembered_for_streams_with_refused_events_alone(
    tmp_path: Path,
) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    for stream in "st":
        bench.batch(put("a", '{"name":"Ada"}', stream=stream), gone("a", stream=stream))
    malformed = {"kind": "invalid", "value": "zzz", "error": "This is not JSON.", "stream": "t"}
    bench.batch(put("b", '{"name":1}'), malformed)
    assert bench.fold().folded.rows == 1
    assert bench.warehouse.events.record.dead == ["s"]
    bench.agree()
    bench.duck.close()


def test_streams_with_dead_letters_are_named_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_DEAD_STREAMS_MAX", 3)
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    for stream in "abcd":
        bench.batch(put("k", '{"name":1}', stream=stream), gone("z", stream=stream))
        record = bench.warehouse.events.record
        assert record.dead_streams == (None if stream == "d" else list("abc"[: record.invalid]))
    assert bench.fold().folded.rows == 4, "of which ones is not known: all are remembered"
    recount(bench.warehouse, bench.duck)
    found = [bench.warehouse.events.record.dead_streams]
    monkeypatch.setattr(limits, "PIPELINE_DEAD_STREAMS_MAX", 4)
    recount(bench.warehouse, bench.duck)
    found.append(bench.warehouse.events.record.dead_streams)
    assert found == [None, list("abcd")]
    bench.duck.close()


def test_a_replay_takes_dead_letters_off_the_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from penstock.spark.warehouse import dead_letters as replays

    monkeypatch.setattr(replays, "_ROWS_AT_ONCE", 2048)
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    bench.batch(
        put("a", '{"name":"old"}'),
        *(put(f"k{number}", f'{{"name":{number}}}') for number in range(5000)),
        put("z", '{"age":"x"}', stream="t"),
        {"kind": "invalid", "value": "zzz", "error": "This is not JSON."},
        gone("k7"),
        put("k8", '{"name":"newer"}'),
    )
    bench.fold()
    bench.duck.close()
    strict, fixed = (
        pipeline(bench, user=schema) for schema in ("name STRING, age INT", "name INT, age INT")
    )
    assert replay_dead_letters(strict) == (0, 5002, 0)
    assert status_of(strict).dead_letters == len(dead_letters(strict)) == 5002
    (bench.path / "state").rename(bench.path / "put-aside")  # another type for a column
    assert replay_dead_letters(fixed) == (5000, 2, 0)
    assert status_of(fixed).dead_letters == len(dead_letters(fixed)) == 2
    assert replay_dead_letters(fixed) == (0, 2, 0)
    record = Warehouse(str(bench.path)).events.record
    assert (record.invalid, record.dead) == (2, ["t"])
    duck = Duck(Warehouse(str(bench.path)), fixed.types)
    rows = duck.sql("SELECT _key, _value, name FROM state_user WHERE _key IN ('k6', 'k7', 'k8')")
    assert sorted(tuple(row.values()) for row in rows.to_pylist()) == [
        ("k6", '{"name":6}', 6),
        ("k8", '{"name":"newer"}', None),
    ]
    duck.close()


def test_records_of_earlier_versions_are_counted_once(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    bench.batch(put("a", '{"name":1}'), put("b", '{"name":2}', stream="t"))
    record = bench.warehouse.events.record
    bench.warehouse.events.note(msgspec.structs.replace(record, invalid=7, dead=None))
    recount(bench.warehouse, bench.duck)
    found = bench.warehouse.events.record
    assert (found.invalid, found.dead) == (2, ["s", "t"])
    version = bench.warehouse.events.table.version
    recount(bench.warehouse, bench.duck)
    assert bench.warehouse.events.table.version == version
    bench.duck.close()


def test_a_type_cannot_lose_its_section_while_its_table_has_columns(tmp_path: Path) -> None:
    bench = WarehouseBench(tmp_path / "warehouse", {"user": USER})
    bench.batch(put("a", '{"name":"Ada"}'), put("b", '{"name":1}'), put("x", "1", type="flag"))
    bench.fold()
    bench.fold("flag")
    bench.duck.close()
    without = pipeline(bench)
    version = Warehouse(str(bench.path)).events.table.version
    for attempt in (
        lambda: check_tables(Warehouse(str(bench.path)), without.types),
        lambda: replay_dead_letters(without),
        lambda: replay_dead_letters(pipeline(bench, user="name STRING")),
    ):
        with pytest.raises(InvalidPipeline, match=r"types\.user.*(Put the section|Change it) back"):
            attempt()
    assert Warehouse(str(bench.path)).events.table.version == version, "nothing was begun"
    declared = {"user": USER, "flag": type_schema("n INT")}
    check_tables(Warehouse(str(bench.path)), declared)
