"""The state of one stream as files of messages that never change: a rewrite sends the same messages
after it was killed and resumed.

Reads the warehouse and no server. Holds a few megabytes at a time, however large the state is.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from penstock import limits
from penstock.errors import RewriteFailed
from penstock.spark.config import Pipeline
from penstock.spark.offsets import Position, from_spark
from penstock.spark.warehouse import sql
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.state import StateTable
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state.events import insert, snapshot_end, snapshot_start

_ROWS: Final = pa.schema([("chunk", pa.int64()), ("message", pa.binary())])
_PLAN: Final = "plan.json"
_ROWS_AT_ONCE: Final = 4096
_PART_BYTES: Final = 8 * 1024 * 1024
_READS_MAX: Final = 5


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """A rewrite that has begun. Written after the files that it names."""

    id: str  # a unique name, part of the producer ids
    stream: str
    to: str
    offset: str  # of the stream, up to which the state goes
    seq: int  # the number of messages before that offset
    batch: int
    chunks: int
    messages: int  # of the snapshot, including its start and end
    parts: list[str]


class Staging:
    """The folder of the rewrite of a stream, beside the tables."""

    def __init__(self, warehouse: Warehouse, stream: str) -> None:
        self._warehouse = warehouse
        self.stream = stream
        folder = f"_penstock/rewrite/{quote(stream, safe='')}"
        self._files, self._root = warehouse.files(folder)

    def plan(self) -> Plan | None:
        """The plan of a rewrite that has begun."""
        path = f"{self._root}/{_PLAN}"
        if self._files.get_file_info(path).type == fs.FileType.NotFound:
            return None
        with self._files.open_input_stream(path) as file:
            return msgspec.json.decode(file.read(), type=Plan)

    def write(self, pipeline: Pipeline, to: str) -> Plan:
        """Write the current state of the warehouse to files, and return the plan."""
        self.clear()
        self._files.create_dir(self._root, recursive=True)
        replaces = pipeline.run.snapshots == "replace"
        duck = Duck(self._warehouse, pipeline.types)
        try:
            queries = _consistent(duck, self._warehouse, pipeline, self.stream, replaces=replaces)
            position = _position(self._warehouse, self.stream)
            _check_floor(duck, self.stream, position)
            written = _Parts(self._files, self._root)
            written.add(snapshot_start().to_json())
            for message in _messages(duck, queries):
                written.add(message)
            written.add(snapshot_end().to_json())
            written.close()
        finally:
            duck.close()
        plan = Plan(
            id=f"rewrite/{uuid.uuid4().hex}",
            stream=self.stream,
            to=to,
            offset=position.offset,
            seq=position.seq,
            batch=self._warehouse.events.record.batch,
            chunks=written.chunks,
            messages=written.messages,
            parts=written.names,
        )
        # Renamed when it is complete, so that a partial plan is never read.
        with self._files.open_output_stream(f"{self._root}/{_PLAN}.new") as file:
            file.write(msgspec.json.encode(plan))
        self._files.move(f"{self._root}/{_PLAN}.new", f"{self._root}/{_PLAN}")
        return plan

    def chunks(self, plan: Plan, first: int) -> Iterator[tuple[int, list[bytes]]]:
        """The messages by chunk, from the chunk `first` on."""
        for name in plan.parts:
            rows = pq.read_table(f"{self._root}/{name}", filesystem=self._files)
            numbers, messages = rows["chunk"].to_pylist(), rows["message"].to_pylist()
            start = 0
            for index in range(1, len(numbers) + 1):
                if index == len(numbers) or numbers[index] != numbers[start]:
                    if numbers[start] >= first:
                        yield numbers[start], messages[start:index]
                    start = index

    def clear(self) -> None:
        if self._files.get_file_info(self._root).type != fs.FileType.NotFound:
            self._files.delete_dir(self._root)


class _Parts:
    """Writes messages to files of whole chunks."""

    def __init__(self, files: fs.FileSystem, root: str) -> None:
        self._fs = files
        self._root = root
        self._prefix = uuid.uuid4().hex
        self.names: list[str] = []
        self.chunks = self.messages = 0
        self._in_chunk = self._chunk_bytes = self._bytes = 0
        self._numbers: list[int] = []
        self._pending: list[bytes] = []

    def add(self, message: bytes) -> None:
        full = self._in_chunk >= limits.SPARK_CHUNK_MESSAGES
        if full or (self._in_chunk and self._chunk_bytes + len(message) > limits.SPARK_CHUNK_BYTES):
            self._end_chunk()
        self._numbers.append(self.chunks)
        self._pending.append(message)
        self.messages += 1
        self._in_chunk += 1
        self._chunk_bytes += len(message)
        self._bytes += len(message)

    def close(self) -> None:
        self._end_chunk()
        self._write()

    def _end_chunk(self) -> None:
        self.chunks += 1
        self._in_chunk = self._chunk_bytes = 0
        if self._bytes >= _PART_BYTES:
            self._write()

    def _write(self) -> None:
        if not self._pending:
            return
        name = f"{self._prefix}-{len(self.names):06d}.parquet"
        rows = pa.table([pa.array(self._numbers), pa.array(self._pending)], schema=_ROWS)
        pq.write_table(rows, f"{self._root}/{name}", filesystem=self._fs, compression="zstd")
        self.names.append(name)
        self._numbers, self._pending, self._bytes = [], [], 0


def _consistent(
    duck: Duck, warehouse: Warehouse, pipeline: Pipeline, stream: str, *, replaces: bool
) -> list[tuple[str, str]]:
    """The query of each type, all as of one batch: a running pipeline may fold in between."""
    for _ in range(_READS_MAX):
        duck.refresh()
        record = warehouse.events.record
        cut = sql.cuts(duck.events(column="control"), replaces=False)
        queries, newest = [], 0
        for entity in duck.entities():
            state = StateTable(warehouse, entity, pipeline.types.get(entity))
            after = 0 if replaces else state.batch
            newest = max(newest, after)
            fresh = sql.changes(duck.events(after=after), entity, after=after)
            dead = sql.refused(duck.events(column="error"), entity)
            rows = [fresh, dead]
            if not replaces:
                rows.append(sql.own_columns(duck.files(state.files(), state.stored)))
            queries.append((entity, sql.state_of(stream, rows, cut)))
        if newest <= record.batch:
            return queries
    raise RewriteFailed("The pipeline commits faster than its state can be read. Try again.")


def _position(warehouse: Warehouse, stream: str) -> Position:
    positions = warehouse.events.positions()
    offsets = None if positions is None else from_spark(positions)
    if offsets is None or offsets.kind != "penstock" or stream not in offsets.streams:
        raise RewriteFailed(
            f"The warehouse has no position of {stream!r}. Only a stream of a Penstock server that "
            "the pipeline has read can be rewritten. Run the pipeline first."
        )
    return offsets.streams[stream]


def _check_floor(duck: Duck, stream: str, position: Position) -> None:
    """Raise an error if a reset makes void what is still to come: the new stream has other
    offsets."""
    cut = sql.cuts(duck.events(column="control"), replaces=False)
    for row in duck.table(cut).to_pylist():
        if row["stream"] != stream or row["generation"] != position.generation:
            continue
        if row["floor"] <= position.byte:
            continue
        raise RewriteFailed(
            f"A reset of {stream!r} names an offset ahead, up to which events do not count. "
            "Rewrite the stream when it has reached that offset."
        )


def _messages(duck: Duck, queries: list[tuple[str, str]]) -> Iterator[bytes]:
    """The entities as insert events, in the order of the stream."""
    if not queries:
        return
    for batch in duck.reader(sql.in_order(queries), rows=_ROWS_AT_ONCE):
        for row in batch.to_pylist():
            yield insert(
                row["_type"],
                row["_key"],
                msgspec.Raw(row["_value"].encode()),
                txid=row["_txid"],
                timestamp=_rfc3339(row["_time"]),
            ).to_json()


def _rfc3339(time: datetime | Any) -> str | None:
    return None if time is None else time.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
