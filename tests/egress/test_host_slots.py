"""The bound on concurrent requests to each host."""

from __future__ import annotations

import asyncio

from penstock.egress import HostSlots
from tests.egress.test_egress import runs


class Load:
    """Holds slots until released, and counts how many are held at once."""

    def __init__(self, slots: HostSlots) -> None:
        self.slots = slots
        self.held = 0
        self.held_max = 0
        self.release = asyncio.Event()

    async def hold(self, host: str) -> None:
        async with self.slots.take(host):
            self.held += 1
            self.held_max = max(self.held_max, self.held)
            await self.release.wait()
            self.held -= 1


async def _settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


@runs
async def test_a_host_has_so_many_slots_and_no_more() -> None:
    load = Load(HostSlots(2))
    tasks = [asyncio.ensure_future(load.hold("a.example")) for _ in range(5)]
    await _settle()
    assert load.held == 2
    load.release.set()
    await asyncio.gather(*tasks)
    assert load.held_max == 2


@runs
async def test_hosts_do_not_wait_for_each_other() -> None:
    load = Load(HostSlots(1))
    tasks = [asyncio.ensure_future(load.hold(f"{name}.example")) for name in "abc"]
    await _settle()
    assert load.held == 3
    load.release.set()
    await asyncio.gather(*tasks)


@runs
async def test_a_host_is_forgotten_when_nobody_uses_it_and_not_before() -> None:
    load = Load(HostSlots(1))
    first = asyncio.ensure_future(load.hold("a.example"))
    await _settle()
    waiting = asyncio.ensure_future(load.hold("a.example"))
    await _settle()
    first.cancel()
    await asyncio.wait([first])
    await _settle()
    assert (load.slots.hosts, waiting.done()) == (1, False)
    late = asyncio.ensure_future(load.hold("a.example"))
    await _settle()
    late.cancel()  # while it waits for its turn
    await asyncio.wait([late])
    assert load.slots.hosts == 1
    load.release.set()
    await waiting
    assert load.slots.hosts == 0
