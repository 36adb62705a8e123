"""Rows that arrive from a State URL, made safe: each SeqNo once, in order, nothing contradicted.

Pure: knows rows, neither HTTP nor where they go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from penstock.stp.rows import Row

RECENT_ROWS_MAX: Final = 4096  # so far back a repeated SeqNo is compared with what it was before


class Conflict(NamedTuple):
    """A row that contradicts what its server has said before; it is not given out.

    `repeated`: its SeqNo has been seen with another action, key or record, and the first is kept.
    `out-of-order`: it came after a greater SeqNo, and was not there before.
    """

    kind: Literal["repeated", "out-of-order"]
    row: Row

    def __str__(self) -> str:
        where = f"SeqNo {self.row.seqno} ({self.row.action} {self.row.key!r})"
        if self.kind == "repeated":
            return f"{where} came again with other content; the first is kept"
        return f"{where} came after a greater SeqNo and is left out"


class Sieve:
    """Lets each SeqNo through once, in increasing order; what is repeated is compared."""

    __slots__ = ("_recent", "position")

    def __init__(self, position: int = 0) -> None:
        """`position` is the last SeqNo that has been processed."""
        self.position = position
        self._recent: dict[int, int] = {}

    def pass_on(self, rows: Iterable[Row]) -> tuple[list[Row], list[Conflict]]:
        """The rows that are new, and those that contradict earlier ones."""
        new: list[Row] = []
        conflicts: list[Conflict] = []
        recent, position = self._recent, self.position
        for row in rows:
            seqno = row.seqno
            if seqno > position:
                position = seqno
                recent[seqno] = _content(row)
                new.append(row)
                continue
            kind = self._judge(row)
            if kind is not None:
                conflicts.append(Conflict(kind, row))
        self.position = position
        surplus = len(recent) - RECENT_ROWS_MAX
        if surplus > 0:
            for seqno in list(recent)[:surplus]:
                del recent[seqno]
        return new, conflicts

    def _judge(self, row: Row) -> Literal["repeated", "out-of-order"] | None:
        before = self._recent.get(row.seqno)
        if before is not None:
            return None if before == _content(row) else "repeated"
        # Older than what is remembered: most likely a server that sends everything again.
        oldest = next(iter(self._recent), None)
        return None if oldest is None or row.seqno < oldest else "out-of-order"


def _content(row: Row) -> int:
    """Timestamps are informational, so that a server may write them differently the next time."""
    return hash((row.action, row.key, row.record if row.action == "+" else ""))
