# Generated from client/aio/writing.py by scripts/unasync.py; do not edit.
"""`write_from` of the blocking client: a source of items, written to a stream as they come."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from penstock.client.producer_base import EXIT_TIMEOUT_S, log
from penstock.client.sync.producer import Producer
from penstock.client.sync.runtime import Items, each
from penstock.client.writing import Selection, WriteOptions, Written
from penstock.errors import Unprocessable

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream


def write_from(
    stream: Stream,
    items: Items,
    producer: Producer,
    options: WriteOptions,
) -> Written:
    """Write items through a producer, and close the stream if that is wanted."""
    content_type = stream.content_type or stream.head().content_type
    selection = Selection(options.skip, content_type)
    try:
        with closing(each(items)) as source:
            for item in source:
                if selection.takes(item):
                    producer.append(item)
        if options.close:
            offset = producer.close_stream().offset
        else:
            producer.close()
            offset = producer.offset or stream.head().offset
    except BaseException as error:
        _fail(stream, producer, error, options, content_type)
        raise
    finally:
        # The record of an error is a message too, and no item.
        options.progress.stored = options.skip + min(producer.stored_count, selection.count)
    return Written(offset, selection.count)


def _fail(
    stream: Stream,
    producer: Producer,
    error: BaseException,
    options: WriteOptions,
    content_type: str,
) -> None:
    """Store what the source yielded before it failed, and close the stream if that is wanted."""
    try:
        if options.on_error == "leave":
            producer.close(EXIT_TIMEOUT_S)
            return
        record = options.record(error, content_type)
        try:
            producer.close_stream(record, timeout_s=EXIT_TIMEOUT_S)
        except Unprocessable:  # a schema has no place for the record
            stream.close()
    except Exception as failure:  # noqa: BLE001 - the error of the source is raised, and matters more
        producer.detach()
        log.warning("%s was not closed after its source failed: %s", stream.url, failure)
