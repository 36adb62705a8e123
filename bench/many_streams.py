"""A cluster with as many streams as wanted, made as an import makes it: through HTTP a million
would take longer than what is measured with them."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterable

import httpx

from penstock.config.settings import Settings
from penstock.log.cluster import copying
from penstock.log.cluster.database import Database
from penstock.log.disk.catalog_rows import Row
from penstock.protocol import json_mode
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.shards import Shard, shard_of

ROWS = 10_000
"""Rows of a round, in which every shard has a transaction."""
TTL_EVERY = 10
"""One of so many streams has a TTL, which does not end meanwhile."""
TTL_S = 86_400
SAMPLE = 200


def message(number: int) -> bytes:
    return b'{"number":%d,"text":"%s"}' % (number, b"x" * 60)


def path_of(number: int) -> str:
    return f"many/{number}"


def one_a_shard(shards: int) -> list[str]:
    """Return a path of each shard, all among the first streams."""
    paths: dict[int, str] = {}
    for number in range(64 * shards):
        paths.setdefault(shard_of(path_of(number), shards), path_of(number))
    return list(paths.values())


def fill(dsn: str, *, shards: int, count: int) -> float:
    """Make a cluster with so many streams of one message each; return how long that took."""
    started = time.perf_counter()
    asyncio.run(_fill(dsn, shards, count))
    return time.perf_counter() - started


async def _fill(dsn: str, shards: int, count: int) -> None:
    database = Database(Settings(cluster=dsn))
    session = await database.open()
    await copying.begin(session, "bench", shards)
    next_ids = [1] * shards
    for start in range(0, count, ROWS):
        # In turn, as checkpoints of shards come: the rows of one lie among those of all others.
        rows: list[list[Row]] = [[] for _ in range(shards)]
        for number in range(start, min(start + ROWS, count)):
            index = shard_of(path_of(number), shards)
            id = Shard(index, shards).next_id(next_ids[index])
            rows[index].append(_row(id, number))
            next_ids[index] = id + 1
        for index, some in enumerate(rows):
            if some:
                await copying.put_streams(session, index, some, [])
    ends = [copying.ShardEnd(next_id, 1) for next_id in next_ids]
    await copying.finish(session, "penstock", ends, 0)
    # As after a while of life: the planner and index-only scans rest on it.
    await session.fetch("ANALYZE penstock.stream")
    session.abort()
    await asyncio.sleep(0)


def _row(id: int, number: int) -> Row:
    """Return the row of a stream as a checkpoint writes it."""
    now_us = time.time_ns() // 1000
    ttl_s = TTL_S if number % TTL_EVERY == 0 else None
    body, count = json_mode.frame(message(number), allow_empty=False)
    return Row(
        id=id,
        path=path_of(number),
        config=StreamConfig("application/json", ttl_s, None),
        created_us=now_us,
        touched_us=now_us,
        deadline_us=None if ttl_s is None else now_us + ttl_s * 1_000_000,
        earliest=0,
        tail=len(body),
        messages=count,
        closed=False,
        closed_by=None,
        stream_seq=None,
        producer_total=0,
        applied_lsn=1,
        meta={},
        inline=body,
        segments=(),
    )


def check(urls: Iterable[str], count: int) -> None:
    """Read some of the streams over HTTP: they are like any others."""
    chance = random.Random(1)
    with httpx.Client() as client:
        for url in urls:
            for number in chance.sample(range(count), min(SAMPLE, count)):
                answer = client.get(f"{url}/v1/stream/{path_of(number)}?offset=-1")
                answer.raise_for_status()
                assert answer.content == b"[" + message(number) + b"]", answer.content
