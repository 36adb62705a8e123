"""`--format` of `penstock read`, in the manner of kcat: a pattern filled in for each message."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

import click


class Message(NamedTuple):
    """A message, or a line of a stream that is not JSON.

    `offset` is where a read gets it first, `next_offset` where it goes on after it: exactly, on
    Penstock servers and for JSON; else where the batch with it starts, and goes on.
    """

    stream: str
    data: bytes
    offset: str
    next_offset: str
    number: int


FIELDS: dict[str, tuple[str, Callable[[Message], bytes]]] = {
    "s": ("the message", lambda m: m.data),
    "S": ("its size in bytes", lambda m: b"%d" % len(m.data)),
    "o": ("its offset: reading from there gets it first", lambda m: m.offset.encode()),
    "O": ("the offset after it, from which to go on", lambda m: m.next_offset.encode()),
    "i": ("its number in this output, from 0", lambda m: b"%d" % m.number),
    "t": ("the stream, as it was named", lambda m: m.stream.encode("utf-8", "surrogateescape")),
    "n": ("a line end", lambda m: b"\n"),
    "%": ("a percent sign", lambda m: b"%"),
}
ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}

_PART = re.compile(r"%(.?)|\\x([0-9A-Fa-f]{2})|\\(.?)|([^%\\]+)", re.DOTALL)


def compile_format(pattern: str) -> Callable[[Message], bytes]:
    """A function that writes a message by the pattern. Adds no line end of its own."""
    parts: list[Callable[[Message], bytes]] = []
    for match in _PART.finditer(pattern):
        field, code, escape, text = match.groups()
        if field is not None:
            if field not in FIELDS:
                raise click.BadParameter(f"%{field} means nothing; known are {_known()}")
            parts.append(FIELDS[field][1])
        elif escape is not None:
            if escape not in ESCAPES:
                raise click.BadParameter(f"\\{escape} means nothing; see --help")
            parts.append(_constant(ESCAPES[escape]))
        else:
            constant = bytes([int(code, 16)]) if code else text.encode("utf-8", "surrogateescape")
            parts.append(_constant(constant))
    return lambda message: b"".join(part(message) for part in parts)


def _constant(data: bytes) -> Callable[[Message], bytes]:
    return lambda message: data


def _known() -> str:
    return " ".join(f"%{field}" for field in FIELDS)
