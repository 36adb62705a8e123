"""Following a stream: catch up, then live reads, and resume from the last offset after failures.

A flow without I/O. A batch is emitted only when all of it has arrived, and the offset moves with
it, so that no failure repeats or skips a message. Its bytes are those of a catch-up read in every
mode: events as text turn CR and CRLF into LF and replace bytes that are not UTF-8, so text is asked
for in base64, and a server that does not know that is not trusted with line ends.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penstock.client import requests
from penstock.client.answers import Answer, check_filter, error_of, start_offset
from penstock.client.batches import Batch, Decoder
from penstock.client.endurance import Endurance, OnOutage
from penstock.client.flow import Call, Close, Emit, Exchange, Flow, Open, Piece, exchange, refusal
from penstock.client.requests import EVERYTHING, Filter, Start
from penstock.client.retry import Retry
from penstock.client.sse import Control, EventParser, decode_base64, parse_control
from penstock.errors import ConnectionFailed, Gone, PenstockError, ProtocolError
from penstock.protocol.headers import is_json, is_text
from penstock.protocol.offsets import NOW, START

if TYPE_CHECKING:
    from penstock.client.checkpoint import Checkpoint

Mode = Literal["auto", "sse", "long-poll"]
OnReset = Literal["raise", "restart"] | Callable[[Gone], Any]

# Statuses that refuse SSE. A mistake in the request itself shows again in the long-poll.
SSE_REFUSED: Final = frozenset({400, 405, 406, 415, 501})
SSE_FIRST_EVENT_S: Final = 10.0  # a server sends its first control event at once
SSE_BAD_MAX: Final = 3  # SSE responses in a row that came too late or ended too soon
LIVE_SHORT_S: Final = 1.0  # an empty live answer that took less did not wait for news

# In the text of an event, LF may have been CR or CRLF, and U+FFFD may have been any bytes.
_IN_DOUBT: Final = re.compile(rb"\n|\xef\xbf\xbd")


class FollowOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `Stream.follow`."""

    offset: str = START
    start: Start | None = None
    filter: Filter = EVERYTHING
    mode: Mode = "auto"
    checkpoint: Checkpoint | None = None
    checkpoint_key: str | None = None
    on_reset: OnReset = "raise"
    idle_timeout_s: float | None = None
    stop_when_up_to_date: bool = False
    decode: bool = True
    message_type: Any = None
    retry: Retry | None = None
    protocol_errors_max: int = 3
    on_outage: OnOutage | None = None


