"""An engine on a disk store, with its clock and the files it may fail on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.log.disk.files import Files
from penstock.log.disk.store import DiskStore
from penstock.log.engine import Engine
from penstock.log.requests import Append
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig
from tests.helpers.log import TINY, abandon

JSON = StreamConfig("application/json", None, None)


class Bench:
    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.settings = Settings(data_dir=folder, **{**TINY, **options})

    async def open(self) -> None:
        self.files = Files()
        self.store = DiskStore(self.settings, clock=self.clock, files=self.files)
        self.engine = Engine(self.store, self.settings, clock=self.clock)
        await self.engine.start()

    async def crash(self) -> None:
        self.engine._reap_task.cancel()
        await abandon(self.store)
        await self.open()

    async def create(self, path: str, body: bytes = b"", config: StreamConfig = JSON) -> None:
        await self.engine.create(path, config, body, closed=False)

    def append(self, path: str, body: bytes, producer: Producer | None = None) -> Any:
        return self.engine.append(
            path, Append(body, JSON.content_type, False, producer, None, None)
        )

    async def content(self, path: str) -> bytes:
        stream = self.engine.find(path, touch=False)
        return await self.engine.read(stream, 0, stream.tail)

    async def checkpoint(self) -> None:
        assert await self.store.checkpoint()

    def is_active(self, path: str) -> bool:
        return self.engine._streams.active(path) is not None

    def let_go(self) -> None:
        """Two looks: the first one only notes which streams are idle."""
        self.engine._streams.evict()
        self.engine._streams.evict()

    async def push_out(self, path: str) -> None:
        """Use so many other streams that this one is let go."""
        number = 0
        while self.is_active(path):
            assert number < 100
            await self.create(f"push/{path}/{number}")
            number += 1


def with_bench(**options: Any) -> Callable[[Callable[[Bench], Awaitable[None]]], Any]:
    def decorate(test: Callable[[Bench], Awaitable[None]]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main() -> None:
                bench = Bench(tmp_path, **options)
                await bench.open()
                try:
                    await asyncio.wait_for(test(bench), 20)
                finally:
                    await bench.engine.stop()

            asyncio.run(main())

        run.__name__ = getattr(test, "__name__", "test")
        run.__doc__ = test.__doc__
        return run

    return decorate


class Recorder:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, bytes, bool] | str] = []

    def advanced(self, start: int, end: int, wire: bytes, closed: bool) -> None:
        self.seen.append((start, end, wire, closed))

    def ended(self) -> None:
        self.seen.append("ended")
