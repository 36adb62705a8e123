"""The operations of the events that tables write: `insert`, `update` and `delete`, as the State
Protocol demands, whoever else writes to the stream."""

from __future__ import annotations

import asyncio
import errno
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.stp.server import live_keys
from penstock.stp.server.live_keys import _Keys
from tests.crash.faults import Fault, FaultFiles, FaultStore
from tests.helpers.app import Client, with_app
from tests.http.test_metrics import scrape
from tests.stp.processes import Peer
from tests.stp.tables import (
    append,
    change,
    control,
    declare,
    put,
    remove,
    rows,
    schema,
    short,
    table,
    write,
)


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the index however busy the machine is: the results are exact then."""
    monkeypatch.setattr(live_keys, "WAIT_S", 30.0)


async def operations(client: Client, path: str = "t", after: int = 0) -> list[str]:
    """The operations of a stream's change events as `insert a`."""
    events = (await client.get(path)).json()[after:]
    return [f"{event['headers']['operation']} {event['key']}" for event in events if "key" in event]


def expected(events: list[Any]) -> list[str]:
    """What the operation of each change of a stream has to be, by what was live before it."""
    live: set[tuple[str, str]] = set()
    result = []
    for event in events:
        entity = (event["type"], event["key"])
        if event["headers"]["operation"] == "delete":
            live.discard(entity)
            result.append("delete")
        else:
            result.append("update" if entity in live else "insert")
            live.add(entity)
    return result


def of(events: list[Any]) -> list[str]:
    return [event["headers"]["operation"] for event in events]


@with_app()
async def test_rows_are_inserts_updates_and_deletes(client: Client) -> None:
    await table(client)
    await put(client, "a", "1")
    await put(client, "a", "2")
    await remove(client, "a")
    await remove(client, "a")
    await put(client, "a", "3")
    await put(client, "b", '"operation":"insert"')
    await put(client, "b", '"operation":"insert"')
    assert await operations(client) == [
        "insert a", "update a", "delete a", "delete a", "insert a", "insert b", "update b",
    ]  # fmt: skip
    assert (await rows(client))[-1].record == '"operation":"insert"'


@with_app()
async def test_a_batch_may_have_a_key_several_times(client: Client) -> None:
    await table(client)
    answer = await write(client, "+\ta\t1\n+\ta\t2\n-\ta\n+\ta\t3\n+\tb\t1\n-\tc\n+\tc\t1\n")
    assert (answer.headers["stp-first-seqno"], answer.headers["stp-last-seqno"]) == ("1", "7")
    assert await operations(client) == [
        "insert a", "update a", "delete a", "insert a", "insert b", "delete c", "insert c",
    ]  # fmt: skip
    await write(client, "+\ta\t4\n+\td\t1\n")
    assert await operations(client, after=7) == ["update a", "insert d"]


@with_app()
async def test_events_of_others_count_and_keep_their_operation(client: Client) -> None:
    """Reading `upsert` stays: it is an event like others."""
    await table(client)
    await append(client, "t", change("s", "a", "1"), change("s", "b", "1", "update"))
    await put(client, "a", "2")
    await append(client, "t", change("s", "a", operation="delete"), change("other", "b", 1))
    await put(client, "a", "3")
    await put(client, "b", "2")
    await append(client, "t", control("reset"), change("s", "b", "4"))
    await put(client, "a", "4")
    await put(client, "b", "5")
    assert [each for each in await operations(client) if not each.startswith("delete")] == [
        "upsert a", "update b", "update a", "upsert b", "insert a", "update b", "upsert b",
        "insert a", "update b",
    ]  # fmt: skip
    assert (await short(client))[-1].endswith("+b=5")


@with_app()
async def test_a_table_over_a_stream_with_history_knows_its_keys(client: Client) -> None:
    await client.put("t", content_type="application/json")
    await schema(client, "t", {"s": {"type": "string"}})
    await append(client, "t", change("s", "a", "1"), change("s", "b", "1"))
    await append(client, "t", change("s", "b", operation="delete"))
    assert (await declare(client, "t")).status == 201
    answers = await asyncio.gather(*(put(client, key, "2") for key in "abc"))
    assert [answer.headers["stp-last-seqno"] for answer in answers] == ["4", "5", "6"]
    assert await operations(client, after=3) == ["update a", "insert b", "insert c"]


