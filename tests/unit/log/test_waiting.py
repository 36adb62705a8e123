"""Appends that a check puts off: decided in the order they came, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.errors import BadRequest, PenstockError
from penstock.log.engine import Engine
from penstock.log.requests import Append, NotYet, Proposal, Writer
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig
from tests.helpers.log import TINY, open_store

JSON = StreamConfig("application/json", None, None)
PASS = b'"pass",\n'


class Gate:
    """A check that lets messages which contain `text` wait until it is opened."""

    def __init__(self, text: bytes = b"", *, blocks: bool = True) -> None:
        self.text = text
        self.blocks = blocks
        self.is_open = False
        self.checked: list[bytes] = []
        self.writers: list[Writer] = []
        self.error: Exception | None = None
        self._opened = asyncio.Event()

    def __call__(self, proposal: Proposal) -> None:
        self.checked.append(proposal.wire)
        self.writers.append(proposal.writer)
        if b"bad" in proposal.wire and self.is_open:
            raise BadRequest("bad")
        if not self.is_open and self.text in proposal.wire and proposal.wire != PASS:
            raise NotYet(self._wait, blocks=self.blocks)

    async def _wait(self) -> None:
        await self._opened.wait()
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def open(self) -> None:
        self.is_open = True
        self._opened.set()

    def close(self) -> None:
        self.is_open = False
        self._opened.clear()


class Desk:
    def __init__(self, kind: str, folder: Path, **options: Any) -> None:
        self.kind, self.folder = kind, folder
        self.clock = ManualClock()
        where: dict[str, Any] = {"memory": True} if kind == "memory" else {"data_dir": folder}
        self.settings = Settings(**{**TINY, **where, **options})
        self.options = options

    async def open(self) -> None:
        store = open_store(self.kind, self.folder, self.clock, **self.options)
        self.engine = Engine(store, self.settings, clock=self.clock)
        await self.engine.start()

    async def held(self, gate: Gate, path: str = "a", name: str = "gate") -> None:
        """A new stream whose appends go through a gate; the message `"pass"` goes around it."""
        overtakes = lambda value, wire: wire == PASS  # noqa: E731 - one expression
        self.engine.add_check(name, gate, closes=True, overtakes=overtakes)
        await self.engine.create(path, JSON, b"", closed=False)
        await self.engine.set_meta(path, name, b"1")

    def append(self, body: bytes, path: str = "a", **more: Any) -> asyncio.Future[Any]:
        fields: dict[str, Any] = {"close": False, "producer": None, "expected": None, **more}
        kind = JSON.content_type if body else None
        return self.engine.append(path, Append(body, kind, stream_seq=None, **fields))

    async def content(self, path: str = "a") -> bytes:
        stream = self.engine.find(path, touch=False)
        return await self.engine.read(stream, 0, stream.tail)


Test = Callable[[Desk], Awaitable[None]]


def on_stores(**options: Any) -> Callable[[Test], Any]:
    def decorate(test: Test) -> Any:
        @pytest.mark.parametrize("kind", ["memory", "disk"])
        def run(kind: str, tmp_path: Path) -> None:
            failures: list[Any] = []

            async def main() -> None:
                loop = asyncio.get_running_loop()
                loop.set_exception_handler(lambda _, context: failures.append(context))
                desk = Desk(kind, tmp_path, **options)
                await desk.open()
                try:
                    await asyncio.wait_for(test(desk), 20)
                finally:
                    await desk.engine.stop()

            asyncio.run(main())
            gc.collect()  # a task whose error nobody has seen says so when it goes
            assert failures == []

        run.__name__ = getattr(test, "__name__", "test")
        run.__doc__ = test.__doc__
        return run

    return decorate


async def turns() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def codes(futures: list[asyncio.Future[Any]]) -> list[str]:
    answers = await asyncio.gather(*futures, return_exceptions=True)
    return [getattr(answer, "code", "ok") for answer in answers]


@on_stores()
async def test_appends_that_wait_are_decided_in_the_order_they_came(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    waiting = [desk.append(b"[%d,0]" % number) for number in range(5)]
    await turns()
    assert not any(future.done() for future in waiting)
    gate.open()
    answers = await asyncio.gather(*waiting)
    assert [answer.ordinal for answer in answers] == [0, 2, 4, 6, 8]
    assert [answer.offset for answer in answers] == sorted(answer.offset for answer in answers)
    assert await desk.content() == b"".join(b"%d,\n0,\n" % number for number in range(5))


@on_stores()
async def test_an_append_that_need_not_wait_does_not_overtake_a_hold(desk: Desk) -> None:
    gate = Gate(b"slow")
    await desk.held(gate)
    first = desk.append(b'"slow"', producer=Producer("p", 0, 0))
    # By itself it would be a gap, as the one before it is not decided.
    second = desk.append(b'"quick"', producer=Producer("p", 0, 1))
    await turns()
    assert gate.checked == [b'"slow",\n']
    # Open, but nobody has had a turn since: what comes now still goes to the end.
    gate.open()
    third = desk.append(b'"late"')
    answers = await asyncio.gather(first, second, third)
    assert [answer.ordinal for answer in answers] == [0, 1, 2]
    assert await desk.content() == b'"slow",\n"quick",\n"late",\n'


@on_stores()
async def test_an_append_that_blocks_nobody_waits_alone(desk: Desk) -> None:
    gate = Gate(b"slow", blocks=False)
    await desk.held(gate)
    slow = [desk.append(b'"slow 1"'), desk.append(b'"slow 2"')]
    assert (await desk.append(b'"quick"')).ordinal == 0
    gate.open()
    assert [(await each).ordinal for each in slow] == [1, 2]
    assert await desk.content() == b'"quick",\n"slow 1",\n"slow 2",\n'


@on_stores()
async def test_a_hold_behind_an_append_that_blocks_nobody_blocks_those_behind_it(
    desk: Desk,
) -> None:
    index, hold = Gate(b"reset", blocks=False), Gate(b"slow")
    await desk.held(index, name="index")
    await desk.held(hold, name="hold")
    waiting = [desk.append(b'"reset 1"'), desk.append(b'"slow"'), desk.append(b'"reset 2"')]
    hold.is_open = True  # as one whose time is over, before anybody has had a turn
    waiting.append(desk.append(b'"quick"'))
    await turns()
    assert not any(future.done() for future in waiting)
    hold.open()
    index.open()
    assert [(await each).ordinal for each in waiting] == [0, 1, 2, 3]


@on_stores()
async def test_an_append_that_comes_to_block_blocks_those_that_come_later(desk: Desk) -> None:
    index, hold = Gate(b"reset", blocks=False), Gate()
    await desk.held(index, name="index")
    first = [desk.append(b'"reset 1"'), desk.append(b'"reset 2"')]
    await desk.held(hold, name="hold")
    await turns()
    index.open()
    await turns()
    index.close()
    hold.is_open = True
    late = desk.append(b'"quick"')
    hold.open()
    index.open()
    assert [(await each).ordinal for each in [*first, late]] == [0, 1, 2]


@on_stores()
async def test_the_append_that_a_hold_lets_pass_passes(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    tail = (await desk.engine.create("a", JSON, b"", closed=False)).offset
    waiting = [desk.append(b"1"), desk.append(b"", close=True)]
    passed = await desk.append(b'"pass"', expected=tail, close=True)
    assert (passed.ordinal, passed.closed) == (0, True)
    gate.open()
    assert await codes(waiting) == ["stream-closed", "ok"]  # to close once more is fine
    assert await desk.content() == PASS


@on_stores()
async def test_other_streams_do_not_wait(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    await desk.engine.create("b", JSON, b"", closed=False)
    waiting = desk.append(b"1")
    assert (await desk.append(b"2", "b")).ordinal == 0
    assert not waiting.done()
    gate.open()
    await waiting


@on_stores()
async def test_an_append_that_is_cancelled_while_it_waits_is_not_made(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    waiting = [desk.append(b"%d" % number) for number in range(4)]
    await turns()
    waiting[0].cancel()
    waiting[2].cancel()
    gate.open()
    assert [(await waiting[index]).ordinal for index in (1, 3)] == [0, 1]
    assert await desk.content() == b"1,\n3,\n"


@on_stores()
async def test_appends_that_wait_end_with_their_stream(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    waiting = [desk.append(b"1"), desk.append(b"2")]
    await turns()
    deleting = desk.engine.delete("a")
    again = desk.engine.create("a", JSON, b"", closed=False)
    assert await codes(waiting) == ["stream-not-found"] * 2  # though the gate was never opened
    await asyncio.gather(deleting, again)
    assert await desk.content() == b""


@on_stores()
async def test_appends_that_wait_do_not_go_to_the_stream_that_replaces_theirs(desk: Desk) -> None:
    gate = Gate()
    desk.engine.add_check("gate", gate)
    short = StreamConfig(JSON.content_type, 60, None)
    await desk.engine.create("a", short, b"", closed=False)
    await desk.engine.set_meta("a", "gate", b"1")
    waiting = [desk.append(b"1"), desk.append(b"2")]
    desk.clock.advance(61)
    await desk.engine.create("a", JSON, b"", closed=False)
    gate.open()
    assert await codes(waiting) == ["stream-not-found"] * 2
    assert await desk.content() == b""


@on_stores()
async def test_a_stream_that_expires_while_appends_wait_refuses_each_once(desk: Desk) -> None:
    gate = Gate()
    desk.engine.add_check("gate", gate)
    short = StreamConfig(JSON.content_type, 60, None)
    await desk.engine.create("a", short, b"", closed=False)
    await desk.engine.set_meta("a", "gate", b"1")
    waiting = [desk.append(b"1"), desk.append(b"2"), desk.append(b"3")]
    desk.clock.advance(61)
    gate.open()
    assert await codes(waiting) == ["stream-not-found"] * 3
    assert desk.engine.stats.expired == 1


@pytest.mark.parametrize("end", ["drain", "stop"])
@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_a_stop_refuses_what_waits_and_keeps_what_was_acknowledged(
    kind: str, end: str, tmp_path: Path
) -> None:
    async def main() -> None:
        before = asyncio.all_tasks()
        desk = Desk(kind, tmp_path)
        await desk.open()
        gate = Gate(b"slow")
        await desk.held(gate)
        assert (await desk.append(b"0")).ordinal == 0
        waiting = [desk.append(b'"slow"'), desk.append(b"1")]
        await turns()
        if end == "drain":
            desk.engine.drain()
            # What waited behind the gate only for its turn is taken; what has to wait is not.
            assert await codes(waiting) == ["shutting-down", "ok"]
            with pytest.raises(PenstockError, match="stopping"):
                desk.append(b'"slow"')
        await desk.engine.stop()
        if end == "stop":
            assert await codes(waiting) == ["shutting-down"] * 2
        await turns()
        assert asyncio.all_tasks() == before
        if kind == "disk":
            await desk.open()
            assert await desk.content() == (b"0,\n1,\n" if end == "drain" else b"0,\n")
            await desk.engine.stop()

    asyncio.run(asyncio.wait_for(main(), 20))


@on_stores()
async def test_an_append_may_wait_for_one_check_after_the_other(desk: Desk) -> None:
    first, second = Gate(), Gate(b"slow")
    await desk.held(first)
    await desk.held(second, name="second")
    waiting = [desk.append(b'"slow"'), desk.append(b'"quick"'), desk.append(b'"slow too"')]
    first.open()
    await turns()
    assert not any(future.done() for future in waiting)
    late = desk.append(b'"late"')
    second.open()
    assert [(await each).ordinal for each in [*waiting, late]] == [0, 1, 2, 3]
    assert await desk.content() == b'"slow",\n"quick",\n"slow too",\n"late",\n'


@on_stores()
async def test_an_append_that_is_refused_does_not_hold_up_those_behind_it(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    bodies = [b"0", b'"bad"', b"{", b"3"]
    waiting = [desk.append(body) for body in bodies]
    await turns()
    gate.error = OSError("what the check asks has failed")
    gate.open()
    answers = await asyncio.gather(*waiting, return_exceptions=True)
    assert isinstance(answers[0], OSError)
    assert [getattr(answer, "code", "ok") for answer in answers[1:]] == [
        "bad-request", "invalid-json", "ok",
    ]  # fmt: skip
    assert await desk.content() == b"3,\n"


@on_stores(body_bytes_max=1000, receive_bytes_max=1000, append_queue_bytes_max=1000)
async def test_no_more_bytes_wait_than_are_allowed(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    waiting = [desk.append(b'"%b"' % (b"x" * 498))]
    waiting.append(desk.append(b'"%b"' % (b"y" * 498)))
    with pytest.raises(PenstockError, match="wait already"):
        desk.append(b"1")
    gate.open()
    assert (await waiting[0]).ordinal == 0
    await codes(waiting)
    gate.close()
    again = desk.append(b'"%b"' % (b"z" * 900))  # there is room again
    gate.open()
    await again


@on_stores()
async def test_a_check_sees_who_writes_also_after_a_wait(desk: Desk) -> None:
    gate = Gate()
    await desk.held(gate)
    waiting = [desk.append(b"1", writer=Writer.SERVER), desk.append(b"2")]
    gate.open()
    await asyncio.gather(*waiting)
    assert gate.writers == [Writer.SERVER, Writer.SERVER, Writer.ANYBODY]


@on_stores()
async def test_a_duplicate_has_the_ordinal_that_the_stream_has_got_to(desk: Desk) -> None:
    await desk.engine.create("a", JSON, b"", closed=False)
    first = desk.append(b"[1,2]", producer=Producer("p", 0, 0))
    second = desk.append(b"3")
    again = desk.append(b"[1,2]", producer=Producer("p", 0, 0))
    close = desk.append(b"", close=True)
    answers = [await each for each in (first, second, again, close)]
    assert [answer.ordinal for answer in answers] == [0, 2, 3, 3]
    assert (await desk.append(b"", close=True)).ordinal == 3
