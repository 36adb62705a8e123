"""The errors of STP tables: their rows, their declarations and their answers.

Import errors from `penstock.errors`, which has all of them.
"""

from __future__ import annotations

from penstock._error_base import Conflict, Gone, PenstockError, Unprocessable


class InvalidRow(Unprocessable):
    """What is no row of a table, or one that it cannot hold.

    `field` names the place (`seqno`, `key`, `record`), `index` which row of a batch it is.
    """

    code, title = "invalid-row", "Invalid row of a table"

    def __init__(self, detail: str, *, field: str | None = None, index: int | None = None) -> None:
        super().__init__(detail)
        self.field = field
        self.index = index


class InvalidTable(Unprocessable):
    """A declaration of a table that cannot be used; `field` names the place."""

    code, title = "invalid-table", "Invalid declaration of a table"

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class TableNotFound(PenstockError):
    status, code, title = 404, "table-not-found", "Table not found"


class NotAcceptable(PenstockError):
    status, code, title = 406, "not-acceptable", "The table has another schema or version"


class TableExists(Conflict):
    code, title = "table-exists", "Table exists with another declaration"


class NotExpressible(Conflict):
    code, title = "not-expressible", "The stream has events that no row can express"


class RowsTrimmed(Gone):
    code, title = "rows-trimmed", "Rows after this SeqNo are no longer kept"

    @property
    def earliest(self) -> int | None:
        """The SeqNo of the earliest row there is."""
        return self._number("STP-Earliest-SeqNo")
