"""Grants of a quota among parts: together never more than the quota, whatever is late, lost or
started again, and all of it can be used."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import pytest

from penstock.errors import NotOwner, QuotaExceeded
from penstock.http.forwarding.quota_home import Ask, Granted, QuotaHome, Recall, Recalled
from penstock.http.forwarding.quota_share import QuotaShare
from penstock.log.quotas import Quotas
from penstock.log.requests import NotYet
from penstock.protocol.quotas import Quota

T = TypeVar("T")
STREAMS = 40
NAMES = ["a", "b", "c"]


class Part:
    """A part of a server: what it has is durable, what it was granted is not."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self._world = world
        self.streams = 0
        self.start(is_counted=True)

    def start(self, *, is_counted: bool) -> None:
        quotas = self.quotas = Quotas([("", Quota(STREAMS, None))], exempts_registry=False)
        self.share = QuotaShare(quotas, self.name, self._world.ask)
        if is_counted:
            self.count()

    def count(self) -> None:
        quotas = self.quotas
        quotas.usages[0].streams = self.streams
        # As after the last page of `count`.
        quotas._counted_id = float("inf")
        quotas.usages[0].is_counted = True
        self.share._counted()

    async def create(self) -> bool:
        quotas = self.quotas
        while True:
            try:
                quotas.admit("x", streams=1, size=0)
            except NotYet as later:
                try:
                    await later.ready()
                except (QuotaExceeded, NotOwner):
                    return False
                if quotas is not self.quotas:
                    return False  # it was started again meanwhile
            else:
                self.streams += 1
                return True

    def delete(self) -> None:
        if self.streams:
            self.streams -= 1
            if self.quotas.is_ready:
                self.quotas.usages[0].reserve(-1, 0)


class World:
    """A home and its parts, and a network that is slow, reorders and loses."""

    def __init__(self, seed: int, *, loss: float) -> None:
        self.random = random.Random(seed)
        self.loss = loss
        self.homes = 0
        self.parts = {name: Part(self, name) for name in NAMES}
        self.restart_home()

    def restart_home(self) -> None:
        self.homes += 1
        number = self.homes
        self.home = QuotaHome(NAMES, self.recall, lambda: self.homes == number)
        self.home.start()

    async def _carried(self, answer: Callable[[], Awaitable[T]]) -> T:
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        if self.random.random() < self.loss:
            raise NotOwner("lost")
        result = await answer()
        for _ in range(self.random.randrange(6)):
            await asyncio.sleep(0)
        if self.random.random() < self.loss:
            raise NotOwner("lost")
        return result

    async def ask(self, ask: Ask) -> Granted:
        home = self.home
        return await self._carried(lambda: home.ask(ask))

    async def recall(self, name: str, recall: Recall) -> Recalled:
        async def answer() -> Recalled:
            return self.parts[name].share.recall(recall)

        return await self._carried(answer)

    @property
    def total(self) -> int:
        return sum(part.streams for part in self.parts.values())


async def _run(seed: int, loss: float, action: Callable[[World, Part], Any]) -> World:
    world = World(seed, loss=loss)
    tasks: list[asyncio.Task[bool]] = []
    for _ in range(300):
        part = world.parts[world.random.choice(NAMES)]
        chance = world.random.random()
        if chance < 0.7:
            tasks.append(asyncio.create_task(part.create()))
        elif chance < 0.95:
            part.delete()
        else:
            action(world, part)
        for _ in range(world.random.randrange(8)):
            await asyncio.sleep(0)
        assert world.total <= STREAMS
    for task in tasks:
        await task
        assert world.total <= STREAMS
    return world


def _restart_part(world: World, part: Part) -> None:
    """A part is killed; its streams are counted when it is asked for the next time."""
    if part.quotas.is_ready:
        part.share.close()
        part.start(is_counted=False)
    else:
        part.count()


def _restart_home(world: World, part: Part) -> None:
    """Another home begins; the one before does not know it at once."""
    world.restart_home()


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("loss", [0.0, 0.2], ids=["slow", "lossy"])
@pytest.mark.parametrize("action", [_restart_part, _restart_home])
def test_a_quota_is_never_passed(
    seed: int, loss: float, action: Callable[[World, Part], Any]
) -> None:
    async def run() -> None:
        world = await _run(seed, loss if action is not _restart_home else 0.0, action)
        world.home.close()

    asyncio.run(run())


@pytest.mark.parametrize("seed", range(10))
def test_all_of_a_quota_can_be_used_by_anybody(seed: int) -> None:
    async def run() -> None:
        world = await _run(seed, 0.0, lambda world, part: None)
        for part in world.parts.values():
            while part.streams:
                part.delete()
        part = world.parts["b"]
        assert await asyncio.gather(*(part.create() for _ in range(STREAMS))) == [True] * STREAMS
        for other in world.parts.values():
            assert not await other.create()
        part.delete()
        assert await world.parts["c"].create()
        world.home.close()

    asyncio.run(run())


def test_a_refusal_waits_for_a_part_that_may_have_room() -> None:
    async def run() -> None:
        world = World(0, loss=0.0)
        for name in ("a", "b"):
            assert await world.parts[name].create()
        world.loss = 1.0
        outcomes = [await world.parts["c"].create() for _ in range(STREAMS)]
        assert not any(outcomes)
        world.loss = 0.0
        outcomes = [await world.parts["c"].create() for _ in range(STREAMS)]
        assert outcomes.count(True) == STREAMS - 2
        world.home.close()

    asyncio.run(run())
