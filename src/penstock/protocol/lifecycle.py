"""The life of a stream: which creations are the same, when it expires, what refuses an append.

Pure decisions on values; knows neither stores nor clocks.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple

from penstock.errors import (
    ContentTypeMismatch,
    EmptyBody,
    MissingContentType,
    StreamClosed,
    StreamExists,
    StreamSeqConflict,
    TooManyProducers,
)
from penstock.limits import TIME_US_MAX
from penstock.protocol.headers import Producer, format_expires_at, media_type
from penstock.protocol.producer import Duplicate, ProducerState, decide


class StreamConfig(NamedTuple):
    """The configuration of a stream. At most one of `ttl_s` and `expires_at_us` is set."""

    content_type: str
    ttl_s: int | None = None
    expires_at_us: int | None = None


class ForkConfig(NamedTuple):
    """The configuration that a fork requests; None stands for the source's value."""

    content_type: str | None
    ttl_s: int | None
    expires_at_us: int | None


def fork_config(source: StreamConfig, requested: ForkConfig) -> StreamConfig:
    """Return the configuration of a fork: its own lifetime if it requests one, else the source's.

    ContentTypeMismatch if it requests another content type.
    """
    if requested.content_type is not None:
        check_content_type(stream=source.content_type, request=requested.content_type)
    if requested.ttl_s is None and requested.expires_at_us is None:
        return source
    return StreamConfig(source.content_type, requested.ttl_s, requested.expires_at_us)


def create_matches(
    existing: StreamConfig, existing_closed: bool, requested: StreamConfig, requested_closed: bool
) -> None:
    """Return if a PUT requests the stream that exists; StreamExists names every difference."""
    differences: list[str] = []
    if media_type(existing.content_type) != media_type(requested.content_type):
        differences.append(_differs("Content-Type", existing.content_type, requested.content_type))
    if existing.ttl_s != requested.ttl_s:
        differences.append(_differs("Stream-TTL", _ttl(existing), _ttl(requested)))
    if existing.expires_at_us != requested.expires_at_us:
        differences.append(_differs("Stream-Expires-At", _expiry(existing), _expiry(requested)))
    if existing_closed != requested_closed:
        differences.append(
            _differs("Stream-Closed", _closed(existing_closed), _closed(requested_closed))
        )
    if differences:
        raise StreamExists(
            "A stream exists at this path with another configuration: "
            + "; ".join(differences)
            + ". Send the existing values, use another path, or delete the stream first."
        )


def expires_at_us(config: StreamConfig, touched_us: int) -> int | None:
    """Return when a stream last touched at `touched_us` expires; None if it never does."""
    if config.expires_at_us is not None:
        return config.expires_at_us
    if config.ttl_s is None:
        return None
    # A TTL of 2^53 - 1 seconds is legal; the clamp keeps the sum printable and in 64 bits.
    return min(touched_us + config.ttl_s * 1_000_000, TIME_US_MAX)


def stream_closed(tail: str, successor: bytes | None = None) -> StreamClosed:
    """Return the error for an append to a closed stream; `successor` is where it continues."""
    target = "a new stream" if successor is None else successor.decode()
    error = StreamClosed(
        f"The stream was closed at offset {tail} and takes no more data. Append to {target} "
        "instead.",
        Stream_Closed="true",
        Stream_Next_Offset=tail,
    )
    if successor is not None:
        error.headers["Stream-Successor"] = successor.decode()
    return error


def check_content_type(*, stream: str, request: str | None) -> None:
    """Refuse a body whose media type is missing or not the stream's."""
    if request is None:
        raise MissingContentType(f"Send the stream's Content-Type with the body: {stream}.")
    if media_type(stream) != media_type(request):
        raise ContentTypeMismatch(
            f"The stream holds {media_type(stream)} and the request sent "
            f"{media_type(request)}. Send Content-Type: {stream}."
        )


