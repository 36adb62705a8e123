"""The events that the state benchmarks use, and servers that have them as a declared stream."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench import servers
from bench.client import JSON, ROOT, Client
from bench.rounds import note
from bench.servers import Server

TYPES = ("user", "message", "presence")
BATCH = 1000
DELETED = 0.1
"""Share of the events after the first of each key that delete it; the next one sets it again."""
INDEX_SECONDS_MAX = 600.0
STREAM = "entities"
DECLARATION = b'{"types": {}, "mode": "reject"}'


def event(random_: random.Random, number: int, id: int, operation: str) -> dict[str, object]:
    """About 200 bytes, as an application would send it."""
    type_, key = key_of(id)
    value = {
        "id": id, "name": f"name {random_.randrange(10**6)}", "city": "Oslo", "online": True,
        "score": random_.random(),
    }  # fmt: skip
    headers = {"operation": operation, "txid": f"tx-{number}", "timestamp": "2025-01-15T10:30:00Z"}
    body = {} if operation == "delete" else {"value": value}
    return {"type": type_, "key": key, **body, "headers": headers}


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


class Filled(NamedTuple):
    """A server that has one declared stream, indexed to its end."""

    server: Server
    events: int
    keys: int
    middle: str  # the offset after half of the events
    indexed_s: float  # from the declaration to the first answer
    index_bytes: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.port}"


def key_of(id: int) -> tuple[str, str]:
    type_ = TYPES[id % len(TYPES)]
    return type_, f"{type_}:{id}"


def fill(server: Server, events: int, keys: int) -> Filled:
    middle, path = "", ROOT + STREAM
    with Client(server.port) as client:
        client.create(STREAM)
        for number, array in enumerate(arrays(events, keys), 1):
            client.append(path, array)
            if number == events // BATCH // 2:
                middle = client.tail(path)
        # Declared at the end: appends and the index do not take turns.
        started = time.monotonic()
        client.request("PUT", f"/v1/schema/{STREAM}", DECLARATION, JSON)
        status = 503
        while status != 200 and time.monotonic() - started < INDEX_SECONDS_MAX:
            # Waits for the index by itself, and says 503 if that takes too long.
            status = client.request("GET", f"/v1/state/{STREAM}?limit=1", allow=(200, 503)).status
        indexed_s = time.monotonic() - started
    if status != 200:
        raise servers.ServerFailed(f"{events} events were not indexed in {indexed_s:.0f} s")
    index_bytes = sum(file.stat().st_size for file in (server.data / "state").iterdir())
    note(f"    {keys:,} keys, {events:,} events: indexed in {indexed_s:.1f} s")
    return Filled(server, events, keys, middle, indexed_s, index_bytes)


@contextlib.contextmanager
def serving(folder: Path, sizes: Sequence[tuple[int, int]]) -> Iterator[list[Filled]]:
    """A server for each (events, keys)."""
    up: list[Server] = []
    try:
        filled = []
        for events, keys in sizes:
            up.append(servers.start("ours", folder / f"state-{keys}"))
            filled.append(fill(up[-1], events, keys))
        yield filled
    finally:
        for server in up:
            server.stop()
