"""Publishing: the result of a query over the warehouse as a stream of state events or as an STP
table. The changes of the result are committed to the outbox, then sent, exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from penstock import limits
from penstock.client import requests
from penstock.client.requests import JSON, ProducerId
from penstock.errors import PenstockError, PublishFailed, SequenceGap, StaleEpoch, TableExists
from penstock.spark.error_text import error_message
from penstock.spark.pipeline.diff import Result, differences, keyed
from penstock.spark.pipeline.outbox import Outbox
from penstock.spark.pipeline.outbox_rows import Change, Chunk, body_bytes, cut
from penstock.spark.server import shared_client
from penstock.spark.warehouse import sql
from penstock.stp.client.requests import ROWS, table_url
from penstock.stp.client.sync.table import Table

if TYPE_CHECKING:
    from penstock.spark.config import Pipeline, Publish
    from penstock.spark.warehouse.spark_sql import SparkViews
    from penstock.spark.warehouse.warehouse import Warehouse

_UNKNOWN_METHOD_OR_PATH: Final = (404, 405, 501)
_TOO_LARGE: Final = 413
_ROWS_AT_ONCE: Final = 10_000


class Publisher:
    """Everything that a pipeline publishes."""

    def __init__(self, pipeline: Pipeline, warehouse: Warehouse, views: SparkViews) -> None:
        self._pipeline = pipeline
        self._warehouse = warehouse
        self._views = views
        self._outbox = Outbox(warehouse, files_max=pipeline.run.outbox_files)
        self._published: dict[str, dict[str, str]] = {}
        self._escapes: dict[str, bool] = {}  # by existing target, whether its rows are escaped

    def open(self) -> None:
        """Read the last results of earlier runs, and send what they had not sent."""
        if not self._pipeline.publish:
            return
        self._outbox.open()
        for name in self._pipeline.publish:
            self._published[name] = self._outbox.published(name)
            self._send(name)
        self._outbox.compact_if_due()

    @property
    def unkeyed(self) -> int:
        """The number of rows of all results that have no key and are not published."""
        unkeyed = self._outbox.record.unkeyed
        return sum(unkeyed.get(name, 0) for name in self._pipeline.publish)

    def publish(self) -> int:
        """Bring every result up to the last batch, and return the number of messages that were
        sent."""
        batch = self._warehouse.events.record.batch
        computed = self._outbox.record.computed
        due = [name for name in self._pipeline.publish if computed.get(name, 0) != batch]
        if due:
            self._views.refresh()
        sent = 0
        for name in due:
            self._commit_changes(name, batch)
            sent += self._send(name)
        if sent:
            self._outbox.compact_if_due()
        return sent

    def _commit_changes(self, name: str, batch: int) -> None:
        """Commit the changes of a result to the outbox."""
        publish, before = self._pipeline.publish[name], self._published[name]
        result = self._result(name, publish)
        if publish.is_table and result.values != before:
            self._prepare(name, publish)  # only the table knows whether it escapes rows
        escape = self._escapes.get(name, False)
        changes = differences(name, publish, before, result.values, escape=escape)
        chunks = list(_cut(name, publish, changes))
        unkeyed = self._outbox.record.unkeyed.get(name, 0)
        self._outbox.mark_computed(name, batch, result.unkeyed)
        if chunks:
            self._outbox.add(name, publish.to, batch, chunks)
        elif result.unkeyed != unkeyed:
            self._outbox.commit_record()
        self._published[name] = result.values

    def close(self) -> None:
        if self._pipeline.publish:
            self._outbox.commit_record()

    def _result(self, name: str, publish: Publish) -> Result:
        """The result of a query by its keys, as JSON."""
        rows_max = limits.PIPELINE_PUBLISH_KEYS_MAX
        try:
            if publish.sql is not None:
                rows = self._views.sql(publish.sql)
            else:
                # The relations that the function uses are not known, so all are defined.
                self._views.prepare(" ".join([*self._views.names(), *sql.FORMER_NAMES]))
                module, _, function = (publish.function or "").partition(":")
                rows = getattr(import_module(module), function)(self._views.session)
            result: pa.Table = rows.limit(rows_max + 1).toArrow()  # what the driver can hold
        except PenstockError:
            raise
        except Exception as error:  # whatever Spark or the user's own function raises
            raise PublishFailed(f"publish.{name}: {error_message(error)}") from error
        if result.num_rows > rows_max:
            raise PublishFailed(
                f"publish.{name}: the result has more than {rows_max:,} rows, which is the limit. "
                "Group by something coarser, or publish a part of it."
            )
        return keyed(name, _rows(result))

    def _send(self, name: str) -> int:
        """Send the pending chunks of the outbox, and return the number of messages."""
        sent = 0
        for chunk in self._outbox.waiting(name):
            publish = self._pipeline.publish[name]
            if chunk.target != publish.to:
                raise PublishFailed(
                    f"publish.{name}: `to` is {publish.to}, and there are results to be sent to "
                    f"{chunk.target}. Name a new [publish] section for a new target."
                )
            try:
                self._prepare(name, publish)
                self._append(name, publish, chunk)
            except (SequenceGap, StaleEpoch) as error:
                raise PublishFailed(
                    f"publish.{name}: {publish.to} lacks what was published there before: it was "
                    "deleted or recreated. Name a new [publish] section to publish the "
                    "whole result again."
                ) from error
            except PenstockError as error:
                if error.status != _TOO_LARGE:
                    raise
                raise PublishFailed(_too_large(name, publish, chunk)) from error
            self._outbox.mark_sent(name, chunk.number)
            sent += len(chunk.messages)
        return sent

    def _append(self, name: str, publish: Publish, chunk: Chunk) -> None:
        # There is one epoch, and chunks are numbered over all runs: the server drops repeated ones.
        producer = ProducerId(f"{self._outbox.record.warehouse}/{name}", 0, chunk.number)
        messages = [message.encode() for message in chunk.messages]
        if publish.is_table:
            url = table_url(self._pipeline.source.url, publish.target)
            request = requests.append(url, b"".join(messages), ROWS, producer=producer)
        else:
            url = requests.stream_url(self._pipeline.source.url, publish.target)
            body = requests.join_messages(messages, JSON)
            request = requests.append(url, body, JSON, producer=producer)
        self._client.request(request)

    def _prepare(self, name: str, publish: Publish) -> None:
        """Create the stream or the table unless it exists."""
        if name in self._escapes:
            return
        if not publish.is_table:
            self._client.stream(publish.target).ensure(JSON)
            self._escapes[name] = False
            return
        table = Table(self._client, publish.target)
        try:
            try:
                table.create(
                    name.strip("-"), type=publish.type or name, record="json", exist_ok=True
                )
                self._escapes[name] = False
            except TableExists:  # with another declaration
                self._escapes[name] = table.head().escape
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


def _rows(result: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows one by one, so that only some of them are Python objects at a time."""
    for part in result.to_batches(max_chunksize=_ROWS_AT_ONCE):
        yield from part.to_pylist(maps_as_pydicts="strict")


