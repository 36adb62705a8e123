"""What is asked of the engine and what it answers, as values."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from penstock.protocol.headers import Producer
from penstock.protocol.producer import ProducerState

if TYPE_CHECKING:
    from penstock.log.stream import Stream


class Writer(Enum):
    """Who appends. No request from outside can say that it is the server's."""

    ANYBODY = "anybody"
    SERVER = "server"


class Append(NamedTuple):
    """A request to append, to close, or both. `expected` is the tail the writer believes in;
    `writer` is what checks know of who it is, however long the append waits."""

    body: bytes
    content_type: str | None
    close: bool
    producer: Producer | None
    stream_seq: str | None
    expected: str | None
    writer: Writer = Writer.ANYBODY


class Appended(NamedTuple):
    """`ordinal` is the number of messages before the first one of this append, as it was decided.

    Where nothing was appended (a duplicate, a close without a body) it is the number of messages
    that the stream has: where a duplicate's first copy went is not kept.
    """

    offset: str
    closed: bool
    duplicate: bool
    producer: ProducerState | None
    ordinal: int


class Pending(NamedTuple):
    """What is decided of a stream, durable or not: what the next decision rests on.

    It holds until the caller gives up its turn on the event loop.
    """

    tail: int
    ordinal: int
    """How many messages there are: the ordinal that the next one gets."""
    closed: bool
    deleting: bool
    meta: Mapping[str, bytes]


class Proposal(NamedTuple):
    """An append that a check is asked about, as it would be decided now."""

    stream: Stream
    value: bytes
    """The stream's meta value that the check is registered for."""
    start: int
    """The pending tail: where the bytes would begin."""
    wire: bytes
    """The messages in wire shape; none for a close that appends nothing."""
    messages: int
    writer: Writer


class Fork(NamedTuple):
    """Where a new stream is to leave another; None is the tail that the source has by then."""

    source: str
    offset: str | None
    sub_offset: int


class Trimmed(NamedTuple):
    """Where a stream begins: the offset of its earliest retained message, and that one's number
    if the stream is of JSON messages."""

    offset: str
    ordinal: int


class Created(NamedTuple):
    offset: str
    created: bool
    closed: bool
    content_type: str


Ready = Callable[[], Awaitable[None]]
"""Begins to wait, when called: in the step in which the append is first in its stream's queue and
its check has raised NotYet. What it returns is awaited once."""


class NotYet(Exception):
    """Raised by a check that cannot decide before what `ready` waits for; it is asked again then.

    With `blocks`, appends that come later queue behind this one without being looked at.
    """

    def __init__(self, ready: Ready, *, blocks: bool) -> None:
        super().__init__("not yet")
        self.ready = ready
        self.blocks = blocks
