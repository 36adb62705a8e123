"""Entities that expire: the server appends the delete, once, and never of a newer value."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import shutil
from logging.handlers import BufferingHandler
from pathlib import Path
from typing import Any

import httpx2
import pytest

import penstock
from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.errors import DiskFull
from penstock.http.app import App
from penstock.log import open_engine
from penstock.protocol.headers import format_expires_at
from penstock.protocol.timestamps import unix_us
from penstock.state import insert, parse, upsert
from penstock.state.server import expirer
from penstock.state.server.index import StateIndex
from tests.helpers.app import Answer, Client, with_app
from tests.helpers.server import running_server
from tests.http.test_metrics import scrape
from tests.state.live_driver import QUICK
from tests.stp.tables import rows, table

JSON = "application/json"


def event(key: str, value: Any = 1, operation: str = "upsert", **headers: Any) -> dict[str, Any]:
    return {
        "type": "presence", "key": key, "value": value,
        "headers": {"operation": operation, **headers},
    }  # fmt: skip


async def declared(client: Client, path: str = "s", document: Any = None) -> None:
    await client.put(path, content_type=JSON)
    await declare(client, path, document)


async def declare(client: Client, path: str = "s", document: Any = None) -> None:
    body = json.dumps(document or {"types": {}}).encode()
    assert (await client.send("PUT", f"/v1/schema/{path}", body)).status in (200, 201)


async def post(client: Client, *events: Any, path: str = "s") -> Answer:
    return await client.post(path, json.dumps(list(events)).encode(), content_type=JSON)


async def messages(client: Client, path: str = "s") -> list[Any]:
    read: list[Any] = (await client.get(path, "offset=-1")).json()
    return read


async def entities(client: Client, path: str = "s") -> dict[str, Any]:
    answer = await client.send("GET", f"/v1/state/{path}")
    values: dict[str, Any] = answer.json()["types"].get("presence", {})
    return values


async def pass_time(client: Client, seconds: float, path: str = "s") -> None:
    """Let the time pass, and all that has expired be deleted."""
    await entities(client, path)  # the index has everything that is appended
    client.clock.advance(seconds)
    await client.app.state.expirer.expire_due()


def replayed(log: list[Any]) -> dict[str, Any]:
    """The state of a log in which each delete is of a value that is there and has expired."""
    values: dict[str, Any] = {}
    deadlines: dict[str, int] = {}
    for each in log:
        key, headers = each["key"], each["headers"]
        if headers["operation"] == "delete":
            assert headers["reason"] == "expired"
            assert deadlines.pop(key) <= (unix_us(headers["timestamp"]) or 0)
            del values[key]
        else:
            values[key], deadlines[key] = each["value"], unix_us(headers["expires_at"]) or 0
    return values


@with_app()
async def test_an_entity_is_deleted_when_its_time_is_over(client: Client) -> None:
    await declared(client)
    assert (await post(client, event("ann", ttl=30), event("bob", ttl=60))).status == 204
    await post(client, event("cy"))
    until = format_expires_at(client.clock.now_us() + 30_000_000)
    stored = await messages(client)
    assert stored[0]["headers"] == {"operation": "upsert", "expires_at": until}
    await pass_time(client, 29)
    assert sorted(await entities(client)) == ["ann", "bob", "cy"]
    await pass_time(client, 1)
    assert sorted(await entities(client)) == ["bob", "cy"]
    assert (await messages(client))[-1] == {
        "type": "presence",
        "key": "ann",
        "headers": {"operation": "delete", "timestamp": until, "reason": "expired"},
    }
    query = "type=presence&key=ann&history=true"
    history = (await client.send("GET", f"/v1/state/s?{query}")).json()["history"]
    assert (history[1]["operation"], history[1]["reason"]) == ("delete", "expired")
    await pass_time(client, 3600)
    assert sorted(await entities(client)) == ["cy"]
    assert len(await messages(client)) == 5
    assert (await scrape(client))["penstock_state_expired_total"] == 2


@with_app()
async def test_a_later_event_decides_about_the_expiry(client: Client) -> None:
    await declared(client)
    await post(client, *(event(key, ttl=10) for key in ("renewed", "kept", "deleted", "reset")))
    await post(client, event("renewed", 2, ttl=100), event("kept", 2))
    await post(client, event("deleted", operation="delete"))
    await pass_time(client, 20)
    assert await entities(client) == {"renewed": 2, "kept": 2}
    assert len([each for each in await messages(client) if "reason" in each["headers"]]) == 1
    await post(client, {"headers": {"control": "reset"}})
    await pass_time(client, 1000)
    assert await entities(client) == {}
    assert len([each for each in await messages(client) if "reason" in each["headers"]]) == 1


@with_app()
async def test_what_is_appended_while_the_delete_is_decided_is_never_deleted(
    client: Client,
) -> None:
    """The index is behind: appends come in between its answer and the decision."""
    await _race(client)


@with_app()
async def test_much_that_is_appended_meanwhile_is_read_off_the_loop(client: Client) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(expirer, "SLICE_BYTES", 0)
        await _race(client)


async def _race(client: Client) -> None:
    await declared(client)
    chance = random.Random(1)
    for number in range(60):
        keys = [str(chance.randrange(8)) for _ in range(4)]
        await post(client, *(event(key, number, ttl=5) for key in keys))
        if number % 2:
            await entities(client)  # the index has seen the deadlines
        client.clock.advance(2)
        expiring = asyncio.ensure_future(client.app.state.expirer.expire_due())
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)
            key = str(chance.randrange(8))
            await post(client, event(key, number * 1000, ttl=5))
        await expiring
    log = await messages(client)
    assert replayed(log) == await entities(client)
    assert sum(1 for each in log if "reason" in each["headers"]) > 20
    await pass_time(client, 100)
    assert await entities(client) == {}


@with_app()
async def test_an_expiry_that_cannot_be_understood_is_refused(client: Client) -> None:
    await declared(client)
    for headers, field, rule in (
        ({"ttl": 0}, "headers.ttl", "ttl"),
        ({"ttl": -1}, "headers.ttl", "ttl"),
        ({"ttl": True}, "headers.ttl", "ttl"),
        ({"ttl": "30"}, "headers.ttl", "ttl"),
        ({"ttl": 1e12}, "headers.ttl", "ttl"),
        ({"expires_at": "tomorrow"}, "headers.expires_at", "rfc3339"),
        ({"expires_at": 5}, "headers.expires_at", "rfc3339"),
        ({"ttl": 5, "expires_at": "2030-01-01T00:00:00Z"}, "headers.ttl", "exclusive"),
    ):
        problem = await post(client, event("fine"), event("ann", **headers))
        assert (problem.status, problem.json()["code"]) == (422, "invalid-event"), headers
        assert (problem.json()["field"], problem.json()["rule"]) == (field, rule)
        assert problem.json()["index"] == 1
    await declare(client, document={"types": {}, "mode": "warn"})
    assert (await post(client, event("ann", ttl="30"), event("bob", ttl=1.5))).status == 204
    await pass_time(client, 1.5)
    assert await entities(client) == {"ann": 1}


@with_app()
async def test_a_time_in_the_past_is_deleted_at_once_and_fields_stay_as_sent(
    client: Client,
) -> None:
    await declared(client)
    body = b'{"type":"presence","note":[1.50],"key":"ann","value":1.10,"headers":{"ttl":1e1,"by":"x","operation":"insert"}}'  # noqa: E501 - one message
    await client.post("s", body, content_type=JSON)
    stored = (await client.get("s", "offset=-1")).body
    assert b'"value":1.10' in stored
    assert b'"note":[1.50]' in stored
    assert b'"by":"x"' in stored
    await post(client, event("bob", expires_at="2001-01-01T00:00:00Z"))
    await pass_time(client, 0)
    assert await entities(client) == {"ann": 1.1}


@with_app()
async def test_a_stream_that_is_not_declared_keeps_the_headers_as_they_are(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await post(client, event("ann", ttl=1))
    assert (await messages(client))[0]["headers"]["ttl"] == 1
    await pass_time(client, 10)
    assert await entities(client) == {"ann": 1}


@with_app()
async def test_a_closed_stream_stays_as_it_is(client: Client) -> None:
    await declared(client)
    await post(client, event("ann", ttl=5))
    await client.post("s", stream_closed="true")
    await pass_time(client, 10)
    assert await entities(client) == {"ann": 1}
    assert client.app.state.expirer._first == {}  # it is not tried again and again


@with_app()
async def test_a_stream_that_was_recreated_has_no_deletes_of_the_one_before(
    client: Client,
) -> None:
    await declared(client)
    await post(client, event("ann", ttl=5))
    await client.send("DELETE", "/v1/stream/s")
    await declared(client)
    await post(client, event("bob", ttl=20))
    await pass_time(client, 10)
    assert await entities(client) == {"bob": 1}
    assert len(await messages(client)) == 1


@with_app()
async def test_what_was_trimmed_is_not_deleted_again(client: Client) -> None:
    await declared(client)
    await post(client, event("ann", ttl=5))
    middle = (await post(client, event("bob", ttl=5))).offset
    await post(client, event("cy", ttl=500))
    body = json.dumps({"before": middle}).encode()
    trimmed = await client.send("POST", "/v1/stream/s/__ds/trim", body)
    assert trimmed.status in (200, 204), trimmed.body
    await pass_time(client, 10)
    assert await entities(client) == {"cy": 1}
    assert [each["key"] for each in await messages(client)] == ["cy"]


@with_app()
async def test_what_the_index_still_has_of_a_trim_is_not_deleted(client: Client) -> None:
    await declared(client)
    middle = (await post(client, event("ann", ttl=5))).offset
    await post(client, event("bob", ttl=5), event("cy", ttl=500))
    await entities(client)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StateIndex, "prune", lambda *_: None)
        body = json.dumps({"before": middle}).encode()
        assert (await client.send("POST", "/v1/stream/s/__ds/trim", body)).status in (200, 204)
        client.clock.advance(10)
        await client.app.state.expirer.expire_due()
        assert [each["key"] for each in await messages(client)] == ["bob", "cy", "bob"]


@with_app()
async def test_a_stream_that_is_deleted_while_it_is_indexed_does_not_stop_the_index(
    client: Client,
) -> None:
    handler = BufferingHandler(1000)
    logging.getLogger("penstock.state").addHandler(handler)
    try:
        await declared(client)
        await post(client, event("ann"))
        await client.send("DELETE", "/v1/stream/s")
        await declared(client)
        await entities(client)
    finally:
        logging.getLogger("penstock.state").removeHandler(handler)
    assert [record.getMessage() for record in handler.buffer] == []


@with_app()
async def test_compaction_keeps_the_expiry(client: Client) -> None:
    await declared(client)
    await post(client, event("ann", ttl=50), event("bob", ttl=5), event("cy"))
    await pass_time(client, 10)
    assert (await client.send("POST", "/v1/stream/s/__ds/compact")).status in (200, 204)
    assert sorted(await entities(client)) == ["ann", "cy"]
    await pass_time(client, 40)
    assert sorted(await entities(client)) == ["cy"]


@with_app()
async def test_a_fork_deletes_what_expires_in_it(client: Client) -> None:
    await declared(client)
    await post(client, event("ann", ttl=5))
    answer = await client.put("f", content_type=JSON, stream_forked_from="/v1/stream/s")
    assert answer.status == 201
    await declare(client, "f")
    await entities(client, "f")
    await pass_time(client, 10)
    assert await entities(client, "f") == await entities(client) == {}
    assert len(await messages(client, "f")) == 2


@with_app()
async def test_the_rows_of_a_table_expire(client: Client) -> None:
    await table(client, "s", type="presence")
    assert (await post(client, event("ann", "on", ttl=5), event("bob", "on"))).status == 204
    await pass_time(client, 10)
    assert [(row.seqno, row.action, row.key) for row in await rows(client, "s", "since_id=0")] == [
        (1, "+", "ann"),
        (2, "+", "bob"),
        (3, "-", "ann"),
    ]
    assert await entities(client) == {"bob": "on"}


@with_app()
async def test_a_declaration_that_forbids_the_key_does_not_keep_it_alive(client: Client) -> None:
    await declared(client)
    await post(client, event("ann", ttl=5))
    types = {"other": {"schema": True}}
    await declare(client, document={"types": types, "unknown_types": "refuse"})
    await pass_time(client, 10)
    assert await entities(client) == {}


@with_app()
async def test_more_than_fit_into_one_append_are_deleted_in_several(client: Client) -> None:
    await declared(client)
    await post(client, *(event(str(number), ttl=1) for number in range(2500)))
    await pass_time(client, 2)
    assert await entities(client) == {}
    log = await messages(client)
    assert len(log) == 5000
    assert len({each["key"] for each in log[2500:]}) == 2500


@with_app()
async def test_a_full_disk_is_waited_for(client: Client) -> None:
    await declared(client)
    await post(client, event("ann", ttl=5))
    store: Any = client.engine.store
    admit, refusals = store.admit, []

    def full(size: int) -> None:
        refusals.append(size)
        raise DiskFull("The disk is full.")

    store.admit = full
    await pass_time(client, 10)
    assert refusals
    assert await entities(client) == {"ann": 1}
    store.admit = admit
    await pass_time(client, 2)
    assert await entities(client) == {}
    assert len(await messages(client)) == 2


def test_deadlines_survive_a_restart(tmp_path: Path) -> None:
    clock = ManualClock(1_800_000_000_000_000)
    settings = Settings(data_dir=tmp_path, durability="buffered", disk_reserve_bytes=0)

    async def run(test: Any) -> None:
        engine = open_engine(settings, clock=clock)
        await engine.start()
        app = App(engine, settings, clock=clock)
        try:
            await test(Client(app, engine, clock))
        finally:
            app.close()
            await engine.stop()

    async def before(client: Client) -> None:
        await declared(client)
        await post(client, event("ann", ttl=5), event("bob", ttl=50))
        await entities(client)

    async def after(client: Client) -> None:
        clock.advance(10)
        await client.app.state.expirer.expire_due()  # nobody has read or written the stream
        assert await entities(client) == {"bob": 1}
        assert len(await messages(client)) == 3

    asyncio.run(run(before))
    asyncio.run(run(after))


def test_a_heap_of_outdated_deadlines_is_bounded() -> None:
    from penstock.state.server.deadlines import Deadline
    from penstock.state.server.expirer import OUTDATED_MAX, Expirer

    async def run() -> None:
        own = Expirer(None, None, clock=ManualClock(0), spares=bool)  # type: ignore[arg-type]  # nothing is due
        for number in range(10 * OUTDATED_MAX):
            own.notice(Deadline(1, "s", 10**15 - number))
        assert len(own._heap) <= OUTDATED_MAX + 2
        assert own._first[1].time_us == 10**15 - 10 * OUTDATED_MAX + 1
        own.close()

    asyncio.run(run())


def test_readers_see_an_ordinary_delete_after_kill_and_restart(tmp_path: Path) -> None:
    """With real time: the server is killed before and after the delete, and appends it once."""
    data = tmp_path / "data"
    with running_server(data_dir=data) as server:
        httpx2.put(f"{server.url}/v1/stream/room", headers={"content-type": JSON})
        httpx2.put(f"{server.url}/v1/schema/room", content=b'{"types": {}}')
        with penstock.Client(server.url, retry=QUICK) as client:
            room = client.stream("room")
            room.append(insert("presence", "ann", 1, headers={"ttl": 0.5}))
            room.append(upsert("presence", "bob", 1, headers={"ttl": 3600}))
        server.kill()
    shutil.rmtree(data / "state", ignore_errors=True)  # as if the index had been behind
    for _ in range(2):
        with (
            running_server(data_dir=data) as again,
            penstock.Client(again.url, retry=QUICK) as client,
            client.stream("room").follow() as batches,
        ):
            seen: list[Any] = []
            for batch in batches:
                seen += batch.messages
                if len(seen) == 3:
                    break
            assert [each["key"] for each in seen] == ["ann", "bob", "ann"]
            assert parse(seen[2]).extra_headers == {"reason": "expired"}
            httpx2.get(f"{again.url}/v1/state/room")
            assert len(client.stream("room").read().messages) == 3
            again.kill()


def test_killed_3_times_each_value_is_deleted_once(tmp_path: Path) -> None:
    _kill(tmp_path, kills=3, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_killed_40_times_each_value_is_deleted_once(tmp_path: Path, seed: int) -> None:
    _kill(tmp_path, kills=40, seed=seed)


def _kill(folder: Path, *, kills: int, seed: int) -> None:
    """Kill the server after a random number of appends of values that live for moments."""
    chance = random.Random(seed)
    for number in range(kills):
        with running_server(data_dir=folder) as server:
            if number == 0:
                httpx2.put(f"{server.url}/v1/stream/room", headers={"content-type": JSON})
                httpx2.put(f"{server.url}/v1/schema/room", content=b'{"types": {}}')
            with penstock.Client(server.url, retry=QUICK) as client:
                room = client.stream("room")
                for _ in range(chance.randrange(20, 120)):
                    ttl = chance.choice([0.01, 0.05, 0.2])
                    room.append(event(str(chance.randrange(20)), chance.random(), ttl=ttl))
            server.kill()
    with running_server(data_dir=folder) as server, penstock.Client(server.url) as client:
        log: list[Any] = []
        with client.stream("room").follow() as batches:
            for batch in batches:
                log += batch.messages
                if batch.up_to_date and not replayed(log):
                    break
        state = httpx2.get(f"{server.url}/v1/state/room").json()["types"]
        assert state == {}
        assert replayed(client.stream("room").read().messages) == {}
