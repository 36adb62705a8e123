"""The watchdog of the event loop: what it measures, and whom it names."""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable

import pytest
import uvloop

from penstock.http.app import open_app
from penstock.http.message import Request, Response
from penstock.http.watchdog import TICK_S, LoopWatchdog, culprit_of
from tests.helpers.app import Client, make_request, settings_of, with_app
from tests.http.test_metrics import scrape
from tests.http.wire import FakeApp, get, native, on_loop

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]


def hold_up(request: Request, seconds: float) -> None:
    time.sleep(seconds)


async def beats(watchdog: LoopWatchdog, count: int) -> None:
    """Wait until the watchdog has measured so often."""
    before = sum(watchdog.lag_seconds.counts)
    while sum(watchdog.lag_seconds.counts) < before + count:
        await asyncio.sleep(TICK_S / 5)


@on_loop
async def test_a_long_turn_is_measured_and_its_request_named(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.clear()
    watchdog = LoopWatchdog(stall_s=0.1)
    watchdog.start()
    try:
        await beats(watchdog, 2)
        with caplog.at_level(logging.WARNING):
            hold_up(make_request("POST", "/v1/table/t?token=secret"), 0.6)
            await beats(watchdog, 1)
        assert watchdog.stalls >= 1
        assert watchdog.lag_max_s >= 0.6 - 2 * TICK_S
        (line,) = [record.getMessage() for record in caplog.records]
        assert "held up for" in line
        assert "POST '/v1/table/t'" in line
        assert "test_watchdog.hold_up" in line
        assert "secret" not in line
    finally:
        watchdog.close()


@on_loop
async def test_the_request_of_a_compiled_handler_is_named(caplog: pytest.LogCaptureFixture) -> None:
    """Once it has waited, nothing of the connection is on the stack if that is compiled."""

    async def slow() -> Response:
        await asyncio.sleep(0)
        time.sleep(0.6)
        return Response(200, [], b"")

    caplog.clear()
    watchdog = LoopWatchdog(stall_s=0.1)
    app = FakeApp()
    app.routes[b"/slow"] = lambda request: slow()
    async with native(app) as server:
        watchdog.start()
        try:
            await beats(watchdog, 2)
            with caplog.at_level(logging.WARNING):
                assert (await server.ask(get("/slow?token=secret"))).status == 200
                await beats(watchdog, 1)
        finally:
            watchdog.close()
    (line,) = [each.getMessage() for each in caplog.records if "held up" in each.getMessage()]
    assert "GET '/slow' (" in line
    assert "secret" not in line


@on_loop
async def test_short_turns_are_only_measured(caplog: pytest.LogCaptureFixture) -> None:
    watchdog = LoopWatchdog(stall_s=30.0)
    watchdog.start()
    await beats(watchdog, 3)
    watchdog.close()
    assert watchdog.stalls == 0
    assert not caplog.records
    measured = sum(watchdog.lag_seconds.counts)
    await asyncio.sleep(2 * TICK_S)
    assert sum(watchdog.lag_seconds.counts) == measured  # it has ended


@pytest.mark.parametrize("new_event_loop", LOOPS)
def test_a_loop_that_waits_is_no_culprit(
    new_event_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    started, stop = threading.Event(), threading.Event()

    async def wait() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(0.05, started.set)
        while not stop.is_set():
            await asyncio.sleep(0.2)

    def run() -> None:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(wait())

    thread = threading.Thread(target=run)
    thread.start()
    assert started.wait(10)
    time.sleep(0.05)
    assert thread.ident is not None
    culprit = culprit_of(sys._current_frames()[thread.ident])
    stop.set()
    thread.join()
    assert culprit is None


def test_the_innermost_function_of_penstock_is_named() -> None:
    def inner() -> str:
        return str(culprit_of(sys._getframe()))

    assert inner().endswith("inner")
    assert str(culprit_of(sys._getframe())).endswith(
        "test_the_innermost_function_of_penstock_is_named"
    )


@with_app()
async def test_the_lag_of_the_loop_is_a_metric(client: Client) -> None:
    client.app.watchdog.start()
    await beats(client.app.watchdog, 2)
    values = await scrape(client)
    assert values["penstock_loop_lag_seconds_count"] >= 2
    assert values["penstock_loop_lag_max_seconds"] >= 0
    assert "penstock_loop_stalls_total" in values


@on_loop
async def test_a_server_watches_its_loop_from_its_start_to_its_stop() -> None:
    app = await open_app(settings_of("memory", None))  # type: ignore[arg-type]  # no folder
    await beats(app.watchdog, 1)
    await app.stop()
    assert app.watchdog._timer is None
