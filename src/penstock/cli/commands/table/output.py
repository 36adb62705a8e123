"""Rows of a table on stdout: columns for a person, the wire's own lines for a program, or JSON."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

from penstock.cli.system import columns
from penstock.cli.terminal import note, printable, styled

if TYPE_CHECKING:
    from penstock.stp.client.sync.table import TableRows
    from penstock.stp.rows import Row

_KEY_WIDTH = 24
_WIDTH_MIN = 60


class RowsOutput:
    """Writes rows as they come, and flushes each time that more has to be waited for."""

    def __init__(self, *, as_json: bool, count: int | None = None) -> None:
        self._as_json = as_json
        self._left = count
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
            if self._left is not None:
                self._left -= 1
                if self._left == 0:
                    break
        output.flush()
        if rows.conflicts:
            note(f"{rows.conflicts} rows contradicted earlier ones and were left out")

    def _columns(self, row: Row) -> str:
        cells = f"{row.seqno:>8}  {row.timestamp}  {row.action}  {row.key:<{_KEY_WIDTH}}  "
        line = printable(f"{cells}{row.record}".expandtabs(1).rstrip())
        width = max(columns(), _WIDTH_MIN)
        return styled(line[:width], fg="green" if row.action == "+" else "red")


def _line(row: Row, *, escape: bool) -> str:
    """As it came: a record of another server may hold a tab, which no writer of ours would."""
    key, record = row.key, row.record
    if escape:
        from penstock.stp.escaping import escape as escaped

        key, record = escaped(key), escaped(record)
    return f"{row.seqno}\t{row.timestamp}\t{row.action}\t{key}\t{record}"


def _json(row: Row) -> str:
    import msgspec

    return json.dumps(msgspec.structs.asdict(row), ensure_ascii=False)
