"""Compaction over HTTP: the state takes the place of the history, and nobody sees a wrong one."""

from __future__ import annotations

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.log.disk.store import DiskStore
from penstock.state import ControlEvent, MaterializedState
from penstock.state.server.compaction import _Progress
from tests.helpers.app import Answer, Client, run_with_app, with_app
from tests.http.test_metrics import scrape
from tests.state.test_server_schema import JSON, declare, post
from tests.state.test_server_state import ANY, RESET, change, types

START = {"headers": {"control": "snapshot-start"}}
END = {"headers": {"control": "snapshot-end"}}


async def compact(client: Client, path: str = "s", body: bytes = b"") -> Answer:
    return await client.send("POST", f"/v1/stream/{path}/__ds/compact", body)


async def compacted(client: Client, path: str = "s") -> Any:
    answer = await compact(client, path)
    assert answer.status == 200, answer.body
    assert answer.headers["stream-earliest-offset"] == answer.json()["earliest"]
    return answer.json()


async def state_stream(client: Client, path: str = "s") -> None:
    await client.put(path, content_type=JSON)
    await declare(client, path, ANY)


def folded(array: bytes) -> dict[str, dict[str, Any]]:
    state = MaterializedState()

    def control(event: ControlEvent) -> None:
        if event.control == "reset":
            state.clear()

    state.apply_json(array, on_control=control)
    return state.to_dict()


def code(answer: Answer) -> tuple[int, str]:
    return answer.status, answer.json()["code"]


@with_app()
async def test_a_compacted_stream_is_its_live_rows_between_two_marks(client: Client) -> None:
    await state_stream(client)
    await post(client, "s", change("user", "1", 1), change("user", "2", 2), change("flag", "a", 3))
    await post(client, "s", change("user", "1", operation="delete"))
    await post(client, "s", change("user", "2", 22, "update"), {**change("flag", "b", 4), "x": 1})
    tail = (await client.head("s")).offset
    done = await compacted(client)
    assert (done["earliest"], done["entities"]) == (tail, 3)
    rows = (await client.get("s")).json()
    assert rows == [
        START,
        change("flag", "a", 3, "insert"),
        change("user", "2", 22, "insert"),
        {**change("flag", "b", 4, "insert"), "x": 1},
        END,
    ]
    head = (await client.head("s")).headers
    assert head["stream-earliest-offset"] == tail
    position = int(head["stream-next-offset"].partition("_")[2])
    assert position - int(tail.partition("_")[2]) == done["bytes"]
    assert await types(client, "s") == {"flag": {"a": 3, "b": 4}, "user": {"2": 22}}
    await post(client, "s", change("user", "2", operation="delete"))
    assert await types(client, "s") == {"flag": {"a": 3, "b": 4}}
    assert (await client.get("s")).json() == [*rows, change("user", "2", operation="delete")]


@with_app()
async def test_what_an_event_says_beside_its_operation_stays(client: Client) -> None:
    await state_stream(client)
    headers = {"operation": "update", "txid": "t1", "timestamp": "2026-01-01T00:00:00Z", "z": [1]}
    event = {"type": "a", "key": "ü/,\n", "value": 1.50, "old_value": {"was": 1}}
    await post(client, "s", {**event, "headers": headers, "more": None})
    await compacted(client)
    (inserted,) = (await client.get("s")).json()[1:-1]
    del event["old_value"]
    assert inserted == {**event, "headers": {**headers, "operation": "insert"}, "more": None}


