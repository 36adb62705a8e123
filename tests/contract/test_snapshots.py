"""What every store does with snapshots: messages that take the place of all before them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from penstock.errors import StreamTrimmed
from penstock.log.mutations import SnapshotMutation
from penstock.log.stream import Stream
from penstock.protocol.headers import Producer
from tests.contract.rig import JSON, Rig, on_disk, on_stores, wire


async def snapshot(rig: Rig, stream: Stream, messages: Sequence[bytes]) -> None:
    await rig.submit(
        SnapshotMutation(
            stream,
            None,
            start=stream.tail,
            count=len(messages),
            time_us=rig.clock.now_us(),
            ordinal=stream.count,
            payload=wire(messages),
        )
    )


@on_stores()
async def test_a_snapshot_is_the_beginning_of_the_stream(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 600, b"2" * 600])
    await rig.settle()
    await rig.append(stream, [b"3" * 600])
    tail = stream.tail
    await snapshot(rig, stream, [b"4", b"5"])
    await rig.append(stream, [b"6"])
    for _ in range(2):
        assert (stream.earliest, stream.earliest_ordinal, stream.count) == (tail, 3, 6)
        assert await rig.content(stream) == wire([b"4", b"5", b"6"])
        assert await rig.store.seek_ordinal(stream, 4) == (tail, 3)
        await rig.settle()
    with pytest.raises(StreamTrimmed):
        await rig.store.read(stream, 0, stream.tail)


@on_disk()
async def test_a_snapshot_survives_with_producers_and_without_being_a_use(rig: Rig) -> None:
    stream = await rig.create("a", [b"1" * 600], config=JSON._replace(ttl_s=100))
    await rig.append(stream, [b"2"], producer=Producer("p", 1, 7))
    touched = stream.touched_us
    rig.clock.advance(50)
    await snapshot(rig, stream, [b"3"])
    for again in (rig.crash, rig.reopen, rig.crash):
        await again()
        stream = rig.find("a")
        assert await rig.content(stream) == wire([b"3"])
        assert (stream.earliest_ordinal, stream.touched_us) == (2, touched)
        state = stream.producers.get("p") or rig.store.load_producer(stream, "p")
        assert state == (1, 7)


@on_disk(segment_bytes_max=1024 * 1024)
async def test_a_snapshot_starts_a_segment_and_those_before_it_go(rig: Rig) -> None:
    stream = await rig.create("a", [b"x" * 600])
    await rig.settle()
    await rig.append(stream, [b"y" * 600])
    start = stream.tail
    await snapshot(rig, stream, [b"z" * 600])
    await rig.settle()
    await rig.append(stream, [b"w" * 600])
    await rig.settle()
    name = f"{stream.id:016x}-{start:016x}"
    assert rig.files("segments") == [f"{name}.index", f"{name}.segment"]
    await rig.reopen()
    assert await rig.content(rig.find("a")) == wire([b"z" * 600, b"w" * 600])
