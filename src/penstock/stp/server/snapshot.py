"""A table read from its first row on, folded as it comes: for when there is a gap behind us.

Pure: knows rows and their number, neither HTTP nor the log.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from penstock.errors import EgressFailed
from penstock.stp.folding import apply
from penstock.stp.rows import Row

BYTES_MAX: Final = 256 * 1024 * 1024
"""Of keys and records that are held until the source has said all."""


class Snapshot:
    """The live rows of a table up to `position`; complete when that has reached `last`."""

    def __init__(self, last: int | None, *, bytes_max: int = BYTES_MAX) -> None:
        """`last` is the SeqNo where the table ended when it was asked for, if it said so."""
        self._last = last
        self._bytes_max = bytes_max
        self._bytes = 0
        self.live: dict[str, Row] = {}
        self.position = 0

    @property
    def is_complete(self) -> bool:
        return self._last is not None and self.position >= self._last

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            if row.seqno <= self.position:
                continue
            self.position = row.seqno
            self._bytes += len(row.key) + len(row.record)
            apply(self.live, row)
        if self._bytes > self._bytes_max:
            raise EgressFailed(
                f"The source has no rows any more from where we were, and more than "
                f"{self._bytes_max} bytes from its start: too many to take up at once."
            )
