"""The text 004 (Durable Streams Protocol) sentence by sentence, on both stores.

`docs/ds-conformance.md` lists its items with these tests and others.
"""

from __future__ import annotations

import asyncio
import json
import re

import pytest

from penstock import limits
from penstock.client.producer_options import ProducerOptions
from penstock.config.settings import Settings
from tests.helpers.app import Client, with_app
from tests.http.test_live import waiting

JSON = "application/json"
TEXT = "text/plain"
OFFSET = re.compile(r"[0-9]{16}_[0-9]{16}")


def producer(seq: int, epoch: int = 0) -> dict[str, str]:
    return {"producer_id": "p", "producer_epoch": str(epoch), "producer_seq": str(seq)}


# -- HTTP endpoints


@with_app()
async def test_put_creates_idempotently(client: Client) -> None:
    assert (await client.put("chat/abc", content_type=JSON)).status == 201
    assert (await client.put("chat/abc", content_type=JSON)).status == 200
    assert (await client.put("chat/abc", content_type=TEXT)).status == 409


@with_app()
async def test_head_returns_metadata_headers_only(client: Client) -> None:
    assert (await client.head("chat/abc")).status == 404
    created = await client.put("chat/abc", b"[1]", content_type=JSON)
    head = await client.head("chat/abc")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == JSON
    assert head.offset == created.offset