class Follower:
    """One run of `follow`: its offset, its mode, and what it knows about SSE on this route."""

    def __init__(
        self,
        url: str,
        options: FollowOptions,
        retry: Retry,
        *,
        content_type: str | None = None,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        if options.mode not in ("auto", "sse", "long-poll"):
            raise ValueError(f"The mode is {options.mode!r}: use auto, sse or long-poll.")
        self.offset = options.offset
        self.content_type = content_type
        self._url = url
        self._options = options
        self._start = options.start
        self._now_s = now_s
        self._endurance = Endurance(
            options.retry or retry,
            limited=options.retry is not None,
            protocol_errors_max=options.protocol_errors_max,
            idle_timeout_s=options.idle_timeout_s,
            now_s=now_s,
            on_outage=options.on_outage,
        )
        self._decoder = Decoder(decode=options.decode, message_type=options.message_type)
        self._mode: Literal["catch-up", "sse", "long-poll"] = (
            "catch-up" if options.mode == "auto" or options.start else options.mode
        )
        self._sse_allowed = options.mode != "long-poll"
        self._sse_works = False
        self._sse_bad = 0
        self._base64_allowed = True
        self._sse_first_s: float | None = None
        self._cursor: str | None = None
        self._was_up_to_date = False
        self._done = False

    @property
    def mode(self) -> str:
        """The current mode: catch-up, sse or long-poll."""
        return self._mode

    def flow(self) -> Flow[None]:
        checkpoint = self._options.checkpoint
        if checkpoint is not None:
            saved = yield Call(checkpoint.load, (self._key(),), blocking=True)
            if saved is not None:
                self.offset, self._start = saved, None
        while not self._done:
            try:
                yield from self._turn()
            except Gone as error:
                yield Close()
                yield from self._reset(error)
            except PenstockError as error:
                yield Close()
                if self._endurance.is_idle():
                    return
                yield from self._endurance.failed(error)

    def _turn(self) -> Flow[None]:
        """One request in the current mode, and the batches of its answer."""
        if self._mode == "catch-up":
            batch = yield from self._read()
            if batch.up_to_date:
                self._mode = "sse" if self._sse_allowed else "long-poll"
            yield from self._deliver(batch)
        elif self._mode == "long-poll":
            yield from self._long_poll()
        else:
            yield from self._events()
        if self._endurance.is_idle():
            self._done = True

    def _read(self) -> Flow[Batch]:
        """Return the batch of one catch-up read from the current offset."""
        request = requests.read(
            self._url, self.offset, start=self._start, filter=self._options.filter
        )
        answer = yield from exchange(Exchange(request))
        yield from self._check(request, answer)
        if self._start is not None:
            self.offset, self._start = start_offset(answer, self._start), None
        if answer.offset == self.offset and not answer.up_to_date:
            raise ProtocolError(
                "The answer has no new offset and does not say that it is up to date."
            )
        self._cursor = answer.cursor or self._cursor
        return self._batch_of(answer)

    def _long_poll(self) -> Flow[None]:
        started_s = self._now_s()
        request = requests.live(
            self._url,
            self.offset,
            "long-poll",
            cursor=self._cursor,
            filter=self._options.filter,
            read_timeout_s=self._options.idle_timeout_s,
        )
        answer = yield from exchange(Exchange(request))
        yield from self._check(request, answer)
        _need_cursor(answer.cursor, answer.closed)
        batch = self._batch_of(answer)
        self._cursor = answer.cursor
        yield from self._deliver(batch)
        if self._now_s() - started_s >= LIVE_SHORT_S:
            self._endurance.failures = 0
        elif batch.next_offset == batch.offset and not self._done:
            # The server, or a proxy, answers without waiting: this must not become a busy loop.
            yield from self._endurance.short()

    def _events(self) -> Flow[None]:
        if self.content_type is None:
            yield from self._learn_type()
        started_s, before = self._now_s(), self.offset
        self._sse_first_s = None
        # Until events are known to arrive at once, silence may mean that a proxy holds them back.
        trusted = self._sse_works or self._options.mode != "auto"
        patience_s = None if trusted else SSE_FIRST_EVENT_S
        request = requests.live(
            self._url,
            self.offset,
            "sse",
            cursor=self._cursor,
            base64=self._base64_allowed and is_text(self.content_type or ""),
            filter=self._options.filter,
            read_timeout_s=_least(patience_s, self._options.idle_timeout_s),
        )
        try:
            answer = yield from exchange(Open(request))
            if not (yield from self._is_event_stream(request, answer)):
                return
            base64 = answer.headers.get("stream-sse-data-encoding", "").lower() == "base64"
            exact = base64 or is_json(self.content_type or "")
            if not exact and self._options.mode == "auto":
                yield Close()
                self._use_long_poll()
                return
            yield from self._receive(base64=base64, exact=exact)
            yield Close()
        except ConnectionFailed as error:
            if error.sent:
                self._judge_sse(started_s, short=False)
            raise
        short = self.offset == before and self._now_s() - started_s < LIVE_SHORT_S
        self._judge_sse(started_s, short=short)
        if short and not self._done:
            yield from self._endurance.short()

    def _receive(self, *, base64: bool, exact: bool) -> Flow[None]:
        """Read events until the response ends. Unless they are `exact`, those whose bytes are in
        doubt only say that there is something to read."""
        parser = EventParser(json=is_json(self.content_type or ""))
        waiting: list[bytes] = []
        start = self.offset
        while True:
            piece: bytes | None = yield Piece()
            if piece is None:
                return
            for kind, data in parser.feed(piece):
                if kind == "data":
                    waiting.append(decode_base64(data) if base64 else data)
                elif kind == "control":
                    control = parse_control(data)
                    _need_cursor(control.stream_cursor, control.stream_closed)
                    if self._sse_first_s is None:
                        self._sse_first_s = self._now_s()
                    if exact or self.offset == NOW:
                        yield from self._deliver(self._batch_from(waiting, control))
                    else:
                        yield from self._deliver_text(waiting, start, control)
                    start = control.stream_next_offset
                    self._cursor = control.stream_cursor
                    waiting = []
                    if self._done:
                        return
            if self._endurance.is_idle():
                self._done = True
                return

    def _deliver_text(self, waiting: list[bytes], start: str, control: Control) -> Flow[None]:
        """Deliver text events, or what a catch-up read returns if their bytes are in doubt."""
        end = control.stream_next_offset
        # A read for an earlier event may have gone beyond the start, or the end, of this one.
        if self.offset != start or any(_IN_DOUBT.search(data) for data in waiting):
            while self.offset < end and not self._done:
                yield from self._deliver((yield from self._read()))
            waiting = []
        if self.offset <= end and not self._done:
            yield from self._deliver(self._batch_from(waiting, control))

    def _is_event_stream(self, request: requests.Request, answer: Answer) -> Flow[bool]:
        """Whether the answer is a stream of events; in auto mode a refusal leads to long-polls."""
        if answer.has_events:
            yield from self._endurance.answered()
            check_filter(answer, self._options.filter)
            return True
        if self._options.mode == "auto" and (answer.status in SSE_REFUSED or answer.status < 300):
            yield Close()
            self._use_long_poll()
            return False
        if answer.status == 400 and "sse" in request.params:
            # The server refuses parameters that it does not know.
            yield Close()
            self._base64_allowed = False
            return False
        raise (yield from refusal(request, answer))

    def _learn_type(self) -> Flow[None]:
        # Events do not say whether their text is JSON.
        request = requests.head(self._url)
        answer = yield from exchange(Exchange(request))
        if answer.status >= 300:
            raise error_of(request, answer)
        self.content_type = answer.content_type

    def _check(self, request: requests.Request, answer: Answer) -> Flow[None]:
        if answer.status >= 300:
            raise error_of(request, answer)
        yield from self._endurance.answered()
        check_filter(answer, self._options.filter)
        if answer.status == 200:
            self.content_type = answer.content_type

    # Decoding is the last step before a batch counts: no incomplete character may be fed twice.

    def _batch_of(self, answer: Answer) -> Batch:
        return self._decoder.batch(
            answer.body,
            content_type=self.content_type or answer.content_type,
            offset=self.offset,
            next_offset=answer.offset,
            up_to_date=answer.up_to_date,
            closed=answer.closed,
        )

    def _batch_from(self, waiting: list[bytes], control: Control) -> Batch:
        content_type = self.content_type or "application/octet-stream"
        if len(waiting) > 1 and is_json(content_type):
            data = b"[" + b",".join(array.strip()[1:-1] for array in waiting) + b"]"
        else:
            data = b"".join(waiting)
        return self._decoder.batch(
            data,
            content_type=content_type,
            offset=self.offset,
            next_offset=control.stream_next_offset,
            up_to_date=control.up_to_date or control.stream_closed,
            closed=control.stream_closed,
        )

    def _deliver(self, batch: Batch) -> Flow[None]:
        """Advance past a whole batch, emit it if it has news, then save its offset."""
        self.offset = batch.next_offset
        news = bool(batch.data) or batch.closed or (batch.up_to_date and not self._was_up_to_date)
        self._was_up_to_date = batch.up_to_date
        if batch.data:
            self._endurance.failures = self._endurance.broken = 0
            self._endurance.heard()
        self._done = batch.closed or (batch.up_to_date and self._options.stop_when_up_to_date)
        # Behind a filter the offset moves without news, and is not to be searched again.
        if not news and self._options.filter == EVERYTHING:
            return
        if news:
            yield Emit(batch)
            self._endurance.heard()
        checkpoint = self._options.checkpoint
        if checkpoint is not None and batch.next_offset != batch.offset:
            yield Call(checkpoint.save, (self._key(), batch.next_offset), blocking=True)

    def _reset(self, error: Gone) -> Flow[None]:
        """Apply `on_reset`: the offset was trimmed away, or the stream was recreated."""
        policy = self._options.on_reset
        if policy == "raise":
            raise error
        if policy == "restart":
            if self.offset == START:
                raise error
            self.offset = START
        else:
            offset = yield Call(policy, (error,))
            if offset is None:
                raise error
            if offset == self.offset:
                yield from self._endurance.failed(error, hopeful=True)
            self.offset = offset
        self._cursor = None
        self._was_up_to_date = False
        self._decoder.restart()
        if self._options.mode == "auto":
            self._mode = "catch-up"

    def _judge_sse(self, started_s: float, *, short: bool) -> None:
        """Rate an SSE response that has ended; after SSE_BAD_MAX bad ones use long-polls."""
        late = self._sse_first_s is None or self._sse_first_s - started_s > SSE_FIRST_EVENT_S
        self._sse_works = self._sse_works or not late
        if not late and self._now_s() - started_s >= LIVE_SHORT_S:
            self._endurance.failures = 0
        self._sse_bad = self._sse_bad + 1 if late or short else 0
        if self._options.mode == "auto" and self._sse_bad >= SSE_BAD_MAX:
            self._use_long_poll()

    def _use_long_poll(self) -> None:
        self._sse_allowed = False
        self._mode = "long-poll"

    def _key(self) -> str:
        return self._options.checkpoint_key or self._url


def _need_cursor(cursor: str | None, closed: bool) -> None:
    if cursor is None and not closed:
        raise ProtocolError("A live answer of an open stream has no Stream-Cursor.")


def _least(first: float | None, second: float | None) -> float | None:
    return min((value for value in (first, second) if value is not None), default=None)