@with_app()
async def test_a_reader_at_the_tail_goes_on_and_one_behind_it_is_told(client: Client) -> None:
    await state_stream(client)
    behind = (await client.head("s")).offset
    await post(client, "s", change("a", "1", 1), change("a", "2", 2))
    tail = (await client.head("s")).offset
    live = await client.sse("s", tail)
    poll = asyncio.ensure_future(client.get("s", f"offset={tail}&live=long-poll"))
    await asyncio.sleep(0)
    await compacted(client)
    snapshot = [START, change("a", "1", 1, "insert"), change("a", "2", 2, "insert"), END]
    await live.until(lambda sink: bool(sink.data))
    assert [event for data in live.data for event in json.loads(data)] == snapshot
    assert not live.closed
    assert (await poll).json() == snapshot
    assert (await client.get("s", f"offset={tail}")).json() == snapshot
    gone = await client.get("s", f"offset={behind}")
    assert code(gone) == (410, "stream-trimmed")
    assert gone.headers["stream-earliest-offset"] == tail


@with_app()
async def test_a_snapshot_that_is_much_is_taken_piece_by_piece(client: Client) -> None:
    await state_stream(client)
    for number in range(15):
        await post(client, "s", change("a", str(number), "x" * 100_000))
    live = await client.sse("s", (await client.head("s")).offset)
    await compacted(client)
    await post(client, "s", change("a", "end", 1))
    await live.until(lambda sink: '"end"' in "".join(sink.data))
    assert not live.closed
    assert max(map(len, live.data)) < 300_000
    received = [event for data in live.data for event in json.loads(data)]
    assert [event.get("key") for event in received] == [None, *map(str, range(15)), None, "end"]


@with_app()
async def test_appends_that_are_on_their_way_are_not_undone(client: Client) -> None:
    """Writes come at every moment of a compaction: while the index is asked, while the log is
    read, and in flight when it is decided."""
    await write_while_it_is_compacted(client)


@with_app()
async def test_many_appends_on_their_way_are_taken_in_off_the_loop(client: Client) -> None:
    seen: list[int] = []
    after = _Progress.after

    def measured(state: _Progress, wire: bytes, lines: Any) -> _Progress:
        if threading.current_thread() is threading.main_thread():
            seen.append(len(wire))
        return after(state, wire, lines)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("penstock.state.server.compaction.SLICE_BYTES", 150)
        patch.setattr(_Progress, "after", measured)
        await write_while_it_is_compacted(client)
    assert all(size <= 150 for size in seen)


async def write_while_it_is_compacted(client: Client) -> None:
    await state_stream(client)
    expected: dict[str, Any] = {}
    for number in range(40):
        expected[str(number)] = number
        await post(client, "s", change("a", str(number), number))
    compaction = asyncio.ensure_future(compact(client))
    pending = []
    for number in range(60):
        key = str(number % 50)
        if number % 3:
            expected[key] = f"new {number}"
            pending.append(
                asyncio.ensure_future(post(client, "s", change("a", key, expected[key])))
            )
        else:
            expected.pop(key, None)
            gone = change("a", key, operation="delete")
            pending.append(asyncio.ensure_future(post(client, "s", gone)))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        if compaction.done():
            assert compaction.result().status == 200
            compaction = asyncio.ensure_future(compact(client))
    await asyncio.gather(*pending)
    assert (await compaction).status == 200
    assert folded((await client.get("s")).body) == {"a": expected}
    assert await types(client, "s") == {"a": expected}


@with_app()
async def test_resets_on_the_way_are_taken_in(client: Client) -> None:
    await state_stream(client)
    await post(client, "s", change("a", "1", 1))
    compaction = asyncio.ensure_future(compact(client))
    await asyncio.sleep(0)
    last = [
        asyncio.ensure_future(post(client, "s", RESET, change("a", "2", 2))),
        asyncio.ensure_future(post(client, "s", change("a", "3", 3))),
    ]
    assert (await compaction).status == 200
    await asyncio.gather(*last)
    assert folded((await client.get("s")).body) == {"a": {"2": 2, "3": 3}}
    await compacted(client)
    assert [event.get("key") for event in (await client.get("s")).json()] == [None, "2", "3", None]


