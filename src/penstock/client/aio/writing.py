"""`write_from` of the asyncio client: a source of items, written to a stream as they come."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from penstock.client.aio.producer import AsyncProducer
from penstock.client.aio.runtime import Items, each
from penstock.client.producer_base import EXIT_TIMEOUT_S, log
from penstock.client.writing import Selection, WriteOptions, Written
from penstock.errors import Unprocessable

if TYPE_CHECKING:
    from penstock.client.aio.stream import AsyncStream


async def write_from(
    stream: AsyncStream,
    items: Items,
    producer: AsyncProducer,
    options: WriteOptions,
) -> Written:
    """Write items through a producer, and close the stream if that is wanted."""
    content_type = stream.content_type or (await stream.head()).content_type
    selection = Selection(options.skip, content_type)
    try:
        async with aclosing(each(items)) as source:
            async for item in source:
                if selection.takes(item):
                    await producer.append(item)
        if options.close:
            offset = (await producer.close_stream()).offset
        else:
            await producer.close()
            offset = producer.offset or (await stream.head()).offset
    except BaseException as error:
        await _fail(stream, producer, error, options, content_type)
        raise
    finally:
        # The record of an error is a message too, and no item.
        options.progress.stored = options.skip + min(producer.stored_count, selection.count)
    return Written(offset, selection.count)


async def _fail(
    stream: AsyncStream,
    producer: AsyncProducer,
    error: BaseException,
    options: WriteOptions,
    content_type: str,
) -> None:
    """Store what the source yielded before it failed, and close the stream if that is wanted."""
    try:
        if options.on_error == "leave":
            await producer.close(EXIT_TIMEOUT_S)
            return
        record = options.record(error, content_type)
        try:
            await producer.close_stream(record, timeout_s=EXIT_TIMEOUT_S)
        except Unprocessable:  # a schema has no place for the record
            await stream.close()
    except Exception as failure:  # noqa: BLE001 - the error of the source is raised, and matters more
        producer.detach()
        log.warning("%s was not closed after its source failed: %s", stream.url, failure)
