"""Exactly once, whatever happens to the connections in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import pytest

import penstock
from penstock import Retry, Timeouts
from penstock.client.batches import Batch
from penstock.errors import ConnectionFailed
from tests.client.driver import Connect
from tests.helpers.faults import Fault, Kind, fault_proxy, seeded
from tests.helpers.server import Server

RETRY = Retry(first_s=0.001, max_s=0.02)
# A stalled connection is given up soon, but not before a long-poll of the test server has ended.
TIMEOUTS = Timeouts(connect_s=5, read_s=0.4, live_s=1.5)
BROKEN: tuple[Kind, ...] = ("refuse", "reset", "truncate", "half-close", "delay")
FAULTS = 25
BYTES_MAX = 3000

JSON, TEXT, BINARY = "application/json", "text/plain", "application/octet-stream"


def messages_of(content_type: str, seed: int) -> list[Any]:
    """Messages of all sizes, none like another, some larger than a chunk."""
    chooser = random.Random(seed)
    messages: list[Any] = []
    for number in range(200):
        size = chooser.choice([1, 10, 200, 3000 if number % 20 == 0 else 50])
        if content_type == JSON:
            messages.append({"n": number, "text": "é" * size})
        elif content_type == TEXT:
            messages.append(f"{number}: {'é€' * size}\n")
        else:
            messages.append(number.to_bytes(4, "big") + chooser.randbytes(size))
    return messages


def whole(content_type: str, values: list[Any]) -> Any:
    """What a reader that saw everything once has seen."""
    if content_type == JSON:
        return values
    return "".join(values) if content_type == TEXT else b"".join(values)


def seen(content_type: str, batches: list[Batch]) -> Any:
    if content_type == JSON:
        return [message for batch in batches for message in batch.messages]
    if content_type == TEXT:
        return "".join(batch.text for batch in batches)
    return b"".join(batch.data for batch in batches)


@contextmanager
def writing(url: str, values: list[Any], content_type: str) -> Iterator[Callable[[], None]]:
    """Half of the values are there at once; the rest and the end come when it is told to go on,
    a little at a time, while a reader reads."""
    with penstock.Client(url) as client:
        stream = client.stream(url, content_type=content_type)
        half = len(values) // 2
        for value in values[:half]:
            stream.append(value)

        def rest() -> None:
            for value in values[half:]:
                stream.append(value)
            stream.close()

        thread = threading.Thread(target=rest)
        try:
            yield thread.start
        finally:
            if thread.ident is not None:
                thread.join()


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("mode", ["auto", "long-poll", "sse"])
@pytest.mark.parametrize("content_type", [JSON, TEXT, BINARY])
def test_every_message_is_seen_exactly_once_through_broken_connections(
    connect: Connect, server: Server, name: str, content_type: str, mode: str, seed: int
) -> None:
    values = messages_of(content_type, seed)
    target = connect(server.url).stream(name)
    target.create(content_type)
    plan = seeded(seed, faults=FAULTS, kinds=BROKEN, bytes_max=BYTES_MAX)
    with (
        fault_proxy(server.url, plan) as proxy,
        writing(target.url, values, content_type) as go_on,
    ):
        client = connect(proxy.url, timeout_s=TIMEOUTS, retry=RETRY)
        reader = client.stream(name)
        batches: list[Batch] = []
        retry = Retry(first_s=0.001, max_s=0.02, attempts_max=None)
        with reader.follow(mode=mode, retry=retry) as follow:
            for batch in follow:
                if not batches:
                    go_on()
                batches.append(batch)
        assert seen(content_type, batches) == whole(content_type, values)
        assert batches[-1].closed
        for before, after in pairwise(batches):
            assert after.offset == before.next_offset
        assert sum(proxy.injected.values()) >= 5


@pytest.mark.parametrize("mode", ["auto", "long-poll", "sse"])
def test_stalled_connection_is_given_up_and_nothing_is_lost(
    connect: Connect, server: Server, name: str, mode: str
) -> None:
    values = messages_of(JSON, 3)
    target = connect(server.url).stream(name)
    target.create(JSON)
    plan = seeded(3, faults=3, kinds=("stall",), bytes_max=BYTES_MAX)
    with fault_proxy(server.url, plan) as proxy, writing(target.url, values, JSON) as go_on:
        timeouts = Timeouts(connect_s=5, read_s=0.2, live_s=0.2)
        reader = connect(proxy.url, timeout_s=timeouts, retry=RETRY).stream(name)
        batches: list[Batch] = []
        for batch in reader.follow(mode=mode, retry=Retry(first_s=0.001, attempts_max=None)):
            if not batches:
                go_on()
            batches.append(batch)
        assert seen(JSON, batches) == values
        assert proxy.injected.get("stall", 0) == 3


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_catch_up_read_is_whole_through_broken_connections(
    connect: Connect, server: Server, name: str, seed: int
) -> None:
    values = messages_of(JSON, seed)
    target = connect(server.url).stream(name)
    target.create(JSON)
    target.append_many(values)
    plan = seeded(seed, faults=4, kinds=BROKEN, bytes_max=BYTES_MAX)
    with fault_proxy(server.url, plan) as proxy:
        read = connect(proxy.url, timeout_s=TIMEOUTS, retry=RETRY).stream(name).read()
        assert read.messages == values
        assert proxy.injected


@pytest.mark.parametrize("after", [0, 1, 20, 200])
@pytest.mark.parametrize("kind", ["reset", "truncate", "half-close"])
def test_append_with_a_producer_is_stored_once_though_its_answer_is_lost(
    connect: Connect, server: Server, name: str, kind: Kind, after: int
) -> None:
    connect(server.url).stream(name).create()
    faults = iter([Fault(kind, after)] * 3)
    with fault_proxy(server.url, lambda: next(faults, Fault())) as proxy:
        client = connect(proxy.url, timeout_s=TIMEOUTS, retry=RETRY)
        stream = client.stream(name, content_type=JSON)
        for seq in range(5):
            stream.append(seq, producer=("p", 0, seq))
        assert proxy.injected[kind] == 3
    assert connect(server.url).stream(name).read_json() == list(range(5))


def test_plain_append_whose_answer_is_lost_is_raised_and_not_doubled(
    connect: Connect, server: Server, name: str
) -> None:
    connect(server.url).stream(name).create()
    faults = iter([Fault("reset", 0)])
    with fault_proxy(server.url, lambda: next(faults, Fault())) as proxy:
        client = connect(proxy.url, timeout_s=TIMEOUTS, retry=RETRY)
        with pytest.raises(ConnectionFailed):
            client.stream(name, content_type=JSON).append("once")
    assert connect(server.url).stream(name).read_json() == ["once"]
