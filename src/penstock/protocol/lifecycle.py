"""A stream's life: what makes two creations the same, when it expires, what refuses an append.

Pure decisions on values; knows neither where streams are kept nor what time it is.
"""

from __future__ import annotations

from typing import NamedTuple

from penstock.errors import (
    ContentTypeMismatch,
    MissingContentType,
    StreamClosed,
    StreamExists,
    StreamSeqConflict,
)
from penstock.limits import TIME_US_MAX
from penstock.protocol.headers import format_expires_at, media_type


class StreamConfig(NamedTuple):
    """What a stream was created with. At most one of `ttl_s` and `expires_at_us` is set."""

    content_type: str
    ttl_s: int | None
    expires_at_us: int | None


class ForkConfig(NamedTuple):
    """What a fork was asked for; what is None is the source's."""

    content_type: str | None
    ttl_s: int | None
    expires_at_us: int | None


def fork_config(source: StreamConfig, wanted: ForkConfig) -> StreamConfig:
    """What a fork gets: its own lifetime where it asks for one, else the source's.

    ContentTypeMismatch if it asks for another content type.
    """
    if wanted.content_type is not None:
        check_content_type(stream=source.content_type, request=wanted.content_type)
    if wanted.ttl_s is None and wanted.expires_at_us is None:
        return source
    return StreamConfig(source.content_type, wanted.ttl_s, wanted.expires_at_us)


def create_matches(
    existing: StreamConfig, existing_closed: bool, wanted: StreamConfig, wanted_closed: bool
) -> None:
    """Return if a PUT asks for the stream that is there; StreamExists names every difference."""
    differences: list[str] = []
    if media_type(existing.content_type) != media_type(wanted.content_type):
        differences.append(_differs("Content-Type", existing.content_type, wanted.content_type))
    if existing.ttl_s != wanted.ttl_s:
        differences.append(_differs("Stream-TTL", _ttl(existing), _ttl(wanted)))
    if existing.expires_at_us != wanted.expires_at_us:
        differences.append(_differs("Stream-Expires-At", _expiry(existing), _expiry(wanted)))
    if existing_closed != wanted_closed:
        differences.append(
            _differs("Stream-Closed", _closed(existing_closed), _closed(wanted_closed))
        )
    if differences:
        raise StreamExists(
            "A stream exists at this path with another configuration: "
            + "; ".join(differences)
            + ". Send the existing values, use another path, or delete the stream first."
        )


def expires_at_us(config: StreamConfig, touched_us: int) -> int | None:
    """When a stream last touched at `touched_us` expires; None if it never does."""
    if config.expires_at_us is not None:
        return config.expires_at_us
    if config.ttl_s is None:
        return None
    # A TTL of 2^53 - 1 seconds is legal; the clamp keeps the sum printable and in 64 bits.
    return min(touched_us + config.ttl_s * 1_000_000, TIME_US_MAX)


def check_open(*, closed: bool, tail: str) -> None:
    """Refuse to append to a closed stream; `tail` is its final offset."""
    if closed:
        raise stream_closed(tail)


def stream_closed(tail: str, successor: bytes | None = None) -> StreamClosed:
    """`successor` is the location of the stream that it goes on in, if that is known."""
    place = "a new stream" if successor is None else successor.decode()
    error = StreamClosed(
        f"The stream was closed at offset {tail} and takes no more data. Append to {place} "
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
    if stream != request and media_type(stream) != media_type(request):
        raise ContentTypeMismatch(
            f"The stream holds {media_type(stream)} and the request sent "
            f"{media_type(request)}. Send Content-Type: {stream}."
        )


def check_stream_seq(*, last: str | None, given: str | None) -> None:
    """Refuse a Stream-Seq that is not greater, byte by byte, than the last one."""
    if last is not None and given is not None and given <= last:
        raise StreamSeqConflict(
            f"Stream-Seq {given!r} is not greater than the last one, {last!r}. Values are "
            "compared byte by byte as text: pad numbers with zeros."
        )


def append_precedence(
    *,
    closed: bool,
    tail: str,
    stream_content_type: str,
    has_body: bool,
    content_type: str | None,
    last_stream_seq: str | None,
    stream_seq: str | None,
) -> None:
    """All reasons to refuse an append, in the protocol's order.

    Closed comes first, so that the writer always learns that the stream has ended; then content
    type; then sequence. A request without a body only closes: its content type is ignored, and
    closing a closed stream again is fine whatever else it says.
    """
    if not has_body:
        if not closed:
            check_stream_seq(last=last_stream_seq, given=stream_seq)
        return
    check_open(closed=closed, tail=tail)
    check_content_type(stream=stream_content_type, request=content_type)
    check_stream_seq(last=last_stream_seq, given=stream_seq)


def _differs(name: str, existing: str, wanted: str) -> str:
    return f"{name} is {existing}, the request wants {wanted}"


def _ttl(config: StreamConfig) -> str:
    return "not set" if config.ttl_s is None else str(config.ttl_s)


def _expiry(config: StreamConfig) -> str:
    return "not set" if config.expires_at_us is None else format_expires_at(config.expires_at_us)


def _closed(closed: bool) -> str:
    return "true" if closed else "not set"
