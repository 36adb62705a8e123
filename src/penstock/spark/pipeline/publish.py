"""Publishing: the result of a query over the warehouse as a stream of state events or as an STP
table. The changes of the result are committed to the outbox, then sent, exactly once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa

from penstock import limits
from penstock.client import requests
from penstock.client.requests import JSON, ProducerId
from penstock.errors import (
    ExpectationFailed,
    Gone,
    PenstockError,
    PublishFailed,
    SequenceGap,
    StaleEpoch,
    TableExists,
)
from penstock.spark.error_text import error_message
from penstock.spark.expectations import violations
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
_DUPLICATE: Final = 204
_ROWS_AT_ONCE: Final = 10_000


class Publisher:
    """Everything that a pipeline publishes."""

    def __init__(
        self,
        pipeline: Pipeline,
        warehouse: Warehouse,
        views: SparkViews,
        notify: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._pipeline = pipeline
        self._notify = notify
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

    @property
    def violations(self) -> dict[str, int]:
        """The number of rows of the current results that violate each expectation."""
        return dict.fromkeys(self._expectations, 0) | self._outbox.record.violations

    @property
    def _expectations(self) -> list[str]:
        sections = self._pipeline.publish.items()
        return [f"{name}.{each}" for name, publish in sections for each in publish.expect]

    @property
    def troubles(self) -> dict[str, str]:
        """Why results are not up to date, by name."""
        return self._outbox.record.troubles

    def publish(self) -> int:
        """Bring every result up to the last batch, and return the number of messages that were
        sent."""
        batch = self._warehouse.events.record.batch
        due = [
            name
            for name in self._pipeline.publish
            if batch and not self._outbox.is_computed(name, batch, self._basis(name))
        ]
        if due:
            self._views.refresh()
        sent = 0
        for name in due:
            try:
                self._commit_changes(name, batch)
                sent += self._send(name)
            except (PublishFailed, ExpectationFailed) as error:
                if self._pipeline.publish[name].on_error == "stop":
                    raise
                self._hold(name, error.detail)
        if sent:
            self._outbox.compact_if_due()
        return sent

    def _hold(self, name: str, reason: str) -> None:
        """Leave a result as it was published last, and say why; the next batch tries again."""
        if self._outbox.record.troubles.get(name) != reason:
            self._notify(f"{reason} The published result stays as it is.")
        self._outbox.mark_trouble(name, reason)

    def _commit_changes(self, name: str, batch: int) -> None:
        """Commit the changes of a result to the outbox."""
        publish, before = self._pipeline.publish[name], self._published[name]
        result, violated = self._result(name, publish)
        if publish.is_table and result.values != before:
            self._prepare(name, publish)  # only the table knows whether it escapes rows
        escape = self._escapes.get(name, False)
        changes = differences(name, publish, before, result.values, escape=escape)
        chunks = list(_cut(name, publish, changes))
        is_other = self._outbox.mark_computed(
            name, batch, self._basis(name), unkeyed=result.unkeyed, violations=violated
        )
        if chunks:
            self._outbox.add(name, publish.to, batch, chunks)
        elif is_other:
            self._outbox.commit_record()
        self._published[name] = result.values

    def _basis(self, name: str) -> str:
        """A digest of everything that a result depends on beside the events."""
        pipeline, publish = self._pipeline, self._pipeline.publish[name]
        versions = sorted((entity, schema.version) for entity, schema in pipeline.types.items())
        expect = publish.expectations
        basis = (publish.sql, publish.function, pipeline.run.snapshots, versions, expect)
        return sha256(repr(basis).encode()).hexdigest()[:16]

    def close(self) -> None:
        if self._pipeline.publish:
            self._outbox.commit_record()

    def _result(self, name: str, publish: Publish) -> tuple[Result, dict[str, int]]:
        """The result of a query by its keys, as JSON, without rows that expectations drop; and how
        many rows violate each expectation."""
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
        rows, violated = expected(name, publish, result)
        return keyed(name, _rows(rows)), violated

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
                tail = self._append(name, publish, chunk)
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
            self._outbox.mark_sent(name, chunk.number, tail)
            sent += len(chunk.messages)
        return sent

    def _append(self, name: str, publish: Publish, chunk: Chunk) -> str | None:
        """Send a chunk, and return the offset of the target after it, if that is known."""
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
        answer = self._client.request(request)
        seq = answer.headers.get("producer-seq", "")
        last = int(seq) if seq.isdigit() else chunk.number
        if answer.status == _DUPLICATE:
            self._check_duplicate(name, publish, chunk, last)
        return answer.headers.get("stream-next-offset") if last == chunk.number else None

    def _check_duplicate(self, name: str, publish: Publish, chunk: Chunk, last: int) -> None:
        """Raise an error if the server has another chunk under the number of this one: its sender
        knew more than this warehouse, which was restored from an older copy.

        Usually the server has this very chunk, because an earlier run ended before it could note
        the answer."""
        is_known = last <= self._outbox.last(name)
        if is_known and not publish.is_table:
            tail = self._outbox.record.tails.get(name)
            is_known = tail is None or self._has(publish, tail, chunk)
        if not is_known:
            raise PublishFailed(
                f"publish.{name}: {publish.to} has results that this warehouse did not publish: "
                "the warehouse was restored from an older copy, or copied. Name a new [publish] "
                "section with a new `to`, which publishes the whole result again; or restore the "
                "newest copy."
            )

    def _has(self, publish: Publish, tail: str, chunk: Chunk) -> bool:
        """Whether the messages of a stream after an offset are those of a chunk; also if they are
        trimmed or compacted, so that nobody can tell."""
        messages: list[Any] = []
        try:
            for batch in self._client.stream(publish.target).iter_batches(tail):
                messages += batch.messages
                if len(messages) >= len(chunk.messages):
                    break
        except Gone:
            return True
        return messages[: len(chunk.messages)] == [
            msgspec.json.decode(message) for message in chunk.messages
        ]

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


def expected(name: str, publish: Publish, result: pa.Table) -> tuple[pa.Table, dict[str, int]]:
    """The rows that expectations do not drop, and how many rows violate each of them."""
    if not publish.expect or result.num_rows == 0:
        return result, {}
    where = f"publish.{name}"
    found = violations(result, publish.expectations, where)
    found.check(where, _Keys(result))
    dropped = found.dropped()
    if dropped:
        result = result.filter(pa.array([row not in dropped for row in range(result.num_rows)]))
    return result, found.counts()


class _Keys(Sequence[str]):
    """The keys of rows for a message, made when one is needed."""

    def __init__(self, rows: pa.Table) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def __getitem__(self, row: Any) -> Any:
        named = "key" in self._rows.column_names
        return repr(str(self._rows["key"][row].as_py())[:100]) if named else f"row {row}"


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
