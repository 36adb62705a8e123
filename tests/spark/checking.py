"""Whether a warehouse and what it has published come to what a replay of the log does."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

from penstock import Client
from penstock.spark.config import Pipeline
from penstock.spark.pipeline.outbox import Outbox
from penstock.spark.warehouse.duckdb import Duck
from penstock.spark.warehouse.warehouse import Warehouse
from tests.spark.direct import read
from tests.spark.publishing import folded
from tests.spark.replay import Replay

CITIES = "SELECT city AS key, count(*) AS users FROM state_user GROUP BY city"


def replay_of(pipeline: Pipeline) -> Replay:
    """One thread, one event after the other, from the server's log."""
    rows = read(pipeline.source.url, ",".join(pipeline.source.streams))
    found = Replay(pipeline.types)
    found.see(sorted(rows, key=lambda row: (row["stream"], row["generation"] or 0, row["seq"])))
    return found


def check_warehouse(pipeline: Pipeline, replay: Replay | None = None) -> Replay:
    """Every table and view, row for row."""
    replay = replay or replay_of(pipeline)
    duck = Duck(Warehouse(pipeline.warehouse.path, pipeline.warehouse.options), pipeline.types)
    try:
        events = duck.sql(
            "SELECT stream, generation, ordinal, kind, value, error FROM events "
            "WHERE NOT replayed ORDER BY stream, generation, ordinal"
        )
        assert [tuple(row.values()) for row in events.to_pylist()] == replay.events
        for entity in duck.entities():
            assert state_rows(duck, entity) == replay.state_rows(entity)
            assert history_rows(duck, entity) == replay.history_rows(entity)
        dead = duck.sql("SELECT stream, ordinal, value, error FROM dead_letters").to_pylist()
        assert sorted(tuple(row.values()) for row in dead) == replay.dead_rows()
    finally:
        duck.close()
    return replay


def state_rows(duck: Duck, entity: str) -> list[tuple[Any, ...]]:
    columns = "_stream, _key, _value, _generation, _ordinal"
    name = duck.view_names()[entity]
    rows = duck.sql(f"SELECT {columns} FROM state_{name}").to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def history_rows(duck: Duck, entity: str) -> list[tuple[Any, ...]]:
    columns = "_stream, _key, _value, _valid_from_ordinal, coalesce(_valid_to_ordinal, -1)"
    name = duck.view_names()[entity]
    rows = duck.sql(f"SELECT {columns} FROM history_{name}").to_pylist()
    return sorted(tuple(row.values()) for row in rows)


def committed(warehouse: Warehouse, publish: str) -> list[str]:
    """Every message that was committed to be sent, in order: also those that later versions of the
    table have let go of, whose files are there until somebody removes them."""
    found: dict[tuple[int, int], str] = {}
    files, root = warehouse.files("outbox")
    log = files.get_file_info(fs.FileSelector(f"{root}/_delta_log", allow_not_found=True))
    for commit in sorted(each.path for each in log if each.path.endswith(".json")):
        with files.open_input_stream(commit) as file:
            actions = [json.loads(line) for line in file.read().splitlines()]
        for name in [each["add"]["path"] for each in actions if "add" in each]:
            for row in pq.read_table(f"{root}/{name}", filesystem=files).to_pylist():
                if row["publish"] != publish or row["message"] is None:
                    continue
                place = (row["chunk"], row["ordinal"])
                assert found.setdefault(place, row["message"]) == row["message"], place
    return [found[place] for place in sorted(found)]


def check_cities(pipeline: Pipeline, client: Client, replay: Replay) -> list[dict[str, Any]]:
    """The published stream: each row that was ever in the outbox once and in order, adding up to
    the result."""
    stream = client.stream(pipeline.publish["cities"].target)
    messages = stream.read().messages if replay.state else []
    warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
    assert messages == [json.loads(text) for text in committed(warehouse, "cities")]
    outbox = Outbox(warehouse)
    outbox.refresh()
    assert list(outbox.waiting("cities")) == []
    found = folded(messages)
    values = (json.loads(row["value"]) for row in replay.state.values() if row["type"] == "user")
    cities = Counter(value["city"] for value in values if value.get("city") is not None)
    assert found == {city: {"users": count} for city, count in cities.items()}
    return messages
