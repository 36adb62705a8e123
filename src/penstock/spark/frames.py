"""DataFrames of events, of the state that they add up to, and of its history.

`state_of` and `history_of` transform any DataFrame with the columns of the source.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.spark.sessions.session import register
from penstock.spark.stream_progress import Lags, lags_in
from penstock.spark.warehouse import sql

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

At = str | Mapping[str, str] | None

# Only a time with a zone is a point in time, as in the table **events** of a pipeline.
_TIME: Final = (
    "CASE WHEN timestamp RLIKE '([Zz]|[+-][0-9]{2}:?[0-9]{2})$' "
    "THEN try_cast(timestamp AS TIMESTAMP) END AS time"
)
_EVENTS: Final = (
    "stream", "coalesce(generation, 0) AS generation", "seq AS ordinal", "position", "offset",
    "kind", "type", "key", "operation", "value", "txid", "timestamp", _TIME, "control",
    "control_offset", "CAST(1 AS BIGINT) AS batch",
)  # fmt: skip
_STATE: Final = (
    "stream", "type", "key", "value", "generation", "ordinal", "position", "offset", "time",
    "timestamp", "txid",
)  # fmt: skip
_FORMER_ENDS: Final = ("position", "timestamp")  # until the next release


def events(
    spark: SparkSession,
    url: str,
    streams: str | Sequence[str],
    *,
    at: At = None,
    token: str | None = None,
    **options: Any,
) -> DataFrame:
    """Every event of the streams, up to now or to an offset.

    `streams` is a name, a pattern or several of them; `at` is an offset, or a dict of offsets by
    stream. Further options are those of the source, for example `mode="raw"`.
    """
    register(spark)
    names = [streams] if isinstance(streams, str) else list(streams)
    settings = {"url": url, "streams": msgspec.json.encode(names).decode(), **options}
    if token is not None:
        settings["token"] = token
    if at is not None:
        settings["endingOffsets"] = msgspec.json.encode(_offsets(names, at)).decode()
    return spark.read.format("durable_streams").options(**settings).load()


def state(
    spark: SparkSession, url: str, streams: str | Sequence[str], *, at: At = None, **options: Any
) -> DataFrame:
    """One row for each existing entity, with its value: now, or at an offset."""
    return state_of(events(spark, url, streams, at=at, **options))


def history(
    spark: SparkSession, url: str, streams: str | Sequence[str], *, at: At = None, **options: Any
) -> DataFrame:
    """One row for each value of an entity, with the events at which it began and ended."""
    return history_of(events(spark, url, streams, at=at, **options))


def lag(query: StreamingQuery) -> dict[str, int]:
    """The number of messages that each stream is ahead of the query, by its last progress.

    Streams that are read to the end are left out.
    """
    return dict(lags_of(query).messages)


def lags_of(query: StreamingQuery) -> Lags:
    """The lag of each stream in messages and bytes, by the last progress of a query."""
    progress = query.lastProgress
    lags = Lags({}, {})
    for source in [] if progress is None else progress.sources:
        more = lags_in(source.latestOffset)
        lags = Lags({**lags.messages, **more.messages}, {**lags.bytes, **more.bytes})
    return lags


def state_of(events: DataFrame) -> DataFrame:
    """The state that events add up to: the newest change of each entity after the last reset."""
    rows = _query(events, sql.state_at("{events}", None, more=("_timestamp",)))
    columns = [f"_{name} AS {name}" for name in _STATE]
    return rows.selectExpr(*columns, "_ordinal AS seq")


def history_of(events: DataFrame) -> DataFrame:
    """Every value of each entity and where it held (slowly changing dimension, type 2).

    A value that is written again unchanged makes no new row; a delete or a reset ends the last one.
    `valid_to_…` is null while it holds.
    """
    rows = _query(events, sql.history("{events}", None, ends=(*sql.ENDS, *_FORMER_ENDS)))
    return rows.selectExpr(*(f"{name} AS {name[1:]}" for name in rows.columns))


def _query(events: DataFrame, query: str) -> DataFrame:
    """The result of a query over `{events}`: rows of the source with the columns that they have in
    the table **events** of a pipeline."""
    return events.sparkSession.sql(query, events=events.selectExpr(*_EVENTS))


def _offsets(names: Sequence[str], at: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(at, str):
        if len(names) != 1 or any(character in names[0] for character in "*?,"):
            raise ValueError("one offset is for one stream: pass a dict of offsets by stream")
        return {names[0].strip("/"): at}
    return {name.strip("/"): offset for name, offset in at.items()}
