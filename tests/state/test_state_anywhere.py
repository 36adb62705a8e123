"""The state at any offset, asked in any order, over trims, resets, forks and compaction: always the
fold of what the log has up to there."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.config.settings import Settings
from penstock.state.server import indexer
from tests.helpers.app import Client, run_with_app, with_app
from tests.state.test_server_schema import JSON, declare, post
from tests.state.test_server_state import ANY, RESET, change, state, types

KEYS = ("a", "b", "c")
STEPS = st.one_of(
    st.tuples(st.just("set"), st.sampled_from(KEYS), st.integers(0, 9)),
    st.tuples(st.just("delete"), st.sampled_from(KEYS)),
    st.tuples(st.just("reset")),
    st.tuples(st.just("trim"), st.floats(0, 1)),
    st.tuples(st.just("compact")),
    st.tuples(st.just("other")),
)


def folded(events: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The fold, written down as simply as possible."""
    values: dict[str, Any] = {}
    for event in events:
        headers = event.get("headers", {})
        if headers.get("control") == "reset":
            values.clear()
        elif headers.get("operation") == "delete":
            values.pop(event["key"], None)
        elif "operation" in headers:
            values[event["key"]] = event["value"]
    return {"t": values} if values else {}


async def offsets(client: Client, path: str) -> list[tuple[str, list[dict[str, Any]]]]:
    """Every offset of a stream from its earliest message on, with the events before it."""
    events: list[dict[str, Any]] = []
    at = (await client.get(path, "offset=-1&count=1")).headers.get("stream-earliest-offset")
    if at is None:
        at = (await client.send("HEAD", f"/v1/stream/{path}")).headers.get(
            "stream-earliest-offset", "-1"
        )
    points = [(at, list(events))]
    while True:
        answer = await client.get(path, f"offset={points[-1][0]}&count=1")
        batch = answer.json()
        if not batch:
            return points
        events += batch
        points.append((answer.offset, list(events)))


async def play(client: Client, step: tuple[Any, ...]) -> None:
    match step:
        case ("set", key, value):
            await post(client, "s", change("t", key, value))
        case ("delete", key):
            await post(client, "s", change("t", key, operation="delete"))
        case ("reset",):
            await post(client, "s", RESET)
        case ("other",):
            await post(client, "s", {"no": "event"})
        case ("trim", share):
            points = await offsets(client, "s")
            before = points[int(share * (len(points) - 1))][0]
            if before != "-1":
                await client.send(
                    "POST", "/v1/stream/s/__ds/trim", json.dumps({"before": before}).encode(),
                    content_type=JSON,
                )  # fmt: skip
        case ("compact",):
            await client.send("POST", "/v1/stream/s/__ds/compact", content_type=JSON)


@pytest.mark.parametrize("declared", [True, False])
@settings(max_examples=10, deadline=None)
@given(script=st.lists(STEPS, min_size=3, max_size=14), data=st.data())
def test_the_state_at_every_offset_is_the_fold_up_to_it(
    declared: bool, script: list[tuple[Any, ...]], data: st.DataObject
) -> None:
    async def check(client: Client, path: str) -> None:
        for at, events in data.draw(st.permutations(await offsets(client, path))):
            assert await types(client, path, f"offset={at}") == folded(events), (path, at)

    async def test(client: Client) -> None:
        await client.put("s", content_type=JSON)
        if declared:
            await declare(client, "s", {**ANY, "mode": "warn"})
        for number, step in enumerate(script):
            await play(client, step)
            if number % 5 == 4:
                await check(client, "s")
        points = await offsets(client, "s")
        at = data.draw(st.sampled_from(points))[0]
        if at != "-1":
            forked = {"stream_forked_from": "/v1/stream/s", "stream_fork_offset": at}
            assert (await client.put("f", **forked)).status == 201
            await post(client, "f", change("t", "a", "forked"))
            await check(client, "f")
        await check(client, "s")

    run_with_app(test, Settings(memory=True))


@with_app()
async def test_a_fold_is_gone_on_with_and_forgotten(client: Client) -> None:
    await client.put("s", content_type=JSON)
    points = [(await post(client, "s", change("t", "a", number))).offset for number in range(4)]
    folds = client.app.state.indexer._folds
    indexes = []
    for number in (2, 0, 1, 3, 2):
        assert await types(client, "s", f"offset={points[number]}") == {"t": {"a": number}}
        (fold,) = folds.values()
        indexes.append(fold.index)
    assert set(indexes) == {indexes[0]}
    client.app.state.indexer._forget_fold(next(iter(folds)), fold)
    assert folds == {}
    for number in range(indexer.FOLDS_MAX + 2):
        await client.put(f"s{number}", content_type=JSON)
        await post(client, f"s{number}", change("t", "a", number))
        assert await types(client, f"s{number}") == {"t": {"a": number}}
    assert len(folds) == indexer.FOLDS_MAX


@with_app()
async def test_the_state_at_a_time(client: Client) -> None:
    await client.put("s", content_type=JSON)
    start_ms = client.clock.now_us() // 1000
    for number in range(3):
        await post(client, "s", change("t", "a", number))
        client.clock.advance(10)
    assert await types(client, "s", f"at={start_ms}") == {}
    assert await types(client, "s", f"at={start_ms + 15_000}") == {"t": {"a": 1}}
    await declare(client, "s", ANY)
    assert await types(client, "s", f"at={start_ms + 15_000}") == {"t": {"a": 1}}
    answer = await state(client, "s", f"at={start_ms + 3_600_000}")
    assert answer.json()["types"] == {"t": {"a": 2}}
    assert answer.json()["offset"] == (await client.head("s")).offset


@with_app()
async def test_a_point_is_an_offset_or_a_time(client: Client) -> None:
    await client.put("s", content_type=JSON)
    for query in ("at=1&offset=-1", "at=yesterday"):
        answer = await state(client, "s", query)
        assert (answer.status, answer.json()["code"]) == (400, "invalid-parameter")
