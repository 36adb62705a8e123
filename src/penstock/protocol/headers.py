"""The protocol's header values and stream paths: strict parsers that say what was wrong.

Works on plain values; knows no request, no stream and no storage. Text that is stored or
echoed is printable ASCII, so nothing a client sends can break a header line or a terminal.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import NamedTuple

from penstock import limits
from penstock.errors import (
    InvalidContentType,
    InvalidExpiresAt,
    InvalidForkOffset,
    InvalidPath,
    InvalidProducer,
    InvalidStreamSeq,
    InvalidTtl,
)
from penstock.protocol.timestamps import unix_us

_INTEGER_DIGITS_MAX = len(str(limits.INTEGER_MAX))

_TIME_CHARACTERS_MAX = 44  # with 18 digits after the point and an offset
_UNIX_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_WORD = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MIME = re.compile(
    rf"{_WORD}/{_WORD}"
    rf'(?:[ \t]*;(?:[ \t]*{_WORD}=(?:{_WORD}|"(?:[ !#-\[\]-~]|\\[ -~])*"))?)*'
)

_UNRESERVED = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_SEGMENT_CHARACTERS = rb"A-Za-z0-9\-._~!$&'()*+,;=:@"
_SEGMENT = rb"(?!\.{1,2}(?:/|\Z))[" + _SEGMENT_CHARACTERS + rb"]+"
# Nothing to decode and no segment that is empty, "." or "..": already canonical.
_PLAIN_PATH = re.compile(_SEGMENT + rb"(?:/" + _SEGMENT + rb")*")
_NOT_IN_PATH = re.compile(rb"[^/%" + _SEGMENT_CHARACTERS + rb"]")
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)
_ESCAPE = re.compile(rb"%[0-9A-Fa-f]{2}")


class Producer(NamedTuple):
    """The three producer headers of a request."""

    id: str
    epoch: int
    seq: int


def parse_ttl(text: str) -> int:
    """Stream-TTL: whole seconds in plain decimal notation."""
    value = _integer(text)
    if value is None or (text[0] == "0" and text != "0"):
        raise InvalidTtl(
            f"Stream-TTL {text[:64]!a} is not a whole number of seconds from 0 to "
            f"{limits.INTEGER_MAX} without sign, leading zeros, point or exponent."
        )
    return value


def parse_sub_offset(text: str) -> int:
    """Stream-Fork-Sub-Offset: a whole number in plain decimal notation."""
    value = _integer(text)
    if value is None or (text[0] == "0" and text != "0"):
        raise InvalidForkOffset(
            f"Stream-Fork-Sub-Offset {text[:64]!a} is not a whole number from 0 to "
            f"{limits.INTEGER_MAX} without sign, leading zeros, point or exponent."
        )
    return value


def parse_expires_at(text: str) -> int:
    """Stream-Expires-At: an RFC 3339 time with any offset, as microseconds since 1970 (UTC)."""
    us = unix_us(text) if len(text) <= _TIME_CHARACTERS_MAX else None
    if us is None:
        raise InvalidExpiresAt(
            f"Stream-Expires-At {text[:64]!a} is not an RFC 3339 time with a time zone, such as "
            "2030-01-31T12:00:00Z or 2030-01-31T14:00:00+02:00."
        )
    if not 0 <= us <= limits.TIME_US_MAX:
        raise InvalidExpiresAt(
            f"Stream-Expires-At {text[:64]!a} lies outside the years 1970 to 9999 in UTC."
        )
    return us


def format_expires_at(us: int) -> str:
    """An RFC 3339 time in UTC, in milliseconds unless microseconds are needed."""
    moment = _UNIX_EPOCH + timedelta(microseconds=us)
    precision = "milliseconds" if us % 1000 == 0 else "microseconds"
    return moment.replace(tzinfo=None).isoformat(timespec=precision) + "Z"


def parse_closed(text: str | None) -> bool:
    """Stream-Closed: only `true`, in any case, counts; anything else is as if it were absent."""
    return text is not None and text.lower() == "true"


def parse_producer(
    id: str | None,
    epoch: str | None,
    seq: str | None,
    *,
    id_bytes_max: int = limits.PRODUCER_ID_BYTES_MAX,
) -> Producer | None:
    """The producer headers: all three, or None if there are none."""
    if id is None and epoch is None and seq is None:
        return None
    if id is None or epoch is None or seq is None:
        named = {"Producer-Id": id, "Producer-Epoch": epoch, "Producer-Seq": seq}
        missing = " and ".join(name for name, value in named.items() if value is None)
        raise InvalidProducer(
            f"{missing} missing: send Producer-Id, Producer-Epoch and Producer-Seq together or "
            "none of them."
        )
    if not 0 < len(id) <= id_bytes_max or not _is_printable(id):
        raise InvalidProducer(
            f"Producer-Id must be 1 to {id_bytes_max} printable ASCII characters."
        )
    epoch_number, seq_number = _integer(epoch), _integer(seq)
    if epoch_number is None or seq_number is None:
        name, value = ("Producer-Epoch", epoch) if epoch_number is None else ("Producer-Seq", seq)
        raise InvalidProducer(
            f"{name} {value[:64]!a} is not a whole number from 0 to {limits.INTEGER_MAX}."
        )
    return Producer(id, epoch_number, seq_number)


def parse_stream_seq(text: str, *, bytes_max: int = limits.STREAM_SEQ_BYTES_MAX) -> str:
    """Stream-Seq: opaque text, compared byte by byte."""
    if not 0 < len(text) <= bytes_max or not _is_printable(text):
        raise InvalidStreamSeq(f"Stream-Seq must be 1 to {bytes_max} printable ASCII characters.")
    return text


# The same few types arrive with every append; the caches are bounded, and so are their keys.
@lru_cache(maxsize=256)
def normalize_content_type(text: str) -> str:
    """Return a content type as it is stored: as the client sent it, trimmed and checked."""
    trimmed = text.strip(" \t")
    if len(trimmed) > limits.CONTENT_TYPE_BYTES_MAX:
        raise InvalidContentType(
            f"Content-Type is longer than {limits.CONTENT_TYPE_BYTES_MAX} characters."
        )
    if _MIME.fullmatch(trimmed) is None:
        raise InvalidContentType(
            f"Content-Type {trimmed[:64]!a} is not a media type such as text/plain or "
            "application/json; charset=utf-8."
        )
    return trimmed


@lru_cache(maxsize=256)
def media_type(content_type: str) -> str:
    """Lower-case type/subtype without parameters: what comparing content types uses."""
    return content_type.partition(";")[0].strip(" \t").lower()


def is_json(content_type: str) -> bool:
    """Whether a stream of this type is in JSON mode."""
    return media_type(content_type) == "application/json"


def is_text(content_type: str) -> bool:
    """Whether a stream of this type is sent as text to live readers."""
    return media_type(content_type).startswith("text/")


def parse_stream_path(raw: bytes, *, bytes_max: int = limits.PATH_BYTES_MAX) -> str:
    """The canonical form of a stream's path, from the raw URL path after the prefix and its slash.

    Escapes of unreserved characters are decoded and the hex digits of all others are upper-case,
    so one stream has one path; an escaped slash stays escaped and is never a separator.
    """
    path = raw if _PLAIN_PATH.fullmatch(raw) else _canonical_path(raw)
    if len(path) > bytes_max:
        raise InvalidPath(
            f"The stream path has {len(path)} bytes; at most {bytes_max} are allowed "
            "(path_bytes_max)."
        )
    return path.decode("ascii")


def _canonical_path(raw: bytes) -> bytes:
    if not raw:
        raise InvalidPath("The stream path is empty: name a stream after the prefix.")
    bad = _NOT_IN_PATH.search(raw)
    if bad is not None:
        raise InvalidPath(
            f"The stream path holds {_character(bad[0][0])}, which no URL path may: send it "
            f"percent-encoded, as %{bad[0][0]:02X}, or leave it out."
        )
    bad = _BAD_ESCAPE.search(raw)
    if bad is not None:
        raise InvalidPath(
            f"The stream path holds {bad[0].decode('ascii')!r}: a percent sign must be followed "
            "by two hex digits. Send a literal percent sign as %25."
        )
    path = _ESCAPE.sub(_canonical_escape, raw)
    for segment in path.split(b"/"):
        if not segment:
            raise InvalidPath(
                "The stream path has an empty segment: remove the slash at its start or end, or "
                "the doubled one."
            )
        if segment in (b".", b".."):
            raise InvalidPath('The stream path has a "." or ".." segment, encoded or not.')
    return path


def _canonical_escape(match: re.Match[bytes]) -> bytes:
    value = int(match[0][1:], 16)
    if value < 0x20 or value == 0x7F:
        raise InvalidPath(f"The stream path holds {_character(value)}, encoded; remove it.")
    return bytes((value,)) if value in _UNRESERVED else match[0].upper()


def _character(value: int) -> str:
    if value < 0x20 or value == 0x7F:
        return f"the control character 0x{value:02X}"
    if value > 0x7F:
        return f"the non-ASCII byte 0x{value:02X}"
    return "a space" if value == 0x20 else f"the character {chr(value)}"


def _integer(text: str) -> int | None:
    # The length is checked first: int() of a very long text is slow.
    if len(text) > _INTEGER_DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    value = int(text)
    return value if value <= limits.INTEGER_MAX else None


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable()
