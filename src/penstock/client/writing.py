"""The rules of `write_from`: its options, what it returns, and the record of a source that failed.
No I/O."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from penstock import limits
from penstock.protocol.error_record import error_record
from penstock.protocol.headers import is_json

OnSourceError = Literal["close", "leave"]

# How much of a source may be waiting to be stored: what a generator is ahead of the server.
QUEUE_BYTES_MAX: Final = 256 * limits.KIB


@dataclass(frozen=True, slots=True)
class Written:
    """What `write_from` has stored: the tail after it, and the number of items."""

    offset: str
    count: int


@dataclass(slots=True)
class WriteProgress:
    """How many items are stored for certain, also after `write_from` has raised: what a later run
    may `skip`."""

    stored: int = 0


class WriteOptions(NamedTuple):
    """The options of `write_from` that are not those of its producer."""

    close: bool
    on_error: OnSourceError
    error_record: Callable[[BaseException], Any] | None
    skip: int
    progress: WriteProgress

    def check(self) -> None:
        if self.on_error not in ("close", "leave"):
            raise ValueError(f'on_error is {self.on_error!r}: it may be "close" or "leave".')
        if self.skip < 0:
            raise ValueError("skip must be 0 or more.")

    def record(self, error: BaseException, content_type: str) -> Any:
        """Return the last message of a stream whose source has raised; None for no message.

        The text of the error is not part of it: it may hold what readers must not see.
        """
        if self.error_record is not None:
            return self.error_record(error)
        return error_record(content_type, "failed" if isinstance(error, Exception) else "aborted")


class Selection:
    """Which items of a source are written: not the first `skip`, and no empty text or bytes, which
    are no messages and are not counted."""

    __slots__ = ("_is_json", "_skip", "count")

    def __init__(self, skip: int, content_type: str) -> None:
        self._skip = skip
        self._is_json = is_json(content_type)
        self.count = 0
        """The number of items that have been written."""

    def takes(self, item: Any) -> bool:
        if not self._is_json and isinstance(item, str | bytes | bytearray) and not item:
            return False
        if self._skip:
            self._skip -= 1
            return False
        self.count += 1
        return True
