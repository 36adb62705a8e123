"""Expiry, touches, producers and letting go: what an engine relies on when memory is short."""

from __future__ import annotations

from penstock.protocol.headers import Producer
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.producer import ProducerState
from tests.contract.rig import JSON, Rig, on_disk, on_stores

SECOND = 1_000_000
KEPT = {
    *("id", "path", "config", "is_json", "is_text", "created_us", "touched_us", "earliest"),
    *("tail", "count", "closed", "closed_by", "stream_seq", "applied_lsn", "producer_total"),
    *("durable", "deleted", "meta", "deleting", "in_flight"),
}


def with_ttl(seconds: int) -> StreamConfig:
    return JSON._replace(ttl_s=seconds)


@on_stores()
async def test_no_stream_is_reported_expired_before_its_deadline(rig: Rig) -> None:
    now = rig.clock.now_us()
    await rig.create("ttl", config=with_ttl(10))
    await rig.create("at", config=JSON._replace(expires_at_us=now + 10 * SECOND))
    await rig.create("never")
    await rig.settle()
    assert await rig.store.expired(now + 10 * SECOND - 1, (-1, -1), 9) == []


@on_disk()
async def test_stored_streams_are_reported_expired_from_their_deadline_on(rig: Rig) -> None:
    now = rig.clock.now_us()
    first = await rig.create("ttl", config=with_ttl(10))
    second = await rig.create("at", config=JSON._replace(expires_at_us=now + 20 * SECOND))
    await rig.create("never")
    await rig.settle()
    assert await rig.store.expired(now + 10 * SECOND, (-1, -1), 9) == [
        (now + 10 * SECOND, first.id, "ttl")
    ]
    assert await rig.store.expired(now + 99 * SECOND, (-1, -1), 9) == [
        (now + 10 * SECOND, first.id, "ttl"),
        (now + 20 * SECOND, second.id, "at"),
    ]


@on_disk()
async def test_expired_streams_are_paged_even_when_they_end_together(rig: Rig) -> None:
    streams = [await rig.create(f"s{number}", config=with_ttl(10)) for number in range(7)]
    await rig.settle()
    ids: list[int] = []
    after = (-1, -1)
    while page := await rig.store.expired(rig.clock.now_us() + 10 * SECOND, after, 3):
        assert len(page) <= 3
        ids += [deadline.id for deadline in page]
        after = (page[-1].time_us, page[-1].id)
    assert ids == [stream.id for stream in streams]


@on_disk()
async def test_a_touch_is_kept_by_the_next_checkpoint(rig: Rig) -> None:
    stream = await rig.create("a", config=with_ttl(10))
    await rig.settle()
    rig.clock.advance(8)
    stream.touched_us = rig.clock.now_us()
    rig.store.touched(stream)
    assert not rig.store.release(stream)
    await rig.settle()
    assert await rig.store.expired(rig.clock.now_us() + 5 * SECOND, (-1, -1), 9) == []
    await rig.reopen()
    assert rig.find("a").touched_us == rig.clock.now_us()


@on_disk()
async def test_a_touch_costs_no_journal_write(rig: Rig) -> None:
    stream = await rig.create("a", config=with_ttl(10))
    before = rig.store.stats.journal_bytes_written
    for _ in range(50):
        rig.clock.advance(1)
        stream.touched_us = rig.clock.now_us()
        rig.store.touched(stream)
    await rig.barrier()
    assert rig.store.stats.journal_bytes_written == before


@on_stores()
async def test_a_deleted_stream_is_not_touched_back_to_life(rig: Rig) -> None:
    stream = await rig.create("a", config=with_ttl(10))
    await rig.settle()
    await rig.delete(stream)
    rig.store.touched(stream)
    await rig.settle()
    assert rig.store.load("a") is None
    assert await rig.paths() == []


@on_stores()
async def test_after_a_clean_stop_there_is_no_grace(rig: Rig) -> None:
    assert rig.store.grace_until_us(100) == 0
    await rig.create("a", config=with_ttl(100))
    if rig.kind == "disk":
        await rig.reopen()
        assert rig.store.grace_until_us(100) == 0


@on_disk(checkpoint_interval_s=60)
async def test_after_an_unclean_stop_a_ttl_lasts_a_checkpoint_interval_at_least(rig: Rig) -> None:
    await rig.create("a", config=with_ttl(100))
    rig.clock.advance(1000)
    await rig.crash()
    now = rig.clock.now_us()
    assert rig.store.grace_until_us(10) == now + 10 * SECOND
    assert rig.store.grace_until_us(100) == now + 60 * SECOND
    await rig.reopen()
    assert rig.store.grace_until_us(100) == 0