@with_app()
async def test_a_trim_on_the_way_is_not_undone(client: Client) -> None:
    """At whatever moment it comes: what it takes from the state does not come back."""
    outcomes = set()
    for turns in range(0, 60, 2):
        path = f"s{turns}"
        await state_stream(client, path)
        middle = (await post(client, path, change("a", "old", 1))).offset
        await post(client, path, change("a", "new", 2))
        compaction = asyncio.ensure_future(compact(client, path))
        for _ in range(turns):
            await asyncio.sleep(0)
        trimmed = await client.engine.trim(path, middle)
        assert (await compaction).status == 200
        was_first = trimmed.offset == middle
        expected = {"new": 2} if was_first else {"old": 1, "new": 2}
        assert folded((await client.get(path)).body) == {"a": expected}
        assert await types(client, path) == {"a": expected}
        outcomes.add(was_first)
    assert True in outcomes


@with_app()
async def test_a_reset_that_skips_what_is_yet_to_come_has_to_be_over_first(client: Client) -> None:
    await state_stream(client)
    first = await post(client, "s", change("a", "1", 1))
    stream, position = first.offset.split("_")
    ahead = f"{stream}_{int(position) + 500:016d}"
    await post(client, "s", {"headers": {"control": "reset", "offset": ahead}})
    refused = await compact(client)
    assert code(refused) == (409, "not-compactable")
    await post(client, "s", change("a", "2", "x" * 500))
    await post(client, "s", change("a", "3", 3))
    await compacted(client)
    assert await types(client, "s") == {"a": {"3": 3}}


@with_app()
async def test_only_open_declared_streams_can_be_compacted(client: Client) -> None:
    await client.put("plain", b"[1]", content_type=JSON)
    refused = await compact(client, "plain")
    assert code(refused) == (409, "not-state-stream")
    assert "PUT /v1/schema/plain" in refused.json()["detail"]
    assert code(await compact(client, "none")) == (404, "stream-not-found")
    assert code(await compact(client, "plain", b'{"x": 1}')) == (400, "invalid-json")
    await state_stream(client)
    await post(client, "s", change("a", "1", 1))
    await client.post("s", stream_closed="true")
    before = (await client.get("s")).json()
    assert code(await compact(client)) == (409, "stream-closed")
    assert (await client.get("s")).json() == before


@with_app(snapshot_bytes_max=400)
async def test_a_state_that_is_too_large_is_refused_with_what_to_do(client: Client) -> None:
    await state_stream(client)
    await post(client, "s", change("a", "1", "x" * 400))
    refused = await compact(client)
    assert code(refused) == (409, "state-too-large")
    assert "snapshot_bytes_max" in refused.json()["detail"]
    await post(client, "s", change("a", "1", "x"))
    await compacted(client)


@with_app()
async def test_the_history_of_producers_outlives_it(client: Client) -> None:
    await state_stream(client)
    body = json.dumps([change("a", "1", 1)]).encode()
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    assert (await client.post("s", body, content_type=JSON, **producer)).status == 200
    await compacted(client)
    again = await client.post("s", body, content_type=JSON, **producer)
    assert again.status == 204
    assert len((await client.get("s")).json()) == 3


@with_app()
async def test_forks_keep_what_they_inherited_and_can_be_compacted(client: Client) -> None:
    await state_stream(client)
    await post(client, "s", change("a", "1", 1), change("a", "1", 2))
    assert (await client.put("f", stream_forked_from="/v1/stream/s")).status == 201
    history = (await client.get("s")).json()
    await compacted(client)
    if isinstance(client.engine.store, DiskStore):
        assert await client.engine.store.checkpoint()
    assert (await client.get("f")).json() == history
    await declare(client, "f", ANY)
    await post(client, "f", change("a", "2", 3))
    await compacted(client, "f")
    assert folded((await client.get("f")).body) == {"a": {"1": 2, "2": 3}}
    assert folded((await client.get("s")).body) == {"a": {"1": 2}}


@with_app()
async def test_an_empty_state_is_two_marks(client: Client) -> None:
    await state_stream(client)
    await post(client, "s", change("a", "1", 1), change("a", "1", operation="delete"))
    assert (await compacted(client))["entities"] == 0
    assert (await client.get("s")).json() == [START, END]


