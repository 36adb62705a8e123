"""DataFrames without further ado: events, the state they add up to, and its history.

`state_of` and `history_of` are pure transformations of any DataFrame with the source's columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pyspark.sql import functions as f
from pyspark.sql.window import Window

from penstock.spark.sessions.session import register

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

At = str | Mapping[str, str] | None

_ENTITY: Final = ("stream", "type", "key")
_ORDER: Final = ("generation", "position")


def events(
    spark: SparkSession,
    url: str,
    streams: str | Sequence[str],
    *,
    at: At = None,
    token: str | None = None,
    **options: Any,
) -> DataFrame:
    """Every event of the streams, as they are now or as they were at an offset.

    `streams` is a name, a pattern or several; `at` an offset, or one for each stream by its name.
    Further options are those of the source, for example `mode="raw"`.
    """
    register(spark)
    names = [streams] if isinstance(streams, str) else list(streams)
    given = {"url": url, "streams": msgspec.json.encode(names).decode(), **options}
    if token is not None:
        given["token"] = token
    if at is not None:
        given["endingOffsets"] = msgspec.json.encode(_offsets(names, at)).decode()
    return spark.read.format("durable_streams").options(**given).load()


def state(
    spark: SparkSession, url: str, streams: str | Sequence[str], *, at: At = None, **options: Any
) -> DataFrame:
    """One row for each entity that there is, with its value: now, or at an offset."""
    return state_of(events(spark, url, streams, at=at, **options))


def history(
    spark: SparkSession, url: str, streams: str | Sequence[str], *, at: At = None, **options: Any
) -> DataFrame:
    """One row for each value that an entity has had, and from where to where it held."""
    return history_of(events(spark, url, streams, at=at, **options))


def lag(query: StreamingQuery) -> dict[str, int]:
    """How many messages each stream is ahead of the query, as its last progress says.

    Streams that are read to the end are not in it.
    """
    progress = query.lastProgress
    found: dict[str, int] = {}
    for source in [] if progress is None else progress.sources:
        try:
            latest = msgspec.json.decode(source.latestOffset or "null")
        except msgspec.DecodeError:
            continue
        if isinstance(latest, dict) and isinstance(latest.get("lag"), dict):
            found.update(latest["lag"])
    return found


def state_of(events: DataFrame) -> DataFrame:
    """The state that events add up to: the newest change of each entity after the last reset.

    Goes through the events once. Resets have neither type nor key: they are a group of their own in
    each stream, and few rows are left when they are held against the entities.
    """
    order = f.struct(f.coalesce("generation", f.lit(0)).alias("generation"), "position")
    is_reset = f.col("control") == "reset"
    floor = f.struct(f.coalesce("generation", f.lit(0)).alias("generation"), _floor().alias("at"))
    newest = f.max_by(
        f.struct("value", "operation", *_ORDER, "seq", "offset", "txid", "timestamp"), order
    )
    stream = Window.partitionBy("stream")
    found = (
        events.where((f.col("kind") == "change") | is_reset)
        .groupBy(*_ENTITY)
        .agg(
            newest.alias("newest"),
            f.max(order).alias("place"),
            f.max(f.when(is_reset, order)).alias("reset"),
            f.max(f.when(is_reset, floor)).alias("floor"),
        )
        .withColumn("reset", f.max("reset").over(stream))
        .withColumn("floor", f.max("floor").over(stream))
    )
    is_void = (f.col("floor.generation") == f.col("place.generation")) & (
        f.col("floor.at") > f.col("place.position")
    )
    return (
        found.where("newest.operation <> 'delete'")
        .where(f.col("reset").isNull() | ((f.col("place") > f.col("reset")) & ~is_void))
        .select(
            *_ENTITY,
            "newest.value",
            *(f"newest.{name}" for name in (*_ORDER, "seq", "offset", "txid", "timestamp")),
        )
    )


def history_of(events: DataFrame) -> DataFrame:
    """What each entity's value was, from where to where (slowly changing dimension, type 2).

    A value that is written again as it was makes no new row; a delete or a reset ends the last one.
    `valid_to_…` is null while it holds.
    """
    changes = _with_floors(events.where("kind = 'change'"), _floors(events))
    entity = Window.partitionBy(*_ENTITY, "epoch").orderBy(*_ORDER)
    before = f.lag(f.struct("operation", "value")).over(entity)
    is_new = (
        before.isNull() | (before["operation"] == "delete") | (before["value"] != f.col("value"))
    )
    is_delete = f.col("operation") == "delete"
    kept = changes.where("valid").withColumn("is_new", is_new | is_delete)
    after = f.lead(f.struct("position", "offset", "timestamp")).over(entity)
    return (
        kept.where("is_new")
        .withColumn("after", after)
        .where(~is_delete)
        .select(
            *_ENTITY,
            "value",
            "generation",
            f.col("position").alias("valid_from_position"),
            f.col("offset").alias("valid_from_offset"),
            f.col("timestamp").alias("valid_from_timestamp"),
            f.coalesce("after.position", "epoch_end.position").alias("valid_to_position"),
            f.coalesce("after.offset", "epoch_end.offset").alias("valid_to_offset"),
            f.col("after.timestamp").alias("valid_to_timestamp"),
            (f.col("after").isNull() & f.col("epoch_end").isNull()).alias("is_current"),
        )
    )


def _floor() -> Column:
    """Where what a reset makes void ends: at the offset that it names, if that is ahead of it."""
    target = f.split("control_offset", "_")
    ahead = f.when(
        f.col("control_offset").rlike("^[0-9]{16}_[0-9]{16}$")
        & (target[0].cast("long") == f.col("generation"))
        & (target[1].cast("long") > f.col("position")),
        target[1].cast("long"),
    )
    return f.coalesce(ahead, f.col("position"))


def _floors(events: DataFrame) -> DataFrame:
    """The resets of each stream, in order: few, so they go to every task."""
    reset = f.struct("generation", "position", "offset", _floor().alias("floor"))
    resets = events.where("control = 'reset'")
    return resets.groupBy("stream").agg(f.sort_array(f.collect_list(reset)).alias("resets"))


def _with_floors(changes: DataFrame, floors: DataFrame) -> DataFrame:
    """Changes with the number of resets before each, the next one, and whether they count at all.

    A reset that names an offset ahead of it makes void what comes before that, too.
    """
    joined = changes.join(f.broadcast(floors), "stream", "left")
    resets = f.coalesce("resets", f.array().cast(floors.schema["resets"].dataType))
    return (
        joined.withColumn("before", f.filter(resets, _is_before))
        .withColumn("epoch", f.size("before"))
        .withColumn("epoch_end", f.get(f.filter(resets, lambda each: ~_is_before(each)), f.lit(0)))
        .withColumn("valid", ~f.exists("before", _hides))
        .drop("resets", "before")
    )


def _is_before(reset: Column) -> Column:
    here = f.struct(f.col("generation"), f.col("position"))
    return f.struct(reset["generation"], reset["position"]) < here


def _hides(reset: Column) -> Column:
    same = reset["generation"].eqNullSafe(f.col("generation"))
    return same & (f.col("position") < reset["floor"])


def _offsets(names: Sequence[str], at: str | Mapping[str, str]) -> dict[str, str]:
    if isinstance(at, str):
        if len(names) != 1 or any(character in names[0] for character in "*?,"):
            raise ValueError("one offset is for one stream: give a dict of them, by their names")
        return {names[0].strip("/"): at}
    return {name.strip("/"): offset for name, offset in at.items()}
