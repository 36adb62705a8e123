"""`--format` of `penstock read`: a pattern that is filled in for each message, as in kcat."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import click


class Message(NamedTuple):
    """A message, or a line of a stream that is not JSON.

    A read from `offset` returns this message first, a read from `next_offset` the one after it.
    Both are exact for JSON on Penstock servers; elsewhere they are those of the batch.
    """

    stream: str
    data: bytes
    offset: str
    next_offset: str
    number: int


FIELDS: dict[str, tuple[str, Callable[[Message], bytes]]] = {
    "s": ("the message", lambda m: m.data),
    "S": ("its size in bytes", lambda m: b"%d" % len(m.data)),
    "o": ("its offset: a read from there returns it first", lambda m: m.offset.encode()),
    "O": ("the offset after it, to resume from", lambda m: m.next_offset.encode()),
    "i": ("its number in this output, from 0", lambda m: b"%d" % m.number),
    "t": (
        "the name of the stream on the command line",
        lambda m: m.stream.encode("utf-8", "surrogateescape"),
    ),
    "y": ("the type of a state event", lambda m: _event_field(m, "type")),
    "k": ("the key of a state event", lambda m: _event_field(m, "key")),
    "T": ("the timestamp of a state event", lambda m: _event_field(m, "timestamp")),
    "n": ("a line end", lambda m: b"\n"),
    "%": ("a percent sign", lambda m: b"%"),
}
ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

_PART = re.compile(r"%(.?)|\\x([0-9A-Fa-f]{2})|\\(.?)|([^%\\]+)", re.DOTALL)


def compile_format(pattern: str) -> Callable[[Message], bytes]:
    """Return a function that formats a message by the pattern. It adds no line end."""
    parts: list[Callable[[Message], bytes]] = []
    for match in _PART.finditer(pattern):
        field, code, escape, text = match.groups()
        if field is not None:
            if field not in FIELDS:
                raise click.BadParameter(f"%{field} is not a field. The fields are {_fields()}.")
            parts.append(FIELDS[field][1])
        elif escape is not None:
            if escape not in ESCAPES:
                raise click.BadParameter(f"\\{escape} is not an escape sequence. See --help.")
            parts.append(_constant(ESCAPES[escape]))
        else:
            constant = bytes([int(code, 16)]) if code else text.encode("utf-8", "surrogateescape")
            parts.append(_constant(constant))
    return lambda message: b"".join(part(message) for part in parts)


def unescape(text: str) -> bytes:
    """Return text with the escape sequences of a pattern as bytes; a percent sign is itself."""
    empty = Message("", b"", "", "", 0)
    return compile_format(text.replace("%", "%%"))(empty)


def _event_field(message: Message, name: str) -> bytes:
    """Return a field of a state event, or of its headers; empty if the message does not have it."""
    import msgspec

    try:
        event = msgspec.json.decode(message.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return b""
    if isinstance(event, dict) and name == "timestamp":
        event = event.get("headers")
    value = event.get(name) if isinstance(event, dict) else None
    return value.encode() if isinstance(value, str) else b""


def _constant(data: bytes) -> Callable[[Message], bytes]:
    return lambda message: data


def _fields() -> str:
    return " ".join(f"%{field}" for field in FIELDS)
