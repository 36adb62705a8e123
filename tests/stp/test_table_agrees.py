"""One log, three dialects: a table as stream, as state and as rows agrees at every position."""

from __future__ import annotations

import random
from typing import Any

from tests.helpers.app import Client, with_app
from tests.stp.tables import append, change, control, put, remove, rows, short, table, write


@with_app()
async def test_stream_state_and_rows_agree_at_every_position(client: Client) -> None:
    await table(client)
    chance = random.Random(11)
    offsets: dict[int, str] = {}

    for _ in range(60):
        key, kind = f"k{chance.randrange(6)}", chance.random()
        if kind < 0.35:
            answer = await put(client, key, f"é{chance.random()}")
        elif kind < 0.5:
            answer = await remove(client, key)
        elif kind < 0.65:
            answer = await write(client, f"+\t{key}\ta\n-\tk0\n+\tk1\tb\n")
        elif kind < 0.8:
            answer = await append(client, "t", change("s", key, "plain"), change("x", "y", 1))
        elif kind < 0.9:
            answer = await append(client, "t", control("snapshot-start"), change("s", "k2", "q"))
        else:
            answer = await append(client, "t", control("reset"), change("s", key, "after"))
        assert answer.status == 204, answer.body
        count = len((await client.get("t")).json())
        offsets[count] = answer.offset

    events = (await client.get("t")).json()
    found = await rows(client)
    by_seqno = {row.seqno: row for row in found}
    assert list(by_seqno) == sorted(by_seqno)
    live: dict[str, Any] = {}
    for ordinal, event in enumerate(events, 1):
        row = by_seqno.get(ordinal)
        if event.get("type") == "s":
            assert row is not None
            is_delete = event["headers"]["operation"] == "delete"
            assert (row.action, row.key) == ("-" if is_delete else "+", event["key"])
            assert row.record == ("" if is_delete else event["value"])
            assert row.timestamp == event["headers"]["timestamp"]
            live.pop(row.key, None)
            if not is_delete:
                live[row.key] = row.record
        else:
            assert row is None
        if ordinal in offsets:
            answer = await client.send("GET", f"/v1/state/t?offset={offsets[ordinal]}&type=s")
            assert answer.json()["types"].get("s", {}) == live
    active = await rows(client, query="view=active")
    assert {row.key: row.record for row in active} == live
    assert [row.seqno for row in active] == sorted(row.seqno for row in active)
    for since in range(0, len(events) + 2, 7):
        expected = [row for row in found if row.seqno > since]
        assert await rows(client, query=f"since_id={since}") == expected
    for count in range(1, len(found) + 2, 5):
        assert await rows(client, query=f"since_id=-{count}") == found[-count:]


@with_app()
async def test_state_written_as_events_is_read_as_rows_and_back(client: Client) -> None:
    await table(client)
    await append(client, "t", change("s", "a", "1", "insert"), change("s", "a", "2", "update"))
    await put(client, "b", "3")
    assert await short(client) == ["1+a=1", "2+a=2", "3+b=3"]
    state = (await client.send("GET", "/v1/state/t")).json()
    assert state["types"] == {"s": {"a": "2", "b": "3"}}
