"""Publish and subscribe within the process: what callbacks get, when, and what they cost."""

from __future__ import annotations

import asyncio
import functools
import itertools
import logging
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.errors import InvalidOffset, PenstockError, StreamNotFound, StreamTrimmed
from penstock.log import (
    Append,
    StreamConfig,
    StreamEvent,
    Subscription,
    open_engine,
    pubsub,
)
from penstock.log.disk.journal import JournalWriter
from penstock.log.disk.store import DiskStore
from penstock.log.requests import Fork
from penstock.protocol.lifecycle import ForkConfig
from tests.helpers.log import TINY
from tests.unit.log.test_listeners import Records

JSON = StreamConfig("application/json")
TEXT = StreamConfig("text/plain")
WAIT_S = 10


class Room:
    """An engine on one of the stores, and short ways to use it."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.clock = ManualClock()
        settings = Settings(memory=kind == "memory", data_dir=folder, **TINY)
        self.engine = open_engine(settings, clock=self.clock)

    async def create(self, path: str, body: bytes = b"", config: StreamConfig = JSON) -> None:
        await self.engine.create(path, config, body)

    def append(self, path: str, body: bytes, config: StreamConfig = JSON) -> asyncio.Future[Any]:
        return self.engine.append(path, Append(body, config.content_type))

    async def close(self, path: str) -> None:
        await self.engine.append(path, Append(b"", None, close=True))


class Inbox:
    """A callback that remembers its events, and can be waited for."""

    def __init__(self) -> None:
        self.events: list[StreamEvent] = []
        self._arrived = asyncio.Event()

    async def __call__(self, event: StreamEvent) -> None:
        self.events.append(event)
        self._arrived.set()

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    @property
    def messages(self) -> list[Any]:
        return [message for event in self.events for message in event.json()]

    async def until(self, condition: Callable[[Inbox], bool]) -> None:
        while not condition(self):
            self._arrived.clear()
            await asyncio.wait_for(self._arrived.wait(), WAIT_S)


def with_room(test: Callable[[Room], Awaitable[None]]) -> Callable[..., None]:
    """Run a test on an engine of each store."""

    @pytest.mark.parametrize("kind", ["memory", "disk"])
    def run(kind: str, tmp_path: Path) -> None:
        async def main() -> None:
            room = Room(kind, tmp_path)
            await room.engine.start()
            try:
                await asyncio.wait_for(test(room), 3 * WAIT_S)
                assert room.engine.stats.watchers == 0, "a subscription is left over"
            finally:
                await room.engine.stop()

        asyncio.run(main())

    run.__name__ = getattr(test, "__name__", "test")
    run.__doc__ = test.__doc__
    return run


async def end(subscription: Subscription) -> StreamEvent | None:
    return await asyncio.wait_for(subscription.wait(), WAIT_S)


# -- what is delivered


@with_room
async def test_messages_past_the_offset_are_delivered_at_once(room: Room) -> None:
    await room.create("a", b"[1]")
    offset = (await room.append("a", b"[2]")).offset
    await room.append("a", b"[3,4]")
    inbox = Inbox()
    subscription = await room.engine.subscribe("a", inbox, offset=offset)
    assert inbox.events == [], "never within subscribe"
    await inbox.until(lambda inbox: bool(inbox.events))
    (event,) = inbox.events
    tail = room.engine.token(room.engine.find("a", touch=False), 12)
    assert (event.kind, event.path, event.json()) == ("messages", "a", [3, 4])
    assert (event.offset, event.next_offset) == (offset, tail)
    subscription.unsubscribe()
    assert await end(subscription) is None


@with_room
async def test_a_subscriber_that_is_caught_up_gets_new_appends(room: Room) -> None:
    await room.create("a", b"[1]")
    inbox = Inbox()
    subscription = await room.engine.subscribe("a", inbox, offset="now")
    await asyncio.sleep(0)
    assert inbox.events == []
    await room.append("a", b"[2]")
    await inbox.until(lambda inbox: inbox.messages == [2])
    await room.append("a", b"[3,4]")
    await inbox.until(lambda inbox: inbox.messages == [2, 3, 4])
    subscription.unsubscribe()
    await end(subscription)


@with_room
async def test_a_closed_stream_ends_with_closed_at_once_or_after_its_messages(room: Room) -> None:
    await room.create("a", b"[1]")
    behind, live = Inbox(), Inbox()
    following = await room.engine.subscribe("a", live, offset="now")
    await room.close("a")
    last = await end(following)
    assert live.kinds == ["closed"]
    reading = await room.engine.subscribe("a", behind)
    assert (await end(reading)) == behind.events[-1]
    assert behind.kinds == ["messages", "closed"]
    caught_up = Inbox()
    await end(await room.engine.subscribe("a", caught_up, offset=reading.offset))
    assert caught_up.kinds == ["closed"]
    assert last is not None
    assert last.offset == last.next_offset == reading.offset


@with_room
async def test_delete_tells_every_subscriber_and_ends_its_subscription(room: Room) -> None:
    await room.create("a", b"[1]")
    inboxes = [Inbox(), Inbox()]
    subscriptions = [await room.engine.subscribe("a", inbox) for inbox in inboxes]
    for inbox in inboxes:
        await inbox.until(lambda inbox: inbox.messages == [1])
    await room.engine.delete("a")
    for inbox, subscription in zip(inboxes, subscriptions, strict=True):
        last = await end(subscription)
        assert last is not None
        assert last.kind == "deleted"
        assert inbox.kinds == ["messages", "deleted"]
        assert not subscription.active
    await room.create("a", b"[2]")
    fresh = Inbox()
    again = await room.engine.subscribe("a", fresh)
    await fresh.until(lambda inbox: inbox.messages == [2])
    assert [inbox.kinds for inbox in inboxes] == [["messages", "deleted"]] * 2
    again.unsubscribe()
    await end(again)


@with_room
async def test_an_expired_stream_and_a_source_that_is_kept_for_forks_are_deleted(
    room: Room,
) -> None:
    expires_at_us = room.clock.now_us() + 1_000_000
    await room.create("a", config=StreamConfig("application/json", None, expires_at_us))
    inbox = Inbox()
    subscription = await room.engine.subscribe("a", inbox)
    room.clock.advance(2)
    await room.engine.reap()
    await end(subscription)
    assert inbox.kinds == ["deleted"]
    await room.create("source", b"[1]")
    inbox = Inbox()
    subscription = await room.engine.subscribe("source", inbox, offset="now")
    fork = room.engine.fork(
        "fork", Fork("source", None, 0), ForkConfig(None, None, None), b"", closed=False
    )
    await fork
    await room.engine.delete("source")
    await end(subscription)
    assert inbox.kinds == ["deleted"]


@with_room
async def test_a_byte_stream_is_delivered_as_its_bytes(room: Room) -> None:
    await room.create("a", b"one", TEXT)
    inbox = Inbox()
    subscription = await room.engine.subscribe("a", inbox)
    await inbox.until(lambda inbox: bool(inbox.events))
    await room.append("a", b"\xfftwo", TEXT)
    await inbox.until(lambda inbox: len(inbox.events) == 2)
    assert [event.data for event in inbox.events] == [b"one", b"\xfftwo"]
    subscription.unsubscribe()
    await end(subscription)


@with_room
async def test_a_long_stream_comes_in_bounded_events_and_whole_messages(room: Room) -> None:
    big = b'"' + b"x" * (pubsub.EVENT_BYTES // 3) + b'"'
    huge = b'"' + b"y" * (2 * pubsub.EVENT_BYTES) + b'"'
    await room.create("a")
    for body in (*[big] * 5, huge, b"1"):
        await room.append("a", body)
    await room.close("a")
    inbox = Inbox()
    await end(await room.engine.subscribe("a", inbox))
    assert [len(message) if isinstance(message, str) else 1 for message in inbox.messages] == [
        *[len(big) - 2] * 5,
        len(huge) - 2,
        1,
    ]
    sizes = [len(event.data) for event in inbox.events]
    assert all(size <= pubsub.EVENT_BYTES or size <= len(huge) + 2 for size in sizes)
    offsets = [(event.offset, event.next_offset) for event in inbox.events]
    assert all(before[1] == after[0] for before, after in itertools.pairwise(offsets))


@with_room
async def test_what_is_trimmed_before_it_is_delivered_is_told(room: Room) -> None:
    await room.create("a", b"[1]")
    gate, inbox = asyncio.Event(), Inbox()

    async def slow(event: StreamEvent) -> None:
        await gate.wait()
        await inbox(event)

    subscription = await room.engine.subscribe("a", slow)
    await asyncio.sleep(0)
    await room.append("a", b"[2]")
    trimmed = await room.engine.trim("a", "now")
    gate.set()
    last = await end(subscription)
    assert last is not None
    assert (last.kind, last.next_offset) == ("trimmed", trimmed.offset)
    assert subscription.offset == trimmed.offset


@with_room
async def test_bad_subscriptions_are_refused(room: Room) -> None:
    inbox = Inbox()
    with pytest.raises(StreamNotFound):
        await room.engine.subscribe("none", inbox)
    await room.create("a", b"[1,2]")
    with pytest.raises(InvalidOffset):
        await room.engine.subscribe("a", inbox, offset="soon")
    start = room.engine.token(room.engine.find("a", touch=False), 3)
    await room.engine.trim("a", "now")
    with pytest.raises(StreamTrimmed):
        await room.engine.subscribe("a", inbox, offset=start)


# -- only what is durable


def test_nothing_is_delivered_before_it_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, blocked = threading.Event(), threading.Event()
    write = JournalWriter.write

    def held(self: JournalWriter, *arguments: Any) -> Any:
        blocked.set()
        assert gate.wait(WAIT_S)
        return write(self, *arguments)

    async def main() -> None:
        room = Room("disk", tmp_path)
        await room.engine.start()
        await room.create("a")
        inbox = Inbox()
        subscription = await room.engine.subscribe("a", inbox)
        monkeypatch.setattr(JournalWriter, "write", held)
        monkeypatch.setattr(JournalWriter, "stage", lambda *_: False)  # all takes `write`
        appended = room.append("a", b"[1]")
        await asyncio.to_thread(blocked.wait, WAIT_S)
        assert room.engine.pending(room.engine.find("a", touch=False)).tail > 0, "it is decided"
        assert inbox.events == []
        gate.set()
        await appended
        await inbox.until(lambda inbox: inbox.messages == [1])
        subscription.unsubscribe()
        await end(subscription)
        await room.engine.stop()

    asyncio.run(main())


def test_what_fails_to_become_durable_is_never_delivered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: JournalWriter, *arguments: Any) -> Any:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        room = Room("disk", tmp_path)
        await room.engine.start()
        await room.create("a")
        inbox = Inbox()
        subscription = await room.engine.subscribe("a", inbox)
        with monkeypatch.context() as patch:
            patch.setattr(JournalWriter, "write", fail)
            patch.setattr(JournalWriter, "stage", lambda *_: False)  # all takes `write`
            with pytest.raises(PenstockError):
                await room.append("a", b"[1]")
        await asyncio.sleep(0.01)
        assert inbox.events == []
        subscription.unsubscribe()
        await end(subscription)
        await room.engine.stop()

    asyncio.run(main())


# -- the commit path


@with_room
async def test_a_slow_callback_delays_no_append_and_misses_nothing(room: Room) -> None:
    await room.create("a")
    gate, inbox = asyncio.Event(), Inbox()

    async def slow(event: StreamEvent) -> None:
        await gate.wait()
        await inbox(event)

    subscription = await room.engine.subscribe("a", slow)
    quick = Inbox()
    beside = await room.engine.subscribe("a", quick)
    for number in range(50):
        await room.append("a", str(number).encode())
    await quick.until(lambda inbox: len(inbox.messages) == 50)
    assert inbox.events == [], "appends and another subscriber did not wait for it"
    gate.set()
    await inbox.until(lambda inbox: len(inbox.messages) == 50)
    assert inbox.messages == quick.messages == list(range(50))
    for each in (subscription, beside):
        each.unsubscribe()
        await end(each)


@with_room
async def test_a_plain_function_may_block_because_it_runs_in_a_thread(room: Room) -> None:
    await room.create("a")
    gate = threading.Event()
    numbers: list[int] = []
    threads: set[int] = set()

    def block(event: StreamEvent) -> None:
        assert gate.wait(WAIT_S)
        threads.add(threading.get_ident())
        numbers.extend(event.json())

    subscription = await room.engine.subscribe("a", block)
    for number in range(20):
        await room.append("a", str(number).encode())
    assert numbers == []
    gate.set()
    await room.close("a")
    await end(subscription)
    assert numbers == list(range(20)), "in order, though in threads"
    assert threading.get_ident() not in threads


@with_room
async def test_a_callback_that_raises_ends_its_subscription_and_hurts_nobody(room: Room) -> None:
    await room.create("a")
    logged = Records()

    async def broken(event: StreamEvent) -> None:
        if 2 in event.json():
            raise RuntimeError("the callback is broken")

    failing = await room.engine.subscribe("a", broken)
    inbox = Inbox()
    sound = await room.engine.subscribe("a", inbox)
    first = await room.append("a", b"[1]")
    await inbox.until(lambda inbox: inbox.messages == [1])
    logging.getLogger("penstock.log").addHandler(logged)
    try:
        await room.append("a", b"[2]")
        with pytest.raises(RuntimeError, match="the callback is broken"):
            await end(failing)
    finally:
        logging.getLogger("penstock.log").removeHandler(logged)
    assert failing.offset == first.offset, "where a later subscription gets the message again"
    assert not failing.active
    assert [record.levelname for record in logged.records] == ["ERROR"]
    await room.append("a", b"[3]")
    await inbox.until(lambda inbox: inbox.messages == [1, 2, 3])
    sound.unsubscribe()
    await end(sound)


# -- the end of a subscription


@with_room
async def test_after_unsubscribe_there_is_no_call(room: Room) -> None:
    await room.create("a")
    inbox = Inbox()
    subscription = await room.engine.subscribe("a", inbox)
    appended = room.append("a", b"[1]")
    subscription.unsubscribe()
    subscription.unsubscribe()
    await appended
    assert await end(subscription) is None
    subscription.unsubscribe()
    await room.append("a", b"[2]")
    assert inbox.events == []


@with_room
async def test_what_is_being_read_when_it_is_unsubscribed_is_not_delivered(room: Room) -> None:
    await room.create("a", b"[1]")
    reading, gate = asyncio.Event(), asyncio.Event()
    read_range = room.engine.read_range

    async def slow(*arguments: Any) -> bytes:
        reading.set()
        await gate.wait()
        return await read_range(*arguments)

    inbox = Inbox()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(room.engine, "read_range", slow)
        subscription = await room.engine.subscribe("a", inbox)
        start = subscription.offset
        await reading.wait()
        subscription.unsubscribe()
        gate.set()
        assert await end(subscription) is None
    assert inbox.events == []
    assert subscription.offset == start


@with_room
async def test_a_callback_can_unsubscribe_itself_also_from_its_thread(room: Room) -> None:
    await room.create("a", b"[1]")
    subscriptions: list[Subscription] = []
    calls: list[str] = []
    ready = threading.Event()

    def once(name: str, event: StreamEvent) -> None:
        assert ready.wait(WAIT_S)
        calls.append(name)
        subscriptions[0].unsubscribe()

    subscriptions.append(await room.engine.subscribe("a", functools.partial(once, "thread")))
    ready.set()
    assert await end(subscriptions[0]) is None
    subscriptions.clear()

    async def once_awaited(event: StreamEvent) -> None:
        once("loop", event)

    subscriptions.append(await room.engine.subscribe("a", once_awaited))
    assert await end(subscriptions[0]) is None
    await room.append("a", b"[2]")
    assert calls == ["thread", "loop"]


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_stop_of_the_engine_ends_subscriptions_without_an_event(
    kind: str, tmp_path: Path
) -> None:
    async def main() -> None:
        room = Room(kind, tmp_path)
        await room.engine.start()
        await room.create("a", b"[1]")
        inbox, hanging = Inbox(), asyncio.Event()

        async def hang(event: StreamEvent) -> None:
            hanging.set()
            await asyncio.Event().wait()

        subscriptions = [await room.engine.subscribe("a", each) for each in (inbox, hang)]
        await inbox.until(lambda inbox: inbox.messages == [1])
        await asyncio.wait_for(hanging.wait(), WAIT_S)
        await room.engine.stop()
        assert [await end(each) for each in subscriptions] == [None, None]
        assert inbox.kinds == ["messages"]

    asyncio.run(main())


@with_room
async def test_a_subscription_resumes_where_another_one_ended(room: Room) -> None:
    await room.create("a", b"[1,2]")
    inbox = Inbox()
    first = await room.engine.subscribe("a", inbox)
    await inbox.until(lambda inbox: bool(inbox.events))
    first.unsubscribe()
    await end(first)
    await room.append("a", b"[3]")
    second = await room.engine.subscribe("a", inbox, offset=first.offset)
    await inbox.until(lambda inbox: inbox.messages == [1, 2, 3])
    second.unsubscribe()
    await end(second)


def test_a_subscribed_stream_stays_in_memory_and_on_disk(tmp_path: Path) -> None:
    """A subscriber is a reader: its stream is not evicted, and a checkpoint changes nothing."""

    async def main() -> None:
        room = Room("disk", tmp_path)
        await room.engine.start()
        await room.create("a", b"[1]")
        inbox = Inbox()
        subscription = await room.engine.subscribe("a", inbox, offset="now")
        assert isinstance(room.engine.store, DiskStore)
        assert await room.engine.store.checkpoint()
        room.engine._streams.evict()
        await room.append("a", b"[2]")
        await inbox.until(lambda inbox: inbox.messages == [2])
        subscription.unsubscribe()
        await end(subscription)
        await room.engine.stop()

    asyncio.run(main())


def test_the_engine_of_an_asgi_application_is_there_while_it_runs() -> None:
    async def main() -> None:
        streams = penstock.asgi(memory=True)
        with pytest.raises(RuntimeError, match="startup"):
            _ = streams.engine
        await streams.startup()
        await streams.engine.create("a", JSON, b"[1]")
        inbox = Inbox()
        subscription = await streams.engine.subscribe("a", inbox)
        await inbox.until(lambda inbox: inbox.messages == [1])
        await streams.shutdown()
        assert await end(subscription) is None

    asyncio.run(main())
