"""Prints the rows of a table: columns for a person, the lines of the wire, or JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from penstock.cli.system import columns
from penstock.cli.terminal import note, printable, styled
from penstock.cli.text import amount

if TYPE_CHECKING:
    from penstock.stp.client.sync.table import TableRows
    from penstock.stp.rows import Row

_KEY_WIDTH = 24
_WIDTH_MIN = 60


class RowsOutput:
    """Prints rows as they arrive, and flushes stdout when no more rows are waiting."""

    def __init__(self, *, as_json: bool, count: int | None = None) -> None:
        self._as_json = as_json
        self._remaining = count
        self._is_terminal = sys.stdout.isatty() and not as_json

    def write(self, rows: TableRows) -> None:
        output = sys.stdout.buffer
        for row in rows:
            if self._is_terminal:
                text = self._columns(row)
            elif self._as_json:
                text = _json(row)
            else:
                text = _line(row, escape=rows.media is not None and rows.media.escape)
            output.write(f"{text}\n".encode())
            if rows.waiting == 0:
                output.flush()
            if self._remaining is not None:
                self._remaining -= 1
                if self._remaining == 0:
                    break
        output.flush()
        if rows.conflicts:
            note(f"Omitted {amount(rows.conflicts, 'row')} that contradicted earlier rows.")

    def _columns(self, row: Row) -> str:
        cells = f"{row.seqno:>8}  {row.timestamp}  {row.action}  {row.key:<{_KEY_WIDTH}}  "
        line = printable(f"{cells}{row.record}".expandtabs(1).rstrip())
        width = max(columns(), _WIDTH_MIN)
        return styled(line[:width], fg="green" if row.action == "+" else "red")


def _line(row: Row, *, escape: bool) -> str:
    """Return the row as it was received. A record of another server may contain a tab."""
    key, record = row.key, row.record
    if escape:
        from penstock.stp.escaping import escape as escaped

        key, record = escaped(key), escaped(record)
    return f"{row.seqno}\t{row.timestamp}\t{row.action}\t{key}\t{record}"


def _json(row: Row) -> str:
    import msgspec

    return json.dumps(msgspec.structs.asdict(row), ensure_ascii=False)
