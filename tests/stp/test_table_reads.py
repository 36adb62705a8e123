"""GET and HEAD of a table: which rows, which headers, which refusals."""

from __future__ import annotations

import asyncio
import gzip
import json
from typing import Any, cast

import brotli
import pytest

from penstock.errors import RowsTrimmed
from penstock.stp.server.row_cache import BLOCK_BYTES, Block, BlockCache
from penstock.stp.server.table_view import TableExtent
from penstock.stp.transcode import Rows, Transcoder
from tests.helpers.app import Client, with_app
from tests.http.test_metrics import scrape
from tests.stp.tables import (
    TYPE,
    append,
    attached,
    change,
    control,
    get,
    put,
    remove,
    rows,
    schema,
    seqnos,
    short,
    table,
    write,
)


async def five(client: Client) -> None:
    await table(client)
    assert (await write(client, "+\ta\t1\n+\tb\t2\n-\ta\n+\tc\t3\n+\tb\t4\n")).status == 204


ALL = ["1+a=1", "2+b=2", "3-a=", "4+c=3", "5+b=4"]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("", ALL), ("since_id=0", ALL), ("since_id=-0", ALL), ("since_id=00", ALL),
        ("since_id=2", ALL[2:]), ("since_id=4", ALL[4:]), ("since_id=5", []),
        ("since_id=6", []), ("since_id=99999999999999999999999", []),
        ("since_id=-1", ALL[-1:]), ("since_id=-4", ALL[-4:]), ("since_id=-5", ALL),
        ("since_id=-6", ALL), ("since_id=-99999999999999999999999", ALL),
        ("view=active", ["4+c=3", "5+b=4"]), ("view=active&since_id=0", ["4+c=3", "5+b=4"]),
        ("view=active&since_id=-0", ["4+c=3", "5+b=4"]), ("unknown=1&since_id=4", ALL[4:]),
    ],
)  # fmt: skip
def test_since_id_and_view_choose_rows(query: str, found: list[str]) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await five(client)
        answer = await get(client, query=query)
        assert answer.headers["content-type"] == TYPE
        assert answer.headers["stp-last-seqno"] == "5"
        assert await short(client, query=query) == found

    check("memory", None)


@pytest.mark.parametrize(
    "query",
    [
        "since_id=", "since_id=x", "since_id=1.0", "since_id=%2B1", "since_id=+1", "since_id=--1",
        "since_id=1&since_id=1", "since_id=1&since_id=2", "view=active&since_id=1",
        "view=active&since_id=-1", "view=all", "view=", "view=active&view=active",
    ],
)  # fmt: skip
def test_what_cannot_be_meant_is_refused(query: str) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await five(client)
        answer = await get(client, query=query)
        assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")

    check("memory", None)


@pytest.mark.parametrize("timeout", ["", "-1", "x", "1e3", "inf", "nan", "1s", "0&timeout=0"])
def test_a_timeout_is_a_number_of_seconds(timeout: str) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await five(client)
        answer = await client.send("GET", f"/v1/table/t?timeout={timeout}")
        assert answer.status == 400

    check("memory", None)


@with_app()
async def test_an_empty_table_has_no_rows_and_last_seqno_zero(client: Client) -> None:
    await table(client)
    for query in ("", "since_id=5", "since_id=-5", "view=active"):
        answer = await get(client, query=query)
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["stp-last-seqno"] == "0"


@with_app()
async def test_rows_are_five_fields_and_a_line_feed(client: Client) -> None:
    await table(client)
    await put(client, "fhir read", "https://prov.com/fhir/read")
    client.clock.advance(1.5)
    await remove(client, "fhir read")
    assert (await get(client)).body == (
        b"1\t2027-01-15T08:00:00.000Z\t+\tfhir read\thttps://prov.com/fhir/read\n"
        b"2\t2027-01-15T08:00:01.500Z\t-\tfhir read\t\n"
    )


@with_app()
async def test_the_timestamp_is_the_events_own_in_utc(client: Client) -> None:
    await table(client)
    event = change("s", "k", "v")
    event["headers"]["timestamp"] = "2026-01-08T02:00:00.25+02:00"
    await append(client, "t", event)
    assert [row.timestamp for row in await rows(client)] == ["2026-01-08T00:00:00.25Z"]


