"""Tables of a stream that is compacted: its rows again, as ordinary ones under new SeqNos."""

from __future__ import annotations

from penstock.stp.server.registry import OWNER
from tests.helpers.app import Client, with_app
from tests.stp.tables import get, put, remove, rows, seqnos, short, stream, table


async def compact(client: Client, path: str = "t") -> None:
    answer = await client.send("POST", f"/v1/stream/{path}/__ds/compact")
    assert answer.status == 200, answer.body


async def written(client: Client) -> None:
    await table(client)
    for key, record in (("a", "1"), ("b", "2"), ("a", "3"), ("c", "4")):
        assert (await put(client, key, record)).status == 204
    assert (await remove(client, "c")).status == 204


@with_app()
async def test_rows_are_written_again_under_new_numbers(client: Client) -> None:
    await written(client)
    before = {row.key: row for row in await rows(client, query="view=active")}
    await compact(client)
    # 6 is the snapshot's start, 9 its end.
    assert await short(client) == ["7+b=2", "8+a=3"]
    for row in await rows(client):
        assert (row.timestamp, row.record) == (before[row.key].timestamp, before[row.key].record)
    assert await short(client, query="view=active") == ["7+b=2", "8+a=3"]
    assert await short(client, query="since_id=7") == ["8+a=3"]
    assert await short(client, query="since_id=-1") == ["8+a=3"]
    assert (await put(client, "a", "5")).status == 204
    assert await short(client, query="since_id=8") == ["10+a=5"]
    assert await short(client, query="view=active") == ["7+b=2", "10+a=5"]


@with_app()
async def test_who_had_all_rows_goes_on_and_who_had_not_is_told(client: Client) -> None:
    await written(client)
    assert await short(client, query="since_id=5") == []
    await compact(client)
    assert await short(client, query="since_id=5") == ["7+b=2", "8+a=3"]
    gone = await get(client, query="since_id=3")
    assert (gone.status, gone.json()["code"]) == (410, "rows-trimmed")


@with_app()
async def test_an_answer_that_stays_open_gets_them_as_they_come(client: Client) -> None:
    await written(client)
    sink = await stream(client, query="since_id=5")
    await compact(client)
    await put(client, "d", "6")
    await sink.until(lambda sink: 10 in seqnos(sink))
    assert seqnos(sink) == [7, 8, 10]
    assert not sink.closed


@with_app()
async def test_a_reset_after_it_deletes_what_is_live(client: Client) -> None:
    await written(client)
    await compact(client)
    body = b'[{"headers":{"control":"reset"}}]'
    answer = await client.post("t", body, content_type="application/json")
    assert answer.status in (200, 204), answer.body
    assert await short(client, query="view=active") == []
    assert [row.action for row in await rows(client, query="since_id=9")] == ["-", "-"]
    await compact(client)
    assert await short(client) == []


@with_app(retention="=2x", compact_bytes_min=0)
async def test_what_the_server_itself_writes_keeps_its_history(client: Client) -> None:
    await written(client)
    before = await short(client)
    await client.engine.set_meta("t", OWNER, b"a mirror")
    refused = await client.send("POST", "/v1/stream/t/__ds/compact")
    assert (refused.status, refused.json()["code"]) == (403, "mirror-read-only")
    assert await client.engine.retention.enforce() == 0
    assert await short(client) == before
    await client.engine.set_meta("t", OWNER, None)
    assert await client.engine.retention.enforce() == 1
