"""Many rows in one request: in slices off the event loop, with limits and the right numbers."""

from __future__ import annotations

import asyncio
import json
import threading
import tracemalloc
from typing import Any

import pytest

from penstock import limits
from penstock.protocol.json_mode import SLICE_BYTES
from penstock.stp.transcode import events_of
from tests.helpers.app import Client, with_app
from tests.stp.tables import JSON, rows, table, write

ROWS = 3000
BODY = "".join(f"+\tkey {number}\t{'x' * 40}\n" for number in range(ROWS))


@pytest.fixture(autouse=True)
def large_checks_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where many events are decoded on the event loop."""

    def checked(wire: bytes) -> list[Any]:
        assert len(wire) <= SLICE_BYTES + 1000
        on_loop = threading.current_thread() is threading.main_thread()
        assert not on_loop or len(wire) <= 1000
        return events_of(wire)

    monkeypatch.setattr("penstock.stp.server.checks.events_of", checked)


@with_app()
async def test_many_rows_are_written_at_once_and_in_order(client: Client) -> None:
    await table(client)
    many, one = await asyncio.gather(write(client, BODY), write(client, "+\tlast\t1\n"))
    assert (many.status, one.status) == (204, 204)
    numbers = [answer.headers["stp-first-seqno"] for answer in (many, one)]
    assert numbers in (["1", str(ROWS + 1)], ["2", "1"])
    written = await rows(client)
    assert len(written) == ROWS + 1
    assert [row.key for row in written if row.key != "last"] == [f"key {n}" for n in range(ROWS)]
    assert [row.seqno for row in written] == list(range(1, ROWS + 2))


@with_app()
async def test_a_bad_row_among_many_has_its_number(client: Client) -> None:
    await table(client)
    lines = BODY.splitlines(keepends=True)
    for bad, field in (("*\ta\tb\n", "action"), ("+\t\tb\n", "key"), ("+\ta\rb\tc\n", "key")):
        answer = await write(client, "".join([*lines[:2900], bad, *lines[2900:]]))
        assert (answer.status, answer.json()["index"], answer.json()["field"]) == (422, 2900, field)
        assert answer.json()["detail"].startswith("Row 2900: ")
    assert await rows(client) == []


@with_app()
async def test_too_many_rows_are_refused_before_they_are_parsed(client: Client) -> None:
    await table(client)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "TABLE_ROWS_PER_POST_MAX", ROWS - 1)
        answer = await write(client, BODY)
        assert (answer.status, answer.json()["code"]) == (413, "body-too-large")
        assert f"more than {ROWS - 1} rows" in answer.json()["detail"]
        assert (await write(client, BODY[: BODY.rindex("+")])).status == 204


@with_app(body_bytes_max=128 * limits.KIB)
async def test_rows_that_grow_too_much_as_events_are_refused(client: Client) -> None:
    await table(client)
    body = "".join(f"+\tk{number}\t\n" for number in range(10_000))
    answer = await write(client, body)
    assert (answer.status, answer.json()["code"]) == (413, "body-too-large")
    assert "several requests" in answer.json()["detail"]


@with_app()
async def test_events_without_timestamps_get_one_however_many_they_are(client: Client) -> None:
    await table(client, type="t")
    events: list[dict[str, Any]] = [
        {"type": "t", "key": str(n), "value": "x" * 60, "headers": {"operation": "upsert"}}
        for n in range(ROWS)
    ]
    for event in events[::2]:
        event["headers"]["timestamp"] = "2026-01-01T00:00:00Z"
    answer = await client.post("t", json.dumps(events).encode(), content_type=JSON)
    assert answer.status == 204, answer
    written = await rows(client)
    assert [row.key for row in written] == [str(n) for n in range(ROWS)]
    assert {row.timestamp for row in written[::2]} == {"2026-01-01T00:00:00Z"}
    assert len({row.timestamp for row in written[1::2]}) == 1
    events[2345]["value"] = 1
    answer = await client.post("t", json.dumps(events).encode(), content_type=JSON)
    assert (answer.status, answer.json()["index"]) == (422, 2345)


@with_app()
async def test_a_reset_among_many_events_is_refused_with_advice(client: Client) -> None:
    await table(client, type="t")
    assert (await write(client, BODY)).status == 204
    reset = {"headers": {"control": "reset"}}
    event = {"type": "t", "key": "a", "value": "x" * 60, "headers": {"operation": "upsert"}}
    many = json.dumps([event] * ROWS + [reset]).encode()
    answer = await client.post("t", many, content_type=JSON)
    assert (answer.status, answer.json()["index"]) == (422, ROWS)
    assert "send it on its own" in answer.json()["detail"]
    assert (await client.post("t", json.dumps(reset).encode(), content_type=JSON)).status == 204


@with_app()
async def test_the_memory_of_many_rows_is_a_small_multiple_of_their_events(client: Client) -> None:
    await table(client)
    body = "".join(f"+\t{number}\tx\n" for number in range(20_000))
    await write(client, "+\ta\tb\n")
    tracemalloc.start()
    try:
        assert (await write(client, body)).status == 204
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    size = (await client.head("t")).offset.rpartition("_")[2]
    assert peak < 16 * int(size)
