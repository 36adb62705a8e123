"""Offset tokens: the spelling of a position in a stream for clients.

Knows the spelling only; whether a position exists is the engine's business.
"""

from __future__ import annotations

import re
from typing import Final, Literal, NamedTuple

from penstock.errors import InvalidOffset
from penstock.limits import OFFSET_DIGITS

START: Final = "-1"
NOW: Final = "now"
BEGINNING: Final = f"{0:0{OFFSET_DIGITS}d}_{0:0{OFFSET_DIGITS}d}"
"""The offset that is at the beginning of every stream, whatever its generation."""

_TOKEN = re.compile(rf"([0-9]{{{OFFSET_DIGITS}}})_([0-9]{{{OFFSET_DIGITS}}})")


class Offset(NamedTuple):
    """A position: ordered like its token, by generation and then by byte position."""

    generation: int
    position: int

    @property
    def token(self) -> str:
        return f"{self.generation:016d}_{self.position:016d}"


def parse_offset(text: str) -> Offset | Literal["-1", "now"]:
    """Return the offset of a client: one of the two sentinels, or a token as the server made it."""
    match = _TOKEN.fullmatch(text)
    if match is not None:
        return Offset(int(match[1]), int(match[2]))
    if text == START:
        return START
    if text == NOW:
        return NOW
    raise InvalidOffset(
        f"{text[:64]!a} is not an offset. Use a Stream-Next-Offset value exactly as it was "
        f"returned, '{START}' for the start of the stream or '{NOW}' for its tail."
    )
