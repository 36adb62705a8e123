"""The events that the state benchmarks use, and a server that has them as a stream."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from bench.client import Client
from bench.rounds import note
from bench.servers import Server

TYPES = ("user", "message", "presence")
BATCH = 1000
DELETED = 0.1
"""Share of the events after the first of each key that delete it; the next one sets it again."""
CATCH_UP_SECONDS_MAX = 600.0
DECLARATION = b'{"types": {}, "mode": "reject"}'


def event(random_: random.Random, number: int, id: int, operation: str) -> dict[str, object]:
    """About 200 bytes, as an application would send it."""
    type_ = TYPES[id % len(TYPES)]
    value = {
        "id": id, "name": f"name {random_.randrange(10**6)}", "city": "Oslo", "online": True,
        "score": random_.random(),
    }  # fmt: skip
    headers = {"operation": operation, "txid": f"tx-{number}", "timestamp": "2025-01-15T10:30:00Z"}
    body = {} if operation == "delete" else {"value": value}
    return {"type": type_, "key": f"{type_}:{id}", **body, "headers": headers}


def history(events: int, keys: int) -> Iterator[dict[str, object]]:
    """Events that leave exactly `keys` entities: all are inserted first, then changed at random."""
    random_ = random.Random(7)
    ids = list(range(keys))
    random_.shuffle(ids)
    gone: int | None = None
    for number in range(events):
        if number < keys:
            yield event(random_, number, ids[number], "insert")
        elif gone is not None:
            yield event(random_, number, gone, "insert")
            gone = None
        elif random_.random() < DELETED and number < events - 1:
            gone = random_.randrange(keys)
            yield event(random_, number, gone, "delete")
        else:
            operation = random_.choice(("update", "upsert"))
            yield event(random_, number, random_.randrange(keys), operation)


def arrays(events: int, keys: int, batch: int = BATCH) -> Iterator[bytes]:
    """The same as JSON arrays."""
    waiting: list[dict[str, object]] = []
    for each in history(events, keys):
        waiting.append(each)
        if len(waiting) == batch:
            yield msgspec.json.encode(waiting)
            waiting = []
    if waiting:
        yield msgspec.json.encode(waiting)


def stream_name(events: int, keys: int) -> str:
    return f"state-{events}-{keys}"


def fill(server: Server, events: int, keys: int) -> float:
    """A declared stream on a server, indexed to its end; seconds from the declaration to there."""
    name = stream_name(events, keys)
    with Client(server.port) as client:
        path = client.create(name)
        for array in arrays(events, keys):
            client.append(path, array)
        # Declared at the end, so that appends and the index do not take turns.
        started = time.monotonic()
        json = {"Content-Type": "application/json"}
        client.request("PUT", f"/v1/schema/{name}", DECLARATION, json)
        while time.monotonic() - started < CATCH_UP_SECONDS_MAX:
            # Waits itself, 10 s at most, then answers 503.
            answer = client.request("GET", f"/v1/state/{name}?limit=1", allow=(200, 503))
            if answer.status == 200:
                took_s = time.monotonic() - started
                note(f"    {name}: indexed in {took_s:.1f} s")
                return took_s
    raise RuntimeError(f"{name} was not indexed in {CATCH_UP_SECONDS_MAX:.0f} s")


def folder_bytes(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
