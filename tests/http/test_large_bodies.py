"""JSON bodies that take long to check: off the event loop, and decided in the order they came."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from penstock.protocol.json_mode import SLICE_BYTES, frame
from tests.helpers.app import Client, with_app

JSON = "application/json"
LARGE = b"[" + b",".join([b'{"n":%d}' % n for n in range(SLICE_BYTES // 8)]) + b"]"
COUNT = LARGE.count(b",") + 1


@pytest.fixture(autouse=True)
def large_frames_off_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail where a large body is framed on the event loop."""

    def checked(body: bytes, **options: Any) -> tuple[bytes, int]:
        on_loop = threading.current_thread() is threading.main_thread()
        assert not on_loop or len(body) <= SLICE_BYTES
        return frame(body, **options)

    monkeypatch.setattr("penstock.log.decide.context.frame", checked)


@with_app()
async def test_a_small_append_behind_a_large_one_comes_after_it(client: Client) -> None:
    await client.put("s", content_type=JSON)
    large = asyncio.ensure_future(client.post("s", LARGE, content_type=JSON))
    await asyncio.sleep(0)
    small = asyncio.ensure_future(client.post("s", b'"small"', content_type=JSON))
    await client.put("other", content_type=JSON)
    assert (await client.post("other", b"1", content_type=JSON)).status == 204
    assert [(await large).status, (await small).status] == [204, 204]
    messages = (await client.get("s")).json()
    assert (len(messages), messages[0], messages[-1]) == (COUNT + 1, {"n": 0}, "small")


@with_app()
async def test_streams_are_created_and_forked_with_large_bodies(client: Client) -> None:
    assert (await client.put("s", LARGE, content_type=JSON)).status == 201
    assert (await client.put("s", LARGE, content_type=JSON)).status == 200
    assert len((await client.get("s")).json()) == COUNT
    forked = await client.put("f", LARGE, stream_forked_from="/v1/stream/s")
    assert forked.status == 201
    assert len((await client.get("f")).json()) == 2 * COUNT
    assert (await client.put("bad", LARGE[:-1], content_type=JSON)).status == 400
    assert (await client.head("bad")).status == 404


@with_app()
async def test_a_large_body_that_is_no_json_is_refused_in_its_turn(client: Client) -> None:
    await client.put("s", content_type=JSON)
    answers = await asyncio.gather(
        client.post("s", LARGE, content_type=JSON, stream_seq="1"),
        client.post("s", LARGE[:-1] + b",]", content_type=JSON),
        client.post("s", b"[1]", content_type=JSON, stream_seq="2"),
    )
    assert [answer.status for answer in answers] == [204, 400, 204]
    assert len((await client.get("s")).json()) == COUNT + 1


@with_app()
async def test_a_producer_repeats_a_large_append_and_it_is_stored_once(client: Client) -> None:
    await client.put("s", content_type=JSON)
    headers = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    answers = await asyncio.gather(
        *[client.post("s", LARGE, content_type=JSON, **headers) for _ in range(3)]
    )
    assert sorted(answer.status for answer in answers) == [200, 204, 204]
    assert len((await client.get("s")).json()) == COUNT


@with_app()
async def test_a_stream_deleted_before_its_large_append_is_not_found(client: Client) -> None:
    await client.put("s", content_type=JSON)
    large = asyncio.ensure_future(client.post("s", LARGE, content_type=JSON))
    await asyncio.sleep(0)
    assert (await client.delete("s")).status == 204
    assert (await large).status == 404


@with_app()
async def test_a_stop_refuses_large_appends_that_are_not_decided(client: Client) -> None:
    await client.put("s", content_type=JSON)
    large = asyncio.ensure_future(client.post("s", LARGE, content_type=JSON))
    await asyncio.sleep(0)
    client.app.drain()
    answer = await large
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    assert (await client.get("s")).json() == []
