"""Streams into Spark and back: `penstock-streams[spark]`.

`session()` returns a Spark session with Penstock's sources, `register(spark)` adds them to one of
your own; `events`, `state` and `history` return DataFrames directly, and `pipeline_tables` those of
a pipeline's warehouse.
"""

from __future__ import annotations

import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.error_text import error_message
    from penstock.spark.frames import events, history, history_of, lag, state, state_of
    from penstock.spark.metrics import source_metrics
    from penstock.spark.sessions.session import register, session
    from penstock.spark.warehouse.frames import pipeline_tables

__all__ = [
    "error_message",
    "events",
    "history",
    "history_of",
    "lag",
    "register",
    "session",
    "source_metrics",
    "state",
    "state_of",
    "pipeline_tables",
]

_HOMES = {
    "error_message": "penstock.spark.error_text",
    "events": "penstock.spark.frames",
    "history": "penstock.spark.frames",
    "history_of": "penstock.spark.frames",
    "lag": "penstock.spark.frames",
    "register": "penstock.spark.sessions.session",
    "session": "penstock.spark.sessions.session",
    "source_metrics": "penstock.spark.metrics",
    "state": "penstock.spark.frames",
    "state_of": "penstock.spark.frames",
    "pipeline_tables": "penstock.spark.warehouse.frames",
}
# Old names work for one release.
_RENAMED = {"plain": "error_message"}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        name, old_name = _RENAMED[name], name
        warnings.warn(
            f"penstock.spark.{old_name} is now penstock.spark.{name}; the old name will be removed "
            "in the next release.",
            DeprecationWarning,
            stacklevel=2,
        )
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("penstock"):
            raise
        from penstock.spark.error_text import missing_package

        raise missing_package(error) from error


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
