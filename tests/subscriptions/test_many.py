"""An append that is news for many: the commit does not wait for them, and none is forgotten."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.log.requests import Append
from penstock.subscriptions import matching, service
from penstock.subscriptions.store import SubscriptionStore
from tests.helpers.app import Client, with_app
from tests.subscriptions.desk import JSON, Desk

MANY = 40


@pytest.fixture(autouse=True)
def _one_a_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "NOTICED_PER_TURN", 1)
    monkeypatch.setattr(service, "PAGE", 7)


async def _desks(client: Client) -> list[Desk]:
    await client.put("events/a", b"[]", content_type=JSON)
    desks = [Desk(client, f"s{number}") for number in range(MANY)]
    for desk in desks:
        await desk.pull()
    return desks


async def _append(client: Client, path: str = "events/a") -> int:
    """Append within the engine, and say how many knew of it when it was answered."""
    await client.engine.append(path, Append(b"1", JSON, False, None, None, None))
    return sum(1 for each in client.app.subscriptions.all.values() if each.pending)


async def _until_woken(client: Client, count: int) -> list[Any]:
    while len(found := await Desk(client).wakes()) < count:
        await asyncio.sleep(0.001)
    return found


async def _turns() -> None:
    for _ in range(2 * MANY):
        await asyncio.sleep(0)


@with_app()
async def test_an_append_is_answered_before_all_are_told(client: Client) -> None:
    await _desks(client)
    assert await _append(client) < MANY / 2
    wakes = await _until_woken(client, MANY)
    assert sorted(each["subscription_id"] for each in wakes) == sorted(
        f"s{number}" for number in range(MANY)
    )
    assert {each["stream"] for each in wakes} == {"events/a"}


@with_app()
async def test_who_asks_knows_of_it_before_its_turn(client: Client) -> None:
    desks = await _desks(client)
    assert await _append(client) < MANY / 2
    last = desks[-1]
    assert not last.service.all["s39"].pending
    assert (await last.show())["pending"] == 1
    claimed = (await last.claim()).json()
    assert [each["has_pending"] for each in claimed["streams"]] == [True]


@with_app()
async def test_a_stream_that_is_named_before_its_turn_loses_no_message(client: Client) -> None:
    """The pattern covers the stream from its beginning; naming it moves no cursor."""
    desks = await _desks(client)
    await client.put("events/b", b"[]", content_type=JSON)
    assert await _append(client, "events/b") < MANY / 2
    await client.app.subscriptions.add_members("s39", ["events/b"])
    claimed = (await desks[39].claim()).json()
    (stream,) = [each for each in claimed["streams"] if each["path"] == "events/b"]
    assert (stream["link_type"], stream["has_pending"]) == ("explicit", True)


@with_app()
async def test_whoever_ends_a_wake_hears_that_another_follows(client: Client) -> None:
    desks = await _desks(client)
    last = desks[-1]
    await _append(client)
    claimed = (await last.claim()).json()
    await _append(client)
    assert (await last.finish(claimed)).json()["next_wake"] is True


@with_app()
async def test_those_that_come_and_go_meanwhile_leave_nobody_out(client: Client) -> None:
    desks = await _desks(client)
    await _append(client)
    await desks[3].send("DELETE", "")
    await Desk(client, "new").pull(streams=["events/a"])
    await desks[-2].send("DELETE", "/streams/events%2Fa")
    await _until_woken(client, MANY - 1)
    everybody = client.app.subscriptions.all
    assert [id for id, each in everybody.items() if not each.pending] == ["new"]
    await _append(client)
    wakes = await _until_woken(client, MANY)
    assert wakes[-1]["subscription_id"] == "new"


@with_app()
async def test_a_stream_that_is_made_anew_meanwhile_is_another(client: Client) -> None:
    await _desks(client)
    await _append(client)
    await client.delete("events/a")
    everybody = client.app.subscriptions.all.values()
    await _turns()
    assert not any(each.pending for each in everybody)
    await client.put("events/a", b"[]", content_type=JSON)
    await _turns()
    assert not any(each.pending for each in everybody)
    await _append(client)
    while not all(each.pending and each.wake.wake_id for each in everybody):
        await asyncio.sleep(0.001)
    claimed = (await Desk(client, "s7").claim()).json()
    assert claimed["streams"][0]["acked_offset"] == "-1"


@with_app()
async def test_a_stream_that_is_gone_is_unlinked_for_everybody(client: Client) -> None:
    await _desks(client)
    await _append(client)
    await _until_woken(client, MANY)
    await client.delete("events/a")
    await _turns()
    # What is written next is behind all of that.
    await Desk(client, "last").pull()
    store = SubscriptionStore(client.engine, Settings())
    await store.load()
    assert len(store.all) == MANY + 1
    assert not any(each.links for each in store.all.values())
