"""Reading a State URL, as flows without I/O: one response at a time, all there is, or the state.

A response may end anywhere, or be silent for long; what counts is the last whole row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any, Final, Literal, NamedTuple

import msgspec

from penstock.client.answers import Answer, error_of
from penstock.client.flow import Call, Close, Emit, Flow, Open, Pause, Piece, exchange
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.errors import ConnectionFailed, InvalidRow, PenstockError, ProtocolError
from penstock.stp.client import answers, requests
from penstock.stp.content_type import SequenceType
from penstock.stp.deduplication import Conflict, Sieve
from penstock.stp.folding import apply
from penstock.stp.rows import Row, RowDecoder

OnConflict = Literal["warn", "raise", "ignore"] | Callable[[Conflict], Any]
Deliver = Callable[[list[Row]], Flow[None]]

ERROR_BODY_BYTES_MAX: Final = 64 * 1024
CUT_ANSWERS_MAX: Final = 3  # in a row, each with a last line that never ended

log = logging.getLogger("penstock.stp")


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, and what is expected of it."""

    url: str
    schema: str | None = None
    version: int | None = None
    retry: Retry
    on_conflict: OnConflict = "warn"

    @property
    def accept(self) -> str:
        return requests.accept(self.schema, self.version)


class Outcome(NamedTuple):
    """How a response ended: with how many new rows, and whether in the middle of one."""

    rows: int
    cut: bool


class TableRead(msgspec.Struct, frozen=True, kw_only=True):
    """What a read found: iterate over it for the rows.

    `last_seqno` is where to go on: the SeqNo of the last row, or `since_id` if there was none.
    `conflicts` are rows that contradicted earlier ones and were left out. `truncated` says that
    the answer ended in the middle of a line, also when it was asked for again: that row is not in.
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
    """The records of a table by key, and the SeqNo up to which they are: follow from there."""

    def __init__(self, rows: dict[str, Row], last_seqno: int) -> None:
        super().__init__({key: row.record for key, row in rows.items()})
        self.rows = rows
        self.last_seqno = last_seqno


class Reception:
    """Takes in the responses of one State URL, and knows how far it has come."""

    def __init__(self, source: Source, since_id: int) -> None:
        self.source = source
        self.media: SequenceType | None = None
        self.last_seqno: int | None = None  # what the server says, of the last answer
        self.closed = False  # whether it says that no more will come
        self.conflicts = 0
        self.conflicting: list[Conflict] = []
        self._begin(since_id)

    @property
    def since_id(self) -> int:
        """What the next request asks for: the last SeqNo, or -N until there is one."""
        return self._tail or self.sieve.position

    @property
    def is_complete(self) -> bool:
        """Whether everything that the server said it had is here."""
        return self.last_seqno is not None and self.sieve.position >= self.last_seqno

    def once(
        self,
        deliver: Deliver,
        *,
        immediate: bool,
        active: bool = False,
        read_timeout_s: float | None = None,
        silence_ends: bool = False,
    ) -> Flow[Outcome]:
        """One request and all that comes of it; with `immediate`, only what is there already."""
        request = requests.read(
            self.source.url,
            self.since_id,
            accept=self.source.accept,
            immediate=immediate,
            active=active,
        )._replace(read_timeout_s=read_timeout_s)
        if not immediate and self._etag is not None and self._etag[0] == self.since_id:
            request = request._replace(headers={**request.headers, "If-None-Match": self._etag[1]})
        asked = self.since_id
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
                self._ended(asked, count, answer)
                break
            count += yield from self._take_in(decoder, piece, deliver)
        yield Close()
        return Outcome(count, bool(decoder.end()))

    def _take_in(self, decoder: RowDecoder, piece: bytes, deliver: Deliver) -> Flow[int]:
        """Hand over what is new in a piece; gives the number of rows."""
        broken: InvalidRow | None = None
        try:
            rows = decoder.feed(piece)
        except InvalidRow as error:
            broken, rows = error, getattr(error, "rows", [])
        new, conflicts = self.sieve.pass_on(rows)
        for conflict in conflicts:
            yield from self._report(conflict)
        if new:
            self._tail = 0
            yield from deliver(new)
        if broken is not None:
            raise ProtocolError(f"{self.source.url} sends what is no row: {broken.detail}")
        return len(new)

    def restart(self, since_id: int = 0) -> None:
        """Begin again, there: what was seen before counts no more."""
        self._begin(since_id)

    def _begin(self, since_id: int) -> None:
        self.begun_at = max(since_id, 0)
        self.sieve = Sieve(self.begun_at)
        self._tail = min(since_id, 0)
        self._etag: tuple[int, str] | None = None

    def _ended(self, asked: int, count: int, answer: Answer) -> None:
        """The response came to its proper end."""
        if self._tail and count == 0:
            self._tail = 0  # as above, of a server that does not say where its table ends
        etag = answer.headers.get("etag")
        self._etag = (asked, etag) if etag and count == 0 else None

    def _check(self, request: Request, answer: Answer) -> Flow[SequenceType]:
        if answer.status >= 300:
            body = b""
            while len(body) < ERROR_BODY_BYTES_MAX:
                piece = yield Piece()
                if piece is None:
                    break
                body += piece
            raise answers.of_table(error_of(request, answer._replace(body=body)))
        source = self.source
        media = answers.sequence_type(answer, schema=source.schema, version=source.version)
        self.media = media
        self.last_seqno = answers.last_seqno(answer)
        self.closed = answer.closed
        if self.last_seqno == 0:
            self._tail = 0  # -N of an empty table: from now on every row is new
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
    """All rows there are, over as many responses as it takes. False if the last row is cut off."""
    attempt, cut = 1, 0
    while True:
        failure: PenstockError | None = None
        before = reception.since_id
        try:
            outcome = yield from reception.once(
                deliver,
                immediate=True,
                # A view is of one moment; what is missing of it stands in the log.
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
    """All of it at once."""
    reception = Reception(source, since_id)
    rows: list[Row] = []
    whole = yield from everything(reception, _into(rows.extend), idle_timeout_s=idle_timeout_s)
    media = reception.media
    return TableRead(
        rows=rows,
        last_seqno=reception.sieve.position,
        schema=media.schema if media else None,
        version=media.version if media else None,
        escape=media is not None and media.escape,
        conflicts=reception.conflicting,
        truncated=not whole,
    )


def batches(reception: Reception, idle_timeout_s: float | None) -> Flow[None]:
    """Emit all there is, in lists of rows as they arrive."""
    yield from everything(reception, emit, idle_timeout_s=idle_timeout_s)


def state(source: Source, idle_timeout_s: float | None) -> Flow[TableState]:
    """The latest record of each key.

    The server's view of it is asked for, and folded all the same: a server that knows no views
    sends its whole log, and the outcome is the same.
    """
    reception = Reception(source, 0)
    found: dict[str, Row] = {}

    def keep(rows: list[Row]) -> None:
        for row in rows:
            apply(found, row)

    yield from everything(
        reception,
        _into(keep),
        active=True,
        idle_timeout_s=idle_timeout_s,
    )
    last = max(reception.sieve.position, reception.last_seqno or 0)
    return TableState(found, last)


def emit(rows: list[Row]) -> Flow[None]:
    yield Emit(rows)


def _into(keep: Callable[[list[Row]], None]) -> Deliver:
    def deliver(rows: list[Row]) -> Flow[None]:
        keep(rows)
        yield from ()  # a flow that wants nothing done

    return deliver
