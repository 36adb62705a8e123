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
from penstock.errors import DiskFull
from penstock.http.app import App
from penstock.log import rewriter
from penstock.protocol.wakes import Phase
from penstock.subscriptions import store, wakes
from penstock.subscriptions.model import Link, Subscription
from penstock.subscriptions.store import SECRET, SubscriptionStore
from tests.crash.engines import small_settings, start
from tests.crash.faults import Fault, FaultFiles, FaultStore
from tests.helpers.app import Answer, Client
from tests.subscriptions.desk import Desk, receiver

TIMEOUT_S = 20
FULL = 507
BUSY = 503


class Rig:
    """A server on a disk that can be full for one write."""

    def __init__(self, desk: Desk, fault: Fault, settings: Settings) -> None:
        self.desk = desk
        self.service = desk.service
        self._fault = fault
        self._settings = settings

    def fill(self) -> None:
        """The next write finds the disk full."""
        self._fault.strike_next("write", errno.ENOSPC)

    async def failing(self, *requests: Any) -> list[Answer]:
        """The answers to requests whose writes fail together."""
        self.fill()
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


def _run(folder: Path, test: Any, **options: Any) -> None:
    async def run() -> None:
        fault, clock = Fault(), ManualClock()
        settings = small_settings(folder, development=True, **options)
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


# -- requests that rest on a write which fails


