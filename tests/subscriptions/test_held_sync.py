"""While the journal's sync is held back, no worker is told of a wake, a claim or an ack."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SYSTEM_CLOCK, ManualClock
from penstock.config.settings import Settings
from penstock.errors import Overloaded
from penstock.http.app import App
from penstock.subscriptions.store import SubscriptionStore
from tests.crash.engines import small_settings, start
from tests.crash.test_held_sync import Gate, GatedFiles
from tests.helpers.app import Client
from tests.subscriptions.desk import Desk, receiver

TIMEOUT_S = 20
UNDISTURBED_TURNS = 50


async def _reached(gate: Gate) -> None:
    assert await asyncio.to_thread(gate.reached.wait, TIMEOUT_S)


async def _settle() -> None:
    for _ in range(UNDISTURBED_TURNS):
        await asyncio.sleep(0.001)


def _run(folder: Path, test: Any) -> None:
    async def run() -> None:
        gate = Gate()
        settings = small_settings(folder, development=True)
        engine = await start(settings, files=GatedFiles(gate), clock=SYSTEM_CLOCK)
        app = App(engine, settings, clock=SYSTEM_CLOCK)
        try:
            desk = Desk(Client(app, engine, ManualClock()))
            await asyncio.wait_for(test(desk, gate), TIMEOUT_S)
        finally:
            gate.open()
            app.close()
            await engine.stop()

    asyncio.run(run())


def test_a_webhook_is_called_when_its_wake_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with receiver() as hook:

        async def test(desk: Desk, gate: Gate) -> None:
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            # The append is let through; what is issued because of it is held.
            wakes = desk.service.wakes
            monkeypatch.setattr(wakes, "save", _closing(gate, wakes.save))
            await desk.append("events/a")
            await _reached(gate)
            await _settle()
            assert hook.calls.empty()
            gate.open()
            assert (await asyncio.to_thread(hook.next)).wake["generation"] == 1

        _run(tmp_path, test)


def test_claims_and_acks_are_answered_when_they_are_durable(tmp_path: Path) -> None:
    async def test(desk: Desk, gate: Gate) -> None:
        await desk.pull()
        await desk.append("events/a")
        while not await desk.wakes():
            await asyncio.sleep(0.001)
        gate.close()
        claim = asyncio.ensure_future(desk.claim())
        await _reached(gate)
        await _settle()
        assert not claim.done()
        # Nor is anybody told of it who asks.
        others = [
            asyncio.ensure_future(desk.claim("w2")),
            asyncio.ensure_future(desk.send("GET", "")),
        ]
        await _settle()
        assert not any(each.done() for each in others)
        gate.open()
        claimed = (await claim).json()
        busy, shown = await asyncio.gather(*others)
        assert busy.status == 409
        assert shown.json()["holder"] == "w1"
        assert (await desk.finish(claimed)).status == 200

    _run(tmp_path, test)


def _closing(gate: Gate, call: Any) -> Any:
    def closed(*arguments: Any) -> Any:
        gate.close()
        return call(*arguments)

    return closed


def test_an_ack_behind_one_that_is_refused_writes_its_own_cursors(tmp_path: Path) -> None:
    """A client is refused only after what is on its way: memory must not wait for that, or the next
    ack takes cursors for stored that never are."""

    async def test(desk: Desk, gate: Gate) -> None:
        await desk.pull()
        await desk.append("events/a")
        while not await desk.wakes():
            await asyncio.sleep(0.001)
        wake = (await desk.claim()).json()
        gate.close()
        extended = asyncio.ensure_future(desk.report("ack", wake))
        await _reached(gate)
        engine = desk.client.engine
        admit = engine.store.admit

        def refuse(size: int) -> None:
            engine.store.admit = admit  # there is room again
            raise Overloaded("Too much is queued.")

        engine.store.admit = refuse  # the queue is full, once
        acks = [{"stream": each["path"], "offset": each["tail_offset"]} for each in wake["streams"]]
        first = asyncio.ensure_future(desk.report("ack", wake, acks=acks))
        second = asyncio.ensure_future(desk.report("ack", wake, acks=acks, done=True))
        await _settle()
        gate.open()
        answers = await asyncio.gather(extended, first, second)
        assert [each.status for each in answers] == [200, 503, 200]
        await _check_stored(desk)

    _run(tmp_path, test)


async def _check_stored(desk: Desk) -> None:
    """What a start would find is what was answered."""
    stored = SubscriptionStore(desk.client.engine, Settings(memory=True))
    await stored.load()
    for id, subscription in desk.service.all.items():
        links = {path: link for path, link in subscription.links.items() if link.position}
        assert links
        assert stored.all[id].links == links
