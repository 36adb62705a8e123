"""While the journal's sync is held back, no worker is told of a wake, a claim or an ack."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import SYSTEM_CLOCK, ManualClock
from penstock.http.app import App
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
