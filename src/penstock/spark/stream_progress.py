"""Lag, rate and bytes of each stream that a query reads, from its offsets before and after a batch.

The offsets of `durable_streams` count messages and bytes, so that two of them say how much was
read. Pure values; needs no Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

import msgspec

from penstock.limits import SPARK_METRIC_STREAMS_MAX
from penstock.spark.offsets import SourceOffsets
from penstock.spark.source.planning import ranges_between

OTHERS: Final = "(other streams)"
"""The label of the streams beyond the most that have metrics of their own."""


class StreamProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a query has read of a stream since counting began, and what it has not."""

    messages: int = 0
    bytes: int = 0
    lag_messages: int = 0
    lag_bytes: int = 0
    messages_per_s: float = 0.0  # in the last batch
    bytes_per_s: float = 0.0


class Extent(NamedTuple):
    """A part of a stream."""

    messages: int
    bytes: int


_NOTHING: Final = Extent(0, 0)
STREAM_COUNTERS: Final = {
    "messages": "Messages of the stream that were read.",
    "bytes": "Bytes of the stream that were read.",
}
STREAM_GAUGES: Final = {
    "lag_messages": "Messages of the stream that were not read yet.",
    "lag_bytes": "Bytes of the stream that were not read yet.",
    "messages_per_s": "Messages of the stream a second, in the last batch.",
    "bytes_per_s": "Bytes of the stream a second, in the last batch.",
}


class Lags(NamedTuple):
    """What the streams had beyond the end of a batch, as the progress of a query tells it."""

    messages: Mapping[str, int]
    bytes: Mapping[str, int]

    def less(self, read: Mapping[str, Extent]) -> Lags:
        """The lag after one more batch."""
        return Lags(
            {name: max(0, n - read.get(name, _NOTHING).messages) for name, n in self[0].items()},
            {name: max(0, n - read.get(name, _NOTHING).bytes) for name, n in self[1].items()},
        )


def lags_in(latest_offset: str | None) -> Lags:
    """The lags in the `latestOffset` of a source's progress; none of a source that is not ours."""
    latest = document(latest_offset)
    messages, size = latest.get("lag"), latest.get("lagBytes")
    return Lags(
        messages if isinstance(messages, dict) else {}, size if isinstance(size, dict) else {}
    )


def document(text: Any) -> dict[str, Any]:
    """An object of JSON; an empty one if the text is anything else."""
    try:
        found = msgspec.json.decode(text or "null")
    except (msgspec.DecodeError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def read_between(start: SourceOffsets | None, end: SourceOffsets) -> dict[str, Extent]:
    """What lies between two offsets, by stream; a recreated stream counts from its beginning."""
    return {
        each.stream: Extent(each.end.seq - each.start.seq, each.end.byte - each.start.byte)
        for each in ranges_between(start or SourceOffsets(end.kind, {}), end)
        if each.start != each.end
    }


def progress_after(
    before: Mapping[str, StreamProgress],
    streams: Mapping[str, Any],
    read: Mapping[str, Extent],
    lags: Lags,
    seconds: float,
) -> dict[str, StreamProgress]:
    """The progress of these streams, and of those that are behind, after a batch."""
    after = dict(before)
    for name in {*streams, *lags.messages}:
        messages, size = read.get(name, _NOTHING)
        total = before.get(name, StreamProgress())
        after[name] = StreamProgress(
            messages=total.messages + messages,
            bytes=total.bytes + size,
            lag_messages=lags.messages.get(name, 0),
            lag_bytes=lags.bytes.get(name, 0),
            messages_per_s=messages / seconds,
            bytes_per_s=size / seconds,
        )
    return after


def furthest_behind(streams: dict[str, StreamProgress]) -> dict[str, StreamProgress]:
    """The streams that are furthest behind, then the busiest; the rest added up."""
    if len(streams) <= SPARK_METRIC_STREAMS_MAX:
        return streams
    names = sorted(
        (name for name in streams if name != OTHERS),
        key=lambda name: (streams[name].lag_messages, streams[name].messages),
        reverse=True,
    )
    own, others = names[: SPARK_METRIC_STREAMS_MAX - 1], names[SPARK_METRIC_STREAMS_MAX - 1 :]
    rest = [streams[name] for name in others]
    if OTHERS in streams:
        earlier = streams[OTHERS]
        rest.append(StreamProgress(messages=earlier.messages, bytes=earlier.bytes))
    fields = StreamProgress.__struct_fields__
    total = {field: sum(getattr(each, field) for each in rest) for field in fields}
    return {**{name: streams[name] for name in own}, OTHERS: StreamProgress(**total)}
