"""A change that the log could not take is taken back: memory is never ahead of what is stored."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path
from typing import Any

import msgspec
import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.subscriptions.store import SubscriptionStore
from tests.crash.engines import small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore
from tests.helpers.app import Answer, Client
from tests.subscriptions.desk import Desk

TIMEOUT_S = 20
FULL = 507


class Rig:
    """A server on a disk that can be full for one write."""

    def __init__(self, desk: Desk, fault: Fault, settings: Settings) -> None:
        self.desk = desk
        self.service = desk.service
        self._fault = fault
        self._settings = settings

    async def failing(self, *requests: Any) -> list[Answer]:
        """The answers to requests whose writes fail together."""
        self._fault.strike_next("write", errno.ENOSPC)
        return list(await asyncio.gather(*requests))

    async def check(self) -> None:
        """Memory is what is stored."""
        stored = SubscriptionStore(self.desk.client.engine, self._settings)
        await stored.load()
        assert _rows(stored) == _rows(self.service.store)

    async def claimed(self) -> Any:
        """A wake that worker w1 holds, for one event."""
        await self.desk.pull()
        await self.desk.append("events/a")
        while not await self.desk.wakes():
            await asyncio.sleep(0.001)
        return (await self.desk.claim()).json()


def _rows(store: SubscriptionStore) -> dict[str, Any]:
    return {
        id: (
            each.row,
            msgspec.to_builtins(each.wake),
            {path: link for path, link in each.links.items() if link.position or link.explicit},
        )
        for id, each in store.all.items()
    }


def _run(folder: Path, test: Any) -> None:
    async def run() -> None:
        fault, clock = Fault(), ManualClock()
        settings = small_settings(folder, development=True)
        engine = await start(settings, files=FaultFiles(fault), make=FaultStore, clock=clock)
        app = App(engine, settings, clock=clock)
        try:
            desk = Desk(Client(app, engine, clock))
            await asyncio.wait_for(test(Rig(desk, fault, settings)), TIMEOUT_S)
        finally:
            app.close()
            await engine.stop()

    asyncio.run(run())


def _acks(wake: Any) -> list[dict[str, str]]:
    return [{"stream": each["path"], "offset": each["tail_offset"]} for each in wake["streams"]]


@pytest.mark.parametrize("done", [True, False])
def test_an_ack_that_is_not_written_can_be_repeated(tmp_path: Path, done: bool) -> None:
    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        before = await rig.desk.show()
        report = rig.desk.report("ack", wake, acks=_acks(wake), done=done)
        assert [each.status for each in await rig.failing(report)] == [FULL]
        assert await rig.desk.show() == before
        await rig.check()
        again = await rig.desk.report("ack", wake, acks=_acks(wake), done=done)
        assert again.json() == {"ok": True, "next_wake": False}
        shown = await rig.desk.show()
        assert (shown["pending"], shown["holder"]) == (0, None if done else "w1")
        await rig.check()

    _run(tmp_path, test)


def test_a_claim_that_is_not_written_holds_nobody_off(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        await rig.desk.report("release", wake)
        while len(await rig.desk.wakes()) < 2:
            await asyncio.sleep(0.001)
        before = await rig.desk.show()
        assert [each.status for each in await rig.failing(rig.desk.claim("w2"))] == [FULL]
        assert await rig.desk.show() == before
        await rig.check()
        assert (await rig.desk.claim("w3")).json()["generation"] == before["generation"]

    _run(tmp_path, test)


def test_a_claim_of_what_was_not_issued_yet_is_followed_by_a_wake(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        # In one batch: the wake is given back, and claimed before another one is issued.
        answers = await rig.failing(rig.desk.report("release", wake), rig.desk.claim("w2"))
        assert [each.status for each in answers] == [FULL, FULL]
        shown = await rig.desk.show()
        assert (shown["holder"], shown["generation"], shown["pending"]) == ("w1", 1, 1)
        await rig.check()
        assert (await rig.desk.finish(wake)).status == 200

    _run(tmp_path, test)


def test_a_deletion_that_is_not_written_did_not_happen(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        await rig.desk.finish(wake)
        before = await rig.desk.show()
        # An append while nobody listens is noticed all the same.
        deleted, appended = await rig.failing(
            rig.desk.send("DELETE", ""), rig.desk.client.post("events/a", b"2", **_JSON)
        )
        assert (deleted.status, appended.status) == (FULL, FULL)
        assert await rig.desk.show() == before
        await rig.check()
        await rig.desk.append("events/a")
        assert (await rig.desk.claim()).json()["generation"] == 2
        assert (await rig.desk.send("DELETE", "")).status == 204
        assert (await rig.desk.send("GET", "")).status == 404

    _run(tmp_path, test)


def test_a_worker_goes_on_after_a_deletion_that_failed(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        (deleted,) = await rig.failing(rig.desk.send("DELETE", ""))
        assert deleted.status == FULL
        assert (await rig.desk.finish(wake)).json() == {"ok": True, "next_wake": False}
        await rig.service.scanned()
        await rig.check()

    _run(tmp_path, test)


def test_members_are_as_before_if_their_links_are_not_written(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        desk = rig.desk
        await desk.pull(streams=["other/a"])
        for path in ("other/a", "other/b"):
            await desk.append(path)
        before = await desk.show()
        added, removed = await rig.failing(
            desk.send("POST", "/streams", {"streams": ["other/b", "events/x"]}),
            desk.send("DELETE", "/streams/other/a"),
        )
        assert (added.status, removed.status) == (FULL, FULL)
        after = await desk.show()
        assert after["streams"] == before["streams"]
        assert not rig.service.matching.subscribers("other/b")
        assert list(rig.service.matching.subscribers("other/a")) == [rig.service.all["s"]]
        assert (await desk.claim()).status == 200
        await rig.check()

    _run(tmp_path, test)


def test_a_subscription_that_is_not_written_is_not_there(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        desk = rig.desk
        await desk.pull()
        other = Desk(desk.client, "other")
        document = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool"}
        assert [each.status for each in await rig.failing(other.put(**document))] == [FULL]
        assert (await other.send("GET", "")).status == 404
        assert list(rig.service.matching.subscribers("events/a")) == [rig.service.all["s"]]
        assert (await other.put(**document)).status == 201
        await rig.check()

    _run(tmp_path, test)


_JSON = {"content_type": "application/json"}
