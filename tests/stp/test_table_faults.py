"""A disk that is full for a moment, while a reset waits for what is live: it deletes nothing that
never came to be, and nothing that was acknowledged is lost."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

from penstock.clock import ManualClock
from penstock.http.app import App
from penstock.log.engine import Engine
from penstock.state.server import indexer
from tests.crash.engines import START_US, small_settings
from tests.crash.faults import Fault, FaultFiles, FaultStore
from tests.helpers.app import Client
from tests.stp.tables import append, change, control, put, rows, short, table


@pytest.mark.parametrize("order", ["reset first", "reset last"])
def test_a_reset_forgets_appends_that_failed(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # An index that waits for what failed waits in vain: not for long here. The other order has
    # nothing to wait for, however busy the machine is.
    monkeypatch.setattr(indexer, "WAIT_S", 0.2 if order == "reset last" else 20.0)

    async def run() -> None:
        fault, clock = Fault(), ManualClock(START_US)
        settings = small_settings(tmp_path)
        engine = Engine(
            FaultStore(settings, clock=clock, files=FaultFiles(fault)), settings, clock=clock
        )
        await engine.start()
        app = App(engine, settings, clock=clock)
        client = Client(app, engine, clock)
        try:
            await table(client)
            await put(client, "a", "1")
            fault.strike_next("write", errno.ENOSPC)
            ghost = append(client, "t", change("s", "ghost", "1"))
            reset = append(client, "t", control("reset"))
            if order == "reset first":
                cleared, failed = await asyncio.gather(reset, ghost)
                assert cleared.status == 204
            else:
                failed, cleared = await asyncio.gather(ghost, reset)
                assert cleared.status in (204, 503)
            assert failed.status == 507
            fault.heal()
            if cleared.status == 503:
                assert (await append(client, "t", control("reset"))).status == 204
            assert await short(client) == ["1+a=1", "2-a="]
            await put(client, "b", "2")
            assert [row.seqno for row in await rows(client)] == [1, 2, 3]
        finally:
            app.close()
            await engine.stop()

    asyncio.run(run())
