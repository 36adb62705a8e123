"""Filters that Spark pushes down: which streams are not planned, which rows are not sent.

A filter that is accepted is applied exactly, so that Spark does not apply it again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

import pyarrow as pa
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

from penstock.client import requests
from penstock.limits import FILTER_VALUES_MAX, INTEGER_MAX

NAMES_CHARACTERS_MAX: Final = 1000
"""Of the types, and of the keys, that a URL carries: escaped, they take up to twelve times that."""


class Filters:
    """Conditions that all have to hold: on the stream, the type, the key, the position."""

    def __init__(self, types: Iterable[str] | None = None) -> None:
        self._streams: set[str] | None = None
        self._prefixes: list[str] = []
        self._types: set[str] | None = None if types is None else set(types)
        self._keys: set[str] | None = None
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

    @property
    def for_server(self) -> requests.Filter:
        """What of the conditions the server can apply, before a row is sent.

        Nothing if control or invalid events pass: the server leaves invalid ones out.
        """
        if self._pass_untyped and self._keys is None:
            return requests.EVERYTHING
        return requests.Filter(_few(self._types), _few(self._keys))

    def apply(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if self._types is None and self._keys is None and not self._bounded:
            return batch
        # Only tasks apply filters; the driver of each streaming query would load this for nothing.
        import pyarrow.compute

        compute: Any = pyarrow.compute  # whose functions no type checker sees
        masks = []
        if self._bounded:
            positions = batch.column("position")
            masks.append(compute.greater_equal(positions, self._low))
            masks.append(compute.less_equal(positions, self._high))
        if self._types is not None and "type" in batch.schema.names:
            column = batch.column("type")
            passes = compute.is_in(column, pa.array(sorted(self._types), pa.string()))
            if self._pass_untyped:
                passes = compute.or_(passes, compute.is_null(column))
            masks.append(passes)
        if self._keys is not None and "key" in batch.schema.names:
            keys = pa.array(sorted(self._keys), pa.string())
            masks.append(compute.is_in(batch.column("key"), keys))
        for mask in masks[1:]:
            masks[0] = compute.and_(masks[0], mask)
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
            case EqualTo(attribute=("key",), value=str(value)):
                self._keys = _intersection(self._keys, {value})
            case In(attribute=("key",), value=values) if _all_text(values):
                self._keys = _intersection(self._keys, set(values))
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


def _few(texts: set[str] | None) -> tuple[str, ...]:
    """Return the texts that a filter of the server names: as many as it takes, else none. An event
    has no empty ones."""
    names = sorted((texts or set()) - {""})
    is_short = sum(map(len, names)) <= NAMES_CHARACTERS_MAX
    return tuple(names) if len(names) <= FILTER_VALUES_MAX and is_short else ()


def _all_text(values: Iterable[Any]) -> bool:
    return all(isinstance(value, str) for value in values)
