"""Filters that Spark hands down: which streams need not be planned, which rows not be sent.

What is taken is applied exactly, so Spark need not look again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from penstock.limits import INTEGER_MAX

_compute: Any = pc


class Filters:
    """Conditions that all have to hold: on the stream, the type, the position."""

    def __init__(self, types: Iterable[str] | None = None) -> None:
        self._streams: set[str] | None = None
        self._prefixes: list[str] = []
        self._types: set[str] | None = None if types is None else set(types)
        # The option `types` keeps control events and invalid ones; a filter on the column does not.
        self._keep_untyped = True
        self._low = -1  # where a reset row stands that comes before all
        self._high = INTEGER_MAX
        self._bounded = False

    def push(self, filters: list[Filter]) -> Iterator[Filter]:
        """Take what can be taken, give back the rest."""
        for each in filters:
            if not self._take(each):
                yield each

    def wants(self, stream: str) -> bool:
        """Whether a stream can have rows that pass."""
        if self._streams is not None and stream not in self._streams:
            return False
        return all(stream.startswith(prefix) for prefix in self._prefixes)

    def wants_bytes(self, first: int, end: int) -> bool:
        """Whether messages that begin in [first, end) can pass."""
        return not self._bounded or (first <= self._high and end > self._low)

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        masks = []
        if self._bounded:
            positions = batch.column("position")
            masks.append(_compute.greater_equal(positions, self._low))
            masks.append(_compute.less_equal(positions, self._high))
        if self._types is not None and "type" in batch.schema.names:
            column = batch.column("type")
            passes = _compute.is_in(column, pa.array(sorted(self._types), pa.string()))
            if self._keep_untyped:
                passes = _compute.or_(passes, _compute.is_null(column))
            masks.append(passes)
        for mask in masks[1:]:
            masks[0] = _compute.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch

    def _take(self, given: Filter) -> bool:
        match given:
            case EqualTo(attribute=("stream",), value=str(value)):
                self._streams = _both(self._streams, {value})
            case In(attribute=("stream",), value=values) if _all_text(values):
                self._streams = _both(self._streams, set(values))
            case StringStartsWith(attribute=("stream",), value=value):
                self._prefixes.append(value)
            case EqualTo(attribute=("type",), value=str(value)):
                self._only_types({value})
            case In(attribute=("type",), value=values) if _all_text(values):
                self._only_types(set(values))
            case EqualTo(attribute=("position",), value=int(value)):
                self._bound(value, value)
            case GreaterThan(attribute=("position",), value=int(value)):
                self._bound(value + 1, INTEGER_MAX)
            case GreaterThanOrEqual(attribute=("position",), value=int(value)):
                self._bound(value, INTEGER_MAX)
            case LessThan(attribute=("position",), value=int(value)):
                self._bound(-1, value - 1)
            case LessThanOrEqual(attribute=("position",), value=int(value)):
                self._bound(-1, value)
            case _:
                return False
        return True

    def _only_types(self, types: set[str]) -> None:
        self._types = _both(self._types, types)
        self._keep_untyped = False

    def _bound(self, low: int, high: int) -> None:
        self._low, self._high = max(self._low, low), min(self._high, high)
        self._bounded = True


def _both(known: set[str] | None, more: set[str]) -> set[str]:
    return more if known is None else known & more


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
