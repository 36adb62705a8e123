"""What is asked of the engine and what it answers, as values."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, NamedTuple

from penstock.protocol.headers import Producer
from penstock.protocol.producer import ProducerState


class Append(NamedTuple):
    """A request to append, to close, or both. `expected` is the tail the writer believes in."""

    body: bytes
    content_type: str | None
    close: bool
    producer: Producer | None
    stream_seq: str | None
    expected: str | None


class Appended(NamedTuple):
    offset: str
    closed: bool
    duplicate: bool
    producer: ProducerState | None


class Fork(NamedTuple):
    """Where a new stream is to leave another; None is the tail that the source has by then."""

    source: str
    offset: str | None
    sub_offset: int


class Place(NamedTuple):
    """A fork point that was found. `is_default`: the request named none."""

    source: str
    position: int
    ordinal: int
    is_default: bool


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


class NotYet(Exception):
    """Raised by a check that cannot decide before `ready` is done; it is asked again then."""

    def __init__(self, ready: Coroutine[Any, Any, None]) -> None:
        super().__init__("not yet")
        self.ready = ready
