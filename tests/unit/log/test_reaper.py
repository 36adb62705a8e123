"""The reaper ends what has expired, in memory or only on disk, and nothing else."""

from __future__ import annotations

import pytest

from penstock.errors import StreamNotFound
from penstock.log import reaper
from tests.unit.log.bench import JSON, Bench, Recorder, with_bench

TTL = JSON._replace(ttl_s=10)


async def listed(bench: Bench) -> list[str]:
    """What the store still has, after what was decided is durable."""
    await bench.create("settled")
    await bench.engine.delete("settled")
    return [info.path for info in await bench.store.list_streams("", "", 100)]


@with_bench()
async def test_an_active_stream_is_ended_at_its_deadline_not_before(bench: Bench) -> None:
    at = JSON._replace(expires_at_us=bench.clock.now_us() + 20_000_000)
    await bench.create("ttl", config=TTL)
    await bench.create("at", config=at)
    await bench.create("never")
    bench.clock.advance(9.999999)
    assert await bench.engine.reap() == 0
    bench.clock.advance(0.000001)
    assert await bench.engine.reap() == 1
    assert await listed(bench) == ["at", "never"]
    bench.clock.advance(10)
    assert await bench.engine.reap() == 1
    assert await listed(bench) == ["never"]
    assert bench.engine.stats.expired == 2


@with_bench(active_streams_max=1)
async def test_a_stream_that_is_only_on_disk_is_ended_too(bench: Bench) -> None:
    await bench.create("a", b"[1]", TTL)
    await bench.checkpoint()
    await bench.push_out("a")
    bench.clock.advance(10)
    assert await bench.engine.reap() == 1
    assert "a" not in await listed(bench)


@with_bench()
async def test_a_read_or_write_puts_the_deadline_off(bench: Bench) -> None:
    await bench.create("read", config=TTL)
    await bench.create("written", config=TTL)
    await bench.create("looked-at", config=TTL)
    await bench.checkpoint()
    bench.clock.advance(9)
    bench.engine.find("read", touch=True)
    await bench.append("written", b"1")
    bench.engine.find("looked-at", touch=False)
    bench.clock.advance(9)
    await bench.engine.reap()
    assert await listed(bench) == ["read", "written"]
    bench.clock.advance(1)
    await bench.engine.reap()
    assert await listed(bench) == []


@with_bench(active_streams_max=1)
async def test_a_stream_touched_and_then_let_go_keeps_its_new_deadline(bench: Bench) -> None:
    await bench.create("a", config=TTL)
    await bench.checkpoint()
    bench.clock.advance(9)
    bench.engine.find("a", touch=True)
    await bench.checkpoint()
    await bench.push_out("a")
    bench.clock.advance(5)
    assert await bench.engine.reap() == 0
    assert "a" in await listed(bench)
    bench.clock.advance(5)
    assert await bench.engine.reap() == 1


@with_bench()
async def test_a_stream_with_a_live_reader_lives_until_the_reader_has_gone(bench: Bench) -> None:
    await bench.create("a", config=TTL)
    stream, watcher = bench.engine.find("a", touch=False), Recorder()
    bench.engine.watch(stream, watcher)
    bench.clock.advance(1000)
    await bench.engine.reap()
    bench.engine.unwatch(stream, watcher)
    bench.clock.advance(9)
    await bench.engine.reap()
    assert await listed(bench) == ["a"]
    bench.clock.advance(1)
    await bench.engine.reap()
    assert await listed(bench) == []


@with_bench()
async def test_an_absolute_deadline_ends_live_readers(bench: Bench) -> None:
    at = JSON._replace(expires_at_us=bench.clock.now_us() + 1_000_000)
    await bench.create("a", config=at)
    watcher = Recorder()
    bench.engine.watch(bench.engine.find("a", touch=False), watcher)
    bench.clock.advance(1)
    await bench.engine.reap()
    assert await listed(bench) == []
    assert watcher.seen == ["ended"]


@with_bench()
async def test_an_expired_stream_is_not_served_before_it_is_reaped(bench: Bench) -> None:
    await bench.create("a", b"[1]", TTL)
    bench.clock.advance(10)
    assert await bench.engine.list_streams("", "", 9) == []
    with pytest.raises(StreamNotFound):
        bench.engine.find("a", touch=True)
    with pytest.raises(StreamNotFound):
        await bench.append("a", b"1")
    with pytest.raises(StreamNotFound):
        await bench.engine.delete("a")
    created = await bench.engine.create("a", JSON, b"", closed=False)
    assert created.created


@with_bench(checkpoint_interval_s=60)
async def test_after_an_unclean_stop_every_ttl_gets_its_grace(bench: Bench) -> None:
    await bench.create("a", config=TTL)
    await bench.create("long", config=JSON._replace(ttl_s=100))
    bench.clock.advance(1000)
    await bench.crash()
    bench.clock.advance(9)
    assert await bench.engine.reap() == 0
    bench.clock.advance(1)
    assert await bench.engine.reap() == 1
    assert await listed(bench) == ["long"]
    bench.clock.advance(50)
    assert await bench.engine.reap() == 1


@pytest.fixture
def _small_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "REAP_MAX", 4)


@pytest.mark.usefixtures("_small_portions")
@with_bench(active_streams_max=5)
async def test_many_expiring_at_once_are_ended_in_portions(bench: Bench) -> None:
    for number in range(11):
        await bench.create(f"s{number:02d}", config=TTL)
    await bench.checkpoint()
    bench.let_go()
    bench.clock.advance(10)
    ended = []
    for _ in range(12):
        ended.append(await bench.engine.reap())
        await listed(bench)
    assert max(ended) == 4
    assert sum(ended) == 11
    assert await listed(bench) == []


@pytest.mark.usefixtures("_small_portions")
@with_bench(active_streams_max=100, checkpoint_interval_s=60)
async def test_a_look_at_many_streams_with_grace_is_a_short_one(bench: Bench) -> None:
    for number in range(20):
        await bench.create(f"s{number:02d}", config=TTL)
    await bench.checkpoint()
    bench.clock.advance(1000)
    await bench.crash()
    bench.clock.advance(9)
    for looks in range(1, 6):
        assert await bench.engine.reap() == 0
        assert bench.engine.stats.loaded <= 4 * looks
    bench.clock.advance(1)
    ended = [await bench.engine.reap() for _ in range(12)]
    assert sum(ended) == 20


@with_bench()
async def test_an_expiry_is_logged_and_is_not_decided_again_at_replay(bench: Bench) -> None:
    await bench.create("a", b"[1]", TTL)
    bench.clock.advance(10)
    assert await bench.engine.reap() == 1
    await listed(bench)
    await bench.crash()
    assert await bench.store.list_streams("", "", 9) == []
