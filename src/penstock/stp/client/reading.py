"""Reading a State URL, as flows without I/O: one response at a time, all there is, or the state.

A response may end anywhere, or be silent for long; what counts is the last whole row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock.client.answers import Answer
from penstock.client.flow import Call, Close, Emit, Flow, Open, Pause, Piece, exchange, refusal
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.errors import ConnectionFailed, InvalidRow, PenstockError, ProtocolError
from penstock.stp.client import answers, requests
from penstock.stp.content_type import SequenceType
from penstock.stp.deduplication import Conflict, Deduplicator
from penstock.stp.folding import apply
from penstock.stp.rows import Row, RowDecoder, RowsBefore

OnConflict = Literal["warn", "raise", "ignore"] | Callable[[Conflict], Any]
OnInvalid = Literal["raise"] | Callable[[RowsBefore], Row | None]
Deliver = Callable[[list[Row]], Flow[None]]

CUT_ANSWERS_MAX: Final = 3  # in succession, each with an incomplete last line

log = logging.getLogger("penstock.stp")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A table to read, and the schema that is expected of it.

    `on_invalid` is called for a line that is not a row, and returns the row to use in its place, or
    None to skip the line. It is called after the rows before that line have been delivered.
    """

    url: str
    schema: str | None = None
    version: int | None = None
    retry: Retry
    on_conflict: OnConflict = "warn"
    on_invalid: OnInvalid = "raise"

    @property
    def accept(self) -> str:
        return requests.accept(self.schema, self.version)


class Outcome(NamedTuple):
    """The end of a response: the number of new rows, and whether the last row was cut."""

    rows: int
    cut: bool


