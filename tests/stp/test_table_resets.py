"""A reset on a stream that is shown as a table: followers keep no dead keys, whoever writes."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from penstock.errors import PenstockError
from tests.helpers.app import Client, with_app
from tests.http.test_metrics import scrape
from tests.stp.tables import append, change, control, declare, put, rows, schema, short, table

RESET = control("reset")


def fold(found: list[Any]) -> dict[str, str]:
    live: dict[str, str] = {}
    for row in found:
        live.pop(row.key, None)
        if row.action == "+":
            live[row.key] = row.record
    return live


async def state(client: Client, path: str = "t") -> Any:
    return (await client.send("GET", f"/v1/state/{path}?limit=10000")).json()["types"]


@with_app()
async def test_a_reset_becomes_deletes_of_all_that_is_live(client: Client) -> None:
    await table(client)
    await append(client, "t", change("s", "a", "1"), change("s", "b", "1"), change("x", "c", 1))
    await append(client, "t", change("s", "a", operation="delete"))
    answer = await append(
        client, "t", change("s", "d", "1"), RESET, change("s", "b", "2"), RESET, RESET,
        change("s", "e", "3"),
    )  # fmt: skip
    assert answer.status == 204
    assert await short(client) == [
        "1+a=1", "2+b=1", "4-a=", "5+d=1", "6-b=", "8-d=", "9+b=2", "10-b=", "11+e=3",
    ]  # fmt: skip
    assert await state(client) == {"s": {"e": "3"}}
    events = (await client.get("t")).json()
    assert all("control" not in event["headers"] for event in events)
    assert (await scrape(client))["penstock_table_resets_total"] == 3


@with_app()
async def test_a_reset_of_nothing_adds_no_row(client: Client) -> None:
    await table(client)
    answer = await append(client, "t", RESET)
    assert answer.status == 204
    assert await rows(client) == []
    assert "reset" not in (await client.get("t")).body.decode()


@with_app()
async def test_a_reset_that_skips_ahead_is_refused(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    ahead = f"{(await client.head('t')).offset[:16]}_0000000000009999"
    answer = await append(client, "t", control("reset", offset=ahead))
    assert (answer.status, answer.json()["code"]) == (422, "invalid-event")


@with_app()
async def test_a_reset_to_an_offset_behind_it_deletes_what_is_older(client: Client) -> None:
    await table(client)
    await append(client, "t", change("s", "a", "1"), change("s", "b", "1"))
    behind = (await append(client, "t", change("s", "c", "1"))).offset
    await append(client, "t", change("s", "b", "2"), change("s", "d", "1"))
    reset = control("reset", offset=behind)
    assert (await append(client, "t", change("s", "e", "1"), reset)).status == 204
    assert (await short(client))[6:] == ["7-a=", "8-c="]
    assert await state(client) == {"s": {"b": "2", "d": "1", "e": "1"}}
    # The start of the stream discards nothing.
    await append(client, "t", control("reset", offset=f"{behind[:16]}_{0:016d}"))
    assert len(await rows(client)) == 8
    await append(client, "t", control("reset", offset=f"{0:016d}_{9:016d}"))
    assert await state(client) == {}


@with_app()
async def test_a_reset_is_idempotent_with_producer_headers(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    answers = [await append(client, "t", RESET, **producer) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 204]
    assert await short(client) == ["1+a=1", "2-a="]


@with_app()
async def test_a_reset_meets_the_state_of_its_own_moment_among_many_writers(
    client: Client,
) -> None:
    """At every reset exactly the live keys are deleted: no row deletes what is not there, and the
    rows fold to the state."""
    await table(client)
    chance = random.Random(5)

    async def writer(name: int) -> None:
        for number in range(40):
            key = f"k{chance.randrange(12)}"
            kind = chance.random()
            if kind < 0.12:
                answer = await append(client, "t", change("s", f"r{name}", "x"), RESET)
            elif kind < 0.3:
                answer = await append(client, "t", change("s", key, operation="delete"))
            else:
                answer = await append(client, "t", change("s", key, f"{name}-{number}"))
            assert answer.status == 204, answer.body

    await asyncio.gather(*(writer(name) for name in range(8)))
    found = await rows(client)
    events = (await client.get("t")).json()
    assert [row.key for row in found] == [event["key"] for event in events]
    assert fold(found) == (await state(client)).get("s", {})
    assert (await scrape(client))["penstock_table_resets_total"] > 5
    # The delete of a reset names what the row before it left behind, never more and never less.
    last = await append(client, "t", RESET)
    assert last.status == 204
    rest = await rows(client, query=f"since_id={found[-1].seqno}")
    assert sorted(row.key for row in rest) == sorted(fold(found))
    assert all(row.action == "-" for row in rest)


@with_app()
async def test_resets_and_writes_that_are_in_flight_together_keep_their_order(
    client: Client,
) -> None:
    await table(client)
    for turn in range(10):
        await asyncio.gather(
            append(client, "t", change("s", f"a{turn}", "1")),
            append(client, "t", RESET),
            append(client, "t", change("s", f"b{turn}", "1")),
            append(client, "t", RESET),
            append(client, "t", change("s", f"c{turn}", "1")),
        )
        found = await rows(client)
        assert fold(found) == (await state(client)).get("s", {})
        live: dict[str, None] = {}
        for row in found:
            if row.action == "-":
                assert row.key in live  # nothing is deleted twice
                del live[row.key]
            else:
                live[row.key] = None


@with_app()
async def test_a_refused_append_does_not_spoil_a_reset_that_waits(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    answers = await asyncio.gather(
        append(client, "t", RESET),
        append(client, "t", change("s", "bad\tkey", "1")),
        append(client, "t", change("s", "b", 5)),
        append(client, "t", change("s", "c", "2")),
    )
    assert [answer.status for answer in answers] == [204, 422, 422, 204]
    assert fold(await rows(client)) == (await state(client)).get("s", {})


@with_app(body_bytes_max=20_000, receive_bytes_max=20_000, append_queue_bytes_max=20_000)
async def test_a_reset_of_more_than_an_append_holds_is_refused_whole(client: Client) -> None:
    await table(client)
    for start in range(0, 400, 50):
        await append(client, "t", *(change("s", f"k{start + n}", "v") for n in range(50)))
    answer = await append(client, "t", RESET)
    assert (answer.status, answer.json()["code"]) == (413, "body-too-large")
    assert len(await rows(client)) == 400
    assert len((await state(client))["s"]) == 400


@with_app()
async def test_a_reset_waits_for_no_table_and_stays_a_reset(client: Client) -> None:
    await client.put("plain", content_type="application/json")
    await schema(client, "plain", {})
    await append(client, "plain", change("s", "a", "1"), RESET)
    assert (await client.get("plain")).json()[1] == RESET
    assert (await declare(client, "plain", record="json")).status == 201
    assert await short(client, "plain") == ['1+a="1"', "3-a="]


@with_app()
async def test_a_reset_on_a_stream_that_is_deleted_meanwhile_is_refused(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    reset = asyncio.ensure_future(append(client, "t", RESET))
    deleted = asyncio.ensure_future(client.delete("t"))
    done = await asyncio.gather(reset, deleted, return_exceptions=True)
    assert not any(isinstance(each, PenstockError) for each in done)
    assert deleted.result().status == 204
    assert reset.result().status in (204, 404)


@with_app()
async def test_what_a_later_check_refuses_is_not_deleted_by_a_reset(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    # Declared anew, the state's own check comes after the table's, which has seen the event then.
    await schema(client, "t", {"s": {"type": "string", "maxLength": 3}})
    answers = await asyncio.gather(
        append(client, "t", RESET),
        append(client, "t", change("s", "ghost", "too long")),
        append(client, "t", change("s", "b", "2")),
    )
    assert [answer.status for answer in answers] == [204, 422, 204]
    assert "ghost" not in {row.key for row in await rows(client)}
    assert fold(await rows(client)) == (await state(client)).get("s", {})
