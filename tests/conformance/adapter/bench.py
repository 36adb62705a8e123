"""The timed operations of the adapter protocol."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from penstock.protocol.headers import is_json
from tests.conformance.adapter.results import Result
from tests.conformance.adapter.shells import each, settle

Operation = Mapping[str, Any]

RATES: Final = (("bytesTransferred", "bytesPerSecond"), ("messagesProcessed", "opsPerSecond"))


async def measure(stream: Any, operation: Operation) -> Result:
    """Do an operation on a stream whose content type is known, and say how long it took."""
    run = OPERATIONS.get(operation["op"])
    if run is None:
        raise NotImplementedError(f"there is no benchmark {operation['op']!r}")
    started_ns = time.perf_counter_ns()
    metrics = await run(stream, operation)
    took_ns = time.perf_counter_ns() - started_ns
    for amount, rate in RATES:
        if amount in metrics:
            metrics[rate] = metrics[amount] * 1e9 / max(took_ns, 1)
    return {"durationNs": str(took_ns), "metrics": metrics}


async def _append(stream: Any, operation: Operation) -> Result:
    await settle(stream.append(_payload(operation["size"], stream)))
    return {"bytesTransferred": operation["size"]}


async def _read(stream: Any, operation: Operation) -> Result:
    data = await settle(stream.read_bytes(operation.get("offset") or "-1"))
    return {"bytesTransferred": len(data)}


async def _create(stream: Any, operation: Operation) -> Result:
    await settle(stream.create(stream.content_type, exist_ok=True))
    return {}


async def _roundtrip(stream: Any, operation: Operation) -> Result:
    await settle(stream.create(stream.content_type, exist_ok=True))
    follow = stream.follow(mode=operation.get("live") or "long-poll", decode=False)

    async def first() -> int:
        async for batch in each(follow):
            if batch.data:
                return len(batch.data)
        return 0

    # The reader waits before there is anything to read; the blocking one does so in a thread.
    blocking = not hasattr(follow, "__aiter__")
    reader = asyncio.create_task(_in_thread(first()) if blocking else first())
    await asyncio.sleep(0)
    await settle(stream.append(_payload(operation["size"], stream)))
    received = await reader
    await settle(follow.close())
    return {"bytesTransferred": operation["size"] + received}


async def _in_thread(work: Any) -> int:
    received: int = await asyncio.to_thread(asyncio.run, work)
    return received


async def _throughput_append(stream: Any, operation: Operation) -> Result:
    count, size = operation["count"], operation["size"]
    await settle(stream.create(stream.content_type, exist_ok=True))
    payload = _payload(size, stream)
    producer = stream.producer("bench-producer", auto_claim=True, linger_ms=0)
    for _ in range(count):
        await settle(producer.append(payload))
    await settle(producer.close())
    return {"bytesTransferred": count * size, "messagesProcessed": count}


async def _throughput_read(stream: Any, operation: Operation) -> Result:
    count = size = 0
    async for batch in each(stream.iter_batches()):
        count += len(batch.messages)
        size += len(batch.data)
    return {"bytesTransferred": size, "messagesProcessed": count}


def _payload(size: int, stream: Any) -> bytes:
    if is_json(stream.content_type):
        return b'"' + b"*" * max(size - 2, 0) + b'"'
    return b"*" * size


OPERATIONS: Final[dict[str, Callable[[Any, Operation], Awaitable[Result]]]] = {
    "append": _append,
    "read": _read,
    "create": _create,
    "roundtrip": _roundtrip,
    "throughput_append": _throughput_append,
    "throughput_read": _throughput_read,
}
