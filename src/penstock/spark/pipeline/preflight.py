"""Checks before a pipeline runs: the server answers, and settings, checkpoint and warehouse match.
Starts no Spark, which takes seconds, and changes nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import ConnectionFailed, InvalidOption, WarehouseMismatch
from penstock.spark.config import Pipeline, Source
from penstock.spark.offsets import from_spark
from penstock.spark.options import SourceOptions
from penstock.spark.pipeline.checkpoint import Checkpoint, check_match
from penstock.spark.pipeline.owner import check_owner
from penstock.spark.server import Server, Tail, selects
from penstock.spark.source.driver import Driver
from penstock.spark.warehouse.rebuild import check_tables
from penstock.spark.warehouse.warehouse import Warehouse

_MASTER: Final = re.compile(r"(spark|k8s)://.|(local(-cluster)?(\[.*\])?|yarn)$")
Notify = Callable[[str], None]


def check_source(source: Source, notify: Notify) -> None:
    """List the streams as the query will do: an error shows within a second, before Spark
    starts."""
    try:
        streams = _SourceStreams(source, attempts_max=1)
    except ConnectionFailed as error:
        if source.attempts == 1:
            raise
        reason = error.__cause__ or error.detail
        notify(f"{source.url} does not answer yet ({reason}); trying again for a while")
        streams = _SourceStreams(source, attempts_max=source.attempts)
    if streams.missing:
        more = f" and {len(streams.missing) - 1:,} more" if len(streams.missing) > 1 else ""
        notify(f"{streams.missing[0]}{more} not found on {source.url}: read when it is there")
    elif not streams.tails:
        notify(f"no stream of {source.url} matches {', '.join(source.streams)} yet")


def check_master(master: str | None) -> None:
    """Raise an error for a master that Spark does not know, before Java prints a stack trace."""
    if master is not None and not _MASTER.match(master):
        raise InvalidOption(
            f"The master is {master!r}. It has to be spark://host:port, k8s://…, yarn or local[…]."
        )


class _SourceStreams:
    """The streams of a pipeline that the server has, and those that it lacks."""

    def __init__(self, source: Source, *, attempts_max: int) -> None:
        options = SourceOptions(url=source.url, token=source.token, streams=tuple(source.streams))
        driver = Driver(Server(source.url, source.token, attempts_max), options)
        self.tails: dict[str, Tail] = driver.tails()
        self.missing = driver.missing(self.tails)


def check_warehouse(
    pipeline: Pipeline, warehouse: Warehouse, checkpoint: Checkpoint, *, resume: bool
) -> Any:
    """The starting offsets of the source: with `resume` the positions of the warehouse, else those
    of the settings. A checkpoint, which has to match the warehouse, overrides them."""
    warehouse.events.refresh()
    record = warehouse.events.record
    check_owner(pipeline, record.owner)
    check_tables(warehouse, pipeline.types)
    # Before the first batch `resume` is allowed and has no effect.
    if not resume or (record.batch == 0 and checkpoint.done is None):
        check_match(checkpoint, warehouse.events)
        return pipeline.source.starting
    positions = warehouse.events.positions()
    if positions is None:
        raise WarehouseMismatch(
            f"The warehouse {warehouse.path} has no positions of the source, so that there is "
            "nothing to resume from."
        )
    # Unchanged, with their ordinals: deleted and recreated streams are then detected as in a query
    # that never stopped.
    return positions


def notify_unselected(source: Source, warehouse: Warehouse, notify: Notify) -> None:
    """Report streams that the warehouse has rows of and the settings no longer select."""
    positions = warehouse.events.positions()
    if positions is None:
        return
    offsets = from_spark(positions)
    unselected = sorted(
        name for name in offsets.streams if not selects(offsets.kind, source.streams, name)
    )
    if unselected:
        more = f" and {len(unselected) - 1:,} more" if len(unselected) > 1 else ""
        notify(
            f"{unselected[0]}{more} no longer in source.streams: not read any further, rows stay"
        )