@with_app()
async def test_two_tables_of_a_stream_have_keys_of_their_own(client: Client) -> None:
    await table(client, "shop/user", schema="user", stream="shop")
    await put(client, "1", "x", "shop/user")
    await table(client, "shop/order", schema="order", stream="shop")
    await put(client, "1", "x", "shop/order")
    await put(client, "1", "y", "shop/user")
    await put(client, "1", "y", "shop/order")
    assert [each.split()[0] for each in await operations(client, "shop")] == [
        "insert", "insert", "update", "update",
    ]  # fmt: skip


@with_app()
async def test_a_trim_and_a_compaction_decide_what_is_live(client: Client) -> None:
    await table(client)
    for key in "abc":
        await put(client, key, "1")
    await put(client, "a", "2")
    second = (await client.get("t", "offset=-1&count=2")).headers["stream-next-offset"]
    trim = json.dumps({"before": second}).encode()
    answer = await client.send("POST", "/v1/stream/t/__ds/trim", trim)
    assert answer.status == 200, answer.body
    for key in "abc":
        await put(client, key, "3")
    assert (await operations(client))[-3:] == ["update a", "insert b", "update c"]
    await remove(client, "c")
    assert (await client.send("POST", "/v1/stream/t/__ds/compact")).status == 200
    for key in "abc":
        await put(client, key, "4")
    assert (await operations(client))[-3:] == ["update a", "update b", "insert c"]


@with_app()
async def test_a_repeat_of_a_producer_and_a_refused_row_count_for_nothing(client: Client) -> None:
    await table(client)
    producer = {"producer_id": "p", "producer_epoch": "0"}
    await put(client, "a", "1", producer_seq="0", **producer)
    await put(client, "a", "1", producer_seq="0", **producer)
    await schema(client, "t", {"s": {"type": "string", "maxLength": 3}})
    for _ in range(3):
        assert (await put(client, "b", "too long")).status == 422
    await put(client, "b", "1")
    conflict = await put(client, "c", "1", if_match="nonsense")
    assert conflict.status >= 400
    await put(client, "c", "1")
    assert await operations(client) == ["insert a", "insert b", "insert c"]


async def write_in_both_dialects(client: Client, keys_max: int) -> None:
    """Writers of rows, of events and of resets, with few keys."""
    await table(client)
    chance = random.Random(11)

    async def writer(name: int) -> None:
        for number in range(40):
            key = f"k{chance.randrange(12)}"
            kind = chance.random()
            if kind < 0.04:
                answer = await append(client, "t", control("reset"))
            elif kind < 0.2:
                answer = await append(client, "t", change("s", key, "x"))
            elif kind < 0.4:
                answer = await remove(client, key)
            elif kind < 0.5:
                other = f"k{chance.randrange(12)}"
                answer = await write(client, f"+\t{key}\t1\n-\t{other}\n+\t{other}\t2\n")
            else:
                answer = await put(client, key, f"{name}-{number}")
            assert answer.status == 204, answer.body

    await asyncio.gather(*(writer(name) for name in range(8)))
    events = [event for event in (await client.get("t")).json() if "key" in event]
    for right, event in zip(expected(events), events, strict=True):
        if event["headers"]["operation"] != "upsert":
            assert event["headers"]["operation"] == right, event
    counts = await scrape(client)
    assert counts["penstock_table_keys_unknown_total"] == 0
    assert counts["penstock_table_keys"] <= keys_max


@with_app(table_keys_max=1000)
async def test_many_writers_of_two_dialects_are_told_apart(client: Client) -> None:
    await write_in_both_dialects(client, 1000)


@with_app(table_keys_max=5)
async def test_more_keys_than_are_held_in_memory_are_looked_up(client: Client) -> None:
    await write_in_both_dialects(client, 5)


