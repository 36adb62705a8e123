"""What a table says of each of its files, by which readers pass over those that have nothing for
them: the rows, and of some columns the least and the most value and the nulls.

Long texts are cut, as Delta's own writers do. Knows no tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

TEXT_MAX: Final = 32  # characters of a text that are told
_ABOVE_ASCII: Final = "\x7f"
_ABOVE_ALL: Final = "\U0010ffff"
_compute: Any = pc


class Statistics:
    """Gathered while the rows of a file are written."""

    def __init__(self, columns: Sequence[str]) -> None:
        self.rows = 0
        self._nulls = dict.fromkeys(columns, 0)
        self._least: dict[str, Any] = {}
        self._most: dict[str, Any] = {}

    def add(self, table: pa.Table) -> None:
        self.rows += table.num_rows
        for name in self._nulls:
            column = table[name]
            self._nulls[name] += column.null_count
            if column.null_count == len(column):
                continue
            found = _compute.min_max(column).as_py()
            self._least[name] = min(self._least.get(name, found["min"]), found["min"])
            self._most[name] = max(self._most.get(name, found["max"]), found["max"])

    def json(self) -> str:
        return msgspec.json.encode(
            {
                "numRecords": self.rows,
                "minValues": {name: below(value) for name, value in self._least.items()},
                "maxValues": {name: above(value) for name, value in self._most.items()},
                "nullCount": self._nulls,
            }
        ).decode()


def below(value: Any) -> Any:
    """A value, or if it is a long text a short one that no text which begins so is less than."""
    return value[:TEXT_MAX] if isinstance(value, str) else value


def above(value: Any) -> Any:
    """A value, or if it is a long text a shorter one that is greater, in the order of code points,
    which is that of the bytes of UTF-8. A text of the greatest character alone has none."""
    if not isinstance(value, str):
        return value
    for end in range(TEXT_MAX, len(value)):
        if value[end] < _ABOVE_ASCII:
            return value[:end] + _ABOVE_ASCII
        if value[end] < _ABOVE_ALL:
            return value[:end] + _ABOVE_ALL
    return value
