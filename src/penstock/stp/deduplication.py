"""Deduplication of rows from a State URL: each SeqNo once, in order; contradictions are reported.

Pure: knows rows, and neither HTTP nor their destination.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal, NamedTuple

from penstock.stp.rows import Row

RECENT_ROWS_MAX: Final = 4096  # that repeated rows are compared with


class Conflict(NamedTuple):
    """A row that contradicts earlier rows of its server; it is left out.

    `repeated`: an earlier row had the same SeqNo and another action, key or record.
    `out-of-order`: it came after a greater SeqNo, and for the first time.
    """

    kind: Literal["repeated", "out-of-order"]
    row: Row

    def __str__(self) -> str:
        where = f"SeqNo {self.row.seqno} ({self.row.action} {self.row.key!r})"
        if self.kind == "repeated":
            return f"{where} came again with other content; the first stays"
        return f"{where} came after a greater SeqNo and is left out"


class Deduplicator:
    """Passes each SeqNo once, in increasing order; compares repeated rows with the first."""

    __slots__ = ("_recent", "position")

    def __init__(self, position: int = 0) -> None:
        """`position` is the last processed SeqNo."""
        self.position = position
        self._recent: dict[int, int] = {}

    def accept(self, rows: Iterable[Row]) -> tuple[list[Row], list[Conflict]]:
        """Return the new rows, and those that contradict earlier ones."""
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
        # Older than the remembered rows: most likely the server sends everything again.
        oldest = next(iter(self._recent), None)
        return None if oldest is None or row.seqno < oldest else "out-of-order"


def _content(row: Row) -> int:
    """Return a hash of a row without its timestamp, which a server may write differently."""
    return hash((row.action, row.key, row.record if row.action == "+" else ""))
