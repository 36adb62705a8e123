"""Streams in memory: which are let go, and that nobody notices."""

from __future__ import annotations

from penstock.log import active
from penstock.protocol.headers import Producer
from tests.unit.log.bench import JSON, Bench, Recorder, with_bench


@with_bench(active_streams_max=3)
async def test_no_more_idle_streams_are_kept_than_allowed(bench: Bench) -> None:
    for number in range(20):
        await bench.create(f"s{number}", b"[1]")
    assert bench.engine.stats.active_streams == 20, "none of them is saved yet"
    await bench.checkpoint()
    bench.let_go()
    assert bench.engine.stats.active_streams == 3
    for number in range(20):
        assert await bench.content(f"s{number}") == b"1,\n"
        assert bench.engine.stats.active_streams <= 6
    assert bench.engine.stats.loaded >= 17


@with_bench(active_streams_max=1)
async def test_a_stream_with_unsaved_changes_stays(bench: Bench) -> None:
    await bench.create("dirty", b"[1]")
    for number in range(10):
        await bench.create(f"s{number}")
        bench.let_go()
    assert bench.is_active("dirty")


@with_bench(active_streams_max=1)
async def test_a_watched_stream_stays(bench: Bench) -> None:
    await bench.create("watched", b"[1]")
    await bench.checkpoint()
    watcher = Recorder()
    bench.engine.watch(bench.engine.find("watched", touch=False), watcher)
    for number in range(10):
        await bench.create(f"s{number}")
        await bench.checkpoint()
        bench.let_go()
    assert bench.is_active("watched")
    await bench.append("watched", b"2")
    assert watcher.seen == [(3, 6, b"2,\n", False)]


@with_bench(active_streams_max=1)
async def test_a_stream_let_go_comes_back_as_it_was(bench: Bench) -> None:
    await bench.create("a", b"[1]")
    await bench.append("a", b"2", Producer("p", 4, 0))
    await bench.checkpoint()
    await bench.push_out("a")
    duplicate = await bench.append("a", b"2", Producer("p", 4, 0))
    assert duplicate.duplicate
    assert duplicate.producer == (4, 0)
    assert await bench.content("a") == b"1,\n2,\n"


@with_bench(active_streams_max=1)
async def test_a_reader_who_holds_a_stream_that_was_let_go_is_still_told(bench: Bench) -> None:
    await bench.create("a", b"[1]")
    await bench.checkpoint()
    held = bench.engine.find("a", touch=False)
    await bench.push_out("a")
    watcher = Recorder()
    bench.engine.watch(held, watcher)
    await bench.append("a", b"2")
    assert watcher.seen == [(3, 6, b"2,\n", False)]
    await bench.engine.delete("a")
    assert watcher.seen[-1] == "ended"


@with_bench(active_streams_max=1)
async def test_a_stream_held_while_it_was_let_go_never_overwrites_its_successor(
    bench: Bench,
) -> None:
    """A stale object that is touched would be saved over what was appended since."""
    await bench.create("a", b"[1]", JSON._replace(ttl_s=100))
    await bench.checkpoint()
    held = bench.engine.find("a", touch=False)
    await bench.push_out("a")
    watcher = Recorder()
    bench.engine.watch(held, watcher)
    await bench.append("a", b"2")
    bench.clock.advance(1)
    bench.engine.unwatch(held, watcher)
    await bench.checkpoint()
    await bench.crash()
    assert await bench.content("a") == b"1,\n2,\n"


@with_bench(active_streams_max=1)
async def test_nothing_keeps_a_stream_that_nobody_holds(bench: Bench) -> None:
    await bench.create("a", b"[1]")
    await bench.checkpoint()
    await bench.push_out("a")
    assert len(bench.engine._streams._evicted) == 0


@with_bench(active_streams_max=1)
async def test_deadlines_of_streams_let_go_do_not_pile_up(bench: Bench) -> None:
    config = JSON._replace(ttl_s=1000)
    for number in range(4):
        await bench.create(f"s{number}", config=config)
    await bench.checkpoint()
    bench.let_go()
    for _ in range(active.DEADLINES_SLACK):
        for number in range(4):
            bench.engine.find(f"s{number}", touch=False)
    assert bench.engine.stats.loaded > 2 * active.DEADLINES_SLACK
    assert len(bench.engine._streams._deadlines) <= active.DEADLINES_SLACK + 20


@with_bench()
async def test_a_creation_in_flight_does_not_hide_the_stream_before_it(bench: Bench) -> None:
    await bench.create("a", b"[1]")
    old = bench.engine.find("a", touch=False)
    deleting = bench.engine.delete("a")
    creating = bench.engine.create("a", JSON, b"[2]", closed=False)
    assert bench.engine.find("a", touch=False) is old
    await deleting
    await creating
    assert await bench.content("a") == b"2,\n"
