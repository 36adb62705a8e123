"""Requests whose shard changes hands."""

from __future__ import annotations

import asyncio

import pytest

from penstock.errors import NotOwner
from penstock.http.cluster.hold import ELSEWHERE, held
from penstock.http.message import Response
from tests.http.wire import on_loop

HOLD_S = 60.0


class FakeNode:
    """A node that looks at the shards when a test says so."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def next_look(self) -> asyncio.Event:
        return self._next

    def look(self) -> None:
        looked, self._next = self._next, asyncio.Event()
        looked.set()


class Owner:
    """Answers after so many refusals."""

    def __init__(self, refusals: int) -> None:
        self.refusals = refusals
        self.asked = 0

    def answer(self) -> Response:
        self.asked += 1
        if self.asked <= self.refusals:
            return Response(503, [(ELSEWHERE, b"1")])
        return Response(204, [])


async def _settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@on_loop
async def test_a_refused_request_is_sent_again_after_each_look() -> None:
    node, owner = FakeNode(), Owner(refusals=2)

    async def send() -> Response:
        return owner.answer()

    answer = asyncio.create_task(held(node, HOLD_S, send))
    for asked in (1, 2, 3):
        await _settled()
        assert owner.asked == asked
        node.look()
    assert (await answer).status == 204


@on_loop
async def test_a_look_during_a_request_counts() -> None:
    """The shard may have moved on by then: to wait for another look would take its time."""
    node, owner = FakeNode(), Owner(refusals=1)

    async def send() -> Response:
        answer = owner.answer()
        if owner.asked == 1:
            node.look()
        return answer

    async with asyncio.timeout(HOLD_S / 2):
        answer = await held(node, HOLD_S, send)
    assert (answer.status, owner.asked) == (204, 2)


@on_loop
async def test_a_request_that_may_have_been_carried_out_is_not_sent_again() -> None:
    asked = 0

    async def send() -> Response:
        nonlocal asked
        asked += 1
        raise NotOwner("It went away.")

    with pytest.raises(NotOwner):
        await held(FakeNode(), HOLD_S, send)
    assert asked == 1


@on_loop
async def test_a_request_that_reaches_nobody_is_held_no_longer_than_it_may_be() -> None:
    node = FakeNode()

    async def send() -> Response:
        node.look()
        error = NotOwner("Nobody is there.")
        error.is_unsent = True
        raise error

    with pytest.raises(NotOwner):
        await held(node, 0.05, send)
