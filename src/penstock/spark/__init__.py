"""Streams into Spark and back: `penstock-streams[spark]`.

`session()` gives a Spark session that knows the sources, `register(spark)` makes them known to one
of your own; `events`, `state` and `history` give DataFrames without further ado, and
`pipeline_tables` those that a pipeline keeps.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.spark.error_text import plain
    from penstock.spark.frames import events, history, history_of, lag, state, state_of
    from penstock.spark.sessions.session import register, session
    from penstock.spark.warehouse.frames import pipeline_tables

__all__ = [
    "events",
    "history",
    "history_of",
    "lag",
    "plain",
    "register",
    "session",
    "state",
    "state_of",
    "pipeline_tables",
]

_HOMES = {
    "events": "penstock.spark.frames",
    "history": "penstock.spark.frames",
    "history_of": "penstock.spark.frames",
    "lag": "penstock.spark.frames",
    "plain": "penstock.spark.error_text",
    "register": "penstock.spark.sessions.session",
    "session": "penstock.spark.sessions.session",
    "state": "penstock.spark.frames",
    "state_of": "penstock.spark.frames",
    "pipeline_tables": "penstock.spark.warehouse.frames",
}


def __getattr__(name: str) -> Any:
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
