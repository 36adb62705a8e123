"""`write` and `writeStream.format("durable_streams")`: rows appended under producer headers.

A task that is repeated, or runs twice at once, sends the same chunks under the same numbers, and
the server stores them once. docs/spark.md states the limits of that guarantee.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from penstock import limits
from penstock.client import requests
from penstock.client.requests import JSON, ProducerId
from penstock.errors import (
    BodyTooLarge,
    InvalidOption,
    NotWritable,
    SequenceGap,
    StaleEpoch,
    StreamNotFound,
    TableNotFound,
)
from penstock.spark.options import RawOptions
from penstock.spark.server import shared_client
from penstock.spark.sink.chunking import record_chunking
from penstock.spark.sink.rows import Encoder, SinkMode
from penstock.stp.client.requests import ROWS, table_url
from penstock.stp.client.sync.table import Table

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
SINK_NAMES: Final = frozenset(
    {
        "url",
        "token",
        "stream",
        "table",
        "mode",
        "type",
        "sinkName",
        "txnAppId",
        "txnVersion",
        "chunkMessages",
        "chunkBytes",
        "createStreams",
        "contentType",
        "maxAttempts",
    }
)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHOWN_BYTES: Final = 80
_APP_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")


class SinkOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `format("durable_streams")` as a sink."""

    url: str
    token: str | None
    target: str | None
    mode: SinkMode
    entity: str | None
    name: str
    chunk_messages: int
    chunk_bytes: int
    creates: bool
    content_type: str
    attempts_max: int


class TaskResult(WriterCommitMessage):
    """The number of messages and chunks that a task has sent."""

    def __init__(self, messages: int, chunks: int) -> None:
        self.messages = messages
        self.chunks = chunks


class ProducerIdentity(NamedTuple):
    """The producer id and epoch of a task."""

    id: str
    epoch: int


def sink_options(values: Mapping[str, str], schema: StructType) -> tuple[SinkOptions, Encoder]:
    """Return the checked options of the sink, and the encoder of its rows."""
    options = RawOptions(values, SINK_NAMES)
    modes: tuple[SinkMode, ...] = ("json", "state", "stp", "raw")
    mode = options.one_of("mode", modes)
    target = options.text("table" if mode == "stp" else "stream")
    if mode == "stp" and target is None:
        raise InvalidOption("Option table is missing: the path of the STP table to write to.")
    name = options.text("sinkName") or "sink"
    if not _NAME.fullmatch(name):
        raise InvalidOption(
            f"Option sinkName is {name!r}: it takes at most 64 letters, digits, dots and dashes."
        )
    entity = options.text("type")
    sink = SinkOptions(
        url=options.url(),
        token=options.text("token"),
        target=None if target is None else target.strip("/"),
        mode=mode,
        entity=entity,
        name=name,
        chunk_messages=options.number("chunkMessages") or limits.SPARK_CHUNK_MESSAGES,
        chunk_bytes=options.size("chunkBytes") or limits.SPARK_CHUNK_BYTES,
        creates=options.flag("createStreams", default=True),
        content_type=options.text("contentType") or JSON,
        attempts_max=options.number("maxAttempts") or limits.SPARK_ATTEMPTS_MAX,
    )
    return sink, Encoder(mode, schema, target=sink.target, entity=entity)


def batch_writer(
    values: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceArrowWriter:
    """The writer of `df.write`: rows are stored once by a random name, or by the user's name and
    version."""
    options, encoder = sink_options(values, schema)
    _refuse_overwrite(overwrite)
    raw = RawOptions(values, SINK_NAMES)
    application, version = raw.text("txnAppId"), raw.text("txnVersion")
    if (application is None) != (version is None):
        raise InvalidOption("Options txnAppId and txnVersion go together: set both or neither.")
    if application is None or version is None:
        return BatchWriter(options, encoder, uuid.uuid4().hex, 0)
    if not _APP_ID.fullmatch(application):
        raise InvalidOption("Option txnAppId takes up to 128 visible ASCII characters.")
    if not (version.isascii() and version.isdigit()) or int(version) > limits.INTEGER_MAX:
        raise InvalidOption(f"Option txnVersion is {version!r}: it takes a whole number.")
    return BatchWriter(options, encoder, application, int(version))


def stream_writer(
    values: Mapping[str, str], schema: StructType, *, overwrite: bool
) -> DataSourceStreamArrowWriter:
    """The writer of `writeStream`: rows are stored once by query, sink, partition and batch."""
    options, encoder = sink_options(values, schema)
    raw = RawOptions(values, SINK_NAMES)
    if raw.text("txnAppId") or raw.text("txnVersion"):
        raise InvalidOption("Options txnAppId and txnVersion are for batch writes.")
    if overwrite:
        raise InvalidOption("Streams only grow: use outputMode append or update, not complete.")
    record_chunking(
        raw.text("checkpointLocation"),
        options.name,
        {
            "chunkMessages": options.chunk_messages,
            "chunkBytes": options.chunk_bytes,
            "mode": options.mode,
        },
    )
    return StreamWriter(options, encoder)


def _refuse_overwrite(overwrite: bool) -> None:
    if overwrite:
        raise InvalidOption('Streams only grow: use mode("append").')


class BatchWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions, encoder: Encoder, name: str, epoch: int) -> None:
        self._options, self._encoder = options, encoder
        self._name, self._epoch = name, epoch

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        identity = ProducerIdentity(
            f"{self._name}/{self._options.name}/{_partition()}", self._epoch
        )
        return ChunkSender(self._options, self._encoder, identity).send_all(iterator)


class StreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions, encoder: Encoder) -> None:
        self._options, self._encoder = options, encoder

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        context = _context()
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        if query is None or batch is None:
            raise NotWritable("Spark does not say to which query and batch this task belongs.")
        identity = ProducerIdentity(f"{query}/{self._options.name}/{_partition()}", int(batch))
        return ChunkSender(self._options, self._encoder, identity).send_all(iterator)


class ChunkSender:
    """Sends the rows of one task in chunks, numbered from 0 for each stream."""

    def __init__(self, options: SinkOptions, encoder: Encoder, identity: ProducerIdentity) -> None:
        self._options, self._encoder, self._identity = options, encoder, identity
        self._client = shared_client(options.url, options.token, options.attempts_max)
        self._open: dict[str, list[bytes]] = {}
        self._sizes: dict[str, int] = {}
        self._sent: dict[str, int] = {}
        self._messages = 0

    def send_all(self, batches: Iterator[pa.RecordBatch]) -> TaskResult:
        escape = self._options.mode == "stp" and self._table_escapes()
        for batch in batches:
            for target, message in self._encoder.encode(batch, escape=escape):
                self._add(target, message)
        for target in list(self._open):
            self._send(target)
        return TaskResult(self._messages, sum(self._sent.values()))

    def _table_escapes(self) -> bool:
        """Whether the table's rows are escaped, which only its server knows."""
        target = self._options.target or ""
        try:
            return Table(self._client, target).head().escape
        except TableNotFound:
            raise NotWritable(f"There is no table {target} on {self._options.url}.") from None

    def _add(self, target: str, message: bytes) -> None:
        chunk = self._open.setdefault(target, [])
        # The end of a chunk depends on its rows alone, so that a repeated task has the same chunks.
        if chunk and self._sizes[target] + len(message) > self._options.chunk_bytes:
            self._send(target)
            chunk = self._open.setdefault(target, [])
        chunk.append(message)
        self._sizes[target] = self._sizes.get(target, 0) + len(message)
        if len(chunk) >= self._options.chunk_messages:
            self._send(target)

    def _send(self, target: str) -> None:
        messages = self._open.pop(target)
        self._sizes.pop(target)
        seq = self._sent.get(target, 0)
        if seq == 0 and self._options.creates and self._options.mode != "stp":
            self._client.stream(target).ensure(self._options.content_type)
        producer = ProducerId(self._identity.id, self._identity.epoch, seq)
        try:
            self._client.request(self._request(target, messages, producer))
        except StaleEpoch as error:
            raise _fenced(target, producer, error) from error
        except SequenceGap as error:
            raise NotWritable(
                f"{target}: chunk {seq} of batch {producer.epoch} was refused, because the server "
                f"expects chunk {error.expected}: the batch had other chunks before, or the stream "
                "was recreated in the middle of it."
            ) from error
        except StreamNotFound as error:
            raise NotWritable(f"{target} does not exist on {self._options.url}.") from error
        except BodyTooLarge as error:
            raise self._too_large(target, messages, error) from error
        self._sent[target] = seq + 1
        self._messages += len(messages)

    def _too_large(self, target: str, messages: list[bytes], error: BodyTooLarge) -> NotWritable:
        size = sum(map(len, messages))
        if len(messages) == 1:
            shown = messages[0][:_SHOWN_BYTES].decode(errors="replace")
            return NotWritable(
                f"{target}: a row has {size:,} bytes as a message, which is more than the server "
                f"accepts: {shown}… Leave it out, make it smaller, or raise the server's "
                f"body_bytes_max. {error.detail}"
            )
        return NotWritable(
            f"{target}: a chunk of {len(messages):,} rows has {size:,} bytes, which is more than "
            f"the server accepts. Lower the option chunkBytes (now {self._options.chunk_bytes:,}). "
            f"{error.detail}"
        )

    def _request(
        self, target: str, messages: list[bytes], producer: ProducerId
    ) -> requests.Request:
        if self._options.mode == "stp":
            url = table_url(self._options.url, target)
            return requests.append(url, b"".join(messages), ROWS, producer=producer)
        url = requests.stream_url(self._options.url, target)
        kind = self._options.content_type
        body = requests.join_messages(messages, kind)
        return requests.append(url, body, kind, producer=producer)


def _fenced(target: str, producer: ProducerId, error: StaleEpoch) -> NotWritable:
    return NotWritable(
        f"{target}: batch {producer.epoch} was refused, because producer {producer.id} has written "
        f"batch {error.epoch} there already. This is an old copy of a task, an older txnVersion, "
        "or two queries share a checkpoint or a name."
    )


def _context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise NotWritable("The sink only writes in Spark's tasks.")
    return context


def _partition() -> int:
    return _context().partitionId()