def test_a_second_deletion_writes_if_the_first_is_not_written(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.desk.pull()
        first, second = await rig.failing(rig.desk.send("DELETE", ""), rig.desk.send("DELETE", ""))
        assert (first.status, second.status) == (FULL, 204)
        assert (await rig.desk.send("GET", "")).status == 404
        await rig.check()

    _run(tmp_path, test)


def test_nobody_is_told_of_a_deletion_that_is_not_written(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        deleted, shown, listed, acked = await rig.failing(
            rig.desk.send("DELETE", ""),
            rig.desk.send("GET", ""),
            rig.desk.client.send("GET", rig.desk.url.rpartition("/")[0]),
            rig.desk.report("ack", wake),
        )
        assert deleted.status == FULL
        assert (shown.status, shown.json()["holder"]) == (200, "w1")
        assert [each["id"] for each in listed.json()["subscriptions"]] == ["s"]
        assert acked.status == 200
        await rig.check()

    _run(tmp_path, test)


def test_a_subscription_that_could_not_be_deleted_is_not_replaced(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.desk.pull()
        before = await rig.desk.show()
        document = {"type": "pull-wake", "wake_stream": "wake/pool", "lease_ttl_ms": 1000}
        deleted, again = await rig.failing(
            rig.desk.send("DELETE", ""), rig.desk.put(pattern="events/*", **document)
        )
        assert (deleted.status, again.status) == (FULL, 200)
        assert await rig.desk.show() == before
        assert list(rig.service.matching.subscribers("events/a")) == [rig.service.all["s"]]
        await rig.check()

    _run(tmp_path, test)


def test_a_member_is_not_confirmed_before_it_is_written(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        desk = rig.desk
        await desk.pull(streams=["other/a"])
        before = await desk.show()
        answers = await rig.failing(
            desk.send("POST", "/streams", {"streams": ["other/b"]}),
            desk.send("POST", "/streams", {"streams": ["other/b"]}),
            desk.send("DELETE", "/streams/other/a"),
            desk.send("DELETE", "/streams/other/a"),
        )
        assert [each.status for each in answers] == [FULL] * 4
        assert (await desk.show())["streams"] == before["streams"]
        await rig.check()
        assert (await desk.send("POST", "/streams", {"streams": ["other/b"]})).status == 204
        assert (await desk.send("DELETE", "/streams/other/a")).status == 204
        await rig.check()
        assert set(await desk.cursors()) == {"other/b"}

    _run(tmp_path, test)


def test_a_refusal_that_rests_on_a_failed_claim_is_not_given(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        await rig.desk.report("release", wake)
        while len(await rig.desk.wakes()) < 2:
            await asyncio.sleep(0.001)
        first, second = await rig.failing(rig.desk.claim("w2"), rig.desk.claim("w3"))
        assert (first.status, second.status) == (FULL, FULL)
        assert (await rig.desk.claim("w3")).status == 200
        await rig.check()

    _run(tmp_path, test)


def test_an_ack_that_is_not_written_issues_no_wake(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        await rig.desk.append("events/b")
        wake = await rig.claimed()
        await rig.desk.append("events/b")
        before = await rig.desk.wakes()
        report = {"acks": _acks(wake), "done": True}
        (refused,) = await rig.failing(rig.desk.report("ack", wake, **report))
        assert refused.status == FULL
        for _ in range(20):
            await asyncio.sleep(0.001)
        # The worker has its wake still, and can repeat what it said.
        assert await rig.desk.wakes() == before
        again = await rig.desk.report("ack", wake, **report)
        assert again.json() == {"ok": True, "next_wake": True}
        while len(await rig.desk.wakes()) == len(before):
            await asyncio.sleep(0.001)
        assert (await rig.desk.claim()).json()["generation"] == 2
        await rig.check()

    _run(tmp_path, test)


def test_memory_is_as_before_when_the_failure_is_known(tmp_path: Path) -> None:
    """A request that arrives before the failed one is answered must not see what was undone."""

    async def test(rig: Rig) -> None:
        wake = await rig.claimed()
        before = rig.service.all["s"].wake
        committer = rig.desk.client.engine.store._committer
        failed, seen = committer._on_failed, []

        def spy(*arguments: Any) -> None:
            failed(*arguments)
            seen.append(rig.service.all["s"].wake)

        committer._on_failed = spy
        await rig.failing(rig.desk.finish(wake))
        assert seen == [before]

    _run(tmp_path, test)


def test_the_key_of_tokens_is_durable_before_it_is_used(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        document = {"type": "pull-wake", "pattern": "events/*", "wake_stream": "wake/pool"}
        kept = rig.service.store
        set_meta = kept._stream.set_meta
        calls: list[str] = []

        def full_once(name: str, value: bytes) -> Any:
            if not calls:
                rig.fill()
            calls.append(name)
            return set_meta(name, value)

        kept._stream.set_meta = full_once  # type: ignore[method-assign] # a full disk, once
        assert (await rig.desk.put(**document)).status == FULL
        assert (await rig.desk.put(**document)).status == 201
        assert calls == [SECRET, SECRET]
        assert len(kept.secret) == 32
        assert kept.meta(SECRET) == kept.secret

    _run(tmp_path, test)


def test_a_rewrite_that_began_behind_a_failed_write_trims_no_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rewriter, "ROWS_PER_APPEND", 1)

    async def test(rig: Rig) -> None:
        await rig.desk.pull()
        kept = rig.service.store
        kept.rewriter.log_bytes = 1
        rewrite = kept.rewriter._rewrite

        async def later(*arguments: Any) -> None:
            await asyncio.wait([lost])
            await rewrite(*arguments)

        monkeypatch.setattr(kept.rewriter, "_rewrite", later)  # a task may start late
        # As long as the first row of the rewrite, which takes its place.
        row = store.subscription_row(rig.service.all["s"])
        rig.fill()
        lost = kept.write([row])
        kept.rewrite_if_long()
        assert kept.rewriter.task is not None
        await kept.rewriter.task
        assert isinstance(lost.exception(), DiskFull)
        await rig.check()
        kept.rewrite_if_long()
        await kept.rewriter.task
        assert kept._stream.find().earliest > 0
        await rig.check()

    _run(tmp_path, test)


# -- webhooks


def test_a_webhooks_answer_moves_no_cursor_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakes, "SAVE_AGAIN_S", 0.01)
    with receiver() as hook:

        async def test(rig: Rig) -> None:
            desk = rig.desk
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            finish = rig.service.wakes.finish_call
            seen: list[Any] = []

            def full_twice(subscription: Subscription, event: Any, acks: Any) -> None:
                seen.append((subscription.wake.phase, dict(subscription.links)))
                if len(seen) < 3:
                    rig.fill()
                finish(subscription, event, acks)

            rig.service.wakes.finish_call = full_twice  # type: ignore[method-assign]
            await desk.append("events/a")
            while len(seen) < 3:
                await asyncio.sleep(0.001)
            # Each time as before the answer: leased, and nothing acked.
            assert seen == [(Phase.LEASED, {"events/a": Link()})] * 3
            while (await desk.show())["pending"]:
                await asyncio.sleep(0.001)
            assert await desk.cursors() == {"events/a": await desk.tail("events/a")}
            assert hook.calls.qsize() == 1
            await rig.check()

        _run(tmp_path, test)


def test_a_webhook_is_called_with_a_stored_wake_after_a_deletion_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakes, "SAVE_AGAIN_S", 3600)
    with receiver() as hook:

        async def test(rig: Rig) -> None:
            desk = rig.desk
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            service, save = rig.service, rig.service.wakes.save
            called: list[int] = []

            def full_once(*arguments: Any) -> Any:
                monkeypatch.setattr(service.wakes, "save", save)
                rig.fill()
                return save(*arguments)

            def call(subscription: Subscription) -> None:
                stored = service.store._stream.find().tail
                called.append(stored)

            monkeypatch.setattr(service.wakes, "save", full_once)
            monkeypatch.setattr(service.webhooks, "call", call)  # noted, not made
            await desk.append("events/a")
            while service.all["s"].wake.generation == 0:
                await asyncio.sleep(0.001)
            (deleted,) = await rig.failing(desk.send("DELETE", ""))
            assert deleted.status == FULL
            await service.scanned()
            while not called:
                await asyncio.sleep(0.001)
            # Nothing was written after the call, and what was written has its wake.
            assert called == [service.store._stream.find().tail]
            await rig.check()

        _run(tmp_path, test)


# -- overload


async def _claimed(desk: Desk) -> Any:
    """The wake, claimed as soon as there is room for that."""
    while (answer := await desk.claim()).status == BUSY:
        await asyncio.sleep(0.001)
    return answer.json()


def test_acks_that_meet_an_overload_can_be_repeated(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        desks = [Desk(rig.desk.client, f"s{number}") for number in range(12)]
        for desk in desks:
            await desk.pull()
        await rig.desk.append("events/a")
        claims = [await _claimed(desk) for desk in desks]
        waiting, refusals = list(zip(desks, claims, strict=True)), 0
        while waiting:
            answers = await asyncio.gather(*(desk.finish(claim) for desk, claim in waiting))
            assert {each.status for each in answers} <= {200, BUSY}
            # Those that were refused are as before.
            waiting = [
                pair for pair, answer in zip(waiting, answers, strict=True) if answer.status == BUSY
            ]
            refusals += len(waiting)
            for desk, _ in waiting:
                shown = await desk.show()
                assert (shown["holder"], shown["pending"]) == ("w1", 1)
            await rig.check()
        assert refusals > len(desks)

    _run(tmp_path, test, append_queue_bytes_max=300)


def test_changes_that_meet_an_overload_can_be_repeated(tmp_path: Path) -> None:
    async def test(rig: Rig) -> None:
        desks = [Desk(rig.desk.client, f"s{number}") for number in range(8)]
        for desk in desks:
            await desk.pull(streams=["other/a"])
        requests: list[tuple[Desk, str, str, Any]] = [
            *((desk, "DELETE", "", None) for desk in desks[:3]),
            *((desk, "DELETE", "/streams/other/a", None) for desk in desks[3:6]),
            *((desk, "POST", "/streams", {"streams": ["other/b"]}) for desk in desks[6:]),
        ]
        rounds = 0
        while requests:
            answers = await asyncio.gather(
                *(desk.send(method, action, body) for desk, method, action, body in requests)
            )
            assert {each.status for each in answers} <= {204, BUSY}
            requests = [
                request
                for request, answer in zip(requests, answers, strict=True)
                if answer.status == BUSY
            ]
            await rig.check()
            rounds += 1
        assert rounds > 2
        assert set(rig.service.all) == {desk.url.rpartition("/")[2] for desk in desks[3:]}
        assert all([not await desk.cursors() for desk in desks[3:6]])
        assert all([set(await desk.cursors()) == {"other/a", "other/b"} for desk in desks[6:]])

    _run(tmp_path, test, append_queue_bytes_max=300)


_JSON = {"content_type": "application/json"}
