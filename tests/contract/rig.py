"""One store under test, opened and reopened, with short ways to make mutations.

@on_stores()
async def test_something(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"])

runs once on every store; `@on_disk()` is for what only a store that survives a stop can promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.errors import PenstockError
from penstock.log.cluster.store import ClusterStore
from penstock.log.disk.store import DiskStore
from penstock.log.held_stream import HeldStream
from penstock.log.mutations import (
    AppendMutation,
    Barrier,
    CreateMutation,
    DeleteMutation,
    Entry,
    MetaMutation,
    Mutation,
)
from penstock.log.store import Store
from penstock.log.stream import Stream
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig
from tests.helpers import postgres
from tests.helpers.log import abandon, open_store, shrink_blocks

JSON = StreamConfig("application/json", None, None)
BYTES = StreamConfig("application/octet-stream", None, None)
STORES = ("disk", "memory", "cold", "cluster", "cold-cluster")
"""`cold` is a disk store whose every checkpoint is followed by a move of all that can be moved, and
`cold-cluster` one of a cluster."""
ON_CLUSTER = ("cluster", "cold-cluster")

Test = Callable[["Rig"], Awaitable[None]]


def wire(messages: Sequence[bytes]) -> bytes:
    return b"".join(message + b",\n" for message in messages)


class Recorder:
    """An observer that remembers what it was told, and whether futures were still open then."""

    def __init__(self) -> None:
        self.batches: list[list[Mutation]] = []
        self.failures: list[tuple[list[Mutation], PenstockError]] = []
        self.early: list[Mutation] = []

    def committed(self, batch: Sequence[Mutation]) -> None:
        self.batches.append(list(batch))
        self.early += [each for each in batch if each.future is not None and each.future.done()]

    def failed(self, batch: Sequence[Mutation], error: PenstockError) -> None:
        self.failures.append((list(batch), error))

    @property
    def mutations(self) -> list[Mutation]:
        return [mutation for batch in self.batches for mutation in batch]


class Rig:
    def __init__(self, kind: str, folder: Path, **options: Any) -> None:
        self.kind = kind
        self.folder = folder
        self.clock = ManualClock()
        self._options = options
        if kind in ON_CLUSTER:
            options |= {"cluster": postgres.shared().fresh_database(), "data_dir": folder}

    async def open(self) -> None:
        self.observer = Recorder()
        self.store: Store = open_store(self.kind, self.folder, self.clock, **self._options)
        self.active = {stream.path: stream for stream in await self.store.open(self.observer)}

    @property
    def disk(self) -> DiskStore:
        assert isinstance(self.store, DiskStore)
        return self.store

    async def reopen(self, **options: Any) -> None:
        await self.store.close()
        self._options |= options
        await self.open()

    async def crash(self) -> None:
        if isinstance(self.store, ClusterStore):
            await self.store.abandon()
        else:
            await abandon(self.disk)
        await self.open()

    async def settle(self) -> None:
        """Checkpoint where there is such a thing: what follows reads what is kept, not memory."""
        if isinstance(self.store, DiskStore | ClusterStore):
            assert await self.store.checkpoint()

    def find(self, path: str) -> Stream:
        """The stream that is active after opening, else the one that is kept."""
        stream = self.active.get(path) or self.store.load(path)
        assert stream is not None, path
        return stream

    def files(self, folder: str, suffix: str = "") -> list[str]:
        names = (self.folder / folder).rglob("*" + suffix)
        return sorted(path.name for path in names if path.is_file())

    # -- mutations

    def submit(self, entry: Entry) -> asyncio.Future[Any]:
        entry.future = asyncio.get_running_loop().create_future()
        self.store.submit(entry)
        return entry.future

    def make_create(
        self,
        path: str,
        messages: Sequence[bytes] = (),
        *,
        config: StreamConfig = JSON,
        closed: bool = False,
        replaces: Stream | None = None,
    ) -> CreateMutation:
        stream = HeldStream(self.store.next_id(), path, config, self.clock.now_us())
        payload = wire(messages) if stream.is_json else b"".join(messages)
        return CreateMutation(
            stream,
            f"created {path}",
            payload=payload,
            count=len(messages),
            closed=closed,
            replaces=replaces,
        )

    def make_append(
        self,
        stream: Stream,
        messages: Sequence[bytes],
        *,
        closes: bool = False,
        producer: Producer | None = None,
        stream_seq: str | None = None,
        start: int | None = None,
    ) -> AppendMutation:
        return AppendMutation(
            stream,
            "appended",
            start=stream.tail if start is None else start,
            count=len(messages),
            time_us=self.clock.now_us(),
            payload=wire(messages) if stream.is_json else b"".join(messages),
            closes=closes,
            producer=producer,
            stream_seq=stream_seq,
        )

    def make_delete(self, stream: Stream) -> DeleteMutation:
        return DeleteMutation(stream, "deleted", time_us=self.clock.now_us(), expired=False)

    async def create(self, path: str, messages: Sequence[bytes] = (), **options: Any) -> Stream:
        mutation = self.make_create(path, messages, **options)
        await self.submit(mutation)
        return mutation.stream

    async def append(self, stream: Stream, messages: Sequence[bytes], **options: Any) -> None:
        await self.submit(self.make_append(stream, messages, **options))

    async def set_meta(self, stream: Stream, name: str, value: bytes | None) -> None:
        await self.submit(MetaMutation(stream, "set", name=name, value=value))

    async def delete(self, stream: Stream) -> None:
        await self.submit(self.make_delete(stream))

    async def barrier(self) -> None:
        await self.submit(Barrier())

    # -- looking

    async def content(self, stream: Stream) -> bytes:
        return await self.store.read(stream, stream.earliest, stream.tail)

    async def paths(self, prefix: str = "", after: str = "", limit: int = 100) -> list[str]:
        return [info.path for info in await self.store.list_streams(prefix, after, limit)]


def on_stores(kinds: Sequence[str] = STORES, **options: Any) -> Callable[[Test], Any]:
    """Run an async test on a fresh store of each kind."""

    def decorate(test: Test) -> Callable[..., None]:
        @pytest.mark.parametrize("kind", [_parameter(kind) for kind in kinds])
        def run(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
            shrink_blocks(monkeypatch)
            asyncio.run(_run(test, Rig(kind, tmp_path, **options)))

        run.__name__ = getattr(test, "__name__", "test")
        run.__doc__ = test.__doc__
        return run

    return decorate


def _parameter(kind: str) -> Any:
    return pytest.param(kind, marks=postgres.ON_POSTGRES if kind in ON_CLUSTER else ())


def on_disk(**options: Any) -> Callable[[Test], Any]:
    return on_stores(("disk", "cold"), **options)


async def _run(test: Test, rig: Rig) -> None:
    await rig.open()
    try:
        await asyncio.wait_for(test(rig), 20)
    finally:
        await rig.store.close()
