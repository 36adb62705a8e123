"""A stream whose state is too large to be compacted in one step, written anew as another stream.

The state as the warehouse has it goes to the new stream as a snapshot; what came after it is copied
until nothing is left; then a reset in the old stream, appended only if nothing came in between,
leads its readers on. Every request can be repeated, and a rewrite that was killed begins where it
was: each step says by its producer what it is.
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
_Told = Callable[[str], None]


class Rewritten(NamedTuple):
    stream: str
    to: str
    entities: int
    copied: int  # messages that came after the state was taken
    offset: str  # where the new stream ends
    earliest: str | None  # where the old one begins, if it was trimmed
    is_read: bool  # whether the pipeline reads the new stream


def rewrite(
    pipeline: Pipeline,
    stream: str,
    to: str,
    *,
    keep_open: bool = False,
    trim: bool = False,
    attempts_max: int = limits.PIPELINE_SWITCH_ATTEMPTS_MAX,
    on_progress: _Told | None = None,
) -> Rewritten:
    """Write `stream` anew as `to` and lead its readers there; also what an earlier run left."""
    return Rewriter(pipeline, stream, to, on_progress=on_progress).run(
        keep_open=keep_open, trim=trim, attempts_max=attempts_max
    )


class Rewriter:
    def __init__(
        self, pipeline: Pipeline, stream: str, to: str, *, on_progress: _Told | None = None
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
        self._tell = on_progress or (lambda text: None)
        self._tail = ""  # of the new stream: nobody else may write to it yet

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
                # Told only once the stream is closed, so that it may be known before.
                busy = number >= limits.PIPELINE_SWITCH_FREE_ATTEMPTS
                self._announce(hold_s=limits.PIPELINE_SWITCH_HOLD_S if busy else 0)
            copied, switched = self._copy(plan, copied)
            if switched or self._switch(plan, copied, keep_open=keep_open):
                break
        else:
            raise RewriteFailed(
                f"{self.stream!r} was written to each time that readers were to be led on to "
                f"{self.to!r}, {attempts_max} times. All is copied that far: run it again when "
                "there is less going on, or with its writers paused."
            )
        earliest = self._old.trim(copied.offset) if trim else None
        self._staging.clear()
        is_read = selects("penstock", self._pipeline.source.streams, self.to)
        taken = copied.seq - plan.seq
        return Rewritten(
            self.stream, self.to, plan.messages - 2, taken, self._tail, earliest, is_read
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
        self._tell("taking the state from the warehouse")
        return self._staging.take(self._pipeline, self.to)

    def _check(self) -> None:
        starting = self._pipeline.source.starting
        if isinstance(starting, dict):
            known = {self._server.path("penstock", name) for name in starting}
            begins = self.stream not in known
        else:
            begins = starting == "earliest"
        if not begins:
            raise RewriteFailed(
                f"The pipeline did not begin at the start of {self.stream!r} (source.starting), so "
                "that the warehouse does not have all of its state."
            )
        head = self._old.head()
        if head.closed and head.successor is not None:
            raise RewriteFailed(f"{self.stream!r} goes on in {head.successor} already.")
        if head.closed:
            raise RewriteFailed(
                f"{self.stream!r} is closed: its readers cannot be told of another stream any more."
            )
        try:
            self._ask("HEAD", "/v1/table/", self.stream)
        except PenstockError as error:
            if error.status != 404:
                raise
            return
        raise RewriteFailed(
            f"{self.stream!r} is read as a table, whose rows cannot go on in another stream."
        )

    def _prepare(self) -> None:
        """Make the new stream like the old one: lifetime, declaration and limits."""
        head = self._old.head()
        if not self._new.exists():
            self._new.create(JSON, ttl_s=head.ttl_s, expires_at=head.expires_at, exist_ok=True)
        try:
            known = msgspec.json.decode(self._ask("GET", "/v1/schema/", self.stream))
        except SchemaNotFound:
            known = None
        if known is not None:
            wanted = {"mode": known["mode"], "types": known["types"]}
            self._ask("PUT", "/v1/schema/", self.to, wanted)
        retention = "/__ds/retention"
        policy = msgspec.json.decode(self._ask("GET", STREAM_PREFIX, self.stream + retention))
        if policy["own"]:
            wanted = {name: policy[name] for name in ("age", "bytes", "compact")}
            self._ask("PUT", STREAM_PREFIX, self.to + retention, wanted)

    def _send(self, plan: Plan) -> None:
        head = self._new.head()
        # Only an empty stream ends where it begins; a chunk that is there already asks no more.
        self._tail = head.earliest or head.offset
        first = 0
        while first < plan.chunks:
            for number, messages in self._staging.chunks(plan, first):
                body = requests.join_messages(messages, JSON)
                done = self._append(self._new, body, ProducerId(f"{plan.id}/state", 0, number))
                self._tail = done.offset
                self._tell(f"{number + 1:,} of {plan.chunks:,} chunks of the state")
                first = number + 1
                if done.duplicate and done.producer_seq is not None:
                    first = done.producer_seq + 1
                    self._check_begun(plan, first)
                    break

    # -- what came after it

    def _resumed(self, plan: Plan) -> Position:
        """How far an earlier run has copied; it is told by the number of the first message."""
        start = Position(plan.offset, plan.seq)
        first = self._message(start)
        end = start
        if first.data and not self._is_ours(first):
            self._look(first)
            end = self._cut(start, count=1)
            try:
                self._tail = self._append(self._new, first.data, self._number(plan, end)).offset
            except StaleEpoch as error:
                reached = int(error.headers.get("Producer-Epoch", end.byte))
                end = self._cut(start, size=reached - start.byte)
            first = self._message(end)
        if not self._is_ours(first):  # else everybody may write to it by now
            self._check_alone(plan.messages + end.seq - plan.seq)
        return end

    def _message(self, place: Position) -> Batch:
        """The message at a place, if there is one."""
        return next(iter(self._old.iter_batches(place.offset, count=1, decode=False)))

    def _check_begun(self, plan: Plan, chunks: int) -> None:
        """Of a snapshot that an earlier run has begun there is so much, and nothing else."""
        if chunks < plan.chunks:
            found = takewhile(lambda chunk: chunk[0] < chunks, self._staging.chunks(plan, 0))
            self._check_alone(sum(len(messages) for _, messages in found))

    def _check_alone(self, messages: int) -> None:
        """The new stream has what it was given: if not, somebody else has written to it."""
        tail = self._server.tails("penstock", [self.to])[self.to].position
        if tail.seq != messages:
            raise self._disturbed()
        self._tail = tail.offset

    def _copy(self, plan: Plan, copied: Position) -> tuple[Position, bool]:
        """Copy up to the end there is now; whether readers are led on from there already."""
        for batch in self._old.iter_batches(copied.offset, decode=False):
            if not batch.data:
                continue
            if self._is_ours(batch):
                return copied, True
            self._look(batch)
            copied = Position(batch.next_offset, copied.seq + len(_split(batch.data)))
            self._tail = self._append(self._new, batch.data, self._number(plan, copied)).offset
            self._tell(f"{copied.seq - plan.seq:,} messages since then")
        return copied, False

    def _number(self, plan: Plan, end: Position) -> ProducerId:
        # The place in the old stream is part of the very record that has what is before it.
        return ProducerId(f"{plan.id}/after", end.byte, 0)

    def _cut(self, start: Position, **length: int) -> Position:
        """The place so many messages (`count`) or bytes (`size`) after another."""
        tail = self._old.head().offset
        cuts: Cuts = self._server.cuts(
            self.stream, start.offset, tail, count=length.get("count"), size=length.get("size")
        )
        return cuts.position(-1)

    def _is_ours(self, batch: Batch) -> bool:
        """Whether a batch begins with the reset that leads to the new stream."""
        if _RESET not in batch.data:
            return False
        first = _split(batch.data)[0]
        return any(
            event.location == STREAM_PREFIX + self.to
            for event in _controls(b"[" + bytes(first) + b"]")
        )

    def _look(self, batch: Batch) -> None:
        """Refuse what would mean something else in a stream with other offsets."""
        if _RESET not in batch.data:
            return
        for event in _controls(batch.data):
            if event.control == "reset" and event.location is not None:
                raise RewriteFailed(f"{self.stream!r} goes on in {event.location} already.")
            if event.control == "reset" and event.offset is not None:
                raise RewriteFailed(
                    f"A reset of {self.stream!r} names an offset, which is another place in a new "
                    "stream; run the pipeline beyond it, delete the new stream, and try again."
                )

    # -- the switch

    def _announce(self, *, hold_s: float) -> None:
        """Say where the old stream will go on; with a hold its writers wait for a moment."""
        location = STREAM_PREFIX + self.to
        self._server.send(requests.successor(self._old.url, location, hold_s=hold_s))

    def _switch(self, plan: Plan, copied: Position, *, keep_open: bool) -> bool:
        """Lead readers on, if all there is has been copied."""
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
            f"{self.to!r} has something in it that this rewrite did not put there: it has to be "
            "new, and nobody may write to it before readers are led there. Delete it, or take "
            "another name."
        )

    def _ask(self, method: str, prefix: str, path: str, content: Any = None) -> bytes:
        url = self._server.stream_url(self.stream).partition(STREAM_PREFIX)[0] + prefix + path
        if content is None:
            return self._server.send(Request(method, url)).body
        body = msgspec.json.encode(content)
        return self._server.send(Request(method, url, {"Content-Type": JSON}, body=body)).body


def _controls(data: bytes) -> list[ControlEvent]:
    found = parse_many(data, strict_timestamp=False, on_invalid=lambda error: None)
    return [event for event in found if isinstance(event, ControlEvent)]
