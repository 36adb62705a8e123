"""Decides appends and closes on the pending half of a stream.

The order in which a request is judged is `protocol.lifecycle.judge_append`; what needs the stream
itself (its tail, room in the store, JSON, registered checks) follows here.
"""

from __future__ import annotations

import asyncio
from functools import partial

from penstock.errors import PenstockError, StreamNotFound, TailMoved
from penstock.log.decide.checks import Checks
from penstock.log.decide.context import Context, gone, is_large
from penstock.log.decide.delete import living_stream
from penstock.log.lineage import spellings, token
from penstock.log.mutations import AppendMutation
from penstock.log.recording import Recording
from penstock.log.requests import Append, Appended, Notes, NotYet
from penstock.log.stream import SUCCESSOR, Stream
from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import Outcome, judge_append, stream_closed
from penstock.protocol.offsets import BEGINNING
from penstock.protocol.producer import ProducerState

Decided = AppendMutation | asyncio.Future[Appended]
"""An append that was accepted, on its way to the disk; or an answer that has to wait for others."""

_ACCEPT = Outcome.ACCEPT
_FRAMED = "framed"


class Appends:
    """The decision about an append, and the checks and recordings that take part in it."""

    def __init__(
        self, context: Context, checks: Checks, recordings: dict[Stream, list[Recording]]
    ) -> None:
        self._context = context
        self._checks = checks
        self._recordings = recordings
        self._now_us = context.clock.now_us
        self._queues = context.waiting.queues

    def append(self, path: str, request: Append) -> asyncio.Future[Appended]:
        decided = self.decide(path, request)
        if isinstance(decided, AppendMutation):
            return decided.as_future(self._context.loop)
        return decided

    def decide(self, path: str, request: Append) -> Decided:
        """Decide an append; what is accepted at once is its own receipt."""
        now_us = self._now_us()
        stream = living_stream(self._context, path, now_us)
        notes: Notes = {}
        if self._queues and self._waits_behind(stream, request):
            return self._wait(stream, request, notes, None)
        try:
            return self._decide(stream, request, notes, now_us)
        except NotYet as later:
            return self._wait(stream, request, notes, later)

    def _wait(
        self, stream: Stream, request: Append, notes: Notes, later: NotYet | None
    ) -> asyncio.Future[Appended]:
        decide = partial(self._decide_again, stream, request, notes)
        return self._context.waiting.add(stream, len(request.body), decide, later)

    def _decide_again(
        self, stream: Stream, request: Append, notes: Notes
    ) -> asyncio.Future[Appended]:
        now_us = self._now_us()
        if living_stream(self._context, stream.path, now_us) is not stream:
            # The writer meant the stream that was there before.
            raise StreamNotFound.at(stream.path)
        decided = self._decide(stream, request, notes, now_us)
        if isinstance(decided, AppendMutation):
            return decided.as_future(self._context.loop)
        return decided

    def _waits_behind(self, stream: Stream, request: Append) -> bool:
        """Whether an append queues behind those that wait for its stream."""
        context = self._context
        if stream.deleting or stream.pending_closed or not context.waiting.blocks(stream):
            return False
        if is_large(request.body, is_json=stream.is_json) or not self._checks.may_overtake(stream):
            return True
        try:
            wire, _ = context.frame(request.body, is_json=stream.is_json, allow_empty=False)
        except PenstockError:
            return True  # it is refused in its turn
        return not self._checks.overtake(stream, wire)

    def _decide(self, stream: Stream, request: Append, notes: Notes, now_us: int) -> Decided:
        try:
            if stream.deleting:
                raise gone(stream)
            producer, state, takes_producers = request.producer, None, True
            if producer is not None:
                state = self._producer_state(stream, producer)
                takes_producers = state is not None or self._takes_producers(stream)
            outcome, state = judge_append(
                request,
                closed=stream.pending_closed,
                closed_by=stream.pending_closed_by,
                content_type=stream.config.content_type,
                last_stream_seq=stream.pending_seq,
                producer_state=state,
                takes_producers=takes_producers,
            )
            if outcome is _ACCEPT:
                return self._accept(stream, request, state, notes, now_us)
            return self._answer(stream, outcome, state, now_us)
        except PenstockError as error:
            if request.at_once:
                raise
            return self._context.refuse(stream, error)

    def _answer(
        self, stream: Stream, outcome: Outcome, state: ProducerState | None, now_us: int
    ) -> asyncio.Future[Appended]:
        """Answer an append that changes nothing."""
        tail = token(stream, stream.pending_tail)
        if outcome is Outcome.CLOSED:
            error = stream_closed(tail, stream.pending_meta.get(SUCCESSOR))
            if state is not None:
                # Closed comes before stale; a writer that lost its epoch can still learn it.
                error.headers["Producer-Epoch"] = str(state.epoch)
            raise error
        is_closed = outcome is Outcome.ALREADY_CLOSED
        if not is_closed:
            self._context.stats.duplicates += 1
        self._context.streams.touch(stream, now_us)
        result = Appended(tail, is_closed, True, state, stream.pending_count)
        return self._context.answer(stream, result)

    def _accept(
        self,
        stream: Stream,
        request: Append,
        state: ProducerState | None,
        notes: Notes,
        now_us: int,
    ) -> AppendMutation:
        context, body, closes = self._context, request.body, request.close
        if request.expected is not None:
            _check_expected(stream, request.expected)
        context.admit(len(body))
        if is_large(body, is_json=stream.is_json) and not request.at_once:
            payload, count = self._framed(body, notes)
        else:
            payload, count = context.frame(body, is_json=stream.is_json, allow_empty=False)
        if stream.pending_meta and (payload or closes):
            payload, count = self._checks.run(stream, payload, count, request.writer, notes)
        if context.quotas is not None:
            context.quotas.admit(stream.path, streams=0, size=len(payload))
        start, ordinal = stream.pending_tail, stream.pending_count
        if self._recordings:
            for recording in self._recordings.get(stream, ()):
                recording.add(start, payload)

        stream.pending_tail = end = start + len(payload)
        stream.pending_count = ordinal + count
        producer, stream_seq = request.producer, request.stream_seq
        if producer is not None and state is not None:
            stream.pending_producers[producer.id] = state
        if stream_seq is not None:
            stream.pending_seq = stream_seq
        if closes:
            stream.pending_closed = True
            stream.pending_closed_by = producer
        mutation = AppendMutation(
            stream,
            Appended(token(stream, end), closes, False, state, ordinal),
            start=start,
            count=count,
            time_us=now_us,
            payload=payload,
            closes=closes,
            producer=producer,
            stream_seq=stream_seq,
        )
        context.send(mutation)
        return mutation

    def _framed(self, body: bytes, notes: Notes) -> tuple[bytes, int]:
        """Return a large body in wire shape; raise NotYet if it is to be framed first."""
        framed = notes.get(_FRAMED)
        if framed is None:
            raise NotYet(partial(self._frame, body, notes), blocks=True)
        if isinstance(framed, PenstockError):
            raise framed
        wire: tuple[bytes, int] = framed
        return wire

    async def _frame(self, body: bytes, notes: Notes) -> None:
        try:
            notes[_FRAMED] = await self._context.frame_later(body, allow_empty=False)
        except PenstockError as error:
            notes[_FRAMED] = error  # raised when the append is decided, in its turn

    def _producer_state(self, stream: Stream, producer: Producer) -> ProducerState | None:
        state = stream.pending_producers.get(producer.id) or stream.producers.get(producer.id)
        if state is None:
            state = self._context.store.load_producer(stream, producer.id)
            if state is not None:
                stream.producers[producer.id] = state
        return state

    def _takes_producers(self, stream: Stream) -> bool:
        """Whether a stream has room for one more producer."""
        pending = stream.pending_producers.keys() - stream.producers.keys()
        total = stream.producer_total + len(pending)
        return total < self._context.settings.producers_per_stream_max


def _check_expected(stream: Stream, expected: str) -> None:
    tail = token(stream, stream.pending_tail)
    if expected == BEGINNING and not stream.pending_tail:
        return
    if expected in ("*", tail):
        return
    if expected not in spellings(stream, stream.pending_tail):
        raise TailMoved(
            f"The tail is {tail}, not {expected}. Read on from there, then try again.",
            Stream_Next_Offset=tail,
        )