class Outcome(Enum):
    """What becomes of an append whose request is in order."""

    ACCEPT = "accept"
    """The body is appended, the stream is closed, or both."""
    DUPLICATE = "duplicate"
    """The producer has sent it before: nothing changes, and the answer is a success."""
    ALREADY_CLOSED = "already closed"
    """The request closes a closed stream, or repeats the one that did: the same."""
    CLOSED = "closed"
    """The stream is closed and takes no more data: the caller raises `stream_closed`."""


class AppendRequest:
    """What an append says of itself."""

    __slots__ = ("body", "close", "content_type", "producer", "stream_seq")

    def __init__(
        self,
        body: bytes,
        content_type: str | None,
        close: bool = False,
        producer: Producer | None = None,
        stream_seq: str | None = None,
    ) -> None:
        self.body = body
        self.content_type = content_type
        self.close = close
        self.producer = producer
        self.stream_seq = stream_seq


_ACCEPT, _DUPLICATE = Outcome.ACCEPT, Outcome.DUPLICATE


def judge_append(
    request: AppendRequest,
    *,
    closed: bool,
    closed_by: Producer | None,
    content_type: str,
    last_stream_seq: str | None,
    producer_state: ProducerState | None,
    takes_producers: bool = True,
) -> tuple[Outcome, ProducerState | None]:
    """Judge an append by what the stream is, in the protocol's order of precedence.

    | first that holds                                        | outcome                   |
    |---------------------------------------------------------|---------------------------|
    | closed, and the request only closes it again            | already closed            |
    | closed, and the request repeats the one that closed it  | already closed            |
    | closed                                                  | closed                    |
    | no body, and the request does not close                 | 400 EmptyBody             |
    | a body without a content type                           | 400 MissingContentType    |
    | a body of another content type                          | 409 ContentTypeMismatch   |
    | `producer.decide` refuses epoch or sequence             | 403, 400, 409             |
    | `producer.decide` has seen the sequence                 | duplicate                 |
    | a new producer, and the stream takes no more of them    | 429 TooManyProducers      |
    | Stream-Seq is not greater than the last one             | 409 StreamSeqConflict     |
    | otherwise                                               | accept                    |

    Closed comes first, so that a writer always learns that the stream has ended. The second value
    is the producer's state: the new one if accepted, else the one that the answer reports.
    """
    producer = request.producer
    if closed:
        is_repeat = producer is not None and producer == closed_by
        if is_repeat or (request.close and not request.body):
            return Outcome.ALREADY_CLOSED, producer_state
        return Outcome.CLOSED, producer_state
    if request.body:
        if request.content_type != content_type:  # spares the usual case a call
            check_content_type(stream=content_type, request=request.content_type)
    elif not request.close:
        raise EmptyBody("An append needs a body. To close the stream send Stream-Closed: true.")
    if producer is not None:
        decision = decide(producer_state, producer)
        if type(decision) is Duplicate:
            return _DUPLICATE, decision.state
        if producer_state is None and not takes_producers:
            raise TooManyProducers(
                "The stream has as many producers as producers_per_stream_max allows. Reuse a "
                "producer id, or raise the setting."
            )
        producer_state = decision.state
    stream_seq = request.stream_seq
    if stream_seq is not None and last_stream_seq is not None and stream_seq <= last_stream_seq:
        raise StreamSeqConflict(
            f"Stream-Seq {stream_seq!r} is not greater than the last one, {last_stream_seq!r}. "
            "Values are compared byte by byte as text: pad numbers with zeros."
        )
    return _ACCEPT, producer_state


def _differs(name: str, existing: str, requested: str) -> str:
    return f"{name} is {existing}, the request wants {requested}"


def _ttl(config: StreamConfig) -> str:
    return "not set" if config.ttl_s is None else str(config.ttl_s)


def _expiry(config: StreamConfig) -> str:
    return "not set" if config.expires_at_us is None else format_expires_at(config.expires_at_us)


def _closed(closed: bool) -> str:
    return "true" if closed else "not set"
