"""The events of a response over several streams, as bytes: a JSON array with one entry a line.

An entry names its stream and the offset after it. An event is whole or not there at all, and its
id is the position of all streams after it, so that a response can be cut at any byte. Pure.
"""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.protocol.sse import END

if TYPE_CHECKING:
    from penstock.log.stream import Stream

UP_TO_DATE: Final = b'{"upToDate":true}'
"""The entry that says so of all streams together: once in a response."""

_encode = msgspec.json.Encoder().encode


def event(entries: Iterable[bytes], cursor: bytes) -> bytes:
    """Return one event of the default type, which browsers pass to `onmessage`."""
    return b"".join((b"data:[\ndata:", b",\ndata:".join(entries), b"\ndata:]\nid: ", cursor, END))


def data_entry(
    stream: Stream, offset: str, wire: bytes, *, up_to_date: bool, closed: bool
) -> bytes:
    """Return the entry of bytes that follow each other in a stream, or of its end alone.

    Messages and text are themselves. Bytes are in base64, and so is text that is not UTF-8, such as
    an append that ends within a character: nothing is replaced, and no line end is changed.
    """
    parts = [b'{"stream":', _encode(stream.path), b',"offset":"', offset.encode(), b'"']
    if wire:
        parts += _payload(stream, wire)
    if up_to_date:
        parts.append(b',"upToDate":true')
    if closed:
        parts.append(b',"closed":true')
    parts.append(b"}")
    return b"".join(parts)


def _payload(stream: Stream, wire: bytes) -> tuple[bytes, ...]:
    if stream.is_json:
        # Framing has line feeds between messages, and nowhere else.
        return b',"messages":[', wire[:-2].replace(b"\n", b""), b"]"
    if stream.is_text:
        try:
            return b',"text":', _encode(wire.decode())
        except UnicodeDecodeError:
            pass
    return b',"base64":"', b2a_base64(wire, newline=False), b'"'


def joined(stream: Stream, offset: str, *, up_to_date: bool) -> bytes:
    """Return the entry that says which kind of stream is read, and from where."""
    entry = {
        "stream": stream.path,
        "offset": offset,
        "state": "joined",
        "contentType": stream.config.content_type,
    }
    return _encode({**entry, "upToDate": True} if up_to_date else entry)


def trimmed(stream: Stream, earliest: str) -> bytes:
    """Return the entry that says that what was next is gone; reading goes on at `earliest`."""
    return _encode({"stream": stream.path, "offset": earliest, "state": "trimmed"})


def deleted(path: str) -> bytes:
    return _encode({"stream": path, "state": "deleted"})


def not_found(path: str) -> bytes:
    return _encode({"stream": path, "state": "not-found"})


def members(paths: Iterable[str]) -> bytes:
    """Return the entry that lists all streams: those that are not in it are gone."""
    return _encode({"state": "members", "streams": sorted(paths)})
