"""What has to be in order before a pipeline runs: its server answers, and settings, checkpoint and
warehouse fit together. Starts no Spark, which takes its time, and changes nothing.
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
from penstock.spark.server import Server, Tail, selects
from penstock.spark.source.driver import Driver
from penstock.spark.warehouse.state import check_tables
from penstock.spark.warehouse.warehouse import Warehouse

_MASTER: Final = re.compile(r"(spark|k8s)://.|(local(-cluster)?(\[.*\])?|yarn)$")
Tell = Callable[[str], None]


def check_source(source: Source, tell: Tell) -> None:
    """Ask the server once what the query will ask it: an error here is known in a second."""
    try:
        found = _Asked(source, attempts_max=1)
    except ConnectionFailed as error:
        if source.attempts == 1:
            raise
        reason = error.__cause__ or error.detail
        tell(f"{source.url} does not answer yet ({reason}); trying again for a while")
        found = _Asked(source, attempts_max=source.attempts)
    if found.missing:
        more = f" and {len(found.missing) - 1:,} more" if len(found.missing) > 1 else ""
        tell(f"{found.missing[0]}{more} not found on {source.url}: read when it is there")
    elif not found.tails:
        tell(f"no stream of {source.url} matches {', '.join(source.streams)} yet")


def check_master(master: str | None) -> None:
    """Java would answer a name that is none with a page of its own."""
    if master is not None and not _MASTER.match(master):
        raise InvalidOption(
            f"The master is {master!r}: it is spark://host:port, k8s://…, yarn or local[…]."
        )


class _Asked:
    """What the server has of a pipeline's streams."""

    def __init__(self, source: Source, *, attempts_max: int) -> None:
        options = SourceOptions(url=source.url, token=source.token, streams=tuple(source.streams))
        driver = Driver(Server(source.url, source.token, attempts_max), options)
        self.tails: dict[str, Tail] = driver.tails()
        self.missing = driver.missing(self.tails)


def check_warehouse(
    pipeline: Pipeline, warehouse: Warehouse, checkpoint: Checkpoint, *, resume: bool
) -> Any:
    """Where the source begins, if it begins: from what the warehouse says with `resume`, else where
    the settings say; a checkpoint, which has to match the warehouse, knows better."""
    warehouse.events.refresh()
    record = warehouse.events.record
    check_tables(warehouse, pipeline.types)
    # Where nothing has begun there is nothing to go on from: `resume` may always be asked for.
    if not resume or (record.batch == 0 and checkpoint.done is None):
        check_match(checkpoint, warehouse.events)
        return pipeline.source.starting
    positions = warehouse.events.positions()
    if positions is None:
        raise WarehouseMismatch(
            f"The warehouse {warehouse.path} does not say where it stands: there is nothing to "
            "resume from."
        )
    # As it stands there, numbers included: deleted streams and such are then found as in a query
    # that had never stopped.
    return positions


def tell_unselected(source: Source, warehouse: Warehouse, tell: Tell) -> None:
    """Name streams that the warehouse has rows of, and the settings do not select any more."""
    positions = warehouse.events.positions()
    if positions is None:
        return
    place = from_spark(positions)
    left = sorted(name for name in place.streams if not selects(place.kind, source.streams, name))
    if left:
        more = f" and {len(left) - 1:,} more" if len(left) > 1 else ""
        tell(f"{left[0]}{more} no longer in source.streams: not read any further, rows stay")
