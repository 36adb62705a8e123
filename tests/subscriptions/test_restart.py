"""What was there before a stop is there after it: cursors, leases, retries, work not yet done."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.log import open_engine
from penstock.subscriptions.model import Subscription
from penstock.subscriptions.store import rows_of
from tests.helpers.app import Client
from tests.subscriptions.desk import JSON, Desk, caught_up, receiver

Step = Callable[[Desk], Awaitable[Any]]


def _run(folder: Path, *steps: Step, **options: Any) -> list[Any]:
    """Each step with a server of its own, one after the other in the same folder."""
    clock = ManualClock(1_800_000_000_000_000)
    settings = Settings(
        data_dir=folder,
        durability="buffered",
        journal_file_bytes=1024 * 1024,
        disk_reserve_bytes=0,
        development=True,
        **options,
    )

    async def run(step: Step) -> Any:
        engine = open_engine(settings, clock=clock)
        await engine.start()
        app = App(engine, settings, clock=clock)
        try:
            await caught_up(app.subscriptions)
            return await asyncio.wait_for(step(Desk(Client(app, engine, clock))), 20)
        finally:
            app.close()
            await engine.stop()

    return [asyncio.run(run(step)) for step in steps]


def test_cursors_and_leases_are_there_after_a_restart(tmp_path: Path) -> None:
    async def before(desk: Desk) -> Any:
        await desk.append("events/old")
        await desk.pull()
        await desk.append("events/a")
        await desk.finish((await desk.claim()).json())
        await desk.append("events/b")
        return (await desk.claim()).json(), await desk.cursors()

    async def after(desk: Desk) -> Any:
        assert (await desk.cursors()) == claims[0][1]
        busy = await desk.claim("w2")
        assert busy.json()["error"]["code"] == "ALREADY_CLAIMED"
        wake = claims[0][0]
        assert (await desk.finish(wake)).json() == {"ok": True, "next_wake": False}
        assert (await desk.cursors())["events/b"] == await desk.tail("events/b")
        await desk.append("events/b")
        return (await desk.claim()).json()["generation"]

    async def last(desk: Desk) -> Any:
        desk.client.clock.advance(1)
        desk.service.wakes.tick()
        return (await desk.claim("w2")).json()["generation"]

    claims: list[Any] = []

    async def first(desk: Desk) -> None:
        claims.append(await before(desk))

    assert _run(tmp_path, first, after, last)[1:] == [3, 4]


def test_what_nobody_was_told_of_is_found_after_a_restart(tmp_path: Path) -> None:
    async def before(desk: Desk) -> None:
        await desk.append("events/old")
        await desk.pull(streams=["listed"])

    async def meanwhile(desk: Desk) -> None:
        # As if the server had stopped before it saw what was committed.
        desk.service.matching.close()
        for path in ("events/old", "events/new", "listed"):
            await desk.append(path)
        await desk.client.put("events/empty", b"[]", content_type=JSON)

    async def after(desk: Desk) -> Any:
        while not (wakes := await desk.wakes()):
            await asyncio.sleep(0.001)
        claimed = (await desk.claim()).json()
        pending = {each["path"] for each in claimed["streams"] if each["has_pending"]}
        acked = {each["path"]: each["acked_offset"] for each in claimed["streams"]}
        assert acked["events/new"] == "-1"
        assert acked["events/old"] != "-1"
        assert len(wakes) == 1
        return pending

    found = _run(tmp_path, before, meanwhile, after)[2]
    assert found == {"events/old", "events/new", "listed"}


def test_a_retry_keeps_its_time_over_a_restart(tmp_path: Path) -> None:
    with receiver() as hook:
        hook.answers.put((500, {}))

        async def before(desk: Desk) -> Any:
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            await desk.append("events/a")
            await asyncio.to_thread(hook.next)
            while (shown := await desk.show())["status"] != "failed":
                await asyncio.sleep(0.002)
            return shown["next_attempt_at"], shown["attempts"]

        async def after(desk: Desk) -> Any:
            shown = await desk.show()
            desk.service.wakes.tick()
            assert hook.calls.empty()
            desk.client.clock.advance(1.2)  # the jitter included
            desk.service.wakes.tick()
            call = await asyncio.to_thread(hook.next)
            assert call.wake["generation"] == 1
            while (await desk.cursors())["events/a"] != await desk.tail("events/a"):
                await asyncio.sleep(0.002)
            return shown["next_attempt_at"], shown["attempts"]

        first, second = _run(tmp_path, before, after)
        assert first == second
        assert first[1] == 1


def test_a_delivery_without_an_answer_is_made_again(tmp_path: Path) -> None:
    with receiver() as hook:
        hook.answers.put(None)

        async def before(desk: Desk) -> Any:
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            await desk.append("events/a")
            return (await asyncio.to_thread(hook.next)).wake

        async def after(desk: Desk) -> Any:
            wake = (await asyncio.to_thread(hook.next)).wake
            while (await desk.cursors())["events/a"] != await desk.tail("events/a"):
                await asyncio.sleep(0.002)
            return wake

        first, second = _run(tmp_path, before, after)
        assert first == second  # the same wake with the same token: who still works on it may ack


def test_a_delivery_without_an_answer_is_made_again_whatever_was_kept_of_it(tmp_path: Path) -> None:
    with receiver() as hook:
        hook.answers.put(None)

        async def before(desk: Desk) -> Any:
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            await desk.append("events/a")
            call = await asyncio.to_thread(hook.next)
            # Something else is kept of it while the call is on its way, its lease with it.
            await desk.service.wakes.save([desk.service.all["s"]])
            return call.wake

        async def after(desk: Desk) -> Any:
            return (await asyncio.to_thread(hook.next)).wake

        first, second = _run(tmp_path, before, after)
        assert first == second


def test_a_delivery_that_was_accepted_is_not_made_again_before_its_lease_ends(
    tmp_path: Path,
) -> None:
    with receiver() as hook:
        hook.answers.put((200, {}))

        async def before(desk: Desk) -> Any:
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            await desk.append("events/a")
            wake = (await asyncio.to_thread(hook.next)).wake
            while desk.service.webhooks.in_flight:
                await asyncio.sleep(0.002)
            return wake

        async def after(desk: Desk) -> Any:
            assert not desk.service.webhooks.in_flight
            desk.client.clock.advance(31)
            desk.service.wakes.tick()
            return (await asyncio.to_thread(hook.next)).wake

        first, second = _run(tmp_path, before, after)
        assert (first["generation"], second["generation"]) == (1, 2)


def test_work_that_was_not_noticed_is_delivered_once_after_a_restart(tmp_path: Path) -> None:
    with receiver() as hook:

        async def before(desk: Desk) -> None:
            await desk.put(type="webhook", pattern="events/*", webhook={"url": hook.url})
            desk.service.matching.close()
            for number in range(3):
                await desk.append(f"events/{number}")

        async def after(desk: Desk) -> Any:
            wake = (await asyncio.to_thread(hook.next)).wake
            while (await desk.show())["pending"] or desk.service.webhooks.in_flight:
                await asyncio.sleep(0.002)
            return len([each for each in wake["streams"] if each["has_pending"]])

        assert _run(tmp_path, before, after)[1] == 3
        assert hook.calls.empty()


def test_the_book_is_rewritten_and_reads_the_same(tmp_path: Path) -> None:
    sizes = []

    async def before(desk: Desk) -> Any:
        await desk.pull(streams=["listed"])
        await Desk(desk.client, "gone").pull()
        await desk.client.send("DELETE", "/v1/stream/__ds/subscriptions/gone")
        for number in range(60):
            await desk.append(f"events/{number % 3}", number)
            await desk.finish((await desk.claim()).json())
        stream = desk.service.wakes.find("__ds/subscriptions")
        assert stream is not None
        while stream.earliest == 0:
            await asyncio.sleep(0.001)
        sizes.append((stream.tail, stream.tail - stream.earliest))
        return await desk.show()

    async def after(desk: Desk) -> Any:
        assert list(desk.service.all) == ["s"]
        return await desk.show()

    first, second = _run(tmp_path, before, after, subscription_log_bytes=4096)
    assert first == second
    assert sizes[0][1] < sizes[0][0] / 2


def test_one_that_is_made_as_the_book_is_rewritten_is_kept(tmp_path: Path) -> None:
    async def before(desk: Desk) -> None:
        await desk.pull()
        service, store = desk.service, desk.service.store
        store.rewriter.log_bytes = 1
        store.rewrite_if_long()
        # In the same step: the rewriting is decided and has not begun.
        new = Subscription(replace(service.all["s"].row, id="new", created_us=1))
        service.all["new"] = new
        await store.write(rows_of(new))
        assert store.rewriter.task is not None
        await store.rewriter.task
        stream = service.wakes.find("__ds/subscriptions")
        assert stream is not None
        assert stream.earliest > 0

    async def after(desk: Desk) -> Any:
        return sorted(desk.service.all)

    assert _run(tmp_path, before, after)[1] == ["new", "s"]


def test_a_rule_of_retention_takes_no_cursors(tmp_path: Path) -> None:
    async def before(desk: Desk) -> None:
        await desk.pull()
        await desk.append("events/a")
        await desk.finish((await desk.claim()).json())
        desk.client.clock.advance(100_000)
        await desk.client.engine.retention.enforce()

    async def after(desk: Desk) -> Any:
        return await desk.cursors()

    found = _run(tmp_path, before, after, retention="=1s")[1]
    assert list(found) == ["events/a"]
    assert found["events/a"] != "-1"
