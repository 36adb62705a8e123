"""Random writes and reads of two tables over one stream, with blocks and marks so small that every
edge is met: whatever is asked, the rows are those of the log."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from penstock.log import spans
from penstock.state.server import row_numbers
from penstock.stp.rows import Row
from penstock.stp.server import row_cache, table_view
from tests.helpers.app import STORES, Client, FakeSink, with_app
from tests.stp.tables import append, change, control, get, put, remove, rows, seqnos, stream, table

SMALL: list[tuple[Any, str, int]] = [
    (row_cache, "BLOCK_BYTES", 1000),
    (table_view, "BLOCK_BYTES", 1000),
    (table_view, "FIRST_BYTES", 300),
    (table_view, "NEAR_BYTES", 700),
    (table_view, "GLANCE_BYTES", 150),
    (table_view, "OVERRUN_BYTES", 40),
    (spans, "GAP_BYTES_MAX", 100),
    (table_view, "INLINE_BYTES", 500),
    (row_numbers, "MARK_CHANGES", 5),
    (row_numbers, "MARK_BYTES", 600),
]
PATHS = {"t/a": "a", "t/b": "b"}


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)


async def write_something(client: Client, chance: random.Random) -> None:
    key, value = f"k{chance.randrange(9)}", "é" * chance.choice([0, 1, 7, 40, 300, 1500])
    kind = chance.random()
    path = chance.choice(list(PATHS))
    if kind < 0.4:
        answer = await put(client, key, value, path)
    elif kind < 0.5:
        answer = await remove(client, key, path)
    elif kind < 0.95:
        events = [
            change(chance.choice(["a", "a", "b", "x"]), f"k{n % 9}", value[: n * 5])
            for n in range(chance.randrange(1, 12))
        ]
        answer = await append(client, "t", *events, control("snapshot-start"))
    else:
        answer = await append(client, "t", control("reset"), change("b", key, value))
    assert answer.status == 204, answer.body


async def expected(client: Client) -> dict[str, list[Row]]:
    """The rows of each table, as the stream itself says."""
    found: dict[str, list[Row]] = {path: [] for path in PATHS}
    for seqno, event in enumerate((await client.get("t")).json(), 1):
        for path, type in PATHS.items():
            if event.get("type") == type:
                headers = event["headers"]
                is_set = headers["operation"] != "delete"
                row = Row(
                    seqno,
                    headers["timestamp"],
                    "+" if is_set else "-",
                    event["key"],
                    event["value"] if is_set else "",
                )
                found[path].append(row)
    return found


async def compare(client: Client, chance: random.Random) -> None:
    wanted = await expected(client)
    for path, all_rows in wanted.items():
        last = all_rows[-1].seqno if all_rows else 0
        assert (await get(client, path, "since_id=999999")).headers["stp-last-seqno"] == str(last)
        assert await rows(client, path) == all_rows
        since = chance.randrange(last + 3)
        found = await rows(client, path, f"since_id={since}")
        assert found == [row for row in all_rows if row.seqno > since]
        count = chance.randrange(1, len(all_rows) + 3)
        assert await rows(client, path, f"since_id=-{count}") == all_rows[-count:]
        live: dict[str, Row] = {}
        for row in all_rows:
            live.pop(row.key, None)
            if row.action == "+":
                live[row.key] = row
        assert await rows(client, path, "view=active") == list(live.values())


async def complete(sink: FakeSink, wanted: list[int]) -> None:
    """A live reader got these rows, each once and in order."""
    await sink.until(lambda sink: len(seqnos(sink)) >= len(wanted))
    assert seqnos(sink) == wanted


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_asked_the_rows_are_those_of_the_log(
    seed: int, store: str, tmp_path: Path
) -> None:
    @with_app(table_cache_bytes=20_000, segment_bytes_max=3000, checkpoint_bytes=5000)
    async def check(client: Client) -> None:
        chance = random.Random(seed)
        for path, type in PATHS.items():
            await table(client, path, stream="t", type=type)
        readers: list[tuple[str, int, FakeSink]] = []
        for _ in range(40):
            await asyncio.gather(*(write_something(client, chance) for _ in range(3)))
            if chance.random() < 0.4:
                path, since = chance.choice(list(PATHS)), chance.randrange(60)
                sink = await stream(client, path, f"since_id={since}")
                readers.append((path, since, sink))
            if chance.random() < 0.3:
                await compare(client, chance)
        await compare(client, chance)
        wanted = await expected(client)
        for path, since, sink in readers:
            await complete(sink, [row.seqno for row in wanted[path] if row.seqno > since])

    check(store, tmp_path)
