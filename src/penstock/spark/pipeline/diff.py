"""Results of published queries: rows by key, and the changes from one result to the next as state
events or as rows of STP. Pure functions; knows neither Spark nor the outbox.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from penstock.errors import InvalidEvent, InvalidRow, PublishFailed
from penstock.spark.pipeline.outbox_rows import Change
from penstock.state.events import change
from penstock.stp.rows import Change as Row
from penstock.stp.rows import format_change

if TYPE_CHECKING:
    from penstock.spark.config import Publish

_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


class Result(NamedTuple):
    """The result of a query: a JSON object for each key, and the number of rows without a key."""

    values: dict[str, str]
    unkeyed: int


def keyed(name: str, rows: Iterable[dict[str, Any]]) -> Result:
    """Rows by their column `key`, with the other columns as a JSON object.

    Rows without a key, such as SQL's NULL group, are counted and left out.
    """
    values: dict[str, str] = {}
    unkeyed = 0
    for row in rows:
        if "key" not in row:
            raise PublishFailed(
                f"publish.{name}: the result needs a column called key; it has {', '.join(row)}."
            )
        key = row.pop("key")
        if key is None or key == "":
            unkeyed += 1
            continue
        text = key if isinstance(key, str) else _encode(key).decode()
        if text in values:
            raise PublishFailed(
                f"publish.{name}: the result has the key {text!r} twice; group by it."
            )
        values[text] = _encode(row).decode()
    return Result(values, unkeyed)


def differences(
    name: str,
    publish: Publish,
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    escape: bool = False,
) -> Iterator[Change]:
    """The changes from one result to the other: at most one for each key."""
    encode = partial(row_of, escape=escape) if publish.is_table else event_of
    entity = publish.type or name
    for key in before:
        if key not in after:
            yield Change("delete", key, None, encode(entity, "delete", key, None, before[key]))
    for key, value in after.items():
        old = before.get(key)
        if old is None:
            yield Change("insert", key, value, encode(entity, "insert", key, value, None))
        elif old != value:
            yield Change("update", key, value, encode(entity, "update", key, value, old))


def event_of(entity: str, operation: Any, key: str, value: str | None, old: str | None) -> str:
    """A change as a state event."""
    try:
        event = change(operation, entity, key, _raw(value), old_value=_raw(old))
    except InvalidEvent as error:
        raise PublishFailed(f"{entity} {key!r} is no state event: {error.detail}") from None
    return event.to_json().decode()


def row_of(
    entity: str,
    operation: str,
    key: str,
    value: str | None,
    old: str | None,
    *,
    escape: bool = False,
) -> str:
    """A change as a row of an STP table."""
    deletes = operation == "delete"
    row = Row("-" if deletes else "+", key, "" if deletes else value or "")
    try:
        return format_change(row, escape=escape).decode()
    except InvalidRow as error:
        raise PublishFailed(f"{entity} {key!r} is no row of STP: {error.detail}") from None


def _raw(value: str | None) -> Any:
    return msgspec.UNSET if value is None else msgspec.Raw(value.encode())
