"""Folding rows to the state they stand for. Pure: knows rows alone."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.stp.rows import Row


def fold(rows: Iterable[Row]) -> dict[str, Row]:
    """The latest row of each key: `+` adds or replaces, `-` removes.

    Rows are applied in SeqNo order; one whose SeqNo is not above the last is a duplicate and is
    passed over.
    """
    state: dict[str, Row] = {}
    position = 0
    for row in rows:
        if row.seqno > position:
            position = row.seqno
            apply(state, row)
    return state


def apply(state: dict[str, Row], row: Row) -> None:
    """One change to a state; deleting what is absent is no error."""
    if row.action == "+":
        state[row.key] = row
    else:
        state.pop(row.key, None)