def test_a_kill_leaves_the_keys_that_are_durable(tmp_path: Path) -> None:
    with Peer(tmp_path) as peer:
        peer.table("t")
        for turn in range(3):
            for key in ("a", f"b{turn}", "a"):
                peer.put("t", key, str(turn))
            peer.send("DELETE", "/v1/table/t?key=b0", 204)
            peer.kill()
            peer.start()
            peer.send("GET", "/v1/state/t", 200)  # the index has caught up
        events = peer.send("GET", "/v1/stream/t", 200).json()
    assert len(events) == 12
    assert of(events) == expected(events)


def test_the_streams_whose_keys_are_held_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.stp.server.live_keys.STREAMS_MAX", 2)

    @with_app()
    async def check(client: Client) -> None:
        for path in "abcd":
            await table(client, path)
        for _ in range(2):
            for path in "abcd":
                await put(client, "k", "1", path)
                await remove(client, "gone", path)
        assert (await scrape(client))["penstock_table_keys"] == 2
        for path in "abcd":
            assert await operations(client, path) == [
                "insert k", "delete gone", "update k", "delete gone",
            ]  # fmt: skip

    check("memory", None)


def test_a_restart_knows_the_keys(tmp_path: Path) -> None:
    async def session(folder: Path, *keys: str) -> list[str]:
        from penstock.config.settings import Settings
        from penstock.http.app import open_app

        app = await open_app(Settings(data_dir=folder, table_keys_max=3))
        try:
            client = Client(app, app.engine, None)  # type: ignore[arg-type]  # no clock to set
            await declare(client, "t")
            # In flight together: one question to the index covers those that wait.
            await asyncio.gather(*(put(client, key, "1") for key in keys))
            return await operations(client)
        finally:
            await app.stop()

    assert asyncio.run(session(tmp_path, "a", "b")) == ["insert a", "insert b"]
    after = asyncio.run(session(tmp_path, "b", "c", "d", "e"))[2:]
    assert after == ["update b", "insert c", "insert d", "insert e"]
    after = asyncio.run(session(tmp_path, "e", "f", "a", "f"))[6:]
    assert after == ["update e", "insert f", "update a", "update f"]


def test_an_index_that_does_not_answer_delays_a_write_but_refuses_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(live_keys, "WAIT_S", 0.05)

    @with_app()
    async def check(client: Client) -> None:
        await table(client)
        await append(client, "t", change("s", "a", "1"))
        client.app.state.indexer.close()  # It answers nothing from here on.
        for key in "abb":
            assert (await put(client, key, "2")).status == 204
        assert await operations(client, after=1) == ["update a", "update b", "update b"]
        assert (await scrape(client))["penstock_table_keys_unknown_total"] == 2

    check("memory", None)


def test_a_batch_that_fails_on_the_disk_takes_its_keys_back(tmp_path: Path) -> None:
    from penstock.http.app import App
    from tests.crash.engines import small_settings, start

    async def test() -> None:
        fault, settings = Fault(), small_settings(tmp_path)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore)
        app = App(engine, settings)
        try:
            client = Client(app, engine, None)  # type: ignore[arg-type]  # no clock to set
            await table(client)
            await put(client, "a", "1")
            for together in (1, 3):
                fault.strike_next("write", errno.ENOSPC)
                answers = await asyncio.gather(*(put(client, "b", "1") for _ in range(together)))
                assert {answer.status for answer in answers} == {507}
            fault.strike_next("write", errno.ENOSPC)
            assert (await remove(client, "a")).status == 507
            await put(client, "b", "2")
            await put(client, "a", "2")
            assert await operations(client) == ["insert a", "insert b", "update a"]
        finally:
            app.close()
            await engine.stop()

    asyncio.run(test())


def test_what_the_index_says_after_an_append_is_not_undone_with_it() -> None:
    """The append has replaced a position that was not known yet: nothing is known again."""
    keys = _Keys(SimpleNamespace(id=1), 100, ["s"])  # type: ignore[arg-type]  # only its id counts
    keys.begin(100)
    keys.set("s", "a", 100)
    keys.end = 150
    keys.learn([("s", "a", 10), ("s", "b", 20)])
    assert keys.types["s"] == {"a": 100, "b": 20}
    assert not keys.settle(100)
