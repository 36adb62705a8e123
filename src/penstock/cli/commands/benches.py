"""What `penstock bench` runs: each bench is a client with many requests at once, in one loop."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.commands.meter import Meter, as_text
from penstock.cli.connection import Server, needs_certificates
from penstock.cli.terminal import Progress

if TYPE_CHECKING:
    from penstock.client.aio.stream import AsyncStream

PROGRESS_INTERVAL_S = 0.2
PREFILL_BATCH = 1000

Run = Callable[["AsyncStream", Meter], Awaitable[None]]


def append(
    server: Server, *, connections: int, batch: int, message_bytes: int, **options: Any
) -> None:
    """Append to one stream over several connections."""
    values = [_message(message_bytes)] * batch

    async def run(stream: AsyncStream, meter: Meter) -> None:
        async def worker() -> None:
            while meter.take():
                begun_s = time.perf_counter()
                await stream.append_many(values)
                meter.add(begun_s, messages=batch, bytes=batch * message_bytes)

        await _together(connections, worker)

    _bench(server, run, "appends", **options)


def read(
    server: Server, *, connections: int, messages: int, message_bytes: int, **options: Any
) -> None:
    """Read a whole stream, again and again, over several connections."""
    value = _message(message_bytes)

    async def run(stream: AsyncStream, meter: Meter) -> None:
        for start in range(0, messages, PREFILL_BATCH):
            await stream.append_many([value] * min(PREFILL_BATCH, messages - start))
        meter.start()

        async def worker() -> None:
            while meter.take():
                begun_s = time.perf_counter()
                found = await stream.read(decode=False)
                meter.add(begun_s, messages=messages, bytes=len(found.data))

        await _together(connections, worker)

    _bench(server, run, "reads", **options)


def fanout(
    server: Server, *, readers: int, rate: float, message_bytes: int, **options: Any
) -> None:
    """Append to one stream and time how soon each live reader has the message."""
    value = _message(message_bytes)

    async def run(stream: AsyncStream, meter: Meter) -> None:
        begun_s: list[float] = []
        ready = asyncio.Semaphore(0)
        offset = (await stream.head()).offset

        async def reader() -> None:
            seen = 0
            async with stream.follow(offset, mode="sse") as batches:
                async for batch in batches:
                    if seen == 0 and not batch.data:
                        ready.release()
                    for _ in batch.messages:
                        meter.add(begun_s[seen], messages=1, bytes=message_bytes)
                        seen += 1

        async def writer() -> None:
            for _ in range(readers):
                await ready.acquire()
            meter.start()
            while meter.take():
                begun_s.append(time.perf_counter())
                await stream.append(value)
                await asyncio.sleep(max(0.0, begun_s[-1] + 1 / rate - time.perf_counter()))
            await stream.close()  # ends the readers, once they have everything

        async with asyncio.TaskGroup() as group:
            for _ in range(readers):
                group.create_task(reader())
            group.create_task(writer())

    _bench(server, run, "deliveries", **options)


def _message(size: int) -> bytes:
    """A JSON string of that many bytes."""
    return b'"' + b"x" * (size - 2) + b'"'


async def _together(count: int, worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(worker())


def _bench(
    server: Server, run: Run, unit: str, *, count: int | None, duration_s: float, as_json: bool
) -> None:
    meter = Meter(count=count, duration_s=duration_s)
    try:
        asyncio.run(_measure(server, run, meter, unit))
    except* Exception as group:  # noqa: BLE001 - the first failure is the one to tell
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None
    result = meter.result()
    click.echo(json.dumps({"bench": unit, **result}) if as_json else as_text(result, unit))


async def _measure(server: Server, run: Run, meter: Meter, unit: str) -> None:
    async with _bench_stream(server) as stream:
        with Progress(f"bench {unit}") as progress:
            shown = asyncio.create_task(_show(progress, meter))
            try:
                meter.start()
                await run(stream, meter)
            finally:
                shown.cancel()


@asynccontextmanager
async def _bench_stream(server: Server) -> AsyncIterator[AsyncStream]:
    from penstock.client.aio.client import AsyncClient
    from penstock.client.retry import Retry

    place = server.place()
    verify, retry = needs_certificates(place.url), Retry(attempts_max=4)
    async with AsyncClient(place.url, token=place.token, retry=retry, verify=verify) as client:
        stream = client.stream(f"penstock-bench/{os.urandom(8).hex()}")
        await stream.create()
        try:
            yield stream
        finally:
            await stream.delete()


async def _show(progress: Progress, meter: Meter) -> None:
    while True:
        progress.text(meter.line())
        await asyncio.sleep(PROGRESS_INTERVAL_S)
