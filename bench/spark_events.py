"""What the pipeline's measurements share: events, where they go, and the pipeline over them."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock import Client
from penstock.spark.config import Pipeline, make_pipeline
from penstock.spark.type_schema import type_schema

STREAM = "bench"
SCHEMA = "id STRING, name STRING, city STRING"
TYPES = {"user": type_schema(SCHEMA)}
_AT_ONCE = 2000
_IN_A_FILE = 20_000


def lines(count: int, keys: int) -> Iterator[dict[str, Any]]:
    chance = random.Random(1)
    for number in range(count):
        key = str(chance.randrange(keys))
        value = {"id": key, "name": f"name {number % 1000}", "city": f"city {number % 50}"}
        yield {"type": "user", "key": key, "value": value, "headers": {"operation": "upsert"}}


def chunks(count: int, keys: int, size: int) -> Iterator[list[dict[str, Any]]]:
    held: list[dict[str, Any]] = []
    for line in lines(count, keys):
        held.append(line)
        if len(held) == size:
            yield held
            held = []
    if held:
        yield held


def fill(url: str, count: int, keys: int, folder: Path | None = None) -> int:
    """Append events to the stream, and write the same ones to JSON files; their size in bytes."""
    with Client(url) as client:
        stream = client.stream(STREAM)
        stream.create()
        for number, chunk in enumerate(chunks(count, keys, _IN_A_FILE)):
            for start in range(0, len(chunk), _AT_ONCE):
                stream.append_many(chunk[start : start + _AT_ONCE])
            if folder is not None:
                with (folder / f"{number:05d}.json").open("w") as file:
                    for at, line in enumerate(chunk):
                        file.write(json.dumps({**line, "seq": number * _IN_A_FILE + at}) + "\n")
        return int(stream.head().offset.rpartition("_")[2])


def pipeline(
    url: str,
    folder: Path,
    *,
    source: dict[str, Any] | None = None,
    publish: dict[str, Any] | None = None,
    **run: Any,
) -> Pipeline:
    return make_pipeline(
        {
            "source": {"url": url, "streams": [STREAM], **(source or {})},
            "warehouse": {"path": str(folder)},
            "types": {"user": {"schema": SCHEMA}},
            "publish": publish or {},
            "pipeline": run,
        }
    )
