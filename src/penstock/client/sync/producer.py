"""The blocking producer: one thread for each request in flight, started when it is needed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
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
    from penstock.client.sync.stream import Stream

OnError = Callable[[Exception, list[bytes]], object]


class Producer(ProducerBase):
    """Batches, pipelines and repeats appends safely: each message is stored once, in order, even
    if connections or the server fail.

    `append` returns at once; it blocks only while more than `queue_bytes_max` are pending. An error
    that a retry cannot cure ends the producer: `on_error` is called with it and the encoded
    messages, and every later call raises it. May be used by many threads.
    """

    def __init__(
        self,
        stream: Stream,
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
        self._lock = threading.Lock()
        self._work = threading.Condition(self._lock)  # for senders: there may be work
        self._settled = threading.Condition(self._lock)  # for callers: a batch is settled
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._has_timekeeper = False
        self._reporting = 0
        self._stopped = False

    def append(self, value: Any) -> None:
        """Append one message: any JSON value to a JSON stream, bytes or str to others.

        An invalid message raises TypeError or ValueError at once. The first call asks the server
        for the stream's content type, unless the stream knows it.
        """
        encode = self._encode
        data = encode(value) if encode is not None else self._first_encode(value)
        if self._is_inbox_open and len(data) < INBOX_MESSAGE_BYTES_MAX:
            inbox = self._inbox
            inbox.append(data)
            # Checked again, which mypy takes for redundant: another thread may have closed it in
            # between, and the message may have come too late.
            if self._is_inbox_open and len(inbox) < self._inbox_count_max:  # type: ignore[redundant-expr]
                return
            self._take_in(data, is_in_inbox=True)
        else:
            self._take_in(data, is_in_inbox=False)

    def flush(self, timeout_s: float | None = None) -> None:
        """Send what is waiting, and wait until everything appended so far is stored.

        Raises the first error if something failed, TimeoutError if it takes too long.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._wait(self._has_room, deadline)
            target = self._window.flush()
            self._wake()
            self._wait(
                lambda: self._window.settled_count >= target and self._is_reported(), deadline
            )
            if self._window.error is not None or self._stopped:
                self._window.check()

    def close(self, timeout_s: float | None = None) -> None:
        """Flush, and stop. The stream stays open. Closing again does nothing."""
        if self._stopped:
            return
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            with self._lock:
                self._wait(self._has_room, deadline)
                self._window.refuse(CLOSED)
            self.flush(None if deadline is None else deadline - time.monotonic())
        finally:
            self._stop()

    def close_stream(self, final: Any = None, *, timeout_s: float | None = None) -> Appended:
        """Flush, close the stream for good, after a last message if there is one, and stop.

        Closing again returns the same answer.
        """
        if self._is_stream_closed():
            return self._closing_answer()
        encode = self._encode or self._learn()
        data = None if final is None else encode(final)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            self._wait(self._has_room, deadline)
            self._window.check()
            self._window.refuse(CLOSED)
            batch = self._window.close_stream(data)
            self._wake()
        try:
            with self._lock:
                self._wait(lambda: batch.settled and self._is_reported(), deadline)
                return self._closing_answer()
        finally:
            self._stop()

    def detach(self) -> int:
        """Stop without waiting; return how many messages are not confirmed. Those in flight may
        still be stored."""
        with self._lock:
            self._is_inbox_open = False
            self._window.refuse(CLOSED)
            count = self._window.abandon() + len(self._inbox)
            self._inbox.clear()
        self._stop(join=False)
        return count

    def restart(self, timeout_s: float | None = None) -> None:
        """Flush, and begin the next epoch. After an error this makes the producer usable again; the
        messages that `on_error` was given are not sent again."""
        with self._lock:
            if self._stopped:
                self._window.check()
            deadline = None if timeout_s is None else time.monotonic() + timeout_s
            self._wait(self._has_room, deadline)
            self._window.flush()
            self._wake()
            self._wait(
                lambda: self._window.is_settled and not self._window.in_flight_count, deadline
            )
            self._window.restart()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failure: type[BaseException] | None, *_: object) -> None:
        if failure is None:
            self.close()
            return
        try:
            self.close(EXIT_TIMEOUT_S)
        except Exception:  # noqa: BLE001 - the error of the block matters more; on_error had this one
            pass

    # -- callers

    def _first_encode(self, value: Any) -> bytes:
        return self._learn()(value)

    def _learn(self) -> Callable[[Any], bytes]:
        return self._use(self._stream.content_type or self._stream.head().content_type)

    def _take_in(self, data: bytes, *, is_in_inbox: bool) -> None:
        """Append the messages of the inbox, then `data`; wait while there is no room."""
        with self._lock:
            self._wait(self._has_room, None)
            if not is_in_inbox:
                while self._window.add(data) == FULL:
                    self._wake()
                    self._settled.wait()
            elif self._window.is_stopped and data in self._inbox:
                # It came after the end. A message that has left the inbox was taken in before.
                self._inbox.remove(data)
                self._window.check()
            self._wake()
            self._is_inbox_open = self._window.is_growing

    def _has_room(self) -> bool:
        """Empty the inbox; return false if the window has no room for all of it."""
        if self._empty_inbox():
            return True
        self._wake()
        return False

    def _wait(self, is_over: Callable[[], bool], deadline: float | None) -> None:
        remaining_s = None if deadline is None else deadline - time.monotonic()
        if not self._settled.wait_for(is_over, remaining_s):
            raise TimeoutError(
                f"{self.pending_count} messages are not stored yet: wait longer, or see on_error."
            )

    def _is_reported(self) -> bool:
        """Whether no call of the error callback is outstanding."""
        return not self._reporting or threading.current_thread() in self._threads

    def _wake(self) -> None:
        """Notify or start a sender, if there may be something to send."""
        if self._idle:
            self._work.notify()
        elif len(self._threads) < self._options.in_flight_max and self._window.has_more:
            name = f"penstock-producer-{self._options.id}-{len(self._threads)}"
            thread = threading.Thread(target=self._send_batches, name=name, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _stop(self, *, join: bool = True) -> None:
        with self._lock:
            self._stopped = True
            self._warn_of_pending()
            busy = self._window.in_flight_count > 0
            self._work.notify_all()
            self._settled.notify_all()
        if join and not busy:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join()

    # -- senders

    def _send_batches(self) -> None:
        while (batch := self._next_batch()) is not None:
            self._conclude(batch, self._post(batch))

    def _next_batch(self) -> AppendBatch | None:
        """Wait for something to send; None to stop."""
        with self._lock:
            while not self._stopped:
                self._empty_inbox()
                step = self._window.take()
                self._is_inbox_open = self._window.is_growing
                if isinstance(step, AppendBatch):
                    return step
                self._rest(step)
            return None

    def _rest(self, until: float | None) -> None:
        """Wait for work. Only one sender waits with a timeout, so that not all of them wake up."""
        self._idle += 1
        try:
            if until is None or self._has_timekeeper:
                self._work.wait()
                return
            self._has_timekeeper = True
            try:
                self._work.wait(max(0.0, until - time.monotonic()))
            finally:
                self._has_timekeeper = False
        finally:
            self._idle -= 1

    def _post(self, batch: AppendBatch) -> Answer | Exception:
        try:
            return self._stream.client.run(self._attempt(batch, lambda: self._sent(batch)))
        except Exception as error:  # noqa: BLE001 - the window handles it
            return error

    def _sent(self, batch: AppendBatch) -> None:
        with self._lock:
            self._window.written(batch)
            if self._window.has_more:
                self._wake()

    def _conclude(self, batch: AppendBatch, outcome: Answer | Exception) -> None:
        with self._lock:
            failures = self._landed(batch, outcome)
            self._reporting += bool(failures)
            self._settled.notify_all()
        if failures:
            for failed in failures:
                self._report(failed)
            with self._lock:
                self._reporting -= 1
                self._settled.notify_all()

    def _report(self, failed: Failed) -> None:
        if self._on_error is None:
            return
        try:
            self._on_error(failed.error, failed.messages)
        except Exception:  # noqa: BLE001 - a failure of the user's code, which is logged
            log.exception("the error callback of producer %s failed", self._options.id)
