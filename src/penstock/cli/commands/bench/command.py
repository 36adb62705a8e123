"""`penstock bench`: how fast a server is, as a client sees it over the network.

Each bench is one client with many concurrent requests in one event loop.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click

from penstock.cli.commands.bench.meter import Meter, as_text
from penstock.cli.connection import Server, json_option, server_options, trust
from penstock.cli.terminal import Progress

if TYPE_CHECKING:
    from penstock.client.aio.stream import AsyncStream

PROGRESS_INTERVAL_S: Final = 0.2
PREFILL_BATCH: Final = 1000

Run: TypeAlias = Callable[["AsyncStream", Meter], Awaitable[None]]


@click.group("bench")
def command() -> None:
    """Measure a server: appends, reads, or fan-out to live readers.

    Each run creates a stream and deletes it afterwards. Latencies are percentiles over all
    requests (fanout: over all deliveries). The client is one Python process, so its own speed
    limits the results.

    \b
    Examples:
      penstock bench append --connections 32
      penstock bench read --context prod
      penstock bench fanout --readers 100 --rate 50 --json
    """


def bench_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that every bench has."""
    for option in (
        json_option,
        click.option(
            "--size",
            "message_bytes",
            type=click.IntRange(min=10, max=1 << 20),
            default=100,
            show_default=True,
            metavar="BYTES",
            help="Size of a message.",
        ),
        click.option(
            "-n",
            "--count",
            type=click.IntRange(min=1),
            metavar="N",
            help="Stop after this many requests.",
        ),
        click.option(
            "-d",
            "--duration",
            "duration_s",
            type=click.FloatRange(min=0.1),
            default=5.0,
            show_default=True,
            metavar="SECONDS",
            help="Stop after this time, unless --count is set.",
        ),
        server_options,
    ):
        function = option(function)
    return function


def connections_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-c",
        "--connections",
        type=click.IntRange(min=1, max=1000),
        default=8,
        show_default=True,
        metavar="N",
        help="Number of concurrent requests.",
    )(function)


@command.command("append")
@connections_option
@click.option(
    "--batch",
    type=click.IntRange(min=1, max=10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Messages in one request.",
)
@bench_options
def append(
    server: Server, connections: int, batch: int, message_bytes: int, **options: Any
) -> None:
    """Append to one stream over several connections."""
    values = [_message(message_bytes)] * batch

    async def run(stream: AsyncStream, meter: Meter) -> None:
        async def worker() -> None:
            while meter.begin():
                begun_s = time.perf_counter()
                await stream.append_many(values)
                meter.add(begun_s, messages=batch, bytes=batch * message_bytes)

        await _concurrently(connections, worker)

    _bench(server, run, "appends", **options)


@command.command("read")
@connections_option
@click.option(
    "--messages",
    type=click.IntRange(min=1, max=10_000_000),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Number of messages in the stream.",
)
@bench_options
def read(
    server: Server, connections: int, messages: int, message_bytes: int, **options: Any
) -> None:
    """Read a whole stream repeatedly over several connections."""
    value = _message(message_bytes)

    async def run(stream: AsyncStream, meter: Meter) -> None:
        for start in range(0, messages, PREFILL_BATCH):
            await stream.append_many([value] * min(PREFILL_BATCH, messages - start))
        meter.start()

        async def worker() -> None:
            while meter.begin():
                begun_s = time.perf_counter()
                batch = await stream.read(decode=False)
                meter.add(begun_s, messages=messages, bytes=len(batch.data))

        await _concurrently(connections, worker)

    _bench(server, run, "reads", **options)


@command.command("fanout")
@click.option(
    "--readers",
    type=click.IntRange(min=1, max=10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Number of live readers (SSE) of the stream.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0.1),
    default=50.0,
    show_default=True,
    metavar="N",
    help="Appends per second.",
)
@bench_options
def fanout(server: Server, readers: int, rate: float, message_bytes: int, **options: Any) -> None:
    """Append to one stream and measure the delay until each live reader has the message."""
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
            while meter.begin():
                begun_s.append(time.perf_counter())
                await stream.append(value)
                await asyncio.sleep(max(0.0, begun_s[-1] + 1 / rate - time.perf_counter()))
            await stream.close()  # the readers end once they have every message

        async with asyncio.TaskGroup() as group:
            for _ in range(readers):
                group.create_task(reader())
            group.create_task(writer())

    _bench(server, run, "deliveries", **options)


def _message(size: int) -> bytes:
    """Return a JSON string of `size` bytes."""
    return b'"' + b"x" * (size - 2) + b'"'


async def _concurrently(count: int, worker: Callable[[], Coroutine[Any, Any, None]]) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(count):
            group.create_task(worker())


def _bench(
    server: Server, run: Run, unit: str, *, count: int | None, duration_s: float, as_json: bool
) -> None:
    meter = Meter(count=count, duration_s=duration_s)
    try:
        asyncio.run(_measure(server, run, meter, unit))
    except* Exception as group:  # noqa: BLE001 - the first failure is the one to report
        failure: BaseException = group
        while isinstance(failure, BaseExceptionGroup):
            failure = failure.exceptions[0]
        raise failure from None
    result = meter.result()
    click.echo(json.dumps({"bench": unit, **result}) if as_json else as_text(result, unit))


async def _measure(server: Server, run: Run, meter: Meter, unit: str) -> None:
    async with _bench_stream(server) as stream:
        with Progress(f"bench {unit}") as progress:
            display = asyncio.create_task(_show(progress, meter))
            try:
                meter.start()
                await run(stream, meter)
            finally:
                display.cancel()


@asynccontextmanager
async def _bench_stream(server: Server) -> AsyncIterator[AsyncStream]:
    from penstock.client.aio.client import AsyncClient
    from penstock.client.retry import Retry

    context = server.current()
    verify, retry = trust(context.url, server.ca), Retry(attempts_max=4)
    async with AsyncClient(context.url, token=context.token, retry=retry, verify=verify) as client:
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
