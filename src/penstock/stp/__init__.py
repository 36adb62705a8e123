"""The State Transfer Protocol: rows, tables at State URLs, and Notify.

Names are loaded when first used: the functions for rows need neither client nor server.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import InvalidRow
    from penstock.stp.client.aio.notifier import AsyncNotifier
    from penstock.stp.client.aio.table import AsyncTable, AsyncTableRows
    from penstock.stp.client.answers import Declared, TableHead, Written
    from penstock.stp.client.reading import TableRead, TableState
    from penstock.stp.client.sync.notifier import Notifier
    from penstock.stp.client.sync.table import Table, TableRows
    from penstock.stp.deduplication import Conflict
    from penstock.stp.escaping import escape, unescape
    from penstock.stp.folding import fold
    from penstock.stp.rows import (
        Change,
        Row,
        RowDecoder,
        format_change,
        format_row,
        parse_change,
        parse_changes,
        parse_row,
        parse_since_id,
    )

__all__ = [
    "AsyncNotifier",
    "AsyncTable",
    "AsyncTableRows",
    "Change",
    "Conflict",
    "Declared",
    "InvalidRow",
    "Notifier",
    "Row",
    "RowDecoder",
    "Table",
    "TableRows",
    "TableHead",
    "TableRead",
    "TableState",
    "Written",
    "escape",
    "fold",
    "format_change",
    "format_row",
    "parse_change",
    "parse_changes",
    "parse_row",
    "parse_since_id",
    "unescape",
]

_MODULES = {
    "penstock.errors": ("InvalidRow",),
    "penstock.stp.escaping": ("escape", "unescape"),
    "penstock.stp.folding": ("fold",),
    "penstock.stp.rows": (
        "Change", "Row", "RowDecoder", "format_change", "format_row", "parse_change",
        "parse_changes", "parse_row", "parse_since_id",
    ),
    "penstock.stp.client.answers": ("Declared", "TableHead", "Written"),
    "penstock.stp.deduplication": ("Conflict",),
    "penstock.stp.client.reading": ("TableRead", "TableState"),
    "penstock.stp.client.sync.table": ("Table", "TableRows"),
    "penstock.stp.client.aio.table": ("AsyncTable", "AsyncTableRows"),
    "penstock.stp.client.aio.notifier": ("AsyncNotifier",),
    "penstock.stp.client.sync.notifier": ("Notifier",),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
