"""The ranges between two offsets of a query: which bytes of which stream each task reads.

Depends on the two offsets and the options alone, never on the cluster or the clock, so that a
repeated batch reads the same records in the same partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from penstock.errors import Gone, StreamNotFound
from penstock.limits import SPARK_RANGES_PER_PARTITION_MAX, SPLITS_MAX
from penstock.spark.error_text import data_lost
from penstock.spark.offsets import BEGINNING, Position, SourceOffsets
from penstock.spark.options import SourceOptions
from penstock.spark.server import Server


class Range(NamedTuple):
    """Messages of one stream between two positions; with `reset`, the reason of a reset row that
    comes first."""

    stream: str
    start: Position
    end: Position
    reset: str | None = None

    @property
    def size(self) -> int:
        return max(self.end.byte - self.start.byte, 1)

    @property
    def messages(self) -> int:
        """The number of messages, of byte streams bytes; trimmed ones count."""
        return max(self.end.seq - self.start.seq, 1)


def ranges_between(start: SourceOffsets, end: SourceOffsets) -> list[Range]:
    """One range for each stream that has changed, in the order of their names."""
    ranges = []
    for stream in sorted({*start.streams, *end.streams}):
        before, after = start.of(stream), end.streams.get(stream)
        if after == before:
            continue
        if after is None or after.is_after_deletion:
            ranges.append(Range(stream, before, before, "stream-deleted"))
        elif end.kind == "penstock" and is_recreated(before, after):
            ranges.append(Range(stream, BEGINNING, after, "stream-recreated"))
        else:
            ranges.append(Range(stream, before, after))
    return ranges


def is_recreated(before: Position, after: Position) -> bool:
    return before.generation is not None and before.generation != after.generation


def partitions_of(
    server: Server, start: SourceOffsets, end: SourceOffsets, options: SourceOptions
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
    return list(_packed(pieces, target, options.partition_messages))


def _cut(server: Server, whole: Range, target: int, options: SourceOptions) -> list[Range]:
    """Cut a range at message boundaries into pieces of about equal size."""
    parts = min(-(-whole.size // target), SPLITS_MAX)
    most = options.partition_messages
    if parts < 2 and (most is None or whole.messages <= most):
        return [whole]
    try:
        cuts = server.cuts(whole.stream, whole.start.offset, whole.end.offset, parts=parts)
        positions = [cuts.position(index) for index in range(len(cuts.offsets))]
        if most is not None and cuts.ordinals is not None:
            positions = _by_count(server, whole, positions, most)
    except (Gone, StreamNotFound) as error:
        if options.fail_on_data_loss:
            raise data_lost(whole.stream, error.detail) from error
        return [whole]  # The task that reads it finds out what remains.
    pieces = [Range(whole.stream, *pair) for pair in pairwise(positions)]
    if pieces and whole.reset is not None:
        pieces[0] = pieces[0]._replace(reset=whole.reset)
    return pieces or [whole]


def _by_count(server: Server, whole: Range, positions: list[Position], most: int) -> list[Position]:
    """Cut further between positions that are more than `most` messages apart."""
    result = positions[:1]
    for end in positions[1:]:
        while end.seq - result[-1].seq > most:
            start = result[-1].offset
            cuts = server.cuts(whole.stream, start, whole.end.offset, count=most)
            result.append(cuts.position(len(cuts.offsets) - 1))
        result.append(end)
    return result


def _packed(
    ranges: Iterable[Range], target: int, messages_max: int | None
) -> Iterator[list[Range]]:
    """Group small ranges into tasks, up to the size that one task should read."""
    batch: list[Range] = []
    size = messages = 0
    for each in ranges:
        full = size + each.size > target or len(batch) >= SPARK_RANGES_PER_PARTITION_MAX
        full |= messages_max is not None and messages + each.messages > messages_max
        if batch and full:
            yield batch
            batch, size, messages = [], 0, 0
        batch.append(each)
        size += each.size
        messages += each.messages
    if batch:
        yield batch
