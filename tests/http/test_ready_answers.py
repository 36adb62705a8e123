"""Equal reads of an unchanged stream get the same response; whatever it depends on changes it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from penstock.access.principal import Principal
from penstock.http.message import Request, Response
from penstock.http.streams import ready
from penstock.log.stream import Stream
from penstock.protocol.lifecycle import StreamConfig
from tests.helpers.app import Client, make_request, run_with_app, settings_of, with_app

JSON = "application/json"


async def answer(client: Client, request: Request) -> Response:
    """Send a request as a transport does that has seen its head before."""
    request.route = None
    assert client.app.refuse(request) is None
    response = client.app.handle(request)
    return response if isinstance(response, Response) else await response


def read(path: str = "a", query: str = "offset=-1", **headers: str) -> Request:
    return make_request("GET", f"/v1/stream/{path}?{query}", b"", **headers)


@with_app()
async def test_an_equal_read_of_an_unchanged_stream_is_answered_with_the_same_response(
    client: Client,
) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    request = read()
    first = await answer(client, request)
    traffic = client.app.traffic
    reads, sent = traffic.reads, traffic.bytes_out
    assert await answer(client, request) is first
    assert first.body == b"[1]"
    assert (traffic.reads, traffic.bytes_out) == (reads + 1, sent + 3)


@with_app()
async def test_a_read_of_the_last_message_is_answered_at_once_and_again(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    offset = (await client.head("a")).offset
    await append(client)
    request = read(query=f"offset={offset}")
    assert client.app.refuse(request) is None
    first = client.app.handle(request)
    assert isinstance(first, Response)  # without a task
    assert first.body == b"[2]"
    assert await answer(client, request) is first
    await append(client)
    assert (await answer(client, request)).body == b"[2,\n2]"


async def append(client: Client) -> None:
    await client.post("a", b"[2]", content_type=JSON)


async def close(client: Client) -> None:
    await client.post("a", stream_closed="true")


async def trim(client: Client) -> None:
    tail = (await client.head("a")).offset
    body = json.dumps({"before": tail}).encode()
    assert (await client.send("POST", "/v1/stream/a/__ds/trim", body)).status < 300


async def recreate(client: Client) -> None:
    await client.delete("a")
    await client.put("a", b"[1]", content_type=JSON)


@pytest.mark.parametrize("change", [append, close, trim, recreate])
def test_what_changes_a_stream_changes_the_answer(
    change: Callable[[Client], Awaitable[None]], tmp_path: Path
) -> None:
    async def run(client: Client) -> None:
        await client.put("a", b"[1]", content_type=JSON)
        request = read()
        first = await answer(client, request)
        await change(client)
        second, fresh = await answer(client, request), await answer(client, read())
        assert (second.headers, second.body) == (fresh.headers, fresh.body)
        assert (second.headers, second.body) != (first.headers, first.body)

    run_with_app(run, settings_of("disk", tmp_path))


@with_app()
async def test_a_deleted_stream_is_gone(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    request = read()
    await answer(client, request)
    await client.delete("a")
    assert (await answer(client, request)).status == 404


@with_app()
async def test_other_requests_have_answers_of_their_own(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    first = await answer(client, read())
    assert await answer(client, read()) is not first  # equal headers, but not known to be
    private = await answer(client, read(authorization="Bearer x"))
    assert (b"cache-control", b"private, max-age=60, stale-while-revalidate=300") in private.headers
    tag = dict(first.headers)[b"etag"].decode()
    assert (await answer(client, read(if_none_match=tag))).status == 304


@with_app()
async def test_a_principal_is_part_of_the_request(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    request = read()
    first = await answer(client, request)
    entry = client.app.streams.modes._ready.get("a", request)
    assert entry is not None
    stream = client.engine.find("a", touch=False)
    assert entry.is_for(request, stream)
    assert request.principal is not None
    request.principal = Principal("somebody else", request.principal.rules)
    assert not entry.is_for(request, stream)
    assert entry.response is first


@with_app()
async def test_a_stream_whose_time_runs_is_answered_anew(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON, stream_ttl="30")
    request = read()
    assert await answer(client, request) is not await answer(client, request)


@with_app()
async def test_a_large_answer_is_not_noted(client: Client) -> None:
    await client.put("large", b'["' + b"x" * ready.BODY_BYTES_MAX + b'"]', content_type=JSON)
    request = read("large")
    assert await answer(client, request) is not await answer(client, request)


def test_they_are_few_and_begin_anew_after_many_misses() -> None:
    stream = Stream(1, "a", StreamConfig(JSON, None, None), 0)
    answers, response = ready.ReadyAnswers(), Response(200, [], b"[1]")

    def add(number: int) -> None:
        answers.add(f"s{number}", read(f"s{number}"), stream, response)

    def has(number: int) -> bool:
        return answers.get(f"s{number}", read(f"s{number}")) is not None

    for number in range(ready.ENTRIES_MAX + 1):
        add(number)
    assert (has(0), has(ready.ENTRIES_MAX)) == (True, False)
    add(0)
    for number in range(ready.ENTRIES_MAX + 1, ready.ENTRIES_MAX + ready.MISSES_MAX):
        add(number)
    assert (has(0), has(ready.ENTRIES_MAX + ready.MISSES_MAX - 1)) == (False, True)


@with_app()
async def test_a_stream_that_was_made_again_has_other_answers(client: Client) -> None:
    await client.put("a", b"[1]", content_type=JSON)
    request = read("a", "offset=-1")
    first = await answer(client, request)
    await client.delete("a")
    await client.put("a", b"[2]", content_type=JSON)
    second = await answer(client, request)
    assert (first.body, second.body) == (b"[1]", b"[2]")


@pytest.mark.parametrize("offset", ["1_2", "12", "99_99", "_", "1__1"])
def test_an_offset_alone_is_read_as_it_is_among_others(offset: str, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.put("a", b"[1]", content_type=JSON)
        alone = await client.get("a", f"offset={offset}")
        among_others = await client.get("a", f"offset={offset}&live=false")
        assert (alone.status, alone.body) == (among_others.status, among_others.body)

    run_with_app(test, settings_of("memory", tmp_path))
