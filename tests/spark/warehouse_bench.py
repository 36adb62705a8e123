"""A warehouse that is fed by hand, without Spark or a server, beside a replay of the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from penstock.spark.arrow_columns import STATE_ARROW
from penstock.spark.offsets import Position, SourceOffsets
from penstock.spark.type_schema import TypeSchema, type_schema
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.events import BatchResult, Expectations, writer_of
from penstock.spark.warehouse.fold import fold_here
from penstock.spark.warehouse.relations import Relations
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.replay import Replay, Row

USER = type_schema("name STRING, age INT")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


class WarehouseBench:
    """A warehouse that is fed by hand, and the replay of what it was fed."""

    def __init__(
        self,
        path: Path,
        types: dict[str, TypeSchema],
        *,
        replaces: bool = False,
        expect: Expectations | None = None,
        has_positions: bool = False,
    ) -> None:
        self._has_positions = has_positions
        self.path, self.types, self._expect = path, types, expect
        self.warehouse = Warehouse(str(path))
        self.warehouse.open()
        self.replay = Replay(types)
        self.duck = Duck(self.warehouse, types, replaces=replaces)
        self.seen: list[Row] = []
        self._next: dict[str, int] = {}
        self._batches = 0

    def rows(self, *partial: dict[str, Any]) -> list[Row]:
        """Rows as the source gives them, numbered by stream."""
        found = []
        for each in partial:
            row = {"stream": "s", "generation": 1, "kind": "change", "type": "user", **each}
            if "control" in row or row["kind"] == "invalid":
                row = {**row, "kind": row["kind"] if "error" in row else "control", "type": None}
            seq = self._next.get(row["stream"], 0)
            self._next[row["stream"]] = seq + 1
            row = {"position": seq * 10, "seq": seq, "offset": spelled(1, seq * 10 + 10), **row}
            found.append({name: row.get(name) for name in STATE_ARROW.names})
        return found

    def batch(self, *partial: dict[str, Any]) -> None:
        rows = self.rows(*partial)
        self.seen += rows
        self.replay.see(rows)
        self.append(rows, self._batches)
        self._batches += 1

    def append(self, rows: list[Row], number: int) -> None:
        events = self.warehouse.events
        batch = pa.RecordBatch.from_pylist(rows, schema=STATE_ARROW)
        write = writer_of(events.uri, self.types, events.record.batch + 1, NOW, None, self._expect)
        appended = BatchResult.of(row for each in write([batch]) for row in each.to_pylist())
        self.warehouse.check()
        events.append(
            appended,
            query="q",
            batch=number,
            positions=self._positions() if self._has_positions else None,
        )
        self.duck.refresh()

    def _positions(self) -> dict[str, Any]:
        """The offsets after the last row, as Spark stores them."""
        streams = {name: Position(spelled(1, n * 10), n) for name, n in self._next.items()}
        return SourceOffsets("penstock", streams).to_spark()

    def fold(self, entity: str = "user") -> StateTable:
        found = fold_here(self.duck, entity, self.warehouse.events.record)
        self.duck.refresh()
        return found

    def state(self, entity: str = "user") -> list[tuple[Any, ...]]:
        rows = self.duck.sql(f"SELECT * FROM state_{entity}").to_pylist()
        names = ("_stream", "_key", "_value", "_generation", "_ordinal")
        return sorted(tuple(row[name] for name in names) for row in rows)

    def history(self, entity: str = "user") -> list[tuple[Any, ...]]:
        rows = self.duck.sql(f"SELECT * FROM history_{entity}").to_pylist()
        return sorted(
            (
                row["_stream"],
                row["_key"],
                row["_value"],
                row["_valid_from_ordinal"],
                -1 if row["_valid_to_ordinal"] is None else row["_valid_to_ordinal"],
            )
            for row in rows
        )

    def dead(self) -> list[tuple[Any, ...]]:
        rows = self.duck.sql("SELECT * FROM dead_letters").to_pylist()
        return sorted((row["stream"], row["ordinal"], row["value"], row["error"]) for row in rows)

    def agree(self) -> None:
        for entity in self.duck.entities():
            assert self.state(entity) == self.replay.state_rows(entity)
            assert self.history(entity) == self.replay.history_rows(entity)
        assert self.dead() == self.replay.dead_rows()


Ask = Callable[[str], list[tuple[Any, ...]]]


def as_of_everything(
    bench: WarehouseBench, relations: Relations | None = None
) -> Iterator[Callable[[Ask], None]]:
    """Fill a warehouse, and check what it says of each batch and offset in the past."""
    chosen = relations or bench.duck
    partial: list[dict[str, Any]] = [
        put("a", '{"name":"Ada"}'), put("b", '{"name":1}'), put("c", '{"age":1}', stream="t"),
        put("a", '{"name":"Al"}'), {"control": "reset"}, put("b", '{"name":"Bo"}'), gone("b"),
        put("a", '{"name":"Al"}'), put("a", '{"name":"Al"}'), gone("c", stream="t"),
    ]  # fmt: skip
    rows: list[list[Row]] = []
    for first in range(0, len(partial), 3):
        bench.batch(*partial[first : first + 3])
        rows.append(list(bench.seen[-3:]) if first + 3 <= len(partial) else [bench.seen[-1]])
    bench.fold()
    chosen.refresh()
    everything = [row for batch in rows for row in batch]

    def checked(until: sql.Until, known: list[Row]) -> Callable[[Ask], None]:
        def check(ask: Ask) -> None:
            replay = Replay(bench.types)
            replay.see(known)
            columns = "_stream, _key, _value, _generation, _ordinal"
            found = ask(f"SELECT {columns} FROM {chosen.state_at('user', until)}")
            assert sorted(found) == replay.state_rows("user"), until
            columns = "_stream, _key, _value, _valid_from_ordinal, coalesce(_valid_to_ordinal, -1)"
            found = ask(f"SELECT {columns} FROM {chosen.history('user', until)}")
            assert sorted(found) == replay.history_rows("user"), until

        return check

    for number in range(len(rows) + 1):
        known = [row for batch in rows[:number] for row in batch]
        yield checked(sql.Until(batch=number), known)
    for row in [each for each in everything if each["stream"] == "s"]:
        until = sql.until_offset("/s", row["offset"])
        before = [each for each in everything if each["stream"] == "s"]
        yield checked(until, [each for each in before if each["seq"] <= row["seq"]])


def spelled(generation: int, position: int) -> str:
    return f"{generation:016d}_{position:016d}"


def put(key: str, value: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "operation": "upsert", "value": value, **more}


def gone(key: str, **more: Any) -> dict[str, Any]:
    return {"key": key, "operation": "delete", **more}
