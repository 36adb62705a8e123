"""The State Protocol: change and control events on a JSON stream, and the state that they build.

Names are loaded at their first use, so that one of them does not load the client or a schema
library.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import InvalidEvent, StateReset, ValidationFailed
    from penstock.state.events import (
        ChangeEvent,
        ControlEvent,
        StateEvent,
        delete,
        insert,
        parse,
        parse_many,
        reset,
        snapshot_end,
        snapshot_start,
        up_to_date,
        update,
        upsert,
    )
    from penstock.state.live.aio.state import AsyncLiveState
    from penstock.state.live.aio.transaction import AsyncTransaction
    from penstock.state.live.backends import Backend, MemoryBackend
    from penstock.state.live.changes import StateBatch, StateChange
    from penstock.state.live.sqlite import SqliteBackend
    from penstock.state.live.sync.state import LiveState
    from penstock.state.live.sync.transaction import Transaction
    from penstock.state.materialized import MaterializedState
    from penstock.state.schema import Collection, StateSchema
    from penstock.state.validators import JsonSchema, Validator, validator_for

__all__ = [
    "AsyncLiveState",
    "AsyncTransaction",
    "Backend",
    "ChangeEvent",
    "Collection",
    "ControlEvent",
    "InvalidEvent",
    "JsonSchema",
    "LiveState",
    "MaterializedState",
    "MemoryBackend",
    "SqliteBackend",
    "StateBatch",
    "StateChange",
    "StateEvent",
    "StateReset",
    "StateSchema",
    "Transaction",
    "ValidationFailed",
    "Validator",
    "delete",
    "insert",
    "parse",
    "parse_many",
    "reset",
    "snapshot_end",
    "snapshot_start",
    "up_to_date",
    "update",
    "upsert",
    "validator_for",
]

_MODULES = {
    "penstock.errors": ("InvalidEvent", "StateReset", "ValidationFailed"),
    "penstock.state.events": (
        "ChangeEvent", "ControlEvent", "StateEvent", "delete", "insert", "parse", "parse_many",
        "reset", "snapshot_end", "snapshot_start", "up_to_date", "update", "upsert",
    ),
    "penstock.state.live.backends": ("Backend", "MemoryBackend"),
    "penstock.state.live.changes": ("StateBatch", "StateChange"),
    "penstock.state.live.sync.state": ("LiveState",),
    "penstock.state.live.aio.state": ("AsyncLiveState",),
    "penstock.state.materialized": ("MaterializedState",),
    "penstock.state.schema": ("Collection", "StateSchema"),
    "penstock.state.live.sqlite": ("SqliteBackend",),
    "penstock.state.live.aio.transaction": ("AsyncTransaction",),
    "penstock.state.live.sync.transaction": ("Transaction",),
    "penstock.state.validators": ("JsonSchema", "Validator", "validator_for"),
}  # fmt: skip
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