@with_app(long_poll_timeout_s=0.01)
async def test_get_reads_a_snapshot_a_long_poll_or_sse_by_live(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    assert (await client.get("a")).json() == [1]
    assert (await client.get("a", "offset=-1&live=long-poll")).json() == [1]
    sink = await client.sse("a")
    assert sink.headers["content-type"] == "text/event-stream"
    assert [json.loads(data) for data in sink.data] == [[1]]


@with_app()
async def test_post_appends_closes_or_both(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await client.post("a", b"1", content_type=JSON)
    both = await client.post("a", b"2", content_type=JSON, stream_closed="true")
    assert both.headers["stream-closed"] == "true"
    assert (await client.get("a")).json() == [1, 2]
    await client.put("b", content_type=JSON)
    assert (await client.post("b", b"", stream_closed="true")).status == 204


@with_app(long_poll_timeout_s=60)
async def test_delete_ends_every_live_reader(client: Client) -> None:
    tail = (await client.put("a", b"[1]", content_type=JSON)).offset
    sink = await client.sse("a", tail)
    poll = await waiting(client, "a", f"offset={tail}")
    assert (await client.delete("a")).status == 204
    assert (await poll).status == 404
    assert sink.closed
    assert (await client.get("a")).status == 404


# -- headers


@with_app()
async def test_the_headers_of_a_read(client: Client) -> None:
    created = await client.put("a", b"[1]", content_type=JSON)
    read = await client.get("a")
    assert read.headers["stream-next-offset"] == created.offset
    assert read.headers["stream-up-to-date"] == "true"
    assert "stream-closed" not in read.headers
    await client.post("a", b"", stream_closed="true")
    assert (await client.get("a")).headers["stream-closed"] == "true"


@with_app(chunk_bytes=10)
async def test_up_to_date_is_present_only_when_the_response_reaches_the_tail(
    client: Client,
) -> None:
    await client.put("a", b"[11111,22222,33333]", content_type=JSON)
    first = await client.get("a")
    assert (first.json(), "stream-up-to-date" in first.headers) == ([11111], False)
    last = await client.get("a", f"offset={first.offset}&count=5")
    while last.offset != (await client.head("a")).offset:
        last = await client.get("a", f"offset={last.offset}")
    assert last.headers["stream-up-to-date"] == "true"


@with_app(long_poll_timeout_s=0.01)
async def test_a_cursor_is_returned_and_moves_past_the_one_that_is_echoed(client: Client) -> None:
    tail = (await client.put("a", content_type=JSON)).offset
    first = await client.get("a", f"offset={tail}&live=long-poll")
    cursor = first.headers["stream-cursor"]
    again = await client.get("a", f"offset={tail}&live=long-poll&cursor={cursor}")
    assert int(again.headers["stream-cursor"]) > int(cursor)


@with_app()
async def test_a_ttl_or_an_absolute_expiry_is_set_on_create(client: Client) -> None:
    await client.put("ttl", content_type=JSON, stream_ttl="60")
    await client.put("at", content_type=JSON, stream_expires_at="2027-01-15T08:01:00Z")
    assert (await client.head("ttl")).headers["stream-ttl"] == "60"
    assert (await client.head("at")).headers["stream-expires-at"].startswith("2027-01-15T08:01:00")
    client.clock.advance(61)
    assert (await client.get("ttl")).status == 404
    assert (await client.get("at")).status == 404


# -- offsets


@with_app()
async def test_offsets_are_two_padded_numbers_and_sort_as_text(client: Client) -> None:
    for path, kind in (("json", JSON), ("text", TEXT)):
        offsets = [(await client.put(path, content_type=kind)).offset]
        offsets += [
            (await client.post(path, b"12345", content_type=kind)).offset for _ in range(30)
        ]
        assert all(OFFSET.fullmatch(offset) for offset in offsets)
        assert offsets == sorted(set(offsets))


@with_app()
async def test_minus_one_is_the_beginning_and_now_the_tail(client: Client) -> None:
    tail = (await client.put("a", b"[1,2]", content_type=JSON)).offset
    assert (await client.get("a", "offset=-1")).json() == [1, 2]
    now = await client.get("a", "offset=now")
    assert (now.json(), now.offset) == ([], tail)


# -- live modes


@with_app()
async def test_live_false_is_the_default(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    for query in ("live=false", "offset=-1&live=false"):
        read = await client.get("a", query)
        assert (read.status, read.json()) == (200, [1])
        assert read.headers == (await client.get("a")).headers


@with_app(long_poll_timeout_s=0.01)
async def test_a_long_poll_that_gets_nothing_is_204(client: Client) -> None:
    tail = (await client.put("a", content_type=JSON)).offset
    timed_out = await client.get("a", f"offset={tail}&live=long-poll")
    assert (timed_out.status, timed_out.body, timed_out.offset) == (204, b"", tail)


def test_a_long_poll_waits_up_to_30_seconds() -> None:
    assert Settings().long_poll_timeout_s == limits.LONG_POLL_TIMEOUT_S == 30


@with_app()
async def test_sse_has_data_and_control_events(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    sink = await client.sse("a")
    tail = (await client.post("a", b"[2]", content_type=JSON)).offset
    await sink.until(lambda sink: len(sink.data) == 2)
    assert {kind for kind, _ in sink.events} == {"data", "control"}
    assert [json.loads(data) for data in sink.data] == [[1], [2]]
    assert sink.controls[-1]["streamNextOffset"] == tail
    assert sink.controls[-1]["upToDate"] is True
    await client.post("a", b"", stream_closed="true")
    await sink.until(lambda sink: sink.closed)
    assert sink.controls[-1]["streamClosed"] is True


# -- producers


@with_app()
async def test_the_table_of_producer_idempotency(client: Client) -> None:
    await client.put("a", content_type=JSON)

    async def append(value: int, seq: int, epoch: int = 0) -> tuple[int, dict[str, str]]:
        body = str(value).encode()
        answer = await client.post("a", body, content_type=JSON, **producer(seq, epoch))
        return answer.status, answer.headers

    assert (await append(1, 0))[0] == 200, "new producer, seq=0"
    assert (await append(2, 1))[0] == 200, "same epoch, seq = lastSeq + 1"
    assert (await append(2, 1))[0] == 204, "same epoch, seq <= lastSeq"
    assert (await append(1, 0))[0] == 204, "same epoch, seq <= lastSeq"
    assert (await append(3, 0, epoch=1))[0] == 200, "new epoch, seq=0"
    status, headers = await append(9, 2, epoch=0)
    assert (status, headers["producer-epoch"]) == (403, "1"), "stale epoch"
    status, headers = await append(9, 5, epoch=1)
    assert status == 409, "sequence gap"
    assert headers["producer-expected-seq"] == "1"
    assert headers["producer-received-seq"] == "5"
    assert (await client.get("a")).json() == [1, 2, 3]


def test_a_producer_has_up_to_five_requests_in_flight() -> None:
    assert ProducerOptions(id="p").in_flight_max == 5


# -- JSON


@with_app()
async def test_arrays_are_split_and_objects_are_single_items(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await client.post("a", b'[{"n": 1}, [2, 3]]', content_type=JSON)
    await client.post("a", b'{"n": 4}', content_type=JSON)
    assert (await client.get("a")).json() == [{"n": 1}, [2, 3], {"n": 4}]
    assert (await client.get("a", "count=1")).json() == [{"n": 1}]


# -- the life of a stream


@with_app()
async def test_a_stream_from_its_creation_to_its_deletion(client: Client) -> None:
    created = await client.put("a", b"[1]", content_type=JSON, stream_ttl="60")
    assert created.status == 201
    await client.post("a", b"[2]", content_type=JSON, **producer(0))
    assert (await client.get("a")).json() == [1, 2]
    sink = await client.sse("a")
    await client.post("a", b"[3]", content_type=JSON, stream_closed="true")
    await sink.until(lambda sink: sink.closed)
    assert [json.loads(data) for data in sink.data] == [[1, 2], [3]]
    refused = await client.post("a", b"[4]", content_type=JSON)
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")
    await client.delete("a")
    assert (await client.head("a")).status == 404
    fresh = await client.put("a", content_type=JSON)
    assert fresh.offset > created.offset
    assert (await client.get("a")).json() == []


@with_app(long_poll_timeout_s=60)
async def test_each_client_tracks_its_own_offset(client: Client) -> None:
    first = (await client.put("a", b"[1]", content_type=JSON)).offset
    second = (await client.post("a", b"[2]", content_type=JSON)).offset
    polls = [await waiting(client, "a", f"offset={second}") for _ in range(2)]
    assert (await client.get("a", f"offset={first}")).json() == [2]
    await client.post("a", b"[3]", content_type=JSON)
    assert [answer.json() for answer in await asyncio.gather(*polls)] == [[3], [3]]


# -- other details


@with_app()
async def test_an_etag_names_range_and_closure_and_saves_the_body(client: Client) -> None:
    first = (await client.put("a", b"[1]", content_type=JSON)).offset
    await client.post("a", b"[2]", content_type=JSON)
    tags = {
        (await client.get("a")).headers["etag"],
        (await client.get("a", f"offset={first}")).headers["etag"],
    }
    whole = (await client.get("a")).headers["etag"]
    same = await client.get("a", if_none_match=whole)
    assert (same.status, same.body) == (304, b"")
    await client.post("a", b"", stream_closed="true")
    closed = (await client.get("a")).headers["etag"]
    assert len(tags | {closed}) == 3
    assert closed == whole.removesuffix('"') + ':c"'


@with_app()
async def test_head_has_the_etag_of_a_read_of_all(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    assert (await client.head("a")).headers["etag"] == (await client.get("a")).headers["etag"]


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br"])
def test_answers_above_a_kilobyte_are_compressed(coding: str, tmp_path: object) -> None:
    @with_app()
    async def scenario(client: Client) -> None:
        await client.put("large", b"x" * 1024, content_type=TEXT)
        await client.put("small", b"x" * 1023, content_type=TEXT)
        large = await client.get("large", accept_encoding=coding)
        assert large.headers["content-encoding"] == coding
        assert len(large.body) < 1024
        small = await client.get("small", accept_encoding=coding)
        assert "content-encoding" not in small.headers

    scenario("memory", tmp_path)
