"""A stream that is held: what is appended to it waits, in order, until its readers are led on."""

from __future__ import annotations

import asyncio
import json

from penstock.state.events import reset
from tests.helpers.app import Answer, Client, with_app

JSON = "application/json"
NEXT = "/v1/stream/b"
LEADS_ON = reset(location=NEXT).to_json()


async def hold(client: Client, seconds: float = 10) -> Answer:
    body = json.dumps({"location": NEXT, "hold": seconds}).encode()
    return await client.send("PUT", "/v1/stream/a/__ds/successor", body)


def begin(client: Client, body: bytes, **headers: str) -> asyncio.Task[Answer]:
    return asyncio.ensure_future(client.post("a", body, content_type=JSON, **headers))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@with_app()
async def test_appends_to_a_held_stream_keep_their_order(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await hold(client, 0.2)
    producer = {"producer_id": "p", "producer_epoch": "0"}
    waiting = [begin(client, b"%d" % seq, producer_seq=str(seq), **producer) for seq in range(5)]
    answers = await asyncio.gather(*waiting)
    assert [answer.status for answer in answers] == [200] * 5
    assert (await client.get("a")).json() == [0, 1, 2, 3, 4]
    assert (await client.post("a", b"5", content_type=JSON)).status == 204


@with_app()
async def test_the_reset_that_leads_readers_on_does_not_wait(client: Client) -> None:
    tail = (await client.put("a", content_type=JSON)).offset
    await hold(client)
    waiting = [begin(client, b"1"), begin(client, b"2")]
    await settle()
    passed = await client.post(
        "a", LEADS_ON, content_type=JSON, if_match=f'"{tail}"', stream_closed="true"
    )
    assert passed.status == 204
    for answer in await asyncio.gather(*waiting):
        assert (answer.status, answer.headers["stream-successor"]) == (409, NEXT)
    assert (await client.get("a")).json() == [json.loads(LEADS_ON)]


@with_app()
async def test_a_longer_hold_takes_the_place_of_a_shorter_one(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await hold(client, 10)
    waiting = [begin(client, b"1"), begin(client, b"2")]
    await settle()
    await hold(client, 0.1)
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [204, 204]
    assert (await client.get("a")).json() == [1, 2]


@with_app()
async def test_a_hold_ends_with_its_successor(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await hold(client)
    waiting = [begin(client, b"1"), begin(client, b"2")]
    await settle()
    assert (await client.send("DELETE", "/v1/stream/a/__ds/successor")).status == 204
    waiting.append(begin(client, b"3"))
    assert [answer.status for answer in await asyncio.gather(*waiting)] == [204] * 3
    assert (await client.get("a")).json() == [1, 2, 3]


@with_app()
async def test_a_client_that_leaves_takes_no_append_with_it(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await hold(client)
    left, stays = begin(client, b"1"), begin(client, b"2")
    await settle()
    left.cancel()
    await client.send("DELETE", "/v1/stream/a/__ds/successor")
    assert (await stays).status == 204
    assert (await client.get("a")).json() == [1, 2]


@with_app()
async def test_a_server_that_stops_refuses_what_waits(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await hold(client)
    waiting = [begin(client, b"1"), begin(client, b"2")]
    await settle()
    client.app.drain()
    for answer in await asyncio.gather(*waiting):
        assert (answer.status, answer.json()["code"]) == (503, "shutting-down")
        assert answer.headers["retry-after"] == "1"
    assert (await client.get("a")).json() == []


@with_app()
async def test_a_held_stream_can_be_deleted(client: Client) -> None:
    await client.put("a", content_type=JSON)
    await hold(client)
    waiting = begin(client, b"1")
    await settle()
    assert (await client.delete("a")).status == 204
    assert (await waiting).status == 404
