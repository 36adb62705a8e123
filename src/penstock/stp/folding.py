"""The fold of rows to the state of a table. Pure: knows rows only."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.stp.rows import Row


def fold(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the latest row of each key: `+` adds or replaces, `-` removes.

    Rows are applied in SeqNo order; a row whose SeqNo is not greater than the last is skipped as a
    duplicate.
    """
    state: dict[str, Row] = {}
    position = 0
    for row in rows:
        if row.seqno > position:
            position = row.seqno
            apply(state, row)
    return state


def apply(state: dict[str, Row], row: Row) -> None:
    """Apply one row to a state; deleting a missing key is no error."""
    if row.action == "+":
        state[row.key] = row
    else:
        state.pop(row.key, None)