@with_app()
async def test_head_says_what_get_would(client: Client) -> None:
    await five(client)
    for query in ("timeout=0", "timeout=0&since_id=3", "timeout=0&view=active"):
        head = await client.send("HEAD", f"/v1/table/t?{query}")
        answer = await get(client, query=query.removeprefix("timeout=0"))
        assert (head.status, head.body) == (200, b"")
        assert head.headers == answer.headers
    head = await client.send("HEAD", "/v1/table/t")
    assert head.headers["stp-last-seqno"] == "5"
    assert head.headers["content-type"] == TYPE
    assert (await client.send("HEAD", "/v1/table/t?since_id=x")).status == 400


@with_app()
async def test_an_answer_that_the_client_has_is_304_until_a_row_comes(client: Client) -> None:
    await five(client)
    for query in ("", "since_id=2", "since_id=-2", "view=active", "since_id=9"):
        first = await get(client, query=query)
        again = await get(client, query=query, if_none_match=first.headers["etag"])
        assert (again.status, again.body) == (304, b"")
        assert again.headers["etag"] == first.headers["etag"]
        assert again.headers["stp-last-seqno"] == "5"
    tags = {(await get(client, query=q)).headers["etag"] for q in ("", "since_id=2", "view=active")}
    assert len(tags) == 3
    old = (await get(client)).headers["etag"]
    await put(client, "d", "5")
    assert (await get(client, if_none_match=old)).status == 200


@with_app()
async def test_closing_the_stream_changes_the_tag_and_is_told(client: Client) -> None:
    await five(client)
    first = await get(client)
    assert "stream-closed" not in first.headers
    await client.post("t", b"", stream_closed="true")
    answer = await client.send("GET", "/v1/table/t", if_none_match=first.headers["etag"])
    assert answer.status == 200
    assert answer.headers["stream-closed"] == "true"
    assert (await put(client, "k", "v")).status == 409


@pytest.mark.parametrize("coding", ["gzip", "br", "zstd"])
def test_answers_are_compressed_on_request_small_and_large(coding: str) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await table(client)
        for size in (60, 6000):
            await write(client, "".join(f"+\tk{n}\t{'v' * 40}\n" for n in range(size)))
            plain = await get(client)
            assert "content-encoding" not in plain.headers
            packed = await get(client, accept_encoding=coding)
            assert packed.headers["content-encoding"] == coding
            assert packed.headers["vary"] == "Accept, Accept-Encoding"
            assert packed.headers["etag"] == "W/" + plain.headers["etag"]
            assert len(packed.body) < len(plain.body) / 4
            assert _unpacked(coding, packed.body) == plain.body
            again = await get(client, if_none_match=packed.headers["etag"], accept_encoding=coding)
            assert again.status == 304

    check("memory", None)


def _unpacked(coding: str, data: bytes) -> bytes:
    if coding == "gzip":
        return gzip.decompress(data)
    if coding == "br":
        return cast(bytes, brotli.decompress(data))
    import zstandard

    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


@with_app()
async def test_accept_names_schema_and_version_or_gets_406(client: Client) -> None:
    await five(client)
    for accept in (TYPE, "*/*", "text/sequence;version=1", "text/html,*/*;q=0.8"):
        assert (await get(client, accept=accept)).status == 200
    for accept in ("text/sequence;schema=x", "text/sequence;version=2", "application/json"):
        answer = await get(client, accept=accept)
        assert (answer.status, answer.json()["code"]) == (406, "not-acceptable")
        assert TYPE in answer.json()["detail"]


@with_app()
async def test_control_events_and_other_types_leave_gaps(client: Client) -> None:
    await table(client)
    await append(
        client, "t", control("snapshot-start"), change("s", "a", "1"), change("x", "y", 1),
        change("s", "b", "2"), control("snapshot-end"), change("x", "z", 1),
    )  # fmt: skip
    assert await short(client) == ["2+a=1", "4+b=2"]
    assert (await get(client)).headers["stp-last-seqno"] == "4"
    assert await short(client, query="since_id=-1") == ["4+b=2"]
    assert await short(client, query="since_id=3") == ["4+b=2"]
    assert await short(client, query="since_id=5") == []


