"""Cuts server-sent events out of the pieces of a response, so that no half event is recorded."""

from __future__ import annotations

from typing import Final

REST_BYTES_MAX: Final = 256 * 1024
"""An event that is longer is recorded in parts."""

_ENDS: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")


class WholeEvents:
    """Holds back the beginning of an event until its end has come."""

    __slots__ = ("rest",)

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the whole events that there are now."""
        data = self.rest + data
        cut = max(0, *(end + len(mark) for mark in _ENDS if (end := data.rfind(mark)) >= 0), 0)
        if len(data) - cut > REST_BYTES_MAX:
            cut = len(data)
        self.rest = data[cut:]
        return data[:cut]