@on_disk()
async def test_a_store_that_crashed_before_its_first_checkpoint_gives_grace_too(rig: Rig) -> None:
    await rig.crash()
    assert rig.store.grace_until_us(5) == rig.clock.now_us() + 5 * SECOND


@on_stores()
async def test_an_unknown_producer_is_not_known(rig: Rig) -> None:
    stream = await rig.create("a")
    await rig.append(stream, [b"1"], producer=Producer("p", 0, 0))
    await rig.settle()
    assert rig.store.load_producer(stream, "q") is None


@on_disk()
async def test_producers_are_found_again_after_a_checkpoint_a_restart_and_a_crash(rig: Rig) -> None:
    stream = await rig.create("a")
    await rig.append(stream, [b"1"], producer=Producer("1", 7, 0))
    await rig.append(stream, [b"2"], producer=Producer("é", 2**53 - 1, 2**53 - 1))
    await rig.settle()
    await rig.append(stream, [b"3"], producer=Producer("1", 7, 1))
    await rig.append(stream, [b"4"], producer=Producer("late", 0, 0))
    for again in (rig.crash, rig.reopen):
        await again()
        stream = rig.find("a")
        states = {
            name: stream.producers.get(name) or rig.store.load_producer(stream, name)
            for name in ("1", "é", "late")
        }
        assert states == {
            "1": ProducerState(7, 1),
            "é": ProducerState(2**53 - 1, 2**53 - 1),
            "late": ProducerState(0, 0),
        }
        assert stream.producer_total == 3


@on_disk()
async def test_named_values_are_found_again_after_a_checkpoint_a_restart_and_a_crash(
    rig: Rig,
) -> None:
    stream = await rig.create("a", [b"1" * 200])
    await rig.set_meta(stream, "kept", b"\0\xff")
    await rig.set_meta(stream, "gone", b"1")
    await rig.settle()
    await rig.set_meta(stream, "gone", None)
    await rig.set_meta(stream, "late", b"2")
    for again in (rig.crash, rig.reopen, rig.reopen):
        await again()
        stream = rig.find("a")
        assert stream.meta == stream.pending_meta == {"kept": b"\0\xff", "late": b"2"}
        assert await rig.content(stream) == b"1" * 200 + b",\n"


@on_disk()
async def test_only_a_stream_without_unsaved_changes_may_be_forgotten(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"])
    assert not rig.store.release(stream)
    await rig.settle()
    assert rig.store.release(stream)
    await rig.append(stream, [b"2"])
    assert not rig.store.release(stream)


@on_disk()
async def test_a_forgotten_stream_is_loaded_as_it_was(rig: Rig) -> None:
    stream = await rig.create("a", [b"1"], config=with_ttl(77))
    rig.clock.advance(3)
    await rig.append(stream, [b"2"], stream_seq="s/é", producer=Producer("p", 1, 0), closes=True)
    await rig.settle()
    loaded = rig.find("a")
    assert loaded is not stream
    for name in KEPT:
        assert getattr(loaded, name) == getattr(stream, name), name
    assert (loaded.pending_tail, loaded.pending_count) == (loaded.tail, loaded.count)
    assert (loaded.pending_closed, loaded.pending_seq) == (True, "s/é")
    assert loaded.pending_closed_by == Producer("p", 1, 0)
    assert await rig.content(loaded) == await rig.content(stream)


@on_stores()
async def test_a_path_never_created_is_not_loaded(rig: Rig) -> None:
    await rig.create("a")
    await rig.settle()
    assert rig.store.load("b") is None
    assert rig.store.load("") is None


@on_stores()
async def test_producers_are_listed_by_id_wherever_they_are(rig: Rig) -> None:
    stream = await rig.create("a")
    for id in ("c", "a", "d"):
        await rig.append(stream, [b"1"], producer=Producer(id, 1, 0))
    await rig.settle()
    if rig.kind == "disk":
        await rig.reopen()
        stream = rig.find("a")
    await rig.append(stream, [b"1"], producer=Producer("b", 0, 0))
    await rig.append(stream, [b"1"], producer=Producer("c", 2, 5))
    producers = await rig.store.list_producers(stream, "", 3)
    assert producers == [
        ("a", ProducerState(1, 0)),
        ("b", ProducerState(0, 0)),
        ("c", ProducerState(2, 5)),
    ]
    assert await rig.store.list_producers(stream, "c", 3) == [("d", ProducerState(1, 0))]
