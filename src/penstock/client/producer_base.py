"""The common part of the blocking and the asyncio producer: everything but waiting and sending."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from penstock import limits
from penstock.client import requests
from penstock.client.answers import Answer, Appended
from penstock.client.flow import Flow, send
from penstock.client.producer_options import ProducerOptions, encoder_of
from penstock.client.producer_window import FULL, AppendBatch, Failed, Window
from penstock.client.requests import join_messages
from penstock.client.retry import NO_RETRY
from penstock.errors import ProtocolError
from penstock.protocol.headers import is_json

log = logging.getLogger("penstock.client")
EXIT_TIMEOUT_S = 10.0  # how long a `with` block that failed waits for pending messages
CLOSED = "The producer is closed: make a new one, with a higher epoch or auto_claim."


# How much `append` may leave in the inbox beyond the bound of the queue.
INBOX_COUNT_MAX = 128
INBOX_MESSAGE_BYTES_MAX = 4096
INBOX_QUEUE_SHARE_BYTES = 64 * limits.KIB


class ProducerBase:
    """The window of a producer, its inbox and its requests."""

    def __init__(self, url: str, options: ProducerOptions) -> None:
        self._url = url
        self._options = options
        self._content_type = ""
        self._encode: Callable[[Any], bytes] | None = None
        self._window = Window(options, time.monotonic)
        # The inbox makes `append` cheap: many messages go into the window at once. It is open only
        # while the window has a batch that grows, because a sender empties it before it takes that
        # batch.
        self._inbox: deque[bytes] = deque()
        self._is_inbox_open = False
        self._inbox_count_max = min(
            INBOX_COUNT_MAX, options.queue_bytes_max // INBOX_QUEUE_SHARE_BYTES
        )
        self._offset: str | None = None
        self._closing: Appended | None = None  # the answer to closing the stream

    @property
    def id(self) -> str:
        return self._options.id

    @property
    def epoch(self) -> int:
        """The current epoch; `auto_claim` and `restart` raise it."""
        return self._window.epoch

    @property
    def next_seq(self) -> int:
        """The sequence number of the next batch."""
        return self._window.next_seq

    @property
    def pending_count(self) -> int:
        """The number of messages that were appended and are not confirmed yet."""
        return self._window.pending_count + len(self._inbox)

    @property
    def stored_count(self) -> int:
        """The number of messages, in order, that are certainly stored."""
        return self._window.stored_count

    @property
    def in_flight_count(self) -> int:
        """The number of batches in flight."""
        return self._window.in_flight_count

    @property
    def offset(self) -> str | None:
        """The tail after the newest confirmed batch."""
        return self._offset

    def _use(self, content_type: str) -> Callable[[Any], bytes]:
        """Set the content type; return the function that encodes messages."""
        self._content_type = content_type
        self._window.separator_bytes = 1 if is_json(content_type) else 0
        self._encode = encoder_of(content_type)
        return self._encode

    def _empty_inbox(self) -> bool:
        """Move messages from the inbox into the window; return false if not all of them have room.

        The inbox is closed first, so that a concurrent append notices it.
        """
        self._is_inbox_open = False
        inbox, window = self._inbox, self._window
        if not inbox or window.is_stopped:
            return True
        messages = [inbox.popleft() for _ in range(len(inbox))]
        if window.extend(messages):
            return True
        inbox.extendleft(reversed(messages))
        while inbox and window.add(inbox[0]) != FULL:
            inbox.popleft()
        return not inbox

    def _attempt(self, batch: AppendBatch, on_sent: Callable[[], None]) -> Flow[Answer]:
        """Send a batch once; the window decides what happens after a failure."""
        messages, content_type = batch.messages, self._content_type
        request = requests.append(
            self._url,
            join_messages(messages, content_type) if messages else b"",
            content_type,
            producer=(self._options.id, batch.epoch, batch.seq),
            close=batch.close,
        )
        answer = yield from send(request._replace(on_sent=on_sent), NO_RETRY)
        if not answer.headers.keys() & {"stream-next-offset", "producer-epoch", "producer-seq"}:
            raise ProtocolError(
                f"The {answer.status} answer has none of the headers that confirm an append: the "
                "server, or a proxy in between, does not speak the protocol."
            )
        return answer

    def _landed(self, batch: AppendBatch, outcome: Answer | Exception) -> list[Failed]:
        """Pass the outcome of a batch to the window; return the messages that are given up."""
        if isinstance(outcome, Exception):
            failures = self._window.failed(batch, outcome)
        else:
            failures = self._confirmed(batch, outcome)
        if self._window.error is not None:
            self._is_inbox_open = False
            if self._inbox:
                failures.append(Failed(self._window.error, list(self._inbox)))
                self._inbox.clear()
        return failures

    def _confirmed(self, batch: AppendBatch, answer: Answer) -> list[Failed]:
        """Handle an answer that confirms a batch."""
        last_seq = answer.headers.get("producer-seq", "")
        # A stream that is closed is the goal, whoever closed it; and a close is answered 204 even
        # if it is new.
        duplicate = answer.status == 204 and not (batch.close and answer.closed)
        failures = self._window.accepted(
            batch,
            duplicate=duplicate,
            last_seq=int(last_seq) if last_seq.isdigit() and duplicate else None,
        )
        if not batch.settled or failures:
            return failures
        offset = answer.headers.get("stream-next-offset")
        if offset and (self._offset is None or offset > self._offset):
            self._offset = offset
        if batch.close:
            self._closing = Appended(
                offset or self._offset or "", True, False, batch.epoch, batch.seq
            )
        return failures

    def _warn_of_pending(self) -> None:
        if self.pending_count:
            log.warning(
                "producer %s stops with %d messages that are not stored",
                self.id,
                self.pending_count,
            )

    def _is_stream_closed(self) -> bool:
        return self._closing is not None

    def _closing_answer(self) -> Appended:
        if self._closing is None:
            self._window.check()
        assert self._closing is not None
        return self._closing