def _cut(name: str, publish: Publish, changes: Iterator[Change]) -> Iterator[list[Change]]:
    """Changes in chunks that the server accepts. A change that is too large is refused here, since
    rows of the outbox never change."""

    def checked() -> Iterator[Change]:
        for change in changes:
            size = body_bytes(change)
            if size > publish.body_bytes_max:
                raise PublishFailed(
                    f"publish.{name}: the {change.operation} of {change.key[:100]!r} takes "
                    f"{size:,} bytes, with the value before it, and a request may have "
                    f"{publish.body_bytes_max:,}. Publish less in a row; or let the server take "
                    f"more (its body_bytes_max) and set publish.{name}.body_bytes_max to that."
                )
            yield change

    return cut(
        checked(),
        messages_max=min(publish.chunk, limits.MESSAGES_PER_APPEND_MAX),
        bytes_max=min(publish.chunk_bytes, publish.body_bytes_max),
    )


def _too_large(name: str, publish: Publish, chunk: Chunk) -> str:
    size = sum(len(message.encode()) + 1 for message in chunk.messages) + 1
    return (
        f"publish.{name}: the server does not accept {size:,} bytes in one request, and what was "
        f"committed to be sent to {publish.to} cannot change. Let the server, and proxies before "
        f"it, accept that much (penstock serve --max-body {size}) until this run has sent it; "
        "or name a new [publish] section with a new `to`, which publishes the whole result again."
    )
