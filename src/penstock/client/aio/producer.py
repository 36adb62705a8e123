"""The asyncio producer: a task for each request in flight. As in `producer`, with `await`."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Self

from penstock import limits
from penstock.client.answers import Answer, Appended
from penstock.client.producer_base import (
    CLOSED,
    EXIT_TIMEOUT_S,
    INBOX_MESSAGE_BYTES_MAX,
    ProducerBase,
    log,
)
from penstock.client.producer_options import PRODUCER_RETRY, AutoClaim, ProducerOptions
from penstock.client.producer_window import FULL, AppendBatch, Failed
from penstock.client.retry import Retry

if TYPE_CHECKING:
    from penstock.client.aio.stream import AsyncStream

OnError = Callable[[Exception, list[bytes]], Awaitable[object] | object]

# A loop that only appends lets other tasks run each time it has filled the inbox this often.
ROUNDS_BETWEEN_YIELDS = 4


class AsyncProducer(ProducerBase):
    """Batches, pipelines and repeats appends safely: each message is stored once, in order, even
    if connections or the server fail.

    `await append(...)` returns at once; it waits only while more than `queue_bytes_max` are
    pending. An error that a retry cannot cure ends the producer: `on_error`, which may be
    async, is called with it and the encoded messages, and every later call raises it.
    """

    def __init__(
        self,
        stream: AsyncStream,
        id: str,
        *,
        epoch: int = 0,
        auto_claim: AutoClaim = False,
        batch_bytes_max: int = limits.MIB,
        batch_items_max: int | None = None,
        linger_ms: float = 5.0,
        in_flight_max: int = 5,
        queue_bytes_max: int = 16 * limits.MIB,
        on_error: OnError | None = None,
        retry: Retry = PRODUCER_RETRY,
    ) -> None:
        options = ProducerOptions(
            id=id,
            epoch=epoch,
            auto_claim=auto_claim,
            batch_bytes_max=batch_bytes_max,
            batch_items_max=batch_items_max,
            linger_ms=linger_ms,
            in_flight_max=in_flight_max,
            queue_bytes_max=queue_bytes_max,
            retry=retry,
        )
        super().__init__(stream.url, options)
        self._stream = stream
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: list[asyncio.Future[None]] = []
        self._rounds = 0
        self._reporting = 0  # error callbacks that are not over yet
        self._stopped = False

    async def append(self, value: Any) -> None:
        """Append one message: any JSON value to a JSON stream, bytes or str to others.

        An invalid message raises TypeError or ValueError at once. The first call asks the server
        for the stream's content type, unless the stream knows it.
        """
        encode = self._encode or await self._learn()
        data = encode(value)
        if self._is_inbox_open and len(data) < INBOX_MESSAGE_BYTES_MAX:
            inbox = self._inbox
            inbox.append(data)
            if len(inbox) >= self._inbox_count_max:
                await self._take_in(None)
        else:
            await self._take_in(data)

    async def flush(self, timeout_s: float | None = None) -> None:
        """Send what is waiting, and wait until everything appended so far is stored.

        Raises the first error if something failed, TimeoutError if it takes too long.
        """
        async with self._waiting_at_most(timeout_s):
            await self._settle_inbox()
            target = self._window.flush()
            self._pump()
            while self._window.settled_count < target or self._reporting:
                await self._change()
        if self._window.error is not None or self._stopped:
            self._window.check()

    async def close(self, timeout_s: float | None = None) -> None:
        """Flush, and stop. The stream stays open. Closing again does nothing."""
        if self._stopped:
            return
        try:
            async with self._waiting_at_most(timeout_s):
                await self._settle_inbox()
                self._window.refuse(CLOSED)
                await self.flush()
        finally:
            self._stop()

    async def close_stream(self, final: Any = None, *, timeout_s: float | None = None) -> Appended:
        """Flush, close the stream for good, after a last message if there is one, and stop.

        Closing again returns the same answer.
        """
        if self._is_stream_closed():
            return self._closing_answer()
        encode = self._encode or await self._learn()
        data = None if final is None else encode(final)
        try:
            async with self._waiting_at_most(timeout_s):
                await self._settle_inbox()
                self._window.check()
                self._window.refuse(CLOSED)
                batch = self._window.close_stream(data)
                self._pump()
                while not batch.settled or self._reporting:
                    await self._change()
            return self._closing_answer()
        finally:
            self._stop()

    def detach(self) -> int:
        """Stop without waiting; return how many messages are not confirmed. Those in flight may
        still be stored."""
        self._is_inbox_open = False
        self._window.refuse(CLOSED)
        count = self._window.abandon() + len(self._inbox)
        self._inbox.clear()
        self._stop()
        return count

    async def restart(self, timeout_s: float | None = None) -> None:
        """Flush, and begin the next epoch. After an error this makes the producer usable again; the
        messages that `on_error` was given are not sent again."""
        if self._stopped:
            self._window.check()
        async with self._waiting_at_most(timeout_s):
            await self._settle_inbox()
            self._window.flush()
            self._pump()
            while not self._window.is_settled or self._window.in_flight_count:
                await self._change()
        self._window.restart()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            await self.close()
            return
        try:
            await self.close(EXIT_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - the error of the block matters more; on_error had this one
            pass

    # -- callers

    async def _learn(self) -> Callable[[Any], bytes]:
        content_type = self._stream.content_type
        return self._use(content_type or (await self._stream.head()).content_type)

    async def _take_in(self, data: bytes | None) -> None:
        """Append the messages of the inbox, then `data`; wait while there is no room."""
        while not self._empty_inbox() or (data is not None and self._window.add(data) == FULL):
            self._pump()
            await self._change()
        self._pump()
        self._rounds += 1
        if self._rounds >= ROUNDS_BETWEEN_YIELDS:
            self._rounds = 0
            await asyncio.sleep(0)

    async def _settle_inbox(self) -> None:
        """Empty the inbox. It stays empty until the caller awaits something."""
        while not self._empty_inbox():
            self._pump()
            await self._change()

    @asynccontextmanager
    async def _waiting_at_most(self, timeout_s: float | None) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise TimeoutError(
                f"{self.pending_count} messages are not stored yet: wait longer, or see on_error."
            ) from None

    async def _change(self) -> None:
        """Wait until a batch is settled."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _changed(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def _stop(self) -> None:
        self._stopped = True
        self._warn_of_pending()
        if self._timer is not None:
            self._timer.cancel()
        for task in self._tasks:
            task.cancel()
        self._changed()

    # -- senders

    def _pump(self) -> None:
        """Start what can be sent now, and set the timer for the rest."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._empty_inbox()
        while not self._stopped:
            step = self._window.take()
            self._is_inbox_open = self._window.is_growing
            if isinstance(step, AppendBatch):
                task = asyncio.create_task(self._send(step))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
                continue
            if step is not None:
                loop = asyncio.get_running_loop()
                self._timer = loop.call_at(step, self._pump)
            return

    async def _send(self, batch: AppendBatch) -> None:
        outcome: Answer | Exception
        try:
            outcome = await self._stream.client.run(self._attempt(batch, lambda: self._sent(batch)))
        except Exception as error:  # noqa: BLE001 - the window handles it
            outcome = error
        failures = self._landed(batch, outcome)
        self._pump()
        self._reporting += 1
        try:
            for failed in failures:
                await self._report(failed)
        finally:
            self._reporting -= 1
            self._changed()

    def _sent(self, batch: AppendBatch) -> None:
        self._window.written(batch)
        self._pump()

    async def _report(self, failed: Failed) -> None:
        if self._on_error is None:
            return
        try:
            result = self._on_error(failed.error, failed.messages)
            if inspect.isawaitable(result):
                await result
        except Exception:  # noqa: BLE001 - a failure of the user's code, which is logged
            log.exception("the error callback of producer %s failed", self._options.id)
