"""Server-sent events as bytes: data events of each kind, control events, and where text may be cut.

Lines are written `data:` without the optional space, because clients match it so; a payload line
that itself starts with a space gets the extra one that parsers remove. Chunked framing and
buffering are the transport's business.
"""

from __future__ import annotations

from binascii import b2a_base64
from typing import Final, NamedTuple

import msgspec

from penstock.errors import InvalidParameter

_LF, _CR = b"\n\r"
_encode = msgspec.json.Encoder().encode

END: Final = b"\n\n"
COMMENT: Final = b":\n\n"
"""An empty comment: parsers ignore it, and proxies see that the connection is alive."""
DATA: Final = b"event: data\n"
"""How a data event begins, unless its reader asked for messages."""
MESSAGE: Final = b""
"""How a data event begins that has the default type, which browsers pass to `onmessage`."""


class SseForm(NamedTuple):
    """The form of the data events that a reader has asked for.

    `base64` codes text and JSON as bytes are coded; `message` omits the type of the event.
    """

    base64: bool = False
    message: bool = False


PLAIN: Final = SseForm()


def parse_form(text: str) -> SseForm:
    """Return the form that a comma-separated list of words describes."""
    words = text.split(",")
    if not set(words) <= {"base64", "message"}:
        raise InvalidParameter("`sse` is base64, message, or both with a comma between them.")
    return SseForm("base64" in words, "message" in words)


def end_at(offset: str) -> bytes:
    """Return the end of an event with an id: the offset at which a reader of it goes on.

    A browser that reconnects sends the id of the last whole event. It is the last line, so that
    readers which take it before the event is whole have the data too.
    """
    return b"\nid: " + offset.encode() + END


def retry(delay_ms: int) -> bytes:
    """Return the field that tells browsers how long to wait before they reconnect."""
    return b"retry: %d\n\n" % delay_ms


def data_json(wire: bytes, *, head: bytes = DATA, end: bytes = END) -> bytes:
    """One event with a JSON array, a message a line, from framed messages."""
    if not wire:
        return head + b"data:[\ndata:]" + end
    # Framing guarantees that the only line ends are those between messages, and no CR at all.
    lines = wire[:-2].replace(b"\n", b"\ndata:")
    return b"".join((head, b"data:[\ndata:", lines, b"\ndata:]", end))


def data_text(data: bytes, *, head: bytes = DATA, end: bytes = END) -> bytes:
    """One event with a line of data for each line of the text.

    CR, LF and CRLF all end a line, as they do for the parser, so no text can end the event or
    start another; bytes that are not UTF-8 become U+FFFD.
    """
    if not data.isascii():
        data = data.decode("utf-8", "replace").encode()
    if _CR in data:
        data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    first = b"data: " if data.startswith(b" ") else b"data:"
    lines = data.replace(b"\n ", b"\n  ").replace(b"\n", b"\ndata:")
    return b"".join((head, first, lines, end))


def data_binary(data: bytes, *, head: bytes = DATA, end: bytes = END) -> bytes:
    """One event with the bytes in base64, on one line."""
    return b"".join((head, b"data:", b2a_base64(data, newline=False), end))


def control(offset: str, *, cursor: str | None, up_to_date: bool, closed: bool) -> bytes:
    """The control event that follows data.

    A closed stream at its end is up to date by definition, and has no cursor: no reader reconnects.
    """
    fields: dict[str, str | bool] = {"streamNextOffset": offset}
    if cursor is not None and not closed:
        fields["streamCursor"] = cursor
    if up_to_date or closed:
        fields["upToDate"] = True
    if closed:
        fields["streamClosed"] = True
    return b"event: control\ndata:" + _encode(fields) + end_at(offset)


def text_cut(data: bytes, at_most: int) -> int:
    """Return where to cut text: the largest cut up to `at_most` that splits no character and no
    CRLF.

    A sequence that `data` ends in the middle of is left for the next cut, when the rest of it may
    have arrived. There is always progress: if nothing fits, the cut is the smallest one that
    splits nothing, and data that is one incomplete sequence is cut at its end.
    """
    length = len(data)
    cut = _cut_back(data, min(at_most, length)) if at_most > 0 else 0
    if cut > 0 or length == 0:
        return cut
    for cut in range(1, min(length, 4)):
        if _cut_back(data, cut) == cut:
            return cut
    return min(length, 4)


def _cut_back(data: bytes, cut: int) -> int:
    """Return the last position at or before `cut` that splits nothing."""
    at_end = cut == len(data)
    if not at_end and data[cut] == _LF and data[cut - 1] == _CR:
        return cut - 1
    if not at_end and data[cut] & 0xC0 != 0x80:
        return cut
    # A sequence that crosses the cut has its first byte among the three before it.
    for back in range(1, min(3, cut) + 1):
        byte = data[cut - back]
        if byte & 0xC0 != 0x80:
            return cut - back if _sequence_bytes(byte) > back else cut
    return cut


def _sequence_bytes(first: int) -> int:
    if first < 0xC2 or first > 0xF4:
        return 1
    return 2 if first < 0xE0 else 3 if first < 0xF0 else 4
