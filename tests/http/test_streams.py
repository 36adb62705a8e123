"""PUT, POST, HEAD and DELETE of a stream, and the routing around them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.http.message import Response
from penstock.http.sender import Sender
from tests.helpers.app import Client, finish, make_request, run_with_app, settings_of, with_app

TEXT = "text/plain"
JSON = "application/json"


@with_app()
async def test_put_creates_once_and_then_confirms(client: Client) -> None:
    created = await client.put("a/b%2Fc", b"hello", content_type=TEXT)
    assert created.status == 201
    assert created.headers["location"] == "http://localhost:4437/v1/stream/a/b%2Fc"
    assert created.headers["content-type"] == TEXT
    again = await client.put("a/b%2Fc", content_type=TEXT)
    assert again.status == 200
    assert "location" not in again.headers
    assert again.offset == created.offset
    other = await client.put("a/b%2Fc", content_type=JSON)
    assert other.status == 409
    assert other.json()["code"] == "stream-exists"
    assert other.headers["cache-control"] == "no-store"


@with_app()
async def test_put_without_content_type_is_a_byte_stream(client: Client) -> None:
    created = await client.put("raw", b"\x00\x01")
    assert created.headers["content-type"] == "application/octet-stream"
    assert (await client.get("raw")).body == b"\x00\x01"


@with_app()
async def test_put_closed_makes_a_finished_stream(client: Client) -> None:
    created = await client.put("done", b"all of it", content_type=TEXT, stream_closed="TRUE")
    assert created.headers["stream-closed"] == "true"
    refused = await client.post("done", b"more", content_type=TEXT)
    assert refused.status == 409
    assert refused.headers["stream-closed"] == "true"
    assert refused.offset == created.offset
    assert (await client.put("done", content_type=TEXT)).status == 409


@with_app()
async def test_put_refuses_bad_expiry(client: Client) -> None:
    both = await client.put("x", stream_ttl="60", stream_expires_at="2030-01-01T00:00:00Z")
    assert (both.status, both.json()["code"]) == (400, "conflicting-expiry")
    assert (await client.put("x", stream_ttl="+60")).json()["code"] == "invalid-ttl"
    assert (await client.put("x", stream_expires_at="soon")).json()["code"] == "invalid-expires-at"
    assert (await client.head("x")).status == 404


@with_app()
async def test_location_has_the_scheme_of_its_sender_and_tolerates_a_missing_host(
    client: Client,
) -> None:
    request = make_request("PUT", "/v1/stream/tls")
    request.sender = Sender("203.0.113.7", "https")
    assert client.app.refuse(request) is None
    answer = client.app.handle(request)
    secure = await finish(answer if isinstance(answer, Response) else await answer)
    assert secure.headers["location"] == "https://localhost:4437/v1/stream/tls"
    spoofed = await client.put("plain", x_forwarded_proto="https")
    assert spoofed.headers["location"] == "http://localhost:4437/v1/stream/plain"
    bare = await client.put("bare", host="")
    assert bare.headers["location"] == "/v1/stream/bare"


@with_app()
async def test_append_answers_204_with_the_new_tail(client: Client) -> None:
    created = await client.put("a", content_type=TEXT)
    appended = await client.post("a", b"hello", content_type="Text/Plain; charset=utf-8")
    assert appended.status == 204
    assert appended.offset > created.offset
    assert "stream-closed" not in appended.headers
    assert (await client.head("a")).offset == appended.offset


@with_app()
async def test_append_needs_a_body_and_its_type(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    assert (await client.post("a", b"x")).json()["code"] == "missing-content-type"
    assert (await client.post("a", b"", content_type=TEXT)).json()["code"] == "empty-body"
    assert (await client.post("a", b"", stream_closed="yes")).json()["code"] == "empty-body"
    assert (await client.post("a", b"x", content_type="junk")).status == 400
    assert (await client.post("a", b"x", content_type=JSON)).status == 409
    assert (await client.post("none", b"x", content_type=TEXT)).status == 404


@with_app()
async def test_producer_appends_are_200_and_their_repetition_204(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    producer = {"content_type": TEXT, "producer_id": "p", "producer_epoch": "3"}
    first = await client.post("a", b"x", **producer, producer_seq="0")
    second = await client.post("a", b"y", **producer, producer_seq="1")
    assert (first.status, second.status) == (200, 200)
    assert (first.headers["producer-epoch"], first.headers["producer-seq"]) == ("3", "0")
    repeated = await client.post("a", b"x", **producer, producer_seq="0")
    assert repeated.status == 204
    assert repeated.headers["producer-seq"] == "1", "the highest accepted, not the one sent"
    assert repeated.offset == second.offset
    stale = await client.post("a", b"z", **{**producer, "producer_epoch": "2"}, producer_seq="0")
    assert (stale.status, stale.headers["producer-epoch"]) == (403, "3")
    gap = await client.post("a", b"z", **producer, producer_seq="5")
    assert gap.status == 409
    assert gap.headers["producer-expected-seq"] == "2"
    assert gap.headers["producer-received-seq"] == "5"


@with_app()
async def test_a_closed_stream_says_so_even_to_a_stale_producer(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    producer = {"content_type": TEXT, "producer_id": "p", "producer_seq": "0"}
    await client.post("a", b"x", **producer, producer_epoch="3", stream_closed="true")
    stale = await client.post("a", b"z", **producer, producer_epoch="2")
    assert (stale.status, stale.headers["stream-closed"]) == (409, "true")
    assert stale.headers["producer-epoch"] == "3"


@pytest.mark.parametrize(
    "headers",
    [
        {"producer_id": "p"},
        {"producer_epoch": "0", "producer_seq": "0"},
        {"producer_id": "", "producer_epoch": "0", "producer_seq": "0"},
        {"producer_id": "p", "producer_epoch": "0x1", "producer_seq": "0"},
        {"producer_id": "p" * 300, "producer_epoch": "0", "producer_seq": "0"},
        {"stream_seq": ""},
        {"stream_seq": "s" * 300},
        {"if_match": '"junk"'},
        {"if_match": "now"},
        {"if_match": 'W/"0000000000000001_0000000000000000"'},
    ],
)
def test_bad_append_headers_are_refused(headers: dict[str, str], tmp_path: object) -> None:
    @with_app()
    async def scenario(client: Client) -> None:
        await client.put("a", content_type=TEXT)
        refused = await client.post("a", b"x", content_type=TEXT, **headers)
        assert refused.status == 400
        assert (await client.get("a")).body == b""

    scenario("memory", tmp_path)


@with_app()
async def test_if_match_with_the_all_zero_offset_appends_only_to_an_empty_stream(
    client: Client,
) -> None:
    zero = f'"{0:016d}_{0:016d}"'
    await client.put("a", content_type=TEXT)
    first = await client.post("a", b"x", content_type=TEXT, if_match=zero)
    second = await client.post("a", b"y", content_type=TEXT, if_match=zero)
    assert (first.status, second.status, second.offset) == (204, 412, first.offset)
    # What is trimmed was appended.
    trimmed = await client.send("POST", "/v1/stream/a/__ds/trim", b'{"before": "now"}')
    assert trimmed.status == 200
    assert (await client.post("a", b"y", content_type=TEXT, if_match=zero)).status == 412
    # A stream that is made anew is empty again.
    await client.delete("a")
    await client.put("a", content_type=TEXT)
    assert (await client.post("a", b"z", content_type=TEXT, if_match=zero)).status == 204
    # A fork has what its source had.
    await client.put("fork", stream_forked_from="/v1/stream/a")
    assert (await client.post("fork", b"z", content_type=TEXT, if_match=zero)).status == 412


@with_app()
async def test_if_match_appends_only_at_the_expected_tail(client: Client) -> None:
    tail = (await client.put("a", content_type=TEXT)).offset
    first = await client.post("a", b"x", content_type=TEXT, if_match=f'"{tail}"')
    assert first.status == 204
    moved = await client.post("a", b"y", content_type=TEXT, if_match=tail)
    assert (moved.status, moved.json()["code"]) == (412, "tail-moved")
    assert moved.offset == first.offset
    assert (await client.post("a", b"y", content_type=TEXT, if_match=moved.offset)).status == 204
    assert (await client.post("a", b"z", content_type=TEXT, if_match="*")).status == 204
    assert (await client.get("a")).body == b"xyz"


@with_app()
async def test_close_ignores_content_type_and_may_be_repeated(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    closed = await client.post("a", b"", content_type=TEXT, stream_closed="true")
    assert (closed.status, closed.headers["stream-closed"]) == (204, "true")
    again = await client.post("a", b"", stream_closed="true")
    assert (again.status, again.offset) == (204, closed.offset)
    refused = await client.post("a", b"[2]", content_type=JSON, stream_closed="true")
    assert (refused.status, refused.headers["stream-closed"]) == (409, "true")


@with_app()
async def test_close_only_by_a_producer_is_204_with_its_state(client: Client) -> None:
    await client.put("a", content_type=TEXT)
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    closed = await client.post("a", b"", stream_closed="true", **producer)
    assert (closed.status, closed.headers["producer-seq"]) == (204, "0")
    again = await client.post("a", b"", stream_closed="true", **producer)
    assert (again.status, again.headers["stream-closed"]) == (204, "true")


@with_app()
async def test_head_describes_without_a_body(client: Client) -> None:
    await client.put("ttl", b"abc", content_type="text/plain; charset=utf-8", stream_ttl="3600")
    head = await client.head("ttl")
    assert (head.status, head.body) == (200, b"")
    assert head.headers["content-type"] == "text/plain; charset=utf-8"
    assert head.headers["stream-ttl"] == "3600"
    assert head.headers["cache-control"] == "no-store"
    assert "stream-closed" not in head.headers
    await client.put("at", stream_expires_at="2099-01-01T01:00:00+01:00", stream_closed="true")
    head = await client.head("at")
    assert head.headers["stream-expires-at"].startswith("2099-01-01T00:00:00")
    assert head.headers["stream-closed"] == "true"


@with_app(chunk_bytes=1000)
async def test_head_has_the_tag_of_the_whole_stream(client: Client) -> None:
    await client.put("a", b"abc", content_type=TEXT)
    tag = (await client.head("a")).headers["etag"]
    assert tag == (await client.get("a")).headers["etag"]
    same = await client.send("HEAD", "/v1/stream/a", if_none_match=tag)
    assert (same.status, same.headers["etag"]) == (304, tag)
    assert same.offset == (await client.head("a")).offset
    tags = [tag]
    await client.post("a", b"x" * 2000, content_type=TEXT)
    tags.append((await client.head("a")).headers["etag"])
    assert (await client.get("a")).headers["etag"] not in tags, "it ends after a chunk"
    await client.post("a", stream_closed="true")
    tags.append((await client.head("a")).headers["etag"])
    assert len(set(tags)) == 3
    assert (await client.send("HEAD", "/v1/stream/a", if_none_match=tag)).status == 200


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("coding", ["gzip", "br", "identity, zstd", "aws-chunked"])
def test_a_body_in_a_coding_is_refused(method: str, coding: str, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.put("a", content_type=TEXT)
        answer = await client.send(
            method, "/v1/stream/a", b"\x1f\x8b", content_type=TEXT, content_encoding=coding
        )
        assert (answer.status, answer.json()["code"]) == (415, "unsupported-content-encoding")
        assert answer.headers["accept-encoding"] == "identity"
        assert client.app.traffic.errors == {"unsupported-content-encoding": 1}
        assert (await client.get("a")).body == b""
        plain = await client.post("a", b"x", content_type=TEXT, content_encoding="Identity")
        assert plain.status == 204

    run_with_app(test, settings_of("memory", tmp_path))


@with_app()
async def test_delete_removes_and_a_new_stream_refuses_old_offsets(client: Client) -> None:
    old = (await client.put("a", b"old", content_type=TEXT)).offset
    assert (await client.delete("a")).status == 204
    assert (await client.delete("a")).status == 404
    assert (await client.get("a")).status == 404
    await client.put("a", b"newer", content_type=TEXT)
    refused = await client.get("a", f"offset={old}")
    assert (refused.status, refused.json()["code"]) == (410, "stream-recreated")


@with_app()
async def test_paths_are_kept_as_they_are_spelled(client: Client) -> None:
    await client.put("a%2Fb", b"1", content_type=TEXT)
    assert (await client.get("a/b")).status == 404
    assert (await client.get("a%2fb")).body == b"1"
    for path in ("", "a//b", "a/../b", "a/%2e%2E/b", "a%00b", "a%zz", "x" * 2000):
        assert (await client.put(path)).status == 400, path


@with_app()
async def test_unknown_paths_and_methods_are_refused_before_the_body(client: Client) -> None:
    for target in (
        "/nothing",
        "/v1/stream",
        "/v1/streams/",
        "/v1/stream/__ds/x",
        "/v1/stream/%5F_ds",
    ):
        refused = await client.send("PUT", target)
        assert (refused.status, refused.json()["code"]) == (404, "route-not-found"), target
    wrong = await client.send("PATCH", "/v1/stream/a")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, POST, PUT, DELETE, OPTIONS")
    wrong = await client.send("POST", "/healthz")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD, OPTIONS")
    assert (await client.put("__dsx")).status == 201, "only the whole segment is reserved"


@with_app(auth_token="secret")
async def test_a_token_guards_everything_but_health_and_preflight(client: Client) -> None:
    assert (await client.get("a")).status == 401
    assert (await client.send("GET", "/metrics")).status == 401
    assert (await client.send("GET", "/healthz")).status == 200
    assert (await client.send("GET", "/readyz")).status == 200
    assert (await client.send("OPTIONS", "/v1/stream/a")).status == 204
    bearer = {"authorization": "Bearer secret"}
    assert client.app.traffic.errors == {"unauthorized": 2}
    assert (await client.put("a", b"x", content_type=TEXT, **bearer)).status == 201
    read = await client.get("a", **bearer)
    assert read.headers["cache-control"].startswith("private, ")


@with_app()
async def test_health_index_and_their_heads(client: Client) -> None:
    for target in ("/healthz", "/readyz", "/"):
        for method in ("GET", "HEAD"):
            answer = await client.send(method, target)
            assert answer.status == 200
            assert answer.headers["content-type"] == "application/json"
    client.app.drain()
    stopping = await client.send("GET", "/readyz")
    assert (stopping.status, stopping.json()["status"]) == (503, "unavailable")
    assert (await client.send("GET", "/healthz")).status == 200
