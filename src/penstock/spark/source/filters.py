"""Filters that Spark pushes down: which streams are not planned, which rows are not sent.

A filter that is accepted is applied exactly, so that Spark does not apply it again.
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
        # The option `types` passes control and invalid events; a filter on the column does not.
        self._pass_untyped = True
        self._low = -1  # the position of a reset row before all messages
        self._high = INTEGER_MAX
        self._bounded = False

    def push(self, filters: list[Filter]) -> Iterator[Filter]:
        """Accept the filters that can be applied here, and return the others."""
        for each in filters:
            if not self._accept(each):
                yield each

    def may_match(self, stream: str) -> bool:
        """Whether a stream can have rows that pass."""
        if self._streams is not None and stream not in self._streams:
            return False
        return all(stream.startswith(prefix) for prefix in self._prefixes)

    def may_match_bytes(self, first: int, end: int) -> bool:
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
            if self._pass_untyped:
                passes = _compute.or_(passes, _compute.is_null(column))
            masks.append(passes)
        for mask in masks[1:]:
            masks[0] = _compute.and_(masks[0], mask)
        return batch.filter(masks[0]) if masks else batch

    def _accept(self, condition: Filter) -> bool:
        match condition:
            case EqualTo(attribute=("stream",), value=str(value)):
                self._streams = _intersection(self._streams, {value})
            case In(attribute=("stream",), value=values) if _all_text(values):
                self._streams = _intersection(self._streams, set(values))
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
        self._types = _intersection(self._types, types)
        self._pass_untyped = False

    def _bound(self, low: int, high: int) -> None:
        self._low, self._high = max(self._low, low), min(self._high, high)
        self._bounded = True


def _intersection(before: set[str] | None, values: set[str]) -> set[str]:
    return values if before is None else before & values


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
