"""Publishing: the result of a query over the warehouse, kept as a stream of state events or as an
STP table. What changed in the result is committed to the outbox, then sent, exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock import limits
from penstock.client import _requests
from penstock.client._requests import JSON, ProducerId
from penstock.errors import (
    InvalidEvent,
    InvalidRow,
    PenstockError,
    SequenceGap,
    StaleEpoch,
    TableExists,
)
from penstock.spark.outbox import Change, Chunk, Outbox
from penstock.spark.problems import PublishFailed
from penstock.spark.server import shared_client
from penstock.spark.words import plain
from penstock.state.events import change
from penstock.stp.client._requests import ROWS, table_url
from penstock.stp.client.table import Table
from penstock.stp.rows import Change as Row
from penstock.stp.rows import format_change

if TYPE_CHECKING:
    from penstock.spark.pipeline_config import Pipeline, Publish
    from penstock.spark.spark_views import SparkViews
    from penstock.spark.warehouse import Warehouse

_UNKNOWN_METHOD_OR_PATH: Final = (404, 405, 501)
_encode: Final = msgspec.json.Encoder(decimal_format="number").encode


class Publisher:
    """Everything that a pipeline publishes."""

    def __init__(self, pipeline: Pipeline, warehouse: Warehouse, views: SparkViews) -> None:
        self._pipeline = pipeline
        self._warehouse = warehouse
        self._views = views
        self._outbox = Outbox(warehouse)
        self._published: dict[str, dict[str, str]] = {}
        self._there: dict[str, bool] = {}  # targets that exist, and whether their rows are escaped

    def open(self) -> None:
        """Take up what an earlier run has left: its last results, and what it had not sent."""
        if not self._pipeline.publish:
            return
        self._outbox.open()
        for name in self._pipeline.publish:
            self._published[name] = self._outbox.published(name)
            self._send(name)

    def publish(self) -> int:
        """Bring every result up to the last batch; how many messages that took."""
        batch = self._warehouse.events.record.batch
        computed = self._outbox.mail.computed
        due = [name for name in self._pipeline.publish if computed.get(name, 0) != batch]
        if due:
            self._views.refresh()
        sent = 0
        for name in due:
            publish = self._pipeline.publish[name]
            result = self._result(name, publish)
            if publish.is_table and result != self._published[name]:
                self._prepare(name, publish)  # which rows it takes, only the table can tell
            escape = self._there.get(name, False)
            before = self._published[name]
            changes = list(differences(name, publish, before, result, escape=escape))
            self._outbox.computed(name, batch)
            if changes:
                self._outbox.add(name, publish.to, batch, changes, chunk=publish.chunk)
            self._published[name] = result
            sent += self._send(name)
        return sent

    def close(self) -> None:
        if self._pipeline.publish:
            self._outbox.close()

    def _result(self, name: str, publish: Publish) -> dict[str, str]:
        """The result of a query by its keys, as JSON."""
        try:
            if publish.sql is not None:
                rows = self._views.sql(publish.sql)
            else:
                self._views.prepare(" ".join(self._views.names()))
                module, _, function = (publish.function or "").partition(":")
                rows = getattr(import_module(module), function)(self._views.session)
            found = rows.toArrow()
        except PenstockError:
            raise
        except Exception as error:  # whatever Spark or the user's own function raises
            raise PublishFailed(f"publish.{name}: {plain(error)}") from error
        return keyed(name, found.to_pylist(maps_as_pydicts="strict"))

    def _send(self, name: str) -> int:
        """Send what waits in the outbox."""
        sent = 0
        for chunk in self._outbox.waiting(name):
            publish = self._pipeline.publish[name]
            if chunk.target != publish.to:
                raise PublishFailed(
                    f"publish.{name}: `to` is {publish.to}, and there are results that wait to go "
                    f"to {chunk.target}. Name a new [publish] section for a new place."
                )
            try:
                self._prepare(name, publish)
                self._append(name, publish, chunk)
            except (SequenceGap, StaleEpoch) as error:
                raise PublishFailed(
                    f"publish.{name}: {publish.to} does not know what was published there before: "
                    "it was deleted, or made anew. Name a new [publish] section to publish the "
                    "whole result again."
                ) from error
            self._outbox.mark(name, chunk.number)
            sent += len(chunk.messages)
        return sent

    def _append(self, name: str, publish: Publish, chunk: Chunk) -> None:
        # One epoch for ever, and chunks numbered on: whatever is sent again is known again.
        producer = ProducerId(f"{self._outbox.mail.warehouse}/{name}", 0, chunk.number)
        messages = [message.encode() for message in chunk.messages]
        if publish.is_table:
            url = table_url(self._pipeline.source.url, publish.target)
            request = _requests.append(url, b"".join(messages), ROWS, producer=producer)
        else:
            url = _requests.stream_url(self._pipeline.source.url, publish.target)
            body = _requests.join_messages(messages, JSON)
            request = _requests.append(url, body, JSON, producer=producer)
        self._client.request(request)

    def _prepare(self, name: str, publish: Publish) -> None:
        """Make the stream or the table if it is not there; a table that is there is taken."""
        if name in self._there:
            return
        if not publish.is_table:
            self._client.stream(publish.target).ensure(JSON)
            self._there[name] = False
            return
        table = Table(self._client, publish.target)
        try:
            try:
                table.create(name, type=publish.type or name, record="json", exist_ok=True)
                self._there[name] = False
            except TableExists:  # and is declared otherwise
                self._there[name] = table.head().escape
        except PenstockError as error:
            if error.status not in _UNKNOWN_METHOD_OR_PATH:
                raise
            raise PublishFailed(
                f"publish.{name}: {self._pipeline.source.url} serves no STP tables."
            ) from error

    @property
    def _client(self) -> Any:
        source = self._pipeline.source
        return shared_client(source.url, source.token, source.attempts)


def keyed(name: str, rows: list[dict[str, Any]]) -> dict[str, str]:
    """Rows by their column `key`, the others as a JSON object."""
    if len(rows) > limits.PIPELINE_PUBLISH_KEYS_MAX:
        raise PublishFailed(
            f"publish.{name}: the result has {len(rows):,} rows; at most "
            f"{limits.PIPELINE_PUBLISH_KEYS_MAX:,} can be published."
        )
    found: dict[str, str] = {}
    for row in rows:
        if "key" not in row:
            raise PublishFailed(
                f"publish.{name}: the result needs a column called key; it has {', '.join(row)}."
            )
        key = row.pop("key")
        if key is None or key == "":
            continue  # what has no key cannot be told from others, as SQL's NULL group
        text = key if isinstance(key, str) else _encode(key).decode()
        if text in found:
            raise PublishFailed(
                f"publish.{name}: the result has the key {text!r} twice; group by it."
            )
        found[text] = _encode(row).decode()
    return found


def differences(
    name: str,
    publish: Publish,
    before: Mapping[str, str],
    after: Mapping[str, str],
    *,
    escape: bool = False,
) -> Iterator[Change]:
    """What turns one result into the other: at most one change for each key."""
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
    """A change as a line that an STP table takes."""
    deletes = operation == "delete"
    row = Row("-" if deletes else "+", key, "" if deletes else value or "")
    try:
        return format_change(row, escape=escape).decode()
    except InvalidRow as error:
        raise PublishFailed(f"{entity} {key!r} is no row of STP: {error.detail}") from None


def _raw(value: str | None) -> Any:
    return msgspec.UNSET if value is None else msgspec.Raw(value.encode())
