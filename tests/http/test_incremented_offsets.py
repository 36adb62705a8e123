"""Offsets to which a client has added one: the read starts where the offset was, with all bytes."""

from __future__ import annotations

import json

import pytest

from tests.helpers.app import Client, with_app
from tests.http.test_live import waiting

TEXT = "text/plain"
JSON = "application/json"
BYTES = "application/octet-stream"


def beyond(offset: str, by: int = 1) -> str:
    return f"{offset[:17]}{int(offset[17:]) + by:016d}"


@with_app()
async def test_one_beyond_the_tail_is_the_tail(client: Client) -> None:
    for path, body, kind, empty in (
        ("text", b"hello", TEXT, b""),
        ("json", b"[1,2]", JSON, b"[]"),
        ("new", b"", BYTES, b""),
    ):
        tail = (await client.put(path, body, content_type=kind)).offset
        read = await client.get(path, f"offset={beyond(tail)}")
        assert (read.status, read.body, read.offset) == (200, empty, tail)
        assert read.headers["stream-up-to-date"] == "true"
        assert read.headers["cache-control"] == "no-cache"


@with_app()
async def test_one_beyond_the_tail_of_a_closed_stream_says_that_it_is_closed(
    client: Client,
) -> None:
    tail = (await client.put("a", b"[1]", content_type=JSON, stream_closed="true")).offset
    for query in ("", "&live=long-poll"):
        read = await client.get("a", f"offset={beyond(tail)}{query}")
        assert read.headers["stream-closed"] == "true"
        assert read.offset == tail
    sink = await client.sse("a", beyond(tail))
    assert sink.controls[-1]["streamClosed"] is True


@with_app(long_poll_timeout_s=60)
async def test_a_live_reader_one_beyond_the_tail_misses_no_byte(client: Client) -> None:
    for path, kind, body in (("bytes", TEXT, b"hello"), ("json", JSON, b"[1,2]")):
        tail = (await client.put(path, b"", content_type=kind)).offset
        sink = await client.sse(path, beyond(tail))
        poll = await waiting(client, path, f"offset={beyond(tail)}")
        await client.post(path, body, content_type=kind)
        assert (await poll).body.replace(b"\n", b"") == body
        await sink.until(lambda sink: bool(sink.data))
        assert "".join(sink.data).replace("\n", "") == body.decode()


@with_app(long_poll_timeout_s=60)
async def test_one_beyond_a_message_of_a_json_stream_is_that_message(client: Client) -> None:
    """The data may have arrived before the request that was meant for the tail."""
    tail = (await client.put("a", b"[1]", content_type=JSON)).offset
    await client.post("a", b"[22,3]", content_type=JSON)
    for query in ("", "&live=long-poll"):
        assert (await client.get("a", f"offset={beyond(tail)}{query}")).json() == [22, 3]
    sink = await client.sse("a", beyond(tail))
    assert json.loads(sink.data[0]) == [22, 3]


@pytest.mark.parametrize("by", [2, 3, 1000])
def test_more_than_one_beyond_the_tail_is_refused(by: int, tmp_path: object) -> None:
    @with_app()
    async def scenario(client: Client) -> None:
        for path, body, kind in (("text", b"hello", TEXT), ("json", b"[1,2]", JSON)):
            tail = (await client.put(path, body, content_type=kind)).offset
            for live in ("", "&live=long-poll", "&live=sse"):
                refused = await client.get(path, f"offset={beyond(tail, by)}{live}")
                assert (refused.status, refused.json()["code"]) == (400, "offset-beyond-tail")

    scenario("memory", tmp_path)


@with_app()
async def test_inside_a_message_and_elsewhere_it_is_refused_as_before(client: Client) -> None:
    start = (await client.put("a", b"", content_type=JSON)).offset
    tail = (await client.post("a", b'["long enough", 2]', content_type=JSON)).offset
    for by in (2, 3, 7):
        inside = await client.get("a", f"offset={beyond(start, by)}")
        assert (inside.status, inside.json()["code"]) == (400, "offset-not-aligned")
    until = await client.get("a", f"offset=-1&until={beyond(tail)}")
    assert (until.status, until.json()["code"]) == (400, "offset-beyond-tail")
    fork = await client.put("b", stream_forked_from="/v1/stream/a", stream_fork_offset=beyond(tail))
    assert (fork.status, fork.json()["code"]) == (400, "offset-beyond-tail")
    await client.delete("a")
    await client.put("a", b"", content_type=JSON)
    gone = await client.get("a", f"offset={beyond(tail)}")
    assert (gone.status, gone.json()["code"]) == (410, "stream-recreated")


@with_app()
async def test_one_beyond_a_trimmed_offset_is_gone(client: Client) -> None:
    start = (await client.put("a", b"", content_type=JSON)).offset
    await client.post("a", b'["long enough", 2]', content_type=JSON)
    trim = json.dumps({"before": "now"}).encode()
    assert (await client.post("a/__ds/trim", trim, content_type=JSON)).status == 200
    gone = await client.get("a", f"offset={beyond(start)}")
    assert (gone.status, gone.json()["code"]) == (410, "stream-trimmed")


@with_app()
async def test_in_a_byte_stream_every_byte_that_is_there_is_an_offset(client: Client) -> None:
    start = (await client.put("a", b"hello", content_type=BYTES)).offset
    await client.post("a", b"world", content_type=BYTES)
    assert (await client.get("a", f"offset={beyond(start)}")).body == b"orld"


# -- Yjs documents


async def document(client: Client) -> str:
    """A document with a snapshot that an update follows, and another one before; its offset."""
    await client.put("d/.index", b"", content_type=JSON)
    for update in (b"one", b"two"):
        await client.put("d/.updates", content_type=BYTES)
        snapshot = (await client.post("d/.updates", update, content_type=BYTES)).offset
        entry = json.dumps({"snapshotOffset": snapshot, "createdAt": 1}).encode()
        await client.post("d/.index", entry, content_type=JSON)
    await client.post("d/.updates", b"three", content_type=BYTES)
    return snapshot


@with_app(long_poll_timeout_s=60)
async def test_one_beyond_a_snapshot_of_a_yjs_document_is_the_snapshot(client: Client) -> None:
    snapshot = await document(client)
    for live in ("", "&live=long-poll"):
        assert (await client.get("d/.updates", f"offset={beyond(snapshot)}{live}")).body == b"three"
    sink = await client.sse("d/.updates", beyond(snapshot))
    assert sink.data == ["dGhyZWU="]
    earlier = f"offset={beyond(snapshot, -2)}"
    assert (await client.get("d/.updates", earlier)).body == b"twothree"


@with_app()
async def test_other_offsets_of_a_yjs_document_are_what_they_say(client: Client) -> None:
    snapshot = await document(client)
    for by, body in ((0, b"three"), (2, b"ree"), (-1, b"othree")):
        read = await client.get("d/.updates", f"offset={beyond(snapshot, by)}")
        assert read.body == body
    await client.delete("d/.index")
    read = await client.get("d/.updates", f"offset={beyond(snapshot)}")
    assert read.body == b"hree", "without an index it is a stream like any other"
