"""Responses of tables that stay open: each row once, until idle, timeout or the end."""

from __future__ import annotations

import asyncio

import pytest

from penstock.stp.server.row_cache import BLOCK_BYTES
from penstock.stp.server.table_view import RowCursor
from tests.helpers.app import Client, FakeSink, with_app
from tests.http.test_metrics import scrape
from tests.stp.tables import append, change, put, rows, seqnos, stream, table, write


async def ended(sink: FakeSink) -> None:
    await sink.until(lambda sink: sink.closed)


@with_app()
async def test_rows_that_are_there_come_first_and_new_ones_follow(client: Client) -> None:
    await table(client)
    await write(client, "+\ta\t1\n+\tb\t2\n")
    sink = await stream(client)
    await sink.until(lambda sink: seqnos(sink) == [1, 2])
    await put(client, "c", "3")
    await sink.until(lambda sink: seqnos(sink) == [1, 2, 3])
    await write(client, "-\ta\n+\td\t4\n")
    await sink.until(lambda sink: seqnos(sink) == [1, 2, 3, 4, 5])
    assert not sink.closed
    assert sink.headers["stp-last-seqno"] == "2"
    assert b"".join(sink.frames).endswith(b"\t+\td\t4\n")


@with_app()
async def test_readers_start_where_they_say(client: Client) -> None:
    await table(client)
    await write(client, "+\ta\t1\n+\tb\t2\n+\tc\t3\n")
    sinks = {
        query: await stream(client, query=query)
        for query in ("", "since_id=2", "since_id=-1", "since_id=3", "view=active")
    }
    await write(client, "+\ta\t4\n")
    expected = {
        "": [1, 2, 3, 4], "since_id=2": [3, 4], "since_id=-1": [3, 4], "since_id=3": [4],
        "view=active": [1, 2, 3, 4],
    }  # fmt: skip
    for query, numbers in expected.items():
        await sinks[query].until(lambda sink: seqnos(sink)[-1:] == [4])
        assert seqnos(sinks[query]) == numbers