@with_app()
async def test_messages_that_are_no_events_are_no_rows(client: Client) -> None:
    await client.put("t", content_type="application/json")
    await schema(client, "t", {"s": {"type": "string"}}, mode="warn")
    await append(client, "t", change("s", "a", "1"), {"junk": 1}, 5, change("s", "b", "2"))
    await table(client)
    await append(client, "t", {"junk": 2}, change("s", "c", "3"))
    assert await short(client) == ["1+a=1", "4+b=2", "6+c=3"]
    assert await short(client, query="since_id=-2") == ["4+b=2", "6+c=3"]


@with_app()
async def test_counting_back_through_many_other_types_is_exact(client: Client) -> None:
    await client.put("t", content_type="application/json")
    await schema(client, "t", {"s": {"type": "string"}, "x": True})
    events: list[Any] = []
    for number in range(6000):
        is_rare = number % 7 == 3 or number > 5900
        events.append(change("s" if is_rare else "x", f"k{number % 100}", "v" * (number % 60)))
    for start in range(0, len(events), 500):
        await append(client, "t", *events[start : start + 500])
    await table(client)
    wanted = [n for n, event in enumerate(events, 1) if event["type"] == "s"]
    assert [row.seqno for row in await rows(client)] == wanted
    for count in (1, 2, 99, 100, 255, 256, 257, 600, len(wanted) - 1, len(wanted)):
        found = await rows(client, query=f"since_id=-{count}")
        assert [row.seqno for row in found] == wanted[-count:], count


@with_app()
async def test_a_large_table_reads_the_same_from_every_place_and_again(client: Client) -> None:
    await table(client)
    total = 0
    for batch in range(8):
        body = "".join(f"+\tkey-{n % 700}\t{batch}-{n}-{'x' * (n % 90)}\n" for n in range(1500))
        assert (await write(client, body)).status == 204
        total += 1500
    assert (await client.head("t")).status == 200
    first = await get(client)
    before = await scrape(client)
    assert before["penstock_table_blocks_total{cache=miss}"] > 3
    assert (await get(client)).body == first.body
    after = await scrape(client)
    gained = after["penstock_table_blocks_total{cache=hit}"]
    assert gained >= before["penstock_table_blocks_total{cache=miss}"] - 1
    lines = first.body.splitlines(keepends=True)
    assert [int(line.split(b"\t")[0]) for line in lines] == list(range(1, total + 1))
    for since in (1, 699, 2000, 5555, total - 1):
        assert (await get(client, query=f"since_id={since}")).body == b"".join(lines[since:])
    active = (await get(client, query="view=active")).body
    assert active == b"".join(lines[-1500 + 800 :])


