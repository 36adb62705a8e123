"""GET /v1/state: the state of a stream at its tail and at any offset, its pages, and history."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from penstock import limits
from penstock.log.stream import Stream
from tests.helpers.app import Answer, Client, with_app
from tests.http.test_metrics import scrape
from tests.state.test_server_schema import JSON, declare, post

ANY: dict[str, Any] = {"types": {}}


def change(type: str, key: str, value: Any = None, operation: str = "upsert") -> dict[str, Any]:
    event = {"type": type, "key": key, "headers": {"operation": operation}}
    return event if operation == "delete" else {**event, "value": value}


RESET = {"headers": {"control": "reset"}}


async def state(client: Client, path: str, query: str = "", **headers: str) -> Answer:
    return await client.send("GET", f"/v1/state/{path}?{query}", b"", **headers)


async def types(client: Client, path: str, query: str = "") -> Any:
    answer = await state(client, path, query)
    assert answer.status == 200, answer.body
    return answer.json()["types"]


@with_app()
async def test_state_stands_at_the_offset_it_names_so_a_reader_can_follow(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    await post(client, "s", change("user", "1", {"n": 1}), change("flag", "a", None))
    answer = await state(client, "s")
    tail = (await client.head("s")).offset
    assert answer.json() == {
        "offset": tail,
        "types": {"flag": {"a": None}, "user": {"1": {"n": 1}}},
        "next": None,
    }
    assert answer.offset == tail
    assert answer.headers["stream-up-to-date"] == "true"
    await post(client, "s", change("user", "1", operation="delete"))
    rest = await client.get("s", f"offset={tail}")
    assert [event["headers"]["operation"] for event in rest.json()] == ["delete"]
    assert await types(client, "s") == {"flag": {"a": None}}
    assert await types(client, "s", f"offset={tail}") == answer.json()["types"]


@pytest.mark.parametrize("declared", [True, False])
def test_every_answer_is_the_same_with_and_without_a_declaration(declared: bool) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await client.put("s", content_type=JSON)
        if declared:
            await declare(client, "s", ANY)
        sent = (
            change("user", "1", 1),
            change("user", "2", 2),
            RESET,
            change("user", "3", 3),
            change("user", "3", operation="delete"),
            change("user", "1", 4),
        )
        offsets = ["-1", *[(await post(client, "s", event)).offset for event in sent]]
        expected: list[Any] = [
            {}, {"1": 1}, {"1": 1, "2": 2}, {}, {"3": 3}, {}, {"1": 4},
        ]  # fmt: skip
        for offset, keys in zip(offsets, expected, strict=True):
            assert await types(client, "s", f"offset={offset}") == ({"user": keys} if keys else {})
        assert await types(client, "s", "type=user&key=1") == {"user": {"1": 4}}
        assert await types(client, "s", "type=user&key=2") == {}
        assert await types(client, "s", f"type=user&key=2&offset={offsets[2]}") == {
            "user": {"2": 2}
        }
        history = (await state(client, "s", "type=user&key=1&history=true")).json()
        assert history["history"] == [
            {"offset": offsets[1], "ordinal": 0, "operation": "upsert", "value": 1},
            {"offset": offsets[3], "ordinal": 2, "control": "reset"},
            {"offset": offsets[6], "ordinal": 5, "operation": "upsert", "value": 4},
        ]

    check(store="memory", tmp_path=None)


@with_app()
async def test_history_tells_what_was_written_and_goes_on_page_by_page(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    event = change("user", "1", {"n": 0}, "insert")
    event["headers"] |= {"txid": "t", "timestamp": "2025-01-15T10:30:00Z"}
    await post(client, "s", event)
    for number in range(1, 6):
        await post(client, "s", change("user", "1", {"n": number}), change("user", "2", 0))
    await post(client, "s", change("user", "1", operation="delete"))
    first = (await state(client, "s", "type=user&key=1&history=true&limit=4")).json()
    assert first["history"][0]["txid"] == "t"
    assert first["history"][0]["timestamp"] == "2025-01-15T10:30:00Z"
    query = f"type=user&key=1&history=true&limit=4&offset={first['offset']}&after={first['next']}"
    second = (await state(client, "s", query)).json()
    assert second["next"] is None
    steps = first["history"] + second["history"]
    assert [step.get("value", {}).get("n") for step in steps] == [0, 1, 2, 3, 4, 5, None]
    assert steps[-1]["operation"] == "delete"
    for step in steps[:-1]:
        current = await types(client, "s", f"type=user&key=1&offset={step['offset']}")
        assert current == {"user": {"1": step["value"]}}
    empty = await state(client, "s", "type=user&key=none&history=true")
    assert empty.json()["history"] == []


@with_app()
async def test_pages_make_up_one_state_while_the_stream_moves_on(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    keys = [f"k{number:02}" for number in range(10)] + ["", "k", "ключ", "k\x00"][1:]
    await post(client, "s", *(change(kind, key, kind + key) for kind in "ab" for key in keys))
    query, merged, offset = "limit=3", {}, None
    for page_number in range(20):
        page = (await state(client, "s", query)).json()
        assert offset in (None, page["offset"])
        offset = page["offset"]
        for kind, values in page["types"].items():
            merged.update({(kind, key): value for key, value in values.items()})
        if page["next"] is None:
            break
        await post(client, "s", change("a", "k05", "new"), change("b", f"new{page_number}", 1))
        query = f"limit=3&offset={offset}&after={page['next']}"
    assert merged == {(kind, key): kind + key for kind in "ab" for key in keys}


@with_app()
async def test_types_and_prefixes_narrow_the_answer(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    keys = ("eu/1", "eu/2", "us/1", "e", "f")
    await post(client, "s", *(change(kind, key, 1) for kind in ("host", "user") for key in keys))
    assert list((await types(client, "s", "type=host"))["host"]) == sorted(keys)
    assert await types(client, "s", "type=user&prefix=eu/") == {"user": {"eu/1": 1, "eu/2": 1}}
    assert await types(client, "s", "type=none") == {}
    page = (await state(client, "s", "type=user&prefix=e&limit=2")).json()
    assert list(page["types"]["user"]) == ["e", "eu/1"]
    query = f"type=user&prefix=e&limit=2&offset={page['offset']}&after={page['next']}"
    assert await types(client, "s", query) == {"user": {"eu/2": 1}}


@with_app()
async def test_a_page_is_bounded_in_bytes_too(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    size = limits.STATE_PAGE_BYTES * 2 // 5
    for number in range(5):
        await post(client, "s", change("blob", str(number), "x" * size))
    page = (await state(client, "s")).json()
    assert list(page["types"]["blob"]) == ["0", "1"]
    assert page["next"] is not None
    history = (await state(client, "s", "type=blob&key=1&history=true")).json()
    assert len(history["history"][0]["value"]) == size


@with_app()
async def test_an_unchanged_state_is_answered_with_304(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    await post(client, "s", change("user", "1", 1))
    tag = (await state(client, "s")).headers["etag"]
    same = await state(client, "s", if_none_match=tag)
    assert (same.status, same.body, same.headers["etag"]) == (304, b"", tag)
    await post(client, "s", change("user", "1", 2))
    moved = await state(client, "s", if_none_match=tag)
    assert moved.status == 200
    await client.post("s", stream_closed="true")
    closed = await state(client, "s", if_none_match=moved.headers["etag"])
    assert (closed.status, closed.headers["stream-closed"]) == (200, "true")


@with_app()
async def test_the_index_follows_appends_before_anybody_asks(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    while client.app.state.indexer._follows:  # the declaration itself has it looked at
        await asyncio.sleep(0)
    for number in range(3):
        await post(client, "s", change("user", str(number), number))
    tail = client.engine.find("s", touch=False).tail
    while (await scrape(client))["penstock_state_indexed_bytes_total"] < tail:
        await asyncio.sleep(0)


@with_app()
async def test_what_makes_no_sense_is_refused(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await client.put("text", content_type="text/plain")
    assert (await state(client, "none")).status == 404
    assert (await state(client, "text")).json()["code"] == "not-json-stream"
    for query in (
        "key=1", "prefix=1", "type=a&key=1&prefix=1", "history=true", "history=yes",
        "type=a&history=true", "after=WyJhIiwiYiJd", "offset=-1&after=!!", "offset=-1&after=WzFd",
        "limit=0", f"limit={limits.STATE_LIMIT_MAX + 1}", "offset=x",
        "offset=0000000000000001_0000000000000099",
    ):  # fmt: skip
        assert (await state(client, "s", query)).status == 400, query
    assert (await client.send("POST", "/v1/state/s", b"1")).status == 405


@with_app()
async def test_events_from_before_the_declaration_count_if_they_are_events(client: Client) -> None:
    early = [{"no": "event"}, change("user", "1", 1), 5, change("user", "", 2)]
    late = change("user", "2", 2)
    late["headers"] |= {"timestamp": "long ago"}
    await client.put("s", json.dumps([*early, late]).encode(), content_type=JSON)
    await declare(client, "s", ANY)
    assert await types(client, "s") == {"user": {"1": 1, "2": 2}}
    values = await scrape(client)
    assert values["penstock_state_skipped_total"] == 3
    assert values["penstock_state_lag_bytes"] == 0


@with_app()
async def test_a_large_stream_has_to_be_declared(client: Client) -> None:
    await client.put("s", content_type=JSON)
    first = await post(client, "s", change("user", "1", 1))
    size = limits.STATE_FOLD_BYTES_MAX // 2
    for _ in range(2):
        await post(client, "s", change("user", "2", "x" * size))
    answer = await state(client, "s")
    assert (answer.status, answer.json()["code"]) == (409, "not-declared")
    assert await types(client, "s", f"offset={first.offset}") == {"user": {"1": 1}}
    await declare(client, "s", ANY)
    assert (await state(client, "s", "type=user&key=2")).status == 200


@with_app()
async def test_a_reset_that_names_a_place_ahead_skips_to_it(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    start = int((await post(client, "s", change("user", "1", 1))).offset.split("_")[1])
    generation = (await client.head("s")).offset.split("_")[0]
    skipped = change("user", "2", 2)
    size = len(json.dumps(skipped)) + 2
    reset = {"headers": {"control": "reset", "offset": "0" * 33}}
    ahead = start + len(json.dumps(reset)) + 2 + size
    reset["headers"]["offset"] = f"{generation}_{ahead:016d}"
    behind = {"headers": {"control": "reset", "offset": f"{generation}_{0:016d}"}}
    await post(client, "s", reset, skipped, change("user", "3", 3))
    assert await types(client, "s") == {"user": {"3": 3}}
    # Nothing comes back that an earlier reset has discarded, and nothing is skipped twice.
    await post(client, "s", behind, change("user", "4", 4))
    assert await types(client, "s") == {"user": {"3": 3, "4": 4}}


@with_app()
async def test_a_path_that_is_used_again_has_none_of_the_old_state(client: Client) -> None:
    for number in range(3):
        await client.put("s", content_type=JSON)
        await declare(client, "s", ANY)
        await post(client, "s", change("user", str(number), number))
        assert await types(client, "s") == {"user": {str(number): number}}
        await client.delete("s")
        assert (await state(client, "s")).status == 404


@with_app()
async def test_a_declared_stream_still_expires(client: Client) -> None:
    await client.put("s", content_type=JSON, stream_ttl="10")
    await declare(client, "s", ANY)
    await post(client, "s", change("user", "1", 1))
    assert await types(client, "s") == {"user": {"1": 1}}
    assert client.engine.stats.watchers == 0
    client.clock.advance(11)
    assert (await state(client, "s")).status == 404


@with_app()
async def test_answers_while_appends_go_on_are_each_of_one_moment(client: Client) -> None:
    """Every append sets both keys to the same number: a mixed answer would show two."""
    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)

    async def write() -> None:
        for number in range(150):
            await post(client, "s", change("a", "x", number), change("b", "y", number))

    writing = asyncio.create_task(write())
    seen = []
    while not writing.done():
        state = await types(client, "s")
        if state:
            assert state["a"]["x"] == state["b"]["y"]
            seen.append(state["a"]["x"])
        await asyncio.sleep(0)
    await writing
    assert seen == sorted(seen)
    assert await types(client, "s") == {"a": {"x": 149}, "b": {"y": 149}}


@with_app()
async def test_odd_timestamps_from_before_the_declaration_are_tolerated_with_a_warning(
    client: Client,
) -> None:
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("penstock.state")
    logger.addHandler(handler)
    try:
        await client.put("s", content_type=JSON)
        old = change("user", "1", 1)
        old["headers"]["timestamp"] = "yesterday"
        await post(client, "s", old, change("user", "2", 2))
        assert await types(client, "s") == {"user": {"1": 1, "2": 2}}
        assert messages == []  # who asks for the state of any stream cannot fill the log
        await declare(client, "s", ANY)
        assert await types(client, "s") == {"user": {"1": 1, "2": 2}}
        assert messages == ["s: timestamps of 1 events are not RFC 3339"]
        assert (await post(client, "s", old)).status == 422
    finally:
        logger.removeHandler(handler)


@pytest.mark.parametrize("declared", [True, False])
def test_the_state_of_a_trimmed_stream_is_that_of_what_is_left(declared: bool) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await client.put("s", content_type=JSON)
        if declared:
            await declare(client, "s", ANY)
        await post(client, "s", change("user", "1", 1), change("user", "2", 2))
        assert await types(client, "s") == {"user": {"1": 1, "2": 2}}
        middle = (await post(client, "s", change("user", "3", 3))).offset
        await post(client, "s", change("user", "1", 10))
        for before, expected in ((middle, {"1": 10}), ("now", {})):
            body = json.dumps({"before": before}).encode()
            assert (await client.send("POST", "/v1/stream/s/__ds/trim", body)).status == 200
            assert await types(client, "s") == ({"user": expected} if expected else {})
        await post(client, "s", change("user", "4", 4))
        assert await types(client, "s") == {"user": {"4": 4}}
        history = await state(client, "s", "type=user&key=1&history=true")
        assert history.status == 200
        assert history.json()["history"] == []

    check(store="memory", tmp_path=None)


@with_app()
async def test_a_fork_has_the_state_of_its_source_and_then_its_own(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await post(client, "s", change("user", "1", 1))
    await client.put("f", stream_forked_from="/v1/stream/s")
    await declare(client, "f", ANY)
    await post(client, "f", change("user", "2", 2))
    await post(client, "s", change("user", "3", 3))
    assert await types(client, "f") == {"user": {"1": 1, "2": 2}}
    assert await types(client, "s") == {"user": {"1": 1, "3": 3}}


@with_app()
async def test_what_was_read_before_a_trim_is_not_shown_after_it(client: Client) -> None:
    indexer = client.app.state.indexer
    read = indexer.read

    async def trim_then(stream: Stream, start: int, end: int) -> bytes:
        indexer.read = read  # type: ignore[method-assign]  # once
        wire = await read(stream, start, end)
        await client.engine.trim("s", "now")
        # A question that comes in this moment prunes what the index has.
        await indexer._prune(stream)
        return wire

    await client.put("s", content_type=JSON)
    await declare(client, "s", ANY)
    assert await types(client, "s") == {}
    indexer.read = trim_then  # type: ignore[method-assign]
    await post(client, "s", change("user", "1", {"n": 1}))
    assert await types(client, "s") == {}
    assert indexer.read == read


def test_a_trim_while_the_index_reads_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    @with_app()
    async def check(client: Client) -> None:
        indexer = client.app.state.indexer
        read = indexer.read

        async def trim_first(stream: Stream, start: int, end: int) -> bytes:
            indexer.read = read  # type: ignore[method-assign]  # once
            await client.engine.trim("s", "now")
            return await read(stream, start, end)

        await client.put("s", content_type=JSON)
        await declare(client, "s", ANY)
        assert await types(client, "s") == {}
        indexer.read = trim_first  # type: ignore[method-assign]
        await post(client, "s", change("user", "1", {"n": 1}))
        assert await types(client, "s") == {}
        assert indexer.read == read
        await post(client, "s", change("user", "2", {"n": 2}))
        assert await types(client, "s") == {"user": {"2": {"n": 2}}}

    check("memory", None)
    assert "cannot index" not in caplog.text