class TableRead(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a read; iterate over it for the rows.

    `last_seqno` is where to resume: the SeqNo of the last row, or `since_id` if there was none.
    `conflicts` are rows that contradicted earlier ones and were left out. `truncated` if the answer
    ended in the middle of a line, also when it was repeated: that row is missing.
    """

    rows: list[Row]
    last_seqno: int
    schema: str | None
    version: int | None
    escape: bool
    conflicts: list[Conflict] = []
    truncated: bool = False

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)


class TableState(dict[str, str]):
    """The records of a table by key, and the last SeqNo in them: follow from there."""

    def __init__(self, rows: dict[str, Row], last_seqno: int) -> None:
        super().__init__({key: row.record for key, row in rows.items()})
        self.rows = rows
        self.last_seqno = last_seqno


class Reception:
    """The responses of one State URL: their rows without repetitions, and the position."""

    def __init__(self, source: Source, since_id: int) -> None:
        self.source = source
        self.media: SequenceType | None = None
        self.last_seqno: int | None = None  # of the table, as the last answer says
        self.closed = False  # whether the last answer says that the table is closed
        self.conflicts = 0
        self.conflicting: list[Conflict] = []
        self._begin(since_id)

    @property
    def since_id(self) -> int:
        """The `since_id` of the next request: the last SeqNo, or -N until there is one."""
        return self._tail or self.deduplicator.position

    @property
    def is_complete(self) -> bool:
        """Whether all rows up to the last SeqNo of the table are read."""
        return self.last_seqno is not None and self.deduplicator.position >= self.last_seqno

    def once(
        self,
        deliver: Deliver,
        *,
        immediate: bool,
        active: bool = False,
        read_timeout_s: float | None = None,
        silence_ends: bool = False,
    ) -> Flow[Outcome]:
        """One request and the rows of its response; with `immediate`, only existing rows."""
        request = requests.read(
            self.source.url,
            self.since_id,
            accept=self.source.accept,
            immediate=immediate,
            active=active,
        )._replace(read_timeout_s=read_timeout_s)
        if not immediate and self._etag is not None and self._etag[0] == self.since_id:
            request = request._replace(headers={**request.headers, "If-None-Match": self._etag[1]})
        requested = self.since_id
        answer = yield from exchange(Open(request))
        if answer.status == 304:
            return Outcome(0, cut=False)
        media = yield from self._check(request, answer)
        decoder = RowDecoder(escape=media.escape)
        count = 0
        while not (immediate and self.is_complete):
            try:
                piece: bytes | None = yield Piece()
            except ConnectionFailed:
                if not silence_ends or decoder.end():
                    raise
                break
            if piece is None:
                self._ended(requested, count, answer)
                break
            count += yield from self._receive(decoder, piece, deliver)
        yield Close()
        return Outcome(count, bool(decoder.end()))

    def _receive(self, decoder: RowDecoder, piece: bytes, deliver: Deliver) -> Flow[int]:
        """Deliver the new rows of a piece; return their number."""
        count = 0
        while True:
            invalid: InvalidRow | None = None
            try:
                rows = decoder.feed(piece)
            except InvalidRow as error:
                invalid, rows = error, getattr(error, "rows", [])
            count += yield from self._deliver_new(rows, deliver)
            if invalid is None:
                return count
            replacement = self._replacement(invalid)
            if replacement is not None:
                count += yield from self._deliver_new([replacement], deliver)
            piece = b""  # The decoder holds the lines after the invalid one.

    def _deliver_new(self, rows: list[Row], deliver: Deliver) -> Flow[int]:
        new, conflicts = self.deduplicator.accept(rows)
        for conflict in conflicts:
            yield from self._report(conflict)
        if new:
            self._tail = 0
            yield from deliver(new)
        return len(new)

    def _replacement(self, invalid: InvalidRow) -> Row | None:
        policy = self.source.on_invalid
        # A line that is too long has no end yet: the decoder cannot continue after it.
        if policy == "raise" or not isinstance(invalid, RowsBefore):
            raise ProtocolError(f"{self.source.url} sends an invalid row: {invalid.detail}")
        return policy(invalid)

    def restart(self, since_id: int = 0) -> None:
        """Begin again at `since_id`, without the memory of earlier rows."""
        self._begin(since_id)

    def _begin(self, since_id: int) -> None:
        self.begun_at = max(since_id, 0)
        self.deduplicator = Deduplicator(self.begun_at)
        self._tail = min(since_id, 0)
        self._etag: tuple[int, str] | None = None

    def _ended(self, requested: int, count: int, answer: Answer) -> None:
        """The response ended regularly."""
        if self._tail and count == 0:
            self._tail = 0  # as in `_check`, for servers that do not send the last SeqNo
        etag = answer.headers.get("etag")
        self._etag = (requested, etag) if etag and count == 0 else None

    def _check(self, request: Request, answer: Answer) -> Flow[SequenceType]:
        if answer.status >= 300:
            raise answers.of_table((yield from refusal(request, answer)))
        source = self.source
        media = answers.sequence_type(answer, schema=source.schema, version=source.version)
        self.media = media
        self.last_seqno = answers.last_seqno(answer)
        self.closed = answer.closed
        if self.last_seqno == 0:
            self._tail = 0  # the table is empty: every row to come is new
        return media

    def _report(self, conflict: Conflict) -> Flow[None]:
        self.conflicts += 1
        self.conflicting.append(conflict)
        policy = self.source.on_conflict
        if policy == "warn":
            log.warning("%s: %s.", self.source.url, conflict)
        elif policy == "raise":
            raise ProtocolError(f"{self.source.url}: {conflict}.")
        elif policy != "ignore":
            yield Call(policy, (conflict,))


def everything(
    reception: Reception,
    deliver: Deliver,
    *,
    active: bool = False,
    idle_timeout_s: float | None = None,
) -> Flow[bool]:
    """Deliver all rows, over as many responses as it takes; return false if the last is cut off."""
    attempt, cut = 1, 0
    while True:
        failure: PenstockError | None = None
        before = reception.since_id
        try:
            outcome = yield from reception.once(
                deliver,
                immediate=True,
                # A view is of one moment; if it is cut off, the log has the rest.
                active=active and before == 0,
                read_timeout_s=idle_timeout_s,
                silence_ends=idle_timeout_s is not None,
            )
        except PenstockError as error:
            yield Close()
            failure = error
        else:
            if not outcome.cut:
                return True
            cut = 1 if outcome.rows else cut + 1
            if cut >= CUT_ANSWERS_MAX:
                return False
        if reception.since_id != before:
            attempt = 1
        retry = reception.source.retry
        if failure is not None and (
            retry.exhausted(attempt) or not retry.applies(failure, repeatable=True)
        ):
            raise failure
        yield Pause(retry.pause_s(attempt, failure))
        attempt += 1


def read(source: Source, since_id: int, idle_timeout_s: float | None) -> Flow[TableRead]:
    """Return the rows after `since_id` as one value."""
    reception = Reception(source, since_id)
    rows: list[Row] = []
    whole = yield from everything(reception, _into(rows.extend), idle_timeout_s=idle_timeout_s)
    media = reception.media
    return TableRead(
        rows=rows,
        last_seqno=reception.deduplicator.position,
        schema=media.schema if media else None,
        version=media.version if media else None,
        escape=media is not None and media.escape,
        conflicts=reception.conflicting,
        truncated=not whole,
    )


def batches(reception: Reception, idle_timeout_s: float | None) -> Flow[None]:
    """Emit all rows, in lists as they arrive."""
    yield from everything(reception, emit, idle_timeout_s=idle_timeout_s)


def state(source: Source, idle_timeout_s: float | None) -> Flow[TableState]:
    """Return the latest record of each key.

    The request is for the server's active view, and its rows are folded: a server without views
    sends its whole log, with the same result.
    """
    reception = Reception(source, 0)
    latest: dict[str, Row] = {}

    def fold(rows: list[Row]) -> None:
        for row in rows:
            apply(latest, row)

    yield from everything(
        reception,
        _into(fold),
        active=True,
        idle_timeout_s=idle_timeout_s,
    )
    last = max(reception.deduplicator.position, reception.last_seqno or 0)
    return TableState(latest, last)


def emit(rows: list[Row]) -> Flow[None]:
    yield Emit(rows)


def _into(collect: Callable[[list[Row]], None]) -> Deliver:
    def deliver(rows: list[Row]) -> Flow[None]:
        collect(rows)
        yield from ()  # makes it a flow, which has no effects

    return deliver
