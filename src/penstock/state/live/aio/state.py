"""The asyncio live state: a task follows the stream."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Self

from penstock.client.aio.stream import AsyncStream
from penstock.client.batches import Batch
from penstock.client.endurance import OnOutage
from penstock.errors import Gone, StreamClosed
from penstock.protocol.offsets import START
from penstock.state.live.aio.transaction import AsyncTransaction
from penstock.state.live.backends import Backend, MemoryBackend
from penstock.state.live.bootstrap import Bootstrap, check, load_state
from penstock.state.live.core import LiveCore
from penstock.state.live.plan import Plan
from penstock.state.live.questions import answered
from penstock.state.live.rules import OnReset, Rules
from penstock.state.live.selection import Selection
from penstock.state.live.transaction import Outlet, Sequence
from penstock.state.live.views import LiveReader, check_names, indexes_of
from penstock.state.materialized import OnInvalid
from penstock.state.schema import StateSchema


class AsyncLiveState(LiveReader):
    """A local database that follows a stream: `async with AsyncLiveState(stream) as state: …`

    The options are those of `LiveState`. Reading does not wait; a backend on disk commits in a
    thread. Callbacks are plain functions, called in the event loop.
    """

    def __init__(
        self,
        stream: AsyncStream,
        *,
        schema: StateSchema | None = None,
        backend: Backend | None = None,
        indexes: Mapping[str, Iterable[str]] | None = None,
        on_invalid: OnInvalid = "skip",
        on_reset: OnReset = "clear",
        bootstrap: Bootstrap = "stream",
        producer_id: str | None = None,
        type: str | None = None,
        key: str | None = None,
        prefix: str | None = None,
        at: str | None = None,
        on_outage: OnOutage | None = None,
    ) -> None:
        check_names(self.__class__, schema)
        check(bootstrap, on_reset, at)
        selection = self._selection = Selection.checked(type, key, prefix)
        rules = Rules(schema=schema, on_invalid=on_invalid, on_reset=on_reset, selection=selection)
        self._stream = stream
        self._schema = schema
        self._bootstrap = bootstrap
        self._at = at
        self._on_outage = on_outage
        self._core = LiveCore(
            stream.url,
            backend or MemoryBackend(),
            rules,
            indexes_of(schema, indexes),
            selection=selection,
        )
        self._changed = asyncio.Event()
        self._sending = asyncio.Lock()
        self._outlet = Outlet(stream, Sequence(producer_id))
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> Self:
        """Begin to follow. The entities of the backend can be read before and after."""
        if self._task is not None:
            raise RuntimeError("The live state is started already.")
        self._task = asyncio.create_task(self._follow_on(), name="penstock-live-state")
        return self

    async def close(self) -> None:
        """Stop following. Closing again does nothing."""
        task = self._task
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(self._core.close)
        self._notify()

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def wait_up_to_date(self, timeout_s: float | None = None) -> None:
        """Wait until everything that is in the stream now has been applied."""
        stream, _, moves = self._outlet_now()
        tail = (await stream.head()).offset
        late = f"The state has not reached {tail} yet."
        await self._wait(lambda: self._core.is_at(tail, moves), timeout_s, late)

    async def wait_txid(self, txid: str, timeout_s: float | None = None) -> None:
        """Wait until all events of a transaction have been applied."""
        ticket = self._core.await_txid(txid)
        try:
            late = f"Transaction {txid} has not come yet."
            await self._wait(lambda: ticket.seen, timeout_s, late)
        finally:
            self._core.forget(ticket)

    async def wait_end(self, timeout_s: float | None = None) -> None:
        """Wait until the stream is closed and all of it is applied; raise the error that ends the
        state earlier."""
        late = "The stream is not closed yet."
        await self._wait(lambda: isinstance(self._core.ended, StreamClosed), timeout_s, late)

    def transaction(
        self, *, txid: str | None = None, conditional: bool = False
    ) -> AsyncTransaction:
        """Return a transaction: changes that readers of this state see at once, appended together.

        The last write wins. A `conditional` transaction raises TailMoved if the stream has grown
        beyond the state at the begin of the transaction.
        """
        return AsyncTransaction(self, txid=txid, conditional=conditional)

    def _outlet_now(self) -> Outlet[AsyncStream]:
        """Return the outlet to the followed stream, which a reset may change."""
        with self._core.lock:
            core, outlet = self._core, self._outlet
            if outlet.stream.url != core.url:
                stream = self._stream.client.stream(core.url)
                outlet = self._outlet = Outlet(stream, outlet.sequence.restarted(), core.moves)
            return outlet

    def _source(self) -> AsyncStream:
        url = self._core.source
        return self._stream if url == self._stream.url else self._stream.client.stream(url)

    def _can_wait(self) -> None:
        if self._task is None:
            raise RuntimeError("The live state is not started: call start first.")

    async def _wait(self, is_over: Callable[[], bool], timeout_s: float | None, late: str) -> None:
        self._can_wait()
        try:
            async with asyncio.timeout(timeout_s):
                while not is_over():
                    if self._core.ended is not None:
                        raise self._core.ended
                    await self._changed.wait()
        except TimeoutError:
            raise TimeoutError(late) from None

    async def _has_moved(self, moves: int) -> bool:
        """Wait for a redirect or the end; return whether the state follows another stream."""
        core = self._core
        while core.moves <= moves and core.ended is None:
            await self._changed.wait()
        return core.moves > moves

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    # -- the follower's task

    async def _follow_on(self) -> None:
        cause: Exception | None = None
        try:
            await self._load()
            while await self._follow():
                pass
        except Exception as error:  # noqa: BLE001 - raised by the methods that wait
            cause = error
        self._core.end(cause)
        self._notify()

    async def _load(self) -> None:
        """Load the state from the server, if that is requested and the backend is empty."""
        if (self._bootstrap != "state" and self._at is None) or self._at == START:
            return
        if self._core.position.offset != START:
            return
        client = self._stream.client
        flow = load_state(self._core.url, client.retry, selection=self._selection, at=self._at)
        loaded = await client.run(flow)
        if loaded is not None:
            await self._commit(self._core.loaded(*loaded))

    async def _follow(self) -> bool:
        """Follow the stream; return false if it is closed, true to read from another position."""
        try:
            offset = self._core.next.offset
            async with self._source().follow(
                offset, decode=False, on_outage=self._on_outage
            ) as batches:
                async for batch in batches:
                    plan = await self._planned(batch)
                    await self._commit(plan)
                    if plan.skips:
                        return True
        except Gone as error:
            await self._commit(self._core.gone(error))
            return True
        return False

    async def _planned(self, batch: Batch) -> Plan:
        client = self._stream.client
        planning = self._core.plan(batch)
        return await client.run(answered(planning, self._core.source, client.retry))

    async def _commit(self, plan: Plan) -> None:
        if self._core.backend.blocking:
            committed = await asyncio.to_thread(self._core.commit, plan)
        else:
            committed = self._core.commit(plan)
        self._notify()
        self._core.notify(committed, plan.controls)
