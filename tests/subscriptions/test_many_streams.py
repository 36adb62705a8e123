"""A subscription with very many streams: others have their turn meanwhile, and it is created whole
or not at all.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.http.app import App
from penstock.log import rewriter
from penstock.log.system_stream import Event
from penstock.subscriptions import service, slices, store
from tests.crash.engines import small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore
from tests.helpers.app import Answer, Client, with_app
from tests.subscriptions.desk import JSON, Desk, caught_up

MANY = 60


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    monkeypatch.setattr(store, "LINKS_PER_APPEND", 7)
    monkeypatch.setattr(rewriter, "ROWS_PER_APPEND", 7)
    monkeypatch.setattr(service, "PAGE", 10)


def _paths(count: int = MANY) -> list[str]:
    return [f"events/{number:03d}" for number in range(count)]


async def _turns(request: Awaitable[Answer]) -> tuple[Answer, int]:
    """The answer to a request, and how many turns others had until then."""
    running, turns = asyncio.ensure_future(request), 0
    while not running.done():
        await asyncio.sleep(0)
        turns += 1
    return await running, turns


@with_app()
async def test_others_have_their_turn_while_streams_are_named(client: Client) -> None:
    desk = Desk(client)
    document = {"type": "pull-wake", "wake_stream": "wake/pool", "streams": _paths()}
    created, turns = await _turns(desk.put(**document))
    assert created.status == 201
    assert turns > 2 * MANY  # Each is looked up, and shown.
    shown, turns = await _turns(desk.send("GET", ""))
    assert [each["path"] for each in shown.json()["streams"]] == _paths()
    assert turns > MANY
    more = [f"more/{number}" for number in range(MANY)]
    added, turns = await _turns(desk.send("POST", "/streams", {"streams": more}))
    assert added.status == 204
    assert turns > MANY
    assert set(await desk.cursors()) == {*_paths(), *more}


@with_app()
async def test_others_have_their_turn_while_a_pattern_is_matched(client: Client) -> None:
    for path in _paths():
        await client.put(path, b"[1]", content_type=JSON)
    created, turns = await _turns(
        Desk(client).put(type="pull-wake", wake_stream="wake/pool", pattern="events/*")
    )
    assert created.status == 201
    assert len(created.json()["streams"]) == MANY
    assert turns > MANY


@with_app(subscription_names_max=5, subscription_streams_max=12)
async def test_a_request_names_so_many_streams_and_a_subscription_has_so_many(
    client: Client,
) -> None:
    desk = Desk(client)
    document = {"type": "pull-wake", "wake_stream": "wake/pool"}
    refused = await desk.put(streams=_paths(6), **document)
    assert refused.status == 400
    assert "names 6 streams; at most 5 are allowed at a time" in refused.json()["detail"]
    assert "further requests, or use a pattern" in refused.json()["detail"]
    assert (await desk.put(streams=_paths(5), **document)).status == 201
    assert (await desk.send("POST", "/streams", {"streams": _paths(6)})).status == 400
    assert (await desk.send("POST", "/streams", {"streams": _paths(10)[5:]})).status == 204
    full = await desk.send("POST", "/streams", {"streams": _paths(14)[9:]})
    assert (full.status, full.json()["error"]["code"]) == (429, "LIMIT_EXCEEDED")
    assert set(await desk.cursors()) == set(_paths(10))
    assert (await desk.send("POST", "/streams", {"streams": _paths(12)[9:]})).status == 204


@with_app()
async def test_an_append_while_streams_are_named_is_noticed(client: Client) -> None:
    desk = Desk(client)
    await desk.pull(pattern="none")
    paths = _paths()
    for path in paths:
        await desk.append(path)
    adding = asyncio.ensure_future(desk.send("POST", "/streams", {"streams": paths}))
    for _ in range(MANY // 2):
        await asyncio.sleep(0)
    await desk.append(paths[0])  # It was looked up before, and is not a member yet.
    assert not adding.done()
    assert (await adding).status == 204
    assert (await desk.show())["pending"] == 1
    claimed = (await desk.claim()).json()
    assert [each["path"] for each in claimed["streams"] if each["has_pending"]] == [paths[0]]


@with_app()
async def test_members_of_a_subscription_that_is_deleted_meanwhile_are_not_added(
    client: Client,
) -> None:
    desk = Desk(client)
    await desk.pull(pattern="none")
    adding = asyncio.ensure_future(desk.send("POST", "/streams", {"streams": _paths()}))
    for _ in range(MANY // 2):
        await asyncio.sleep(0)
    assert (await desk.send("DELETE", "")).status == 204
    assert (await adding).status == 404
    assert not client.app.subscriptions.matching.subscribers(_paths()[0])


# -- created whole or not at all


def _run(folder: Path, *steps: Callable[[Desk, Fault], Awaitable[Any]]) -> list[Any]:
    """Each step with a server of its own, on a disk that can be full."""
    clock = ManualClock()

    async def run(step: Callable[[Desk, Fault], Awaitable[Any]]) -> Any:
        fault = Fault()
        settings = small_settings(folder, development=True)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore, clock=clock)
        app = App(engine, settings, clock=clock)
        try:
            await caught_up(app.subscriptions)
            desk = Desk(Client(app, engine, clock))
            return await asyncio.wait_for(step(desk, fault), 20)
        finally:
            app.close()
            await engine.stop()

    return [asyncio.run(run(step)) for step in steps]


async def _create(desk: Desk) -> Answer:
    return await desk.put(type="pull-wake", wake_stream="wake/pool", pattern="events/*")


def test_its_cursors_are_there_after_a_restart(tmp_path: Path) -> None:
    async def before(desk: Desk, fault: Fault) -> Any:
        for path in _paths():
            await desk.append(path)
        assert (await _create(desk)).status == 201
        return await desk.cursors()

    async def after(desk: Desk, fault: Fault) -> Any:
        assert not (await desk.show())["pending"]
        return await desk.cursors()

    cursors, again = _run(tmp_path, before, after)
    assert len(cursors) == MANY
    assert again == cursors


@pytest.mark.parametrize("written", [0, 1, 5, 8])
def test_nothing_is_left_of_one_that_was_not_written_whole(tmp_path: Path, written: int) -> None:
    async def before(desk: Desk, fault: Fault) -> None:
        for path in _paths():
            await desk.append(path)
        await Desk(desk.client, "other").pull(pattern="none")
        fault.operation, fault.code = "write", errno.ENOSPC
        fault.nth = fault.calls["write"] + 1 + written
        assert (await _create(desk)).status == 507
        assert (await desk.send("GET", "")).status == 404

    async def after(desk: Desk, fault: Fault) -> None:
        assert list(desk.service.all) == ["other"]
        desk.client.clock.advance(1)
        for path in _paths()[:9]:
            await desk.append(path)
        assert (await _create(desk)).status == 201
        assert not (await desk.show())["pending"]
        cursors = await desk.cursors()
        assert cursors == {path: await desk.tail(path) for path in _paths()}

    async def restarted(desk: Desk, fault: Fault) -> None:
        cursors = await desk.cursors()
        assert cursors == {path: await desk.tail(path) for path in _paths()}

    _run(tmp_path, before, after, restarted)


def test_the_stream_of_subscriptions_is_not_rewritten_in_between(tmp_path: Path) -> None:
    async def before(desk: Desk, fault: Fault) -> Any:
        for path in _paths():
            await desk.append(path)
        kept = desk.service.store
        kept.rewriter.log_bytes = 1
        write = kept.write

        async def rewritten(written: asyncio.Future[Any]) -> None:
            await written
            kept.rewrite_if_long()
            if kept.rewriter.task is not None:
                await kept.rewriter.task

        def noted(events: list[Event], *, undo: Any = None) -> Any:
            written = write(events, undo=undo)
            if events[0]["type"] != store.DRAFT:
                return written
            return asyncio.ensure_future(rewritten(written))

        kept.write = noted  # type: ignore[method-assign] # a rewrite is due after each draft
        assert (await _create(desk)).status == 201
        return await desk.cursors()

    async def after(desk: Desk, fault: Fault) -> Any:
        return await desk.cursors()

    cursors, again = _run(tmp_path, before, after)
    assert again == cursors
