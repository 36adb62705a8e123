"""Catch-up reads: offsets, headers, caching, bounded reads, splits and compression."""

from __future__ import annotations

import gzip
import json
import zlib
from itertools import pairwise
from pathlib import Path

import brotli
import pytest
import zstandard

from penstock.http.compression import HELD_BYTES_MAX, Compressor, choose_coding
from penstock.http.message import RangeBody
from tests.helpers.app import Client, finish, run_with_app, settings_of, with_app

TEXT = "text/plain"
JSON = "application/json"
CACHED = "public, max-age=60, stale-while-revalidate=300"


def numbered(count: int, size: int = 20) -> bytes:
    return json.dumps([{"n": n, "pad": "x" * size} for n in range(count)]).encode()


@with_app()
async def test_a_read_returns_everything_and_says_so(client: Client) -> None:
    await client.put("a", b"hello", content_type=TEXT)
    for query in ("", "offset=-1", "offset=-1&unknown=1&x"):
        read = await client.get("a", query)
        assert (read.status, read.body) == (200, b"hello")
        assert read.headers["content-type"] == TEXT
        assert read.headers["stream-up-to-date"] == "true"
        assert read.headers["cache-control"] == CACHED
        assert "stream-closed" not in read.headers
        assert "vary" not in read.headers, "too small to be compressed"
    rest = await client.get("a", f"offset={read.offset}")
    assert (rest.status, rest.body, rest.offset) == (200, b"", read.offset)
    assert rest.headers["stream-up-to-date"] == "true"
    assert rest.headers["cache-control"] == "no-cache", "'nothing yet' must not be kept"


@with_app()
async def test_json_reads_are_arrays(client: Client) -> None:
    await client.put("a", content_type=JSON)
    empty = await client.get("a")
    assert (empty.body, empty.headers["content-type"]) == (b"[]", JSON)
    first = await client.post("a", b'{"a": 1}', content_type=JSON)
    await client.post("a", b"[[1,2], 3]", content_type=JSON)
    assert (await client.get("a")).json() == [{"a": 1}, [1, 2], 3]
    assert (await client.get("a", f"offset={first.offset}")).json() == [[1, 2], 3]


@pytest.mark.parametrize(
    "query",
    [
        "offset=",
        "offset=a,b",
        "offset=-1&offset=-1",
        "offset=0_0",
        "offset=..%2Fx",
        "offset=+",
        "offset=%00",
        "offset=%FF",
        "live=long-poll",
        "live=sse",
        "live=maybe&offset=-1",
        "live=&offset=-1",
        "offset=-1&live=sse&until=now",
        "count=0",
        "count=x",
        "count=-1",
        "until=nowhere",
        "splits=0",
        "splits=1.5",
        "splits=99999999",
        "offset=9999999999999999_0000000000000000",
        "offset=now&until=-1",
    ],
)
def test_bad_parameters_are_refused(query: str, tmp_path: object) -> None:
    @with_app()
    async def scenario(client: Client) -> None:
        await client.put("a", b"[1,2]", content_type=JSON)
        refused = await client.get("a", query)
        assert refused.status == 400
        assert refused.headers["content-type"] == "application/problem+json"
        assert refused.headers["cache-control"] == "no-store"

    scenario("memory", tmp_path)


