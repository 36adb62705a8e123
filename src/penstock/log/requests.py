"""Requests to the engine and its answers, as values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import AppendRequest
from penstock.protocol.producer import ProducerState

if TYPE_CHECKING:
    from penstock.log.stream import Stream


class Writer(Enum):
    """The author of an append. No request from outside can name the server."""

    ANYBODY = "anybody"
    TABLE = "table"
    """Rows that were written to a table: its check knows their spelling."""
    SERVER = "server"


_ANYBODY: Final = Writer.ANYBODY


class Append(AppendRequest):
    """A request to append, to close, or both. `expected` is the tail that the writer requires;
    `writer` is what checks learn of its author, however long the append waits. One that is
    `at_once` never waits: if it is refused, the call raises."""

    __slots__ = ("at_once", "expected", "writer")

    def __init__(
        self,
        body: bytes,
        content_type: str | None,
        close: bool = False,
        producer: Producer | None = None,
        stream_seq: str | None = None,
        expected: str | None = None,
        writer: Writer = _ANYBODY,
        at_once: bool = False,
    ) -> None:
        super().__init__(body, content_type, close, producer, stream_seq)
        self.expected = expected
        self.writer = writer
        self.at_once = at_once


class Appended:
    """The answer to an append. `ordinal` is the number of messages before the first one of this
    append, as it was decided.

    Where nothing was appended (a duplicate, a close without a body) it is the number of messages
    that the stream has: the offset of a duplicate's first copy is not stored.

    A plain class, as `Append` is: compiled, it is made much sooner than a tuple with names.
    """

    __slots__ = ("closed", "duplicate", "offset", "ordinal", "producer")

    def __init__(
        self,
        offset: str,
        closed: bool,
        duplicate: bool,
        producer: ProducerState | None,
        ordinal: int,
    ) -> None:
        self.offset = offset
        self.closed = closed
        self.duplicate = duplicate
        self.producer = producer
        self.ordinal = ordinal


class Pending(NamedTuple):
    """The pending half of a stream: what is decided, durable or not. The next decision rests on it.

    It is valid until the caller yields to the event loop.
    """

    tail: int
    ordinal: int
    """Number of messages: the ordinal of the next one."""
    closed: bool
    deleting: bool
    meta: Mapping[str, bytes]


Notes = dict[str, Any]
"""What is learned about one append while it waits, by name, for the next time it is decided."""


class Proposal(NamedTuple):
    """An append that a check is asked about, as it would be decided now."""

    stream: Stream
    value: bytes
    """The stream's meta value that the check is registered for."""
    start: int
    """The pending tail: where the bytes would begin."""
    wire: bytes
    """The messages in wire shape; empty for a close that appends nothing."""
    messages: int
    writer: Writer
    notes: Notes
    """Remains the same however often the append is decided."""
    earliest: int = 0
    """The pending position of the earliest message that is retained."""

    @property
    def is_by_server(self) -> bool:
        return self.writer is Writer.SERVER


class Fork(NamedTuple):
    """A request for a fork: its source and where to leave it. An `offset` of None is the tail."""

    source: str
    offset: str | None
    sub_offset: int


class Trimmed(NamedTuple):
    """Where a stream begins: the offset of its earliest retained message, and its ordinal if it is
    a JSON stream."""

    offset: str
    ordinal: int


class Created(NamedTuple):
    offset: str
    created: bool
    closed: bool
    content_type: str


Ready = Callable[[], Awaitable[None]]
"""Starts to wait. Called in the step in which the append is first in the queue of its stream and
its check has raised NotYet; what it returns is awaited once."""


class NotYet(Exception):
    """Raised by a check that cannot decide before `ready` is done; it is asked again then.

    With `blocks`, later appends queue behind this one without being checked.
    """

    def __init__(self, ready: Ready, *, blocks: bool) -> None:
        super().__init__("not yet")
        self.ready = ready
        self.blocks = blocks
