"""Decides every change to a stream, in one place and in one order.

Create, append, close and delete are decided on pending state and answered when durable; an answer
that rests on pending state waits for it. If a batch fails, pending state is durable state again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import EmptyBody, PenstockError, StreamExists, TailMoved, TooManyProducers
from penstock.log import mutations
from penstock.log.active import ActiveStreams
from penstock.log.decide.context import gone, not_found
from penstock.log.decide.fork import path_blocked
from penstock.log.decide.snapshot import Snapshots
from penstock.log.lineage import spellings, token
from penstock.log.mutations import Mutation, with_meta
from penstock.log.requests import Append, Appended, Created, NotYet, Proposal, Writer
from penstock.log.stats import EngineStats
from penstock.log.store import Store
from penstock.log.stream import SUCCESSOR, Stream
from penstock.log.waiting import Waiting
from penstock.protocol.headers import is_json
from penstock.protocol.lifecycle import (
    StreamConfig,
    check_content_type,
    check_stream_seq,
    create_matches,
    stream_closed,
)
from penstock.protocol.producer import Duplicate, ProducerState, decide

Check = Callable[[Proposal], tuple[bytes, int] | None]
"""Raises PenstockError to refuse an append, or NotYet to be asked again later; what it returns,
wire bytes and their number of messages, is appended instead."""

Overtakes = Callable[[bytes, bytes], bool]
"""(meta value, wire bytes): whether an append is decided before those that wait."""

Listener = Callable[[Sequence[Mutation]], None]
"""Told of every batch when it is durable and applied, before its futures are resolved."""


class Writing(Snapshots):
    """The single owner of every stream's pending half; the store's observer."""

    def __init__(
        self,
        streams: ActiveStreams,
        store: Store,
        settings: Settings,
        stats: EngineStats,
        *,
        clock: Clock,
    ) -> None:
        super().__init__(streams, store, settings, stats, clock=clock)
        self._recordings = {}
        self._checks: dict[str, Check] = {}
        self._checks_of_closes: set[str] = set()
        self._overtaking: dict[str, Overtakes] = {}
        self._waiting = Waiting(self._decide_again, bytes_max=settings.append_queue_bytes_max)
        self.listener: Listener | None = None

    def create(
        self, path: str, config: StreamConfig, body: bytes, *, closed: bool
    ) -> asyncio.Future[Created]:
        now = self._clock.now_us()
        existing = self._streams.pending(path)
        replaces: Stream | None = None
        if existing is not None and not existing.deleting:
            if not self._streams.is_expired(existing, now):
                return self._create_again(existing, config, closed, now)
            self._check_running()
            if existing.fork is None and not existing.pending_forks:
                replaces = existing
            else:
                self.expire(existing)
        if existing is not None and existing.pending_soft_deleted:
            return self._refuse(existing, path_blocked(path))
        self._admit(len(body))
        payload, count = self._frame(
            body, in_messages=is_json(config.content_type), allow_empty=True
        )
        stream = Stream(self.store.next_id(), path, config, now)
        stream.pending_tail, stream.pending_count = len(payload), count
        stream.pending_closed = closed
        stream.previous = existing
        self._streams.add(stream)
        result = Created(token(stream, len(payload)), True, closed, config.content_type)
        return self._submit(
            mutations.Create(
                stream, result, payload=payload, count=count, closed=closed, replaces=replaces
            )
        )

    def _create_again(
        self, existing: Stream, config: StreamConfig, closed: bool, now: int
    ) -> asyncio.Future[Created]:
        try:
            if existing.fork is not None:
                raise StreamExists(
                    f"The stream at {existing.path!r} is a fork of {existing.fork.source_path!r}. "
                    "Send Stream-Forked-From, use another path, or delete the fork first."
                )
            create_matches(existing.config, existing.pending_closed, config, closed)
        except PenstockError as error:
            return self._refuse(existing, error)
        self._streams.touch(existing, now)
        offset = token(existing, existing.pending_tail)
        content_type = existing.config.content_type
        return self._answer(existing, Created(offset, False, existing.pending_closed, content_type))

    def append(self, path: str, request: Append) -> asyncio.Future[Appended]:
        now = self._clock.now_us()
        stream = self._living(path, now)
        if self._waiting.queues and self._waits_behind(stream, request):
            return self._waiting.add(stream, request, None)
        try:
            return self._decide(stream, request, now)
        except NotYet as later:
            return self._waiting.add(stream, request, later)

    def _decide(self, stream: Stream, request: Append, now: int) -> asyncio.Future[Appended]:
        if stream.deleting:
            return self._refuse(stream, gone(stream))
        try:
            if stream.pending_closed:
                return self._append_to_closed(stream, request, now)
            return self._append_to_open(stream, request, now)
        except PenstockError as error:
            return self._refuse(stream, error)

    def _decide_again(self, stream: Stream, request: Append) -> asyncio.Future[Appended]:
        now = self._clock.now_us()
        if self._living(stream.path, now) is not stream:
            raise not_found(stream.path)  # what is there now is not what the writer meant
        return self._decide(stream, request, now)

    def _waits_behind(self, stream: Stream, request: Append) -> bool:
        if stream.deleting or stream.pending_closed or not self._waiting.blocks(stream):
            return False
        try:
            wire, _ = self._frame(request.body, in_messages=stream.is_json, allow_empty=False)
        except PenstockError:
            return True  # refused in its turn
        for name, value in stream.pending_meta.items():
            overtakes = self._overtaking.get(name)
            if overtakes is not None and overtakes(value, wire):
                return False
        return True

    def drain(self) -> None:
        """Refuse appends that wait, and from now on those that would have to."""
        self._waiting.end()

    def stop(self) -> None:
        super().stop()
        self._waiting.end()

    def _delete(self, stream: Stream, now: int, *, expired: bool) -> asyncio.Future[None]:
        deleting = super()._delete(stream, now, expired=expired)
        self._waiting.release(stream)
        return deleting

    def _append_to_open(
        self, stream: Stream, request: Append, now: int
    ) -> asyncio.Future[Appended]:
        body = request.body
        if body:
            check_content_type(stream=stream.config.content_type, request=request.content_type)
        elif not request.close:
            raise EmptyBody("An append needs a body; to close the stream send Stream-Closed: true.")
        producer, state = request.producer, None
        if producer is not None:
            known = self._producer(stream, producer.id)
            decision = decide(known, producer)
            state = decision.state
            if type(decision) is Duplicate:
                self.stats.duplicates += 1
                self._streams.touch(stream, now)
                offset = token(stream, stream.pending_tail)
                count = stream.pending_count
                return self._answer(stream, Appended(offset, False, True, state, count))
            if known is None:
                self._check_producers(stream)
        check_stream_seq(last=stream.pending_seq, given=request.stream_seq)
        start = stream.pending_tail
        if request.expected is not None:
            self._check_expected(stream, request.expected)
        self._admit(len(body))
        payload, count = self._frame(body, in_messages=stream.is_json, allow_empty=False)
        if stream.pending_meta and (payload or request.close):
            payload, count = self._check_payload(stream, payload, count, request.writer)
        if self._recordings:
            self._record(stream, start, payload)

        ordinal = stream.pending_count
        stream.pending_tail = end = start + len(payload)
        stream.pending_count = ordinal + count
        if state is not None and producer is not None:
            stream.pending_producers[producer.id] = state
        if request.stream_seq is not None:
            stream.pending_seq = request.stream_seq
        if request.close:
            stream.pending_closed = True
            stream.pending_closed_by = producer
        return self._submit(
            mutations.Append(
                stream,
                Appended(token(stream, end), request.close, False, state, ordinal),
                start=start,
                count=count,
                time_us=now,
                payload=payload,
                closes=request.close,
                producer=producer,
                stream_seq=request.stream_seq,
            )
        )

    def _append_to_closed(
        self, stream: Stream, request: Append, now: int
    ) -> asyncio.Future[Appended]:
        """Closing again is fine, and so is a repeat of the request that closed the stream."""
        producer, tail = request.producer, token(stream, stream.pending_tail)
        state = None if producer is None else self._producer(stream, producer.id)
        is_repeat = producer is not None and producer == stream.pending_closed_by
        if is_repeat or (request.close and not request.body):
            self._streams.touch(stream, now)
            known = state if producer is not None and state is not None else None
            return self._answer(stream, Appended(tail, True, True, known, stream.pending_count))
        error = stream_closed(tail, stream.pending_meta.get(SUCCESSOR))
        if state is not None:
            # Closed is said before stale; a writer that lost its place can still find it.
            error.headers["Producer-Epoch"] = str(state.epoch)
        raise error

    def set_meta(self, path: str, name: str, value: bytes | None) -> asyncio.Future[None]:
        stream = self._living(path, self._clock.now_us())
        if stream.deleting:
            return self._refuse(stream, gone(stream))
        if stream.pending_meta.get(name) == value:
            return self._answer(stream, None)
        self._admit(len(value or b""))
        stream.pending_meta = with_meta(stream.pending_meta, name, value)
        return self._submit(mutations.SetMeta(stream, None, name=name, value=value))

    def add_check(
        self, name: str, check: Check, *, closes: bool, overtakes: Overtakes | None
    ) -> None:
        """`check` may refuse what is appended to a stream that has the meta value `name`, and
        with `closes` also that it is closed with nothing appended."""
        self._checks[name] = check
        if closes:
            self._checks_of_closes.add(name)
        if overtakes is not None:
            self._overtaking[name] = overtakes

    def _producer(self, stream: Stream, producer_id: str) -> ProducerState | None:
        state = stream.pending_producers.get(producer_id) or stream.producers.get(producer_id)
        if state is None:
            state = self.store.load_producer(stream, producer_id)
            if state is not None:
                stream.producers[producer_id] = state
        return state

    def _check_producers(self, stream: Stream) -> None:
        pending = stream.pending_producers.keys() - stream.producers.keys()
        known = stream.producer_total + len(pending)
        if known >= self._settings.producers_per_stream_max:
            raise TooManyProducers(
                f"{stream.path} already has {known} producers, as many as "
                "producers_per_stream_max allows; reuse an id or raise the setting"
            )

    def _check_expected(self, stream: Stream, expected: str) -> None:
        tail = token(stream, stream.pending_tail)
        if expected not in ("*", tail, *spellings(stream, stream.pending_tail)):
            raise TailMoved(
                f"the tail is {tail}, not {expected}: read on from there, then try again",
                Stream_Next_Offset=tail,
            )

    def _check_payload(
        self, stream: Stream, payload: bytes, count: int, writer: Writer
    ) -> tuple[bytes, int]:
        for name, value in stream.pending_meta.items():
            check = self._checks.get(name)
            if check is not None and (payload or name in self._checks_of_closes):
                proposal = Proposal(stream, value, stream.pending_tail, payload, count, writer)
                payload, count = check(proposal) or (payload, count)
        return payload, count

    # -- what the store tells

    def committed(self, batch: Sequence[Mutation]) -> None:
        stats = self.stats
        advanced: dict[Stream, list[mutations.Append | mutations.Snapshot]] = {}
        for mutation in batch:
            stream = mutation.stream
            if stream is None:
                continue
            stream.in_flight -= 1
            if type(mutation) is mutations.Append:
                stats.appends += 1
                stats.append_messages += mutation.count
                stats.append_bytes += len(mutation.payload)
                if not stream.in_flight and stream.pending_producers:
                    stream.pending_producers = {}
                if stream.watchers:
                    advanced.setdefault(stream, []).append(mutation)
            elif type(mutation) is mutations.Create:
                stats.creates += 1
                stats.forks += mutation.source is not None
                stream.previous = None
                if mutation.replaces is not None:
                    self._ended(mutation.replaces)
            elif type(mutation) is mutations.Trim:
                stats.trims += 1
            elif type(mutation) is mutations.Snapshot:
                stats.compactions += 1
                if stream.watchers:
                    advanced.setdefault(stream, []).append(mutation)
            elif type(mutation) is mutations.Delete:
                stats.deletes += 1
                self._deleted(mutation)
        for stream, appends in advanced.items():
            wire = b"".join([append.payload for append in appends])
            for watcher in list(stream.watchers):
                watcher.advanced(appends[0].start, stream.tail, wire, stream.closed)
        if self.listener is not None:
            self.listener(batch)

    def _deleted(self, mutation: mutations.Delete) -> None:
        if mutation.soft:
            self._tell_ended(mutation.stream)
            return
        self._ended(mutation.stream)
        for stream in mutation.cascade:
            stream.in_flight -= 1
            self._ended(stream)

    def _ended(self, stream: Stream) -> None:
        self._streams.remove(stream)
        self._tell_ended(stream)

    def _tell_ended(self, stream: Stream) -> None:
        watchers, stream.watchers = list(stream.watchers), {}
        self.stats.watchers -= len(watchers)
        for watcher in watchers:
            watcher.ended()

    def failed(self, batch: Sequence[Mutation], error: PenstockError) -> None:
        for mutation in reversed(batch):
            if type(mutation) is mutations.Create:
                self._streams.undo(mutation.stream)
            elif mutation.stream is not None and not mutation.stream.deleted:
                mutation.stream.reset_pending()
            for other in _others(mutation):
                other.reset_pending()


def _others(mutation: Mutation) -> list[Stream]:
    """The streams that a mutation changes beside its own."""
    if type(mutation) is mutations.Create:
        found = [mutation.replaces, mutation.source]
    elif type(mutation) is mutations.Delete:
        found = [*mutation.cascade, mutation.released]
    else:
        return []
    return [stream for stream in found if stream is not None]