@with_app()
async def test_readers_that_come_together_have_each_block_made_once(client: Client) -> None:
    made: list[int] = []
    transcode = Transcoder.rows

    def counted(self: Transcoder, wire: bytes, ordinal: int) -> Rows:
        made.append(len(wire))
        return transcode(self, wire, ordinal)

    await table(client)
    await write(client, "".join(f"+\tk{n}\t{'x' * 500}\n" for n in range(3000)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Transcoder, "rows", counted)
        answers = await asyncio.gather(*(get(client) for _ in range(5)))
    assert {answer.body for answer in answers} == {answers[0].body}
    assert answers[0].body.count(b"\n") == 3000
    # The last block is not full, and made for each of them.
    assert sum(made) < 3000 * 650 + 5 * BLOCK_BYTES < 5 * 3000 * 500


@with_app()
async def test_a_read_from_the_middle_leaves_no_half_block_behind(client: Client) -> None:
    await table(client)
    await write(client, "".join(f"+\tk{n}\t{'x' * 200}\n" for n in range(4000)))
    assert (await rows(client, query="since_id=1000"))[0].seqno == 1001
    assert [row.seqno for row in await rows(client)] == list(range(1, 4001))


@with_app()
async def test_an_answer_ends_where_it_says_though_rows_are_written_meanwhile(
    client: Client,
) -> None:
    await table(client)
    body = "".join(f"+\tk{n}\t{'x' * 200}\n" for n in range(1000))
    await write(client, body)
    response = await client.respond("GET", "/v1/table/t?timeout=0")
    await write(client, body)
    sink = attached(response)
    await sink.until(lambda sink: sink.closed)
    assert sink.headers["stp-last-seqno"] == "1000"
    assert seqnos(sink) == list(range(1, 1001))


@with_app(table_cache_bytes=0)
async def test_without_a_cache_rows_are_the_same(client: Client) -> None:
    await table(client)
    body = "".join(f"+\tk{n}\t{'x' * 200}\n" for n in range(4000))
    await write(client, body)
    assert (await get(client)).body == (await get(client)).body
    assert (await scrape(client))["penstock_table_cache_bytes"] == 0


def test_the_cache_keeps_to_its_bound_and_lets_the_oldest_go() -> None:
    cache = BlockCache(3000)
    for number in range(5):
        cache.put((1, "", number), Block(number, 0, b"x" * 700, number + 1, 1))
        assert cache.size <= 3000
        assert cache.get((1, "", 0)) is not None
    cached = [number for number in range(5) if cache.get((1, "", number)) is not None]
    assert cached == [0, 3, 4]
    cache.put((1, "", 9), Block(0, 0, b"x" * 4000, 1, 1))
    assert cache.get((1, "", 9)) is None


@with_app()
async def test_messages_larger_than_a_block_are_rows(client: Client) -> None:
    await table(client)
    sizes = [BLOCK_BYTES * 2, 10, BLOCK_BYTES - 1, BLOCK_BYTES + 5, 1]
    for number, size in enumerate(sizes):
        assert (await put(client, f"k{number}", "é" + "x" * size)).status == 204
    for _ in range(2):
        assert [len(row.record) - 1 for row in await rows(client)] == sizes
    assert [row.seqno for row in await rows(client, query="since_id=3")] == [4, 5]


@with_app()
async def test_trimmed_history_is_gone_but_reading_all_starts_at_the_earliest(
    client: Client,
) -> None:
    await five(client)
    view = client.app.tables.find("t", touch=False)
    assert await view.extent() == TableExtent(view.stream.tail, 5, 5)
    assert await view.extent(counted=True) == TableExtent(view.stream.tail, 5, 5, 5)
    before = client.engine.token(view.stream, await client.engine.seek(view.stream, 3))
    await client.engine.trim("t", before)
    for query in ("", "since_id=0", "since_id=3", "since_id=-9", "since_id=-2"):
        assert await short(client, query=query) == ALL[3:], query
    assert await short(client, query="since_id=-1") == ALL[4:]
    for since in (1, 2):
        answer = await get(client, query=f"since_id={since}")
        assert (answer.status, answer.json()["code"]) == (410, RowsTrimmed.code)
        assert answer.headers["stp-earliest-seqno"] == "4"


@with_app()
async def test_tables_of_a_trimmed_stream_count_from_the_end_by_their_own_rows(
    client: Client,
) -> None:
    await table(client, "t", type="user")
    await table(client, "t/orders", schema="orders", stream="t", type="order")
    for number in range(40):
        name = "t/orders" if number % 3 == 0 else "t"
        assert (await put(client, f"k{number}", "x" * 20_000, path=name)).status == 204
    everything = {name: await rows(client, name) for name in ("t", "t/orders")}
    stream = client.engine.find("t", touch=False)
    for earliest in (30, 35, 40):
        before = client.engine.token(stream, await client.engine.seek(stream, earliest))
        await client.engine.trim("t", before)
        for name, rows_before in everything.items():
            left = [row for row in rows_before if row.seqno > earliest]
            for count in range(1, 15):
                assert await rows(client, name, f"since_id=-{count}") == left[-count:], count
            answer = await get(client, name, "since_id=0")
            assert int(answer.headers["stp-last-seqno"]) == max(
                [row.seqno for row in left] + [earliest]
            )


@with_app()
async def test_other_methods_are_refused_by_name(client: Client) -> None:
    await five(client)
    answer = await client.send("PATCH", "/v1/table/t")
    assert answer.status == 405
    assert json.loads(answer.body)["code"] == "method-not-allowed"
    answer = await client.send("DELETE", "/v1/table/t")
    assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")