@with_app(compact_bytes_min=0)
async def test_a_policy_compacts_by_the_ratio_of_log_to_state(client: Client) -> None:
    await state_stream(client)
    answer = await client.send("PUT", "/v1/stream/s/__ds/retention", b'{"compact": 4}')
    assert (answer.status, answer.json()["compact"]) == (200, 4)
    for number in range(3):
        await post(client, "s", change("a", "1", number))
    assert await client.engine.retention.enforce() == 0
    await post(client, "s", change("a", "1", 3))
    assert await client.engine.retention.enforce() == 1
    assert (await client.get("s")).json() == [START, change("a", "1", 3, "insert"), END]
    assert await client.engine.retention.enforce() == 0
    numbers = await scrape(client)
    assert numbers["penstock_compactions_total"] == 1
    assert numbers["penstock_compacted_bytes_total"] > 200
    for wrong in (b'{"compact": 1}', b'{"compact": "4"}'):
        refused = await client.send("PUT", "/v1/stream/s/__ds/retention", wrong)
        assert code(refused) == (400, "invalid-json")


@with_app(retention="app/=2x", compact_bytes_min=1000)
async def test_a_rule_by_path_spares_small_logs_closed_and_other_streams(client: Client) -> None:
    for path in ("app/s", "app/small", "app/closed", "other"):
        await state_stream(client, path)
        for number in range(3 if path == "app/small" else 30):
            await post(client, path, change("a", "1", number))
    await client.post("app/closed", stream_closed="true")
    await client.put("app/plain", b"[" + b"1," * 1000 + b"1]", content_type=JSON)
    assert await client.engine.retention.enforce() == 1
    assert len((await client.get("app/s")).json()) == 3


def test_the_log_on_disk_follows_the_state_and_not_the_history(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path,
        durability="buffered",
        disk_reserve_bytes=0,
        inline_bytes_max=0,
        segment_bytes_max=64 * 1024 * 1024,
    )

    async def test(client: Client) -> None:
        await state_stream(client)
        for round in range(5):
            for _ in range(20):
                await post(client, "s", change("a", str(round), "x" * 5000))
            await client.engine.store.checkpoint()
        assert _segments(tmp_path) > 500_000
        await compacted(client)
        await post(client, "s", change("a", "9", 9))
        await client.engine.store.checkpoint()
        assert _segments(tmp_path) < 30_000
        assert len(await types(client, "s")) == 1

    run_with_app(test, settings)


def test_old_segments_go_with_the_last_fork_that_pinned_them(tmp_path: Path) -> None:
    settings = Settings(
        data_dir=tmp_path, durability="buffered", disk_reserve_bytes=0, inline_bytes_max=0
    )

    async def test(client: Client) -> None:
        await state_stream(client)
        for _ in range(20):
            await post(client, "s", change("a", "1", "x" * 5000))
        await client.put("f", stream_forked_from="/v1/stream/s")
        await client.engine.store.checkpoint()
        await compacted(client)
        await client.engine.store.checkpoint()
        assert _segments(tmp_path) > 100_000
        await client.delete("f")
        await client.engine.store.checkpoint()
        assert _segments(tmp_path) < 10_000

    run_with_app(test, settings)


def _segments(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "segments").rglob("*.segment"))


def test_it_is_there_after_a_restart(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, durability="buffered", disk_reserve_bytes=0)

    async def write(client: Client) -> None:
        await state_stream(client)
        await post(client, "s", change("a", "1", 1), change("a", "1", 2))
        await compacted(client)
        await post(client, "s", change("a", "2", 3))

    async def look(client: Client) -> None:
        rows = (await client.get("s")).json()
        assert [row.get("key") for row in rows] == [None, "1", None, "2"]
        assert await types(client, "s") == {"a": {"1": 2, "2": 3}}

    run_with_app(write, settings)
    run_with_app(look, settings)
