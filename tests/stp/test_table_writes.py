"""Writing rows: by key, in batches, with producers, and through the stream itself."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.app import Client, with_app
from tests.http.test_metrics import scrape
from tests.stp.tables import (
    JSON,
    append,
    change,
    get,
    put,
    remove,
    rows,
    schema,
    short,
    table,
    write,
)

PRODUCER = {"producer_id": "p", "producer_epoch": "0"}


@with_app()
async def test_answers_carry_the_seqno(client: Client) -> None:
    await table(client)
    first = await put(client, "a", "1")
    assert (first.status, first.body) == (204, b"")
    assert first.headers["stp-last-seqno"] == "1"
    batch = await write(client, "+\tb\t2\n+\tc\t3\n-\ta\n")
    assert batch.headers["stp-first-seqno"] == "2"
    assert batch.headers["stp-last-seqno"] == "4"
    assert (await remove(client, "c")).headers["stp-last-seqno"] == "5"
    assert await short(client) == ["1+a=1", "2+b=2", "3+c=3", "4-a=", "5-c="]
    assert batch.offset < (await client.head("t")).offset


@with_app()
async def test_rows_that_wait_get_the_seqnos_that_they_are_told(client: Client) -> None:
    await table(client)
    await put(client, "first", "1")
    hold = b'{"location": "/v1/stream/t2", "hold": 0.2}'
    assert (await client.send("PUT", "/v1/stream/t/__ds/successor", hold)).status == 200
    writing = []
    for number in range(3):
        writing.append(asyncio.ensure_future(put(client, f"k{number}", "1")))
        await asyncio.sleep(0)  # it is with the server now
        client.clock.advance(1)
    writing.append(asyncio.ensure_future(write(client, "+\tk3\t1\n-\tk0\n")))
    answers = await asyncio.gather(*writing)
    assert [answer.status for answer in answers] == [204] * 4
    assert [answer.headers["stp-first-seqno"] for answer in answers] == ["2", "3", "4", "5"]
    assert [answer.headers["stp-last-seqno"] for answer in answers] == ["2", "3", "4", "6"]
    assert await short(client) == ["1+first=1", "2+k0=1", "3+k1=1", "4+k2=1", "5+k3=1", "6-k0="]
    times = [row.timestamp for row in await rows(client)]
    assert times == sorted(times)
    assert len(set(times)) == 4


@with_app()
async def test_writing_is_idempotent_with_producer_headers(client: Client) -> None:
    await table(client)
    first = await put(client, "a", "1", producer_seq="0", **PRODUCER)
    assert (first.status, first.headers["stp-last-seqno"]) == (200, "1")
    again = await put(client, "a", "1", producer_seq="0", **PRODUCER)
    assert (again.status, again.headers["stp-last-seqno"]) == (204, "1")
    assert again.headers["producer-seq"] == "0"
    batch = await write(client, "+\tb\t2\n-\ta\n", producer_seq="1", **PRODUCER)
    assert (batch.status, batch.headers["stp-last-seqno"]) == (200, "3")
    assert (await write(client, "+\tb\t2\n-\ta\n", producer_seq="1", **PRODUCER)).status == 204
    assert (await remove(client, "b", producer_seq="5", **PRODUCER)).status == 409
    assert (await remove(client, "b", producer_seq="2", **PRODUCER)).status == 200
    assert await short(client) == ["1+a=1", "2+b=2", "3-a=", "4-b="]
    assert (await put(client, "x", "1", producer_id="p")).status == 400
    zombie = {"producer_id": "p", "producer_epoch": "1", "producer_seq": "0"}
    assert (await put(client, "x", "1", **zombie)).status == 200
    assert (await put(client, "x", "1", producer_seq="3", **PRODUCER)).status == 403


@with_app()
async def test_a_writer_can_insist_on_the_tail(client: Client) -> None:
    await table(client)
    tail = (await put(client, "a", "1")).offset
    assert (await put(client, "a", "2", if_match=f'"{tail}"')).status == 204
    assert (await put(client, "a", "3", if_match=f'"{tail}"')).status == 412
    assert (await put(client, "a", "3", stream_seq="b")).status == 204
    assert (await put(client, "a", "4", stream_seq="a")).status == 409


@pytest.mark.parametrize(
    ("key", "record", "field"),
    [
        ("", "v", "key"),
        ("a\tb", "v", "key"),
        ("a\nb", "v", "key"),
        ("a\rb", "v", "key"),
        ("a", "x\ty", "record"),
        ("a", "x\n", "record"),
        ("a", "\r", "record"),
    ],
)
def test_what_would_break_a_row_is_refused_without_escaping(
    key: str, record: str, field: str
) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await table(client)
        answer = await put(client, key, record)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-row")
        assert answer.json()["field"] == field
        if key:
            event = change("s", key, record)
            direct = await append(client, "t", change("s", "fine", "v"), event)
            assert (direct.status, direct.json()["code"]) == (422, "invalid-row")
            assert direct.json()["index"] == 1
        if field == "key":
            assert (await remove(client, key)).status == 422
        assert await rows(client) == []
        assert (await scrape(client))["penstock_table_refused_total"] == (1 if key else 0)
        await table(client, "e", escape=True)
        assert (await put(client, key, record, "e")).status == (204 if key else 422)
        expected = [(key, record)] if key else []
        assert [(row.key, row.record) for row in await rows(client, "e", escape=True)] == expected

    check("memory", None)


@with_app()
async def test_a_batch_is_all_or_nothing(client: Client) -> None:
    await table(client)
    for body in (
        "+\ta\t1\n+\t\t2\n", "+\ta\t1\nnonsense\n", "+\ta\t1\n-\tb\trecord\n", "+\ta\t1\n\n+\tb\t2",
        "+\ta\t1\n*\tb\t2\n", "+\ta\t1\n+\tb\tx\ty\n",
    ):  # fmt: skip
        answer = await write(client, body)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-row"), body
        assert answer.json()["index"] == 1
    bad = await client.send("POST", "/v1/table/t", b"+\ta\t1\n+\tb\t\xff\n")
    assert (bad.status, bad.json()["index"]) == (422, 1)
    assert (await write(client, "")).status == 400
    assert await rows(client) == []


@with_app()
async def test_rows_to_write_may_end_in_crlf_or_not_at_all(client: Client) -> None:
    await table(client)
    assert (await write(client, "+\ta\t1\r\n-\ta\r\n+\tb\t")).status == 204
    assert await short(client) == ["1+a=1", "2-a=", "3+b="]


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("text/tab-separated-values", 204), ("text/sequence; charset=utf-8", 204),
        ("text/plain", 204), ("TEXT/PLAIN", 204), ("application/json", 415),
        ("application/x-www-form-urlencoded", 415), ("text/html", 415),
    ],
)  # fmt: skip
def test_rows_to_write_say_that_they_are_rows(content_type: str, status: int) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await table(client)
        answer = await write(client, "+\ta\t1\n", content_type=content_type)
        assert answer.status == status

    check("memory", None)


@with_app()
async def test_json_records_are_checked_and_kept_compact(client: Client) -> None:
    await table(client, record="json")
    assert (await put(client, "a", ' { "x" : [1, 2.50, null] }\n')).status == 204
    assert (await write(client, '+\tb\t"t\\ta"\n+\tc\t1e2\n')).status == 204
    answer = await put(client, "d", "{x}")
    assert (answer.status, answer.json()["field"]) == (422, "record")
    assert (await write(client, "+\td\t\n")).status == 422
    assert await short(client) == ['1+a={"x":[1,2.50,null]}', '2+b="t\\ta"', "3+c=1e2"]
    state = (await client.send("GET", "/v1/state/t")).json()["types"]["s"]
    assert state == {"a": {"x": [1, 2.5, None]}, "b": "t\ta", "c": 100}


@with_app()
async def test_keys_are_taken_to_the_letter(client: Client) -> None:
    await table(client)
    for target, key in (
        ("key=a%20b", "a b"), ("key=a+b", "a b"), ("key=%2B", "+"), ("key=a%26b%3Dc", "a&b=c"),
        ("x=1&key=%C3%A9", "é"), ("key=a=b", "a=b"), ("key=%00", "\0"),
    ):  # fmt: skip
        assert (await client.send("PUT", f"/v1/table/t?{target}", b"v")).status == 204, target
        assert (await rows(client, query="since_id=-1"))[0].key == key
    for target in ("key=a&key=b", "key=%FF", "key=%ED%A0%80"):
        answer = await client.send("PUT", f"/v1/table/t?{target}", b"v")
        assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")
    bad = await client.send("PUT", "/v1/table/t?key=k", b"\xff")
    assert (bad.status, bad.json()["field"]) == (422, "record")


@with_app()
async def test_events_without_time_get_that_of_their_append(client: Client) -> None:
    await table(client)
    client.clock.advance(5)
    mine = change("s", "a", "1")
    mine["headers"]["timestamp"] = "2026-01-08T00:00:00Z"
    theirs = {**change("s", "b", "2"), "note": {"kept": 1}}
    theirs["headers"]["txid"] = "x"
    other = change("other", "c", 3)
    await append(client, "t", mine, theirs, other)
    assert [row.timestamp for row in await rows(client)] == [
        "2026-01-08T00:00:00Z",
        "2027-01-15T08:00:05.000Z",
    ]
    events = (await client.get("t")).json()
    assert events[0] == mine
    stamped = {"timestamp": "2027-01-15T08:00:05.000Z", "operation": "upsert", "txid": "x"}
    assert events[1] == {**theirs, "headers": stamped}
    assert events[2] == other


@with_app()
async def test_a_text_table_takes_texts_alone_whatever_its_schema_becomes(client: Client) -> None:
    await table(client)
    await schema(client, "t", {})
    answer = await append(client, "t", change("s", "a", {"no": "text"}))
    assert (answer.status, answer.json()["code"]) == (422, "invalid-row")
    assert (await append(client, "t", change("s", "a", "text"))).status == 204


CHANGES = st.lists(
    st.tuples(
        st.sampled_from("+-"),
        st.text(st.characters(blacklist_categories=["Cs"]), min_size=1, max_size=8),
        st.text(st.characters(blacklist_categories=["Cs"]), max_size=12),
    ),
    min_size=1,
    max_size=10,
)


@settings(max_examples=25, deadline=None)
@given(CHANGES)
def test_any_unicode_comes_back_from_an_escaping_table(changes: list[tuple[str, str, str]]) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await table(client, escape=True)
        for action, key, record in changes:
            answer = await (put(client, key, record) if action == "+" else remove(client, key))
            assert answer.status == 204, answer.body
        found = await rows(client, escape=True)
        assert [(row.action, row.key, row.record) for row in found] == [
            (action, key, record if action == "+" else "") for action, key, record in changes
        ]
        live: dict[str, str] = {}
        for action, key, record in changes:
            live.pop(key, None)
            if action == "+":
                live[key] = record
        active = await rows(client, query="view=active", escape=True)
        assert [(row.key, row.record) for row in active] == list(live.items())

    check("memory", None)


@with_app()
async def test_rows_written_are_counted(client: Client) -> None:
    await table(client)
    await write(client, "+\ta\t1\n+\tb\t2\n")
    await put(client, "c", "3")
    assert (await scrape(client))["penstock_table_rows_written_total"] == 3


@with_app()
async def test_a_plain_append_of_an_array_is_one_append(client: Client) -> None:
    await table(client)
    body: list[dict[str, Any]] = [change("s", f"k{n}", "v") for n in range(3)]
    answer = await client.post("t", json.dumps(body).encode(), content_type=JSON)
    assert answer.status == 204
    assert (await get(client)).headers["stp-last-seqno"] == "3"
    assert answer.offset == (await client.head("t")).offset


@with_app()
async def test_a_large_batch_is_written_and_refused_whole_like_a_small_one(client: Client) -> None:
    await table(client)
    good = "".join(f"+\tk{n}\t{'x' * 50}\n" for n in range(3000))
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    first = await write(client, good, **producer)
    assert (first.status, first.headers["stp-last-seqno"]) == (200, "3000")
    again = await write(client, good, **producer)
    assert (again.status, again.headers["stp-last-seqno"]) == (204, "3000")
    bad = await write(client, good + "-\tk\trecord\n")
    assert (bad.status, bad.json()["index"]) == (422, 3000)
    assert len(await rows(client)) == 3000
