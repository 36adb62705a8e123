"""From two places to the ranges between them: which bytes of which stream each task reads.

Depends on the two places and the options alone, never on the cluster or the clock, so that a batch
that is run again reads the same records in the same partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.errors import Gone, StreamNotFound
from penstock.limits import SPARK_RANGES_PER_PARTITION_MAX, SPLITS_MAX
from penstock.spark.error_text import data_lost
from penstock.spark.options import SourceOptions
from penstock.spark.server import Server
from penstock.spark.source.offsets import BEGINNING, Place, Position


class Range(NamedTuple):
    """Messages of one stream between two positions; `reset` is why a reset row comes first."""

    stream: str
    start: Position
    end: Position
    reset: str | None = None

    @property
    def size(self) -> int:
        return max(self.end.byte - self.start.byte, 1)


def ranges_between(start: Place, end: Place) -> list[Range]:
    """One range for each stream that has something new, in the order of their names."""
    found = []
    for stream in sorted({*start.streams, *end.streams}):
        before, after = start.of(stream), end.streams.get(stream)
        if after == before:
            continue
        if after is None or after.begins_anew:
            found.append(Range(stream, before, before, "stream-deleted"))
        elif end.kind == "penstock" and is_recreated(before, after):
            found.append(Range(stream, BEGINNING, after, "stream-recreated"))
        else:
            found.append(Range(stream, before, after))
    return found


def is_recreated(before: Position, after: Position) -> bool:
    return before.generation is not None and before.generation != after.generation


def partitions_of(
    server: Server, start: Place, end: Place, options: SourceOptions
) -> list[list[Range]]:
    """The ranges of each task."""
    ranges = ranges_between(start, end)
    total = sum(each.size for each in ranges)
    target = max(1, min(options.partition_bytes, total // options.partitions_min))
    pieces = (
        piece
        for each in ranges
        for piece in (_cut(server, each, target, options) if end.kind == "penstock" else [each])
    )
    return list(_packed(pieces, target))


def _cut(server: Server, wanted: Range, target: int, options: SourceOptions) -> list[Range]:
    """A range in pieces of about equal size, each at a message boundary."""
    parts = min(-(-wanted.size // target), SPLITS_MAX)
    if parts < 2:
        return [wanted]
    try:
        cuts = server.cuts(wanted.stream, wanted.start.offset, wanted.end.offset, parts=parts)
    except (Gone, StreamNotFound) as error:
        if options.fail_on_data_loss:
            raise data_lost(wanted.stream, error.detail) from error
        return [wanted]  # the task that reads it says what is left
    places = [cuts.position(index) for index in range(len(cuts.offsets))]
    pieces = [Range(wanted.stream, *pair) for pair in pairwise(places)]
    if pieces and wanted.reset is not None:
        pieces[0] = pieces[0]._replace(reset=wanted.reset)
    return pieces or [wanted]


def _packed(ranges: Iterable[Range], target: int) -> Iterator[list[Range]]:
    """Small ranges share a task, up to the size that one task should read."""
    batch: list[Range] = []
    size = 0
    for each in ranges:
        full = size + each.size > target or len(batch) >= SPARK_RANGES_PER_PARTITION_MAX
        if batch and full:
            yield batch
            batch, size = [], 0
        batch.append(each)
        size += each.size
    if batch:
        yield batch
