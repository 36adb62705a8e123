"""The rewrite of a stream as another stream, for a state that is too large to be compacted in one
step.

The state in the warehouse is sent to the new stream as a snapshot; later messages are copied until
none are left; then a reset in the old stream, appended only if nothing came in between, redirects
its readers. Every request can be repeated, and a rewrite that was killed is resumed: the producer
of each step identifies it.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import takewhile
from typing import Any, Final, NamedTuple

import msgspec

from penstock import limits
from penstock.client import answers, requests
from penstock.client.answers import Appended
from penstock.client.batches import Batch
from penstock.client.requests import JSON, STREAM_PREFIX, ProducerId, Request
from penstock.client.sync.stream import Stream
from penstock.errors import (
    PenstockError,
    RewriteFailed,
    SchemaNotFound,
    StaleEpoch,
    TailMoved,
)
from penstock.spark.config import Pipeline
from penstock.spark.offsets import Position
from penstock.spark.pipeline.rewrite_staging import Plan, Staging
from penstock.spark.server import Cuts, Server, selects
from penstock.spark.warehouse.warehouse import Warehouse
from penstock.state.events import ControlEvent, parse_many, reset

_RESET: Final = b'"reset"'
_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode
_OnProgress = Callable[[str], None]


class Rewritten(NamedTuple):
    """The outcome of a rewrite."""

    stream: str
    to: str
    entities: int
    copied: int  # messages after the snapshot
    offset: str  # the tail of the new stream
    earliest: str | None  # the first offset of the old stream, if it was trimmed
    is_read: bool  # whether the pipeline reads the new stream


def rewrite(
    pipeline: Pipeline,
    stream: str,
    to: str,
    *,
    keep_open: bool = False,
    trim: bool = False,
    attempts_max: int = limits.PIPELINE_SWITCH_ATTEMPTS_MAX,
    on_progress: _OnProgress | None = None,
) -> Rewritten:
    """Rewrite `stream` as `to` and redirect its readers; resumes a rewrite that was interrupted."""
    return Rewriter(pipeline, stream, to, on_progress=on_progress).run(
        keep_open=keep_open, trim=trim, attempts_max=attempts_max
    )


class Rewriter:
    """One rewrite of one stream."""

    def __init__(
        self, pipeline: Pipeline, stream: str, to: str, *, on_progress: _OnProgress | None = None
    ) -> None:
        source = pipeline.source
        self._pipeline = pipeline
        self._server = Server(source.url, source.token, source.attempts)
        self.stream = self._server.path("penstock", stream)
        self.to = self._server.path("penstock", to)
        if self.stream == self.to:
            raise RewriteFailed("The new stream needs another name than the old one.")
        self._warehouse = Warehouse(pipeline.warehouse.path, pipeline.warehouse.options)
        self._staging = Staging(self._warehouse, self.stream)
        self._notify = on_progress or (lambda text: None)
        self._tail = ""  # of the new stream, which nobody else may write to yet

    @property
    def _old(self) -> Stream:
        return self._server.client.stream(self.stream)

    @property
    def _new(self) -> Stream:
        return self._server.client.stream(self.to)

    def run(self, *, keep_open: bool, trim: bool, attempts_max: int) -> Rewritten:
        self._warehouse.need()
        plan = self._plan()
        self._prepare()
        self._send(plan)
        copied = self._resumed(plan)
        for number in range(attempts_max):
            if not keep_open:
                # Readers see it only after the stream is closed, so that it can be set before.
                busy = number >= limits.PIPELINE_SWITCH_FREE_ATTEMPTS
                self._announce(hold_s=limits.PIPELINE_SWITCH_HOLD_S if busy else 0)
            copied, switched = self._copy(plan, copied)
            if switched or self._switch(plan, copied, keep_open=keep_open):
                break
        else:
            raise RewriteFailed(
                f"{self.stream!r} was written to each time that readers were to be redirected to "
                f"{self.to!r}, {attempts_max} times. All is copied that far: run it again when "
                "there are fewer writes, or with the writers paused."
            )
        earliest = self._old.trim(copied.offset) if trim else None
        self._staging.clear()
        is_read = selects("penstock", self._pipeline.source.streams, self.to)
        after = copied.seq - plan.seq
        return Rewritten(
            self.stream, self.to, plan.messages - 2, after, self._tail, earliest, is_read
        )

    # -- the snapshot

    def _plan(self) -> Plan:
        plan = self._staging.plan()
        if plan is not None:
            if plan.to != self.to:
                raise RewriteFailed(
                    f"{self.stream!r} is being rewritten as {plan.to!r}: finish that first, by "
                    f"running it again with --to {plan.to}."
                )
            return plan
        self._check()
        self._notify("taking the state from the warehouse")
        return self._staging.write(self._pipeline, self.to)

    def _check(self) -> None:
        starting = self._pipeline.source.starting
        if isinstance(starting, dict):
            named = {self._server.path("penstock", name) for name in starting}
            is_complete = self.stream not in named
        else:
            is_complete = starting == "earliest"
        if not is_complete:
            raise RewriteFailed(
                f"The pipeline did not begin at the start of {self.stream!r} (source.starting), so "
                "that the warehouse does not have all of its state."
            )
        head = self._old.head()
        if head.closed and head.successor is not None:
            raise RewriteFailed(f"{self.stream!r} already continues in {head.successor}.")
        if head.closed:
            raise RewriteFailed(
                f"{self.stream!r} is closed, so that its readers cannot be redirected."
            )
        try:
            self._request("HEAD", "/v1/table/", self.stream)
        except PenstockError as error:
            if error.status != 404:
                raise
            return
        raise RewriteFailed(
            f"{self.stream!r} is read as a table, whose rows cannot continue in another stream."
        )

    def _prepare(self) -> None:
        """Create the new stream with the lifetime, schema and retention of the old one."""
        head = self._old.head()
        if not self._new.exists():
            self._new.create(JSON, ttl_s=head.ttl_s, expires_at=head.expires_at, exist_ok=True)
        try:
            schema = msgspec.json.decode(self._request("GET", "/v1/schema/", self.stream))
        except SchemaNotFound:
            schema = None
        if schema is not None:
            self._request("PUT", "/v1/schema/", self.to, schema)
        retention = "/__ds/retention"
        policy = msgspec.json.decode(self._request("GET", STREAM_PREFIX, self.stream + retention))
        if policy["own"]:
            own = {name: policy[name] for name in ("age", "bytes", "compact")}
            self._request("PUT", STREAM_PREFIX, self.to + retention, own)

    def _send(self, plan: Plan) -> None:
        """Send the chunks of the snapshot that the new stream lacks."""
        head = self._new.head()
        # The first chunk requires an empty stream; repeated chunks require nothing.
        self._tail = head.earliest or head.offset
        first = 0
        while first < plan.chunks:
            for number, messages in self._staging.chunks(plan, first):
                body = requests.join_messages(messages, JSON)
                done = self._append(self._new, body, ProducerId(f"{plan.id}/state", 0, number))
                self._tail = done.offset
                self._notify(f"{number + 1:,} of {plan.chunks:,} chunks of the state")
                first = number + 1
                if done.duplicate and done.producer_seq is not None:
                    first = done.producer_seq + 1
                    self._check_begun(plan, first)
                    break

    # -- the messages after it

    def _resumed(self, plan: Plan) -> Position:
        """The position up to which an earlier run has copied. The server tells it when the first
        message is sent again."""
        start = Position(plan.offset, plan.seq)
        first = self._message(start)
        end = start
        if first.data and not self._is_ours(first):
            self._check_resets(first)
            end = self._cut(start, count=1)
            try:
                self._tail = self._append(self._new, first.data, self._number(plan, end)).offset
            except StaleEpoch as error:
                reached = int(error.headers.get("Producer-Epoch", end.byte))
                end = self._cut(start, size=reached - start.byte)
            first = self._message(end)
        if not self._is_ours(first):  # otherwise anybody may write to the new stream by now
            self._check_alone(plan.messages + end.seq - plan.seq)
        return end

    def _message(self, position: Position) -> Batch:
        """The message at a position; empty at the tail."""
        return next(iter(self._old.iter_batches(position.offset, count=1, decode=False)))

    def _check_begun(self, plan: Plan, chunks: int) -> None:
        """Raise an error unless the new stream has exactly the first chunks of the snapshot."""
        if chunks < plan.chunks:
            sent = takewhile(lambda chunk: chunk[0] < chunks, self._staging.chunks(plan, 0))
            self._check_alone(sum(len(messages) for _, messages in sent))

    def _check_alone(self, messages: int) -> None:
        """Raise an error unless the new stream has so many messages: else somebody has written to
        it."""
        tail = self._server.tails("penstock", [self.to])[self.to].position
        if tail.seq != messages:
            raise self._disturbed()
        self._tail = tail.offset

    def _copy(self, plan: Plan, copied: Position) -> tuple[Position, bool]:
        """Copy up to the current tail; return the position, and whether readers are redirected
        already."""
        for batch in self._old.iter_batches(copied.offset, decode=False):
            if not batch.data:
                continue
            if self._is_ours(batch):
                return copied, True
            self._check_resets(batch)
            copied = Position(batch.next_offset, copied.seq + len(_split(batch.data)))
            self._tail = self._append(self._new, batch.data, self._number(plan, copied)).offset
            self._notify(f"{copied.seq - plan.seq:,} messages since then")
        return copied, False

    def _number(self, plan: Plan, end: Position) -> ProducerId:
        # The epoch is the position in the old stream, so that each append records how far it goes.
        return ProducerId(f"{plan.id}/after", end.byte, 0)

    def _cut(self, start: Position, **length: int) -> Position:
        """The position so many messages (`count`) or bytes (`size`) after another."""
        tail = self._old.head().offset
        cuts: Cuts = self._server.cuts(
            self.stream, start.offset, tail, count=length.get("count"), size=length.get("size")
        )
        return cuts.position(-1)

    def _is_ours(self, batch: Batch) -> bool:
        """Whether a batch begins with the reset that redirects to the new stream."""
        if _RESET not in batch.data:
            return False
        first = _split(batch.data)[0]
        return any(
            event.location == STREAM_PREFIX + self.to
            for event in _controls(b"[" + bytes(first) + b"]")
        )

    def _check_resets(self, batch: Batch) -> None:
        """Raise an error for a reset that would have another meaning in the new stream."""
        if _RESET not in batch.data:
            return
        for event in _controls(batch.data):
            if event.control == "reset" and event.location is not None:
                raise RewriteFailed(f"{self.stream!r} already continues in {event.location}.")
            if event.control == "reset" and event.offset is not None:
                raise RewriteFailed(
                    f"A reset of {self.stream!r} names an offset, which has no meaning in a new "
                    "stream. Run the pipeline beyond it, delete the new stream, and try again."
                )

    # -- the switch

    def _announce(self, *, hold_s: float) -> None:
        """Set the successor of the old stream; with a hold its appends wait."""
        location = STREAM_PREFIX + self.to
        self._server.send(requests.successor(self._old.url, location, hold_s=hold_s))

    def _switch(self, plan: Plan, copied: Position, *, keep_open: bool) -> bool:
        """Redirect readers if everything has been copied; return whether it was."""
        body = b"[" + reset(location=STREAM_PREFIX + self.to).to_json() + b"]"
        request = requests.append(
            self._old.url,
            body,
            JSON,
            if_match=copied.offset,
            producer=ProducerId(f"{plan.id}/switch", 0, 0),
            close=not keep_open,
        )
        try:
            self._server.send(request)
        except TailMoved:
            return False
        return True

    def _append(self, stream: Stream, body: bytes, producer: ProducerId) -> Appended:
        request = requests.append(stream.url, body, JSON, if_match=self._tail, producer=producer)
        try:
            answer = self._server.send(request)
        except TailMoved:
            raise self._disturbed() from None
        return answers.appended(answer, request)

    def _disturbed(self) -> RewriteFailed:
        return RewriteFailed(
            f"{self.to!r} contains messages that are not of this rewrite. It has to be new, and "
            "nobody may write to it before readers are redirected. Delete it, or choose another "
            "name."
        )

    def _request(self, method: str, prefix: str, path: str, content: Any = None) -> bytes:
        url = self._server.stream_url(self.stream).partition(STREAM_PREFIX)[0] + prefix + path
        if content is None:
            return self._server.send(Request(method, url)).body
        body = msgspec.json.encode(content)
        return self._server.send(Request(method, url, {"Content-Type": JSON}, body=body)).body


def _controls(data: bytes) -> list[ControlEvent]:
    """The control events of a JSON array of messages."""
    events = parse_many(data, strict_timestamp=False, on_invalid=lambda error: None)
    return [event for event in events if isinstance(event, ControlEvent)]