@with_app()
async def test_beyond_the_tail_a_reader_waits_for_the_rows_after_its_own(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    sink = await stream(client, query="since_id=4")
    for number in range(2, 7):
        await put(client, f"k{number}", "v")
    await sink.until(lambda sink: seqnos(sink) == [5, 6])
    await put(client, "z", "v")
    await sink.until(lambda sink: seqnos(sink) == [5, 6, 7])


@with_app()
async def test_rows_of_other_types_wake_nobody(client: Client) -> None:
    await table(client)
    sink = await stream(client)
    await append(client, "t", change("x", "a", 1))
    await append(client, "t", change("x", "b", 1), change("s", "c", "1"))
    await sink.until(lambda sink: seqnos(sink) == [3])
    assert len(sink.frames) == 1


@with_app()
async def test_all_readers_get_the_same_bytes_object(client: Client) -> None:
    await table(client)
    sinks = [await stream(client, query="since_id=0") for _ in range(20)]
    assert (await scrape(client))["penstock_table_readers"] == 20
    await put(client, "a", "1")
    for sink in sinks:
        await sink.until(lambda sink: len(sink.frames) == 1)
    assert len({id(sink.frames[0]) for sink in sinks}) == 1
    for sink in sinks:
        sink.body.detach()
    assert (await scrape(client))["penstock_table_readers"] == 0
    assert not client.engine.find("t", touch=False).watchers


@with_app(table_idle_s=0.05, table_timeout_s=30)
async def test_an_idle_answer_ends(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    sink = await stream(client)
    await ended(sink)
    assert seqnos(sink) == [1]
    beyond = await stream(client, query="since_id=9")
    await ended(beyond)


@with_app(table_idle_s=30, table_timeout_s=0.05)
async def test_an_answer_ends_at_its_timeout_though_rows_keep_coming(client: Client) -> None:
    await table(client)
    sink = await stream(client)
    number = 0
    while not sink.closed:
        number += 1
        await put(client, f"k{number}", "v")
    received = seqnos(sink)
    assert received == list(range(1, len(received) + 1))
    rest = await rows(client, query=f"since_id={len(received)}")
    assert [row.seqno for row in rest] == list(range(len(received) + 1, number + 1))


@with_app(table_idle_s=30, table_timeout_s=30)
async def test_a_client_can_ask_for_less_time_and_never_for_more(client: Client) -> None:
    await table(client)
    await ended(await stream(client, query="timeout=0.05"))
    long = await stream(client, query="timeout=999999999")
    assert long.body.timeout_s == 30  # type: ignore[attr-defined]
    long.body.detach()


@with_app()
async def test_a_closed_stream_ends_the_answer_after_its_last_row(client: Client) -> None:
    await table(client)
    sinks = [await stream(client), await stream(client, query="since_id=9")]
    await put(client, "a", "1")
    await append(client, "t", change("s", "b", "2"), stream_closed="true")
    for sink in sinks:
        await ended(sink)
    assert seqnos(sinks[0]) == [1, 2]
    assert seqnos(sinks[1]) == []


@with_app()
async def test_a_deleted_stream_ends_the_answer(client: Client) -> None:
    await table(client)
    sink = await stream(client)
    await client.delete("t")
    await ended(sink)


@with_app()
async def test_stopping_ends_every_answer_and_new_ones_do_not_wait(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    sinks = [await stream(client), await stream(client, query="since_id=5")]
    await sinks[0].until(lambda sink: seqnos(sink) == [1])
    client.app.drain()
    for sink in sinks:
        assert sink.closed
    answer = await client.send("GET", "/v1/table/t")
    assert answer.status == 200
    assert answer.body.count(b"\n") == 1


@pytest.mark.parametrize("query", ["timeout=0", "timeout=0&view=active"])
@pytest.mark.parametrize("ends", ["stop", "delete"])
def test_an_answer_that_promised_all_rows_is_cut_off_rather_than_ended(
    ends: str, query: str
) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await table(client)
        await write(client, "".join(f"+\tk{n}\t{'x' * 300}\n" for n in range(3000)))
        response = await client.respond("GET", f"/v1/table/t?{query}")
        sink = FakeSink(response)
        sink.full_after = 1
        sink.body.attach(sink)
        await sink.until(lambda sink: sink.congested)
        if ends == "stop":
            client.app.drain()
        else:
            await client.delete("t")
        await sink.until(lambda sink: sink.aborted)
        assert not sink.closed

    check("memory", None)


@with_app(sse_buffer_bytes_max=1000)
async def test_a_reader_that_does_not_keep_up_is_ended_and_can_resume(client: Client) -> None:
    await table(client)
    slow, quick = await stream(client), await stream(client)
    await put(client, "a", "1")
    await slow.until(lambda sink: seqnos(sink) == [1])
    slow.congested, slow.buffered = True, 5000
    await put(client, "b", "2")
    await ended(slow)
    await quick.until(lambda sink: seqnos(sink) == [1, 2])
    assert seqnos(slow) == [1]
    assert (await scrape(client))["penstock_table_readers_dropped_total"] == 1
    resumed = await stream(client, query="since_id=1")
    await resumed.until(lambda sink: seqnos(sink) == [2])


@with_app()
async def test_a_stalled_reader_holds_one_block_and_goes_on_where_it_was(client: Client) -> None:
    await table(client)
    body = "".join(f"+\tk{n}\t{'x' * 300}\n" for n in range(3000))
    await write(client, body)
    response = await client.respond("GET", "/v1/table/t")
    sink = FakeSink(response)
    sink.full_after = 1
    sink.body.attach(sink)
    await sink.until(lambda sink: sink.congested)
    for _ in range(20):
        await asyncio.sleep(0)
    assert len(sink.frames) == 1
    sink.congested = False
    sink.body.drained()
    await sink.until(lambda sink: len(seqnos(sink)) == 3000)
    assert seqnos(sink) == list(range(1, 3001))
    await put(client, "z", "v")
    await sink.until(lambda sink: len(seqnos(sink)) == 3001)


@with_app()
async def test_readers_that_join_while_rows_are_written_miss_none(client: Client) -> None:
    await table(client)
    sinks: list[FakeSink] = []

    async def join(start: int) -> None:
        for _ in range(start):
            await asyncio.sleep(0)
        sinks.append(await stream(client, query=f"since_id={start % 5}"))

    async def feed() -> None:
        for number in range(60):
            assert (await put(client, f"k{number}", "v" * number)).status == 204

    await asyncio.gather(feed(), *(join(start) for start in range(40)))
    big = "".join(f"+\tb{n}\t{'y' * 400}\n" for n in range(1500))
    await write(client, big)
    await put(client, "last", "v")
    for sink in sinks:
        await sink.until(lambda sink: bool(seqnos(sink)) and seqnos(sink)[-1] == 1561)
        received = seqnos(sink)
        assert received == list(range(received[0], 1562))


@with_app()
async def test_a_reader_at_a_tail_that_moves_leaves_no_half_block_behind(client: Client) -> None:
    """It is sent the rows of a stretch of the log in two parts; the next gets all of them."""
    await table(client)
    body = "".join(f"+\tk{n}\t{'x' * 300}\n" for n in range(400))
    await write(client, body)
    view = client.app.tables.find("t", touch=False)
    start = RowCursor(0, 0, aligned=True)
    first = await view.block(start, view.stream.tail)
    await write(client, body)
    second = await view.block(RowCursor.after(first), view.stream.tail)
    assert first.end == second.position
    assert first.end < BLOCK_BYTES < view.stream.tail
    assert [row.seqno for row in await rows(client)] == list(range(1, 801))
    sink = await stream(client)
    await sink.until(lambda sink: len(seqnos(sink)) >= 800)
    assert seqnos(sink) == list(range(1, 801))


@pytest.mark.parametrize("query", ["", "view=active"])
def test_a_reader_that_leaves_takes_its_work_along(query: str) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await table(client)
        await write(client, "".join(f"+\tk{n}\t{'x' * 300}\n" for n in range(3000)))
        sink = await stream(client, query=query)
        sink.body.detach()
        for _ in range(5):
            await asyncio.sleep(0)
        assert (await scrape(client))["penstock_table_readers"] == 0

    check("memory", None)


@with_app()
async def test_a_response_ends_soon_after_rows_that_took_longer_than_its_timeout(
    client: Client,
) -> None:
    """Not after another `table_idle_s`: the timer ran out while the reader was behind."""
    await table(client)
    await write(client, "".join(f"+\tk{n}\t{'x' * 300}\n" for n in range(3000)))
    sink = FakeSink(await client.respond("GET", "/v1/table/t?timeout=0.05"))
    sink.full_after = 1
    sink.body.attach(sink)
    await sink.until(lambda sink: sink.congested)
    await asyncio.sleep(0.1)  # longer than the timeout: the timer fires while rows are outstanding
    assert not sink.closed
    sink.congested = False
    sink.body.drained()
    await sink.until(lambda sink: sink.closed)
    assert seqnos(sink) == list(range(1, 3001))