@with_app()
async def test_offset_now_is_empty_and_never_cached(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    await client.put("b", b"x", content_type=TEXT)
    now = await client.get("a", "offset=now")
    assert (now.status, now.body) == (200, b"[]")
    assert (await client.get("b", "offset=now")).body == b""
    assert now.headers["cache-control"] == "no-store"
    assert now.headers["stream-up-to-date"] == "true"
    assert "etag" not in now.headers
    assert now.offset == (await client.head("a")).offset
    await client.post("a", b"", stream_closed="true")
    closed = await client.get("a", "offset=now")
    assert closed.headers["stream-closed"] == "true"


@with_app()
async def test_etags_save_the_body_and_change_with_data_and_closing(client: Client) -> None:
    await client.put("a", b"hello", content_type=TEXT)
    etag = (await client.get("a")).headers["etag"]
    same = await client.get("a", if_none_match=f'"other", W/{etag}')
    assert (same.status, same.body) == (304, b"")
    assert same.headers["etag"] == etag
    assert same.headers["cache-control"] == CACHED
    assert same.headers["stream-up-to-date"] == "true"
    await client.post("a", b"", stream_closed="true")
    closed = await client.get("a", if_none_match=etag)
    assert (closed.status, closed.headers["stream-closed"]) == (200, "true")
    assert closed.headers["etag"] != etag


@with_app()
async def test_what_is_read_with_credentials_is_for_no_shared_cache(client: Client) -> None:
    await client.put("a", b"hello", content_type=TEXT)
    etag = (await client.get("a")).headers["etag"]
    for headers in (
        {"authorization": "Basic eDp5"},
        {"cookie": "session=1"},
        {"cookie": "session=1", "if_none_match": etag},
    ):
        read = await client.get("a", **headers)
        assert read.headers["cache-control"] == CACHED.replace("public", "private")
        polled = await client.get("a", "offset=-1&live=long-poll", **headers)
        assert polled.headers["cache-control"].startswith("private, ")
    assert (await client.get("a")).headers["cache-control"] == CACHED


@pytest.mark.parametrize(
    ("content_type", "sandboxed"),
    [
        ("text/html", True),
        ("TEXT/HTML; charset=utf-8", True),
        ("application/xhtml+xml", True),
        ("image/svg+xml", True),
        ("text/xml", True),
        ("application/rss+xml", True),
        ("multipart/related", True),
        ("application/x-unheard-of", True),
        ("text/plain; charset=utf-8", False),
        ("application/json", False),
        ("application/vnd.api+json", False),
        ("application/octet-stream", False),
        ("application/pdf", False),
    ],
)
def test_what_a_browser_might_run_is_a_page_without_scripts(
    content_type: str, sandboxed: bool, tmp_path: Path
) -> None:
    async def test(client: Client) -> None:
        await client.put("a", b"[1]", content_type=content_type)
        for answer in (
            await client.get("a"),
            await client.get("a", "offset=now"),
            await client.get("a", "offset=-1&live=long-poll"),
            await client.head("a"),
        ):
            policy = answer.headers.get("content-security-policy")
            assert policy == ("sandbox" if sandboxed else None)

    run_with_app(test, settings_of("memory", tmp_path))


@with_app(chunk_bytes=1000)
async def test_a_chunk_ends_on_a_message_and_carries_no_end_signals(client: Client) -> None:
    await client.put("a", numbered(100), content_type=JSON, stream_closed="true")
    offset, messages, chunks = "-1", [], 0
    while True:
        read = await client.get("a", f"offset={offset}")
        part = read.json()
        assert part, "a chunk has at least one message"
        messages += part
        chunks += 1
        offset = read.offset
        if "stream-up-to-date" in read.headers:
            break
        assert "stream-closed" not in read.headers
        assert read.headers["cache-control"] == CACHED
    assert chunks > 2
    assert [message["n"] for message in messages] == list(range(100))
    assert read.headers["stream-closed"] == "true"
    end = await client.get("a", f"offset={offset}")
    assert (end.body, end.headers["stream-closed"]) == (b"[]", "true")
    assert end.headers["cache-control"] == CACHED, "the end of a closed stream never changes"


@with_app(chunk_bytes=10)
async def test_a_message_larger_than_a_chunk_is_returned_whole(client: Client) -> None:
    await client.put("a", b'["' + b"x" * 100 + b'", 2]', content_type=JSON)
    assert (await client.get("a")).json() == ["x" * 100]


@with_app()
async def test_large_bodies_are_read_in_pieces(client: Client) -> None:
    body = bytes(range(256)) * 4000
    await client.put("raw", body)
    response = await client.respond("GET", "/v1/stream/raw")
    assert isinstance(response.body, RangeBody)
    assert (await finish(response)).body == body
    messages = numbered(3000, 300)
    await client.put("json", messages, content_type=JSON)
    response = await client.respond("GET", "/v1/stream/json")
    assert isinstance(response.body, RangeBody)
    assert (await finish(response)).json() == json.loads(messages)


@with_app()
async def test_bytes_that_are_not_in_memory_are_read_later(client: Client) -> None:
    await client.put("a", numbered(100), content_type=JSON)
    warm = await client.get("a")
    client.engine.read_now = lambda *_: None
    cold = await client.get("a")
    assert (cold.body, cold.headers) == (warm.body, warm.headers)
    packed = await client.get("a", accept_encoding="gzip")
    assert gzip.decompress(packed.body) == warm.body


@with_app()
async def test_until_ends_a_read_early(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    middle = (await client.post("a", b"abc", content_type=TEXT)).offset
    await client.post("a", b"def", content_type=TEXT)
    read = await client.get("a", f"until={middle}")
    assert (read.body, read.offset) == (b"abc", middle)
    assert "stream-up-to-date" not in read.headers
    rest = await client.get("a", f"offset={middle}&until=now")
    assert (rest.body, rest.headers["stream-up-to-date"]) == (b"def", "true")
    nothing = await client.get("a", f"offset={middle}&until={middle}")
    assert (nothing.body, nothing.offset) == (b"", middle)
    assert "stream-up-to-date" not in nothing.headers
    backwards = await client.get("a", f"offset={rest.offset}&until={middle}")
    assert backwards.status == 400


@with_app()
async def test_count_ends_on_the_nth_message(client: Client) -> None:
    await client.put("a", b"[1,2,3,4,5]", content_type=JSON)
    first = await client.get("a", "count=2")
    assert first.json() == [1, 2]
    second = await client.get("a", f"count=2&offset={first.offset}")
    assert second.json() == [3, 4]
    last = await client.get("a", f"count=2&offset={second.offset}")
    assert (last.json(), last.headers["stream-up-to-date"]) == ([5], "true")
    await client.put("b", b"text", content_type=TEXT)
    refused = await client.get("b", "count=2")
    assert (refused.status, refused.json()["code"]) == (400, "invalid-parameter")


@with_app()
async def test_splits_cut_a_stream_into_readable_ranges(client: Client) -> None:
    await client.put("a", numbered(1000), content_type=JSON)
    answer = await client.get("a", "splits=4")
    offsets = answer.json()["offsets"]
    assert len(offsets) == 5
    assert offsets == sorted(offsets)
    assert answer.headers["cache-control"] == "no-store"
    messages = []
    for start, end in pairwise(offsets):
        part = (await client.get("a", f"offset={start}&until={end}")).json()
        assert 200 < len(part) < 300, "about equal bytes"
        messages += part
    assert [message["n"] for message in messages] == list(range(1000))
    inner = (await client.get("a", f"splits=2&offset={offsets[1]}&until={offsets[2]}")).json()
    assert (inner["offsets"][0], inner["offsets"][-1]) == (offsets[1], offsets[2])


@with_app()
async def test_splits_say_how_many_messages_are_before_each_offset(client: Client) -> None:
    await client.put("a", numbered(1000), content_type=JSON)
    found = (await client.get("a", "splits=4")).json()
    assert (found["ordinals"][0], found["ordinals"][-1]) == (0, 1000)
    for offset, ordinal in zip(found["offsets"][:-1], found["ordinals"][:-1], strict=True):
        first = (await client.get("a", f"offset={offset}&count=1")).json()
        assert [message["n"] for message in first] == [ordinal]


@with_app()
async def test_splits_can_be_bounded_by_messages_and_bytes(client: Client) -> None:
    await client.put("a", numbered(1000), content_type=JSON)
    some = (await client.get("a", "splits=1&count=30")).json()
    assert some["ordinals"] == [0, 30]
    more = (await client.get("a", f"splits=1&count=30&offset={some['offsets'][1]}")).json()
    assert more["ordinals"] == [30, 60]
    few = (await client.get("a", f"splits=1&count=30&bytes=1&offset={some['offsets'][1]}")).json()
    assert few["ordinals"] == [30, 31], "at least one message"
    assert (await client.get("a", "splits=1&count=5000")).json()["ordinals"] == [0, 1000]
    await client.put("b", b"text", content_type=TEXT)
    assert "ordinals" not in (await client.get("b", "splits=2")).json()
    assert (await client.get("b", "splits=2&count=1")).status == 400
    assert (await client.get("a", "splits=1&bytes=0")).status == 400


@with_app()
async def test_expiry_bounds_the_life_in_caches(client: Client) -> None:
    await client.put("ttl", b"x", content_type=TEXT, stream_ttl="10")
    assert (await client.get("ttl")).headers["cache-control"] == "public, max-age=10"


@with_app()
async def test_reads_slide_the_ttl_and_head_does_not(client: Client) -> None:
    await client.put("a", b"x", content_type=TEXT, stream_ttl="10")
    etag = (await client.get("a")).headers["etag"]
    for query, headers in (("", {}), ("offset=now", {}), ("", {"if_none_match": etag})):
        client.clock.advance(8)
        assert (await client.get("a", query, **headers)).status in (200, 304)
    client.clock.advance(8)
    assert (await client.head("a")).status == 200
    client.clock.advance(8)
    assert (await client.head("a")).status == 404
    assert (await client.get("a")).status == 404


@pytest.mark.parametrize(
    ("coding", "decode"),
    [
        ("gzip", gzip.decompress),
        ("deflate", zlib.decompress),
        ("zstd", zstandard.ZstdDecompressor().decompress),
        ("br", brotli.decompress),
    ],
)
@pytest.mark.parametrize("count", [100, 3000])
def test_answers_are_compressed_when_asked_for(
    coding: str, decode: object, count: int, tmp_path: object
) -> None:
    @with_app()
    async def scenario(client: Client) -> None:
        await client.put("a", numbered(count, 100), content_type=JSON)
        plain = await client.get("a")
        assert "content-encoding" not in plain.headers
        assert plain.headers["vary"] == "Accept-Encoding"
        packed = await client.get("a", accept_encoding=coding)
        assert packed.headers["content-encoding"] == coding
        assert packed.headers["vary"] == "Accept-Encoding"
        assert packed.headers["etag"] == "W/" + plain.headers["etag"]
        assert len(packed.body) < len(plain.body) / 3
        assert callable(decode)
        assert decode(packed.body) == plain.body
        again = await client.get("a", accept_encoding=coding, if_none_match=packed.headers["etag"])
        assert (again.status, again.headers["vary"]) == (304, "Accept-Encoding")

    scenario("memory", tmp_path)


@with_app()
async def test_what_would_not_shrink_is_left_alone(client: Client) -> None:
    await client.put("png", b"x" * 5000, content_type="image/png")
    media = await client.get("png", accept_encoding="gzip")
    assert "content-encoding" not in media.headers
    assert "vary" not in media.headers
    await client.put("small", b"x" * 1000, content_type=TEXT)
    assert "vary" not in (await client.get("small", accept_encoding="gzip")).headers


@pytest.mark.parametrize(
    ("accept", "coding"),
    [
        ("gzip", "gzip"),
        ("gzip, deflate, br, zstd", "zstd"),
        ("zstd;q=0.5, gzip", "gzip"),
        ("GZIP;Q=0.8", "gzip"),
        ("br", "br"),
        ("gzip, deflate, br", "br"),
        ("br;q=0.9, gzip", "gzip"),
        ("compress", None),
        ("", None),
        ("*", "zstd"),
        ("*;q=0", None),
        ("zstd;q=0, *", "br"),
        ("zstd;q=0, br;q=0, *", "gzip"),
        ("gzip;q=0", None),
        ("gzip;q=junk", None),
        ("identity", None),
        ("identity;q=0.5, gzip;q=0.4", None),
        ("identity, gzip", "gzip"),
        ("x-gzip", "gzip"),
    ],
)
def test_the_best_allowed_coding_is_chosen(accept: str, coding: str | None) -> None:
    assert choose_coding(accept) == coding


def test_encoded_bodies_share_a_memory_bound() -> None:
    compressor = Compressor(1024)
    assert compressor.reserve(HELD_BYTES_MAX)
    assert not compressor.reserve(1)
    compressor.release(HELD_BYTES_MAX)
    assert compressor.reserve(1)
    assert compressor.held_bytes == 1


@with_app()
async def test_a_sent_body_gives_its_memory_back(client: Client) -> None:
    await client.put("a", numbered(3000, 100), content_type=JSON)
    compressor = client.app.compressor
    response = await client.respond("GET", "/v1/stream/a", accept_encoding="gzip")
    assert isinstance(response.body, RangeBody)
    assert compressor.held_bytes == response.body.length
    await finish(response)
    assert compressor.held_bytes == 0
