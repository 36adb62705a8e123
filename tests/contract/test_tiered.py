"""What a disk store with an object store promises: which segments move, that nothing is lost when
the store fails, and that objects go when nobody needs them."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.errors import (
    ColdDataUnavailable,
    Damaged,
    InvalidPath,
    StoreError,
    StreamNotFound,
    StreamTrimmed,
)
from penstock.http.metrics import tier_metrics
from penstock.log import open_engine
from penstock.log.disk.segment import ENTRY
from penstock.log.disk.tiered import cold_reader
from penstock.log.mutations import DeleteMutation, TrimMutation
from penstock.log.offline.inspect import overview, stream_view
from penstock.log.offline.verify import verify
from penstock.log.stats import TierStats
from penstock.log.stream import Stream
from penstock.object_store import MemoryStore
from tests.contract.rig import Rig, Test, on_stores, wire
from tests.contract.test_forks import delete_fork, fork, linked
from tests.helpers.log import BLOCK_BYTES
from tests.helpers.server import ROOT
from tests.helpers.tiered import ColdStore, TestObjects


def on_cold(**options: Any) -> Callable[[Test], Any]:
    return on_stores(("cold",), **options)


def cold_of(rig: Rig) -> ColdStore:
    assert isinstance(rig.store, ColdStore)
    return rig.store


def objects(rig: Rig) -> TestObjects:
    return cold_of(rig).objects


def stats(rig: Rig) -> TierStats:
    tier = rig.store.stats.tier
    assert tier is not None
    return tier


def messages(number: int, size: int = 90) -> list[bytes]:
    return [b'"%d%s"' % (each, b"x" * size) for each in range(number)]


async def long_stream(rig: Rig, path: str = "a", number: int = 60) -> Stream:
    """A stream of several segments, none of them cold yet."""
    stream = await rig.create(path)
    for each in messages(number):
        await rig.append(stream, [each])
    assert await rig.disk._schedule.checkpoint()
    assert len(stream.segments) > 3
    return stream


def segment_files(rig: Rig) -> int:
    return len(rig.files("segments", ".segment"))


def format_of(rig: Rig) -> int:
    return int(json.loads((rig.folder / "PENSTOCK").read_text())["format"])


async def unfetched(rig: Rig) -> None:
    """Let the next read ask the store: nothing is cached any more."""
    await rig.store.close()
    for path in (rig.folder / "cache").iterdir():
        path.unlink()
    await rig.open()


# -- which segments move


@on_cold()
async def test_segments_that_another_follows_move_and_their_indexes_stay(rig: Rig) -> None:
    stream = await long_stream(rig)
    indexes = rig.files("segments", ".index")
    await cold_of(rig).move()
    assert segment_files(rig) == 1
    assert rig.files("segments", ".index") == indexes
    assert len(objects(rig).names) == len(stream.segments) - 1
    assert await rig.content(stream) == wire(messages(60))
    assert stats(rig).uploads == len(stream.segments) - 1
    assert stats(rig).upload_bytes == sum(info.length for info in stream.segments[:-1])


@on_cold()
async def test_an_object_has_the_segment_and_then_its_index(rig: Rig) -> None:
    stream = await long_stream(rig)
    first = stream.segments[0]
    folder = rig.disk._folder
    data = folder.data_path(stream.id, first.base).read_bytes()
    index = folder.index_path(stream.id, first.base).read_bytes()
    await cold_of(rig).move()
    body = objects(rig).store.get(min(objects(rig).names))
    assert body[: first.length] == data
    assert body[first.length : -ENTRY.size] == index
    assert len(index) == first.length // BLOCK_BYTES * ENTRY.size


@on_cold()
async def test_the_last_segment_moves_when_the_stream_is_closed(rig: Rig) -> None:
    stream = await long_stream(rig)
    await rig.append(stream, [b'"end"'], closes=True)
    await rig.settle()
    assert segment_files(rig) == 0
    assert await rig.content(stream) == wire([*messages(60), b'"end"'])


@on_cold(tier_after_s=100)
async def test_segments_move_when_they_are_old_enough(rig: Rig) -> None:
    await long_stream(rig)
    files = segment_files(rig)
    rig.clock.advance(99)
    await cold_of(rig).move()
    assert segment_files(rig) == files
    rig.clock.advance(2)
    await cold_of(rig).move()
    assert segment_files(rig) == 1


@on_cold(tier_after_s=10_000, tier_local_bytes_max=2500)
async def test_the_oldest_segments_move_when_there_are_too_many_bytes(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    local = [info for info in stream.segments if not rig.disk._segments.is_cold(stream.id, info)]
    assert sum(info.length for info in local) <= 2500 < sum(x.length for x in local) + 1100
    assert local == list(stream.segments[-len(local) :])
    assert stats(rig).local_bytes > 2500  # when the search began


@on_cold(tier_patterns=("logs/**",))
async def test_only_streams_that_match_a_pattern_move(rig: Rig) -> None:
    await long_stream(rig, "logs/a")
    other = await long_stream(rig, "b")
    await cold_of(rig).move()
    assert segment_files(rig) == 1 + len(other.segments)


@on_cold()
async def test_settings_that_cannot_work_are_refused_at_the_start(rig: Rig) -> None:
    await rig.store.close()
    rig._options["tier_patterns"] = ("a/**b",)
    with pytest.raises(InvalidPath):
        await rig.open()
    rig._options["tier_patterns"] = ("a/**",)
    await rig.open()
    with pytest.raises(StoreError, match="leave out tier_url"):
        open_engine(Settings(memory=True, tier_url="memory://"))


# -- the format of the folder


@on_cold()
async def test_only_a_folder_with_objects_has_the_format_that_earlier_versions_refuse(
    rig: Rig,
) -> None:
    stream = await long_stream(rig)
    assert format_of(rig) == 2
    await cold_of(rig).move()
    assert format_of(rig) == 3
    await rig.reopen()
    assert format_of(rig) == 3
    await rig.delete(rig.find(stream.path))
    await rig.settle()
    assert objects(rig).names == []
    assert format_of(rig) == 3  # a server that runs does not look back
    await rig.reopen()
    assert format_of(rig) == 2


@on_cold()
async def test_a_start_needs_the_store_that_has_the_segments(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    known = objects(rig)
    bodies = {name: known.store.get(name) for name in known.names}
    await rig.store.close()
    rig._options["tier_url"] = ""
    with pytest.raises(StoreError, match=r"has \d cold segments in memory://. Set tier_url"):
        await rig.open()
    rig._options["tier_url"] = "memory://"
    known.store, known.url = MemoryStore(), "memory://other"
    with pytest.raises(StoreError, match="memory://other does not have"):
        await rig.open()
    for name, body in bodies.items():  # copied there, they are as good
        known.store.put(name, body)
    await rig.open()
    assert await rig.content(rig.find(stream.path)) == wire(messages(60))


# -- what goes wrong on the way there


@pytest.mark.parametrize("operation", ["put", "get"])
def test_a_segment_stays_local_until_the_store_has_it(
    operation: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @on_cold()
    async def run(rig: Rig) -> None:
        stream = await long_stream(rig)
        files = segment_files(rig)
        objects(rig).fail(operation)
        await cold_of(rig).move()
        assert segment_files(rig) == files
        assert stats(rig).upload_failures == files - 1
        assert await rig.content(stream) == wire(messages(60))
        objects(rig).heal()
        await cold_of(rig).move()
        assert segment_files(rig) == 1
        # What was written and could not be read back is gone.
        assert len(objects(rig).names) == files - 1
        assert await rig.content(stream) == wire(messages(60))

    run("cold", tmp_path, monkeypatch)


@on_cold()
async def test_an_object_that_comes_back_altered_is_not_trusted(rig: Rig) -> None:
    await long_stream(rig)
    files, store = segment_files(rig), objects(rig)

    def alter(operation: str) -> None:
        if operation == "put":
            for name in store.names:
                store.store.put(name, store.store.get(name)[:-1] + b"?")

    store.after = alter
    await cold_of(rig).move()
    assert segment_files(rig) == files
    store.heal()
    await cold_of(rig).move()
    assert segment_files(rig) == 1
    assert len(store.names) == files - 1


@on_cold()
async def test_a_damaged_segment_is_never_moved(rig: Rig) -> None:
    stream = await long_stream(rig)
    path = rig.disk._folder.data_path(stream.id, stream.segments[1].base)
    data = path.read_bytes()
    path.write_bytes(data[:300] + b"?" + data[301:])
    await cold_of(rig).move()
    assert segment_files(rig) == 2
    assert path.exists()
    uploads = objects(rig).calls["put"]
    await cold_of(rig).move()
    assert objects(rig).calls["put"] == uploads, "it was tried again"


@on_cold()
async def test_a_stream_that_is_deleted_during_the_move_leaves_no_object(rig: Rig) -> None:
    stream = await long_stream(rig)
    loop, store = asyncio.get_running_loop(), objects(rig)

    async def delete() -> None:
        await rig.delete(stream)
        assert await rig.disk._schedule.checkpoint()

    def before(operation: str) -> None:
        if operation == "get" and not stream.deleted:  # read back
            store.before = lambda operation: None
            asyncio.run_coroutine_threadsafe(delete(), loop).result()

    store.before = before
    await cold_of(rig).move()
    await cold_of(rig).move()
    assert store.names == []
    assert rig.files("segments") == []


# -- reading


@on_cold(tier_cache_bytes_max=100_000)
async def test_readers_of_the_same_piece_share_one_fetch(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    await unfetched(rig)
    stream = rig.find(stream.path)
    store = objects(rig)
    before = store.calls["get"]
    reads = [rig.store.read(stream, 0, 100) for _ in range(20)]
    assert set(await asyncio.gather(*reads)) == {wire(messages(60))[:100]}
    assert store.calls["get"] == before + 1
    assert stats(rig).fetches == 1
    assert rig.store.read_now(stream, 0, 100) in (wire(messages(60))[:100], None)


@on_cold(tier_cache_bytes_max=100_000)
async def test_what_is_read_in_order_is_fetched_ahead(rig: Rig) -> None:
    stream = await long_stream(rig, number=90)
    await cold_of(rig).move()
    await unfetched(rig)
    stream = rig.find(stream.path)
    piece = cold_reader.PIECE_BYTES
    await rig.store.read(stream, 0, 100)
    assert stats(rig).cache_misses == 1
    await rig.store.read(stream, piece, piece + 100)
    # Segments are a little longer than two pieces, so what is ahead is in the next ones.
    assert stats(rig).cache_misses > 2
    tier = cold_of(rig).tier
    assert tier is not None
    while tier.reader._flights:
        await asyncio.wait(tier.reader._flights.values())
    fetched = stats(rig).fetches
    end = stream.segments[1].base + 100
    assert await rig.store.read(stream, end - 100, end) == wire(messages(90))[end - 100 : end]
    assert stats(rig).fetches >= fetched


@on_cold()
async def test_a_store_that_fails_holds_up_nothing_but_cold_reads(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    await unfetched(rig)
    stream = rig.find(stream.path)
    objects(rig).fail("put", "get", "delete")
    with pytest.raises(ColdDataUnavailable) as refusal:
        await rig.content(stream)
    assert int(refusal.value.headers["Retry-After"]) >= 1
    assert stats(rig).fetch_failures >= 1
    calls = objects(rig).calls["get"]
    with pytest.raises(ColdDataUnavailable):
        await rig.content(stream)
    assert objects(rig).calls["get"] == calls, "the store was asked again at once"
    # Seeks need the index alone, and the end of the stream is in a file.
    assert (await rig.store.seek_ordinal(stream, 5))[0] < stream.segments[1].base
    await rig.append(stream, [b'"more"'])
    last = stream.segments[-1].base
    assert (await rig.store.read(stream, last, stream.tail)).endswith(b'"more",\n')
    objects(rig).heal()
    tier = cold_of(rig).tier
    assert tier is not None
    tier.reader._retry_at = 0.0  # as time goes by
    assert await rig.content(stream) == wire([*messages(60), b'"more"'])


@on_cold(tier_timeout_s=0.05)
async def test_a_store_that_is_too_slow_is_not_waited_for(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    await unfetched(rig)
    stream = rig.find(stream.path)
    gate = threading.Event()
    objects(rig).before = lambda operation: (gate.wait(10), None)[1]
    try:
        with pytest.raises(ColdDataUnavailable):
            await rig.content(stream)
        reader = cold_of(rig).tier.reader  # type: ignore[union-attr]
        assert reader._retry_at > 0
        # One that has just answered others is only busy.
        reader._retry_at, reader._answered_at = 0.0, reader._now() + 1000
        with pytest.raises(ColdDataUnavailable):
            await rig.content(stream)
        assert reader._retry_at == 0
    finally:
        gate.set()
        objects(rig).heal()


@on_cold()
async def test_damaged_and_missing_objects_are_errors_of_their_own(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    await unfetched(rig)
    stream = rig.find(stream.path)
    store = objects(rig).store
    first, second, *_ = sorted(objects(rig).names)
    body = store.get(first)
    store.put(first, body[:10] + b"?" + body[11:])
    with pytest.raises(Damaged, match="do not match their checksum"):
        await rig.store.read(stream, 0, 10)
    store.delete([second])
    start = stream.segments[1].base
    with pytest.raises(Damaged, match="has no"):
        await rig.store.read(stream, start, start + 10)
    assert stats(rig).damaged_objects == 2
    # Neither is kept.
    store.put(first, body)
    assert await rig.store.read(stream, 0, 10) == wire(messages(60))[:10]


# -- the cache


@on_cold(tier_cache_bytes_max=2000)
async def test_the_cache_is_bounded_and_a_start_goes_on_with_it(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    assert await rig.content(stream) == wire(messages(60))

    def size() -> int:
        return sum(path.stat().st_size for path in (rig.folder / "cache").iterdir())

    assert 1000 < size() <= 2000
    assert stats(rig).cache_bytes == size()
    await rig.reopen()
    assert stats(rig).cache_bytes == size()
    name = sorted(rig.files("cache"))[0]
    base, number = int(name[17:33], 16), int(name.rpartition(".")[2])
    start = base + number * cold_reader.PIECE_BYTES
    expected = wire(messages(60))[start : start + 50]
    calls = objects(rig).calls["get"]
    assert await rig.store.read(rig.find("a"), start, start + 50) == expected
    assert objects(rig).calls["get"] == calls, "it was not taken from the cache"


@on_cold(tier_cache_bytes_max=100_000)
async def test_what_a_crash_left_in_the_cache_is_checked(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    assert await rig.content(stream) == wire(messages(60))
    await rig.store.close()
    for number, path in enumerate(sorted((rig.folder / "cache").iterdir())):
        data = path.read_bytes()
        path.write_bytes((b"", data[:7], bytes(len(data)), data + b"?")[number % 4])
    await rig.open()
    assert await rig.content(rig.find("a")) == wire(messages(60))


@on_cold(tier_cache_bytes_max=100_000)
async def test_cold_data_is_read_without_a_disk_to_cache_it_on(rig: Rig) -> None:
    await long_stream(rig)
    await cold_of(rig).move()
    await unfetched(rig)

    tier = cold_of(rig).tier
    assert tier is not None
    tier._cache._reserve_bytes = 1 << 62  # so much is never free
    assert await rig.content(rig.find("a")) == wire(messages(60))
    assert rig.files("cache") == []


@on_cold(tier_cache_bytes_max=100_000)
async def test_nothing_of_a_deleted_stream_stays_in_the_cache(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    await rig.content(stream)
    assert rig.files("cache") != []
    await rig.delete(stream)
    await rig.store.close()
    assert rig.files("cache") == []
    await rig.open()


# -- objects go when nobody needs them


@on_cold()
async def test_objects_of_a_deleted_stream_go_after_the_checkpoint(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    await rig.delete(stream)
    await cold_of(rig).move()
    assert len(objects(rig).names) > 0, "the catalog still names them"
    await rig.settle()
    assert objects(rig).names == []
    with pytest.raises(StreamNotFound):
        await rig.store.read(stream, 0, 10)
    assert stats(rig).removals > 0
    assert rig.files("segments") == []


@on_cold()
async def test_objects_of_trimmed_segments_go_and_the_others_stay(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    before = len(objects(rig).names)
    cut = stream.segments[2]
    await rig.submit(
        TrimMutation(stream, "trimmed", position=cut.base, ordinal=cut.first_ordinal, time_us=0)
    )
    await rig.settle()
    assert len(objects(rig).names) == before - 2
    assert await rig.content(stream) == wire(messages(60))[cut.base :]
    with pytest.raises(StreamTrimmed):
        await rig.store.read(stream, 0, 10)


@on_cold()
async def test_a_removal_that_fails_is_tried_again(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    await rig.delete(stream)
    objects(rig).fail("delete")
    await rig.settle()
    assert objects(rig).names != []
    assert stats(rig).removal_failures == 1
    await rig.crash()
    assert format_of(rig) == 3
    objects(rig).heal()
    await cold_of(rig).move()
    assert objects(rig).names == []


@on_cold()
async def test_a_fork_reads_cold_data_of_its_source_after_that_is_deleted(rig: Rig) -> None:
    stream = await long_stream(rig)
    await cold_of(rig).move()
    branch = await fork(rig, "fork", stream, [])
    await rig.submit(DeleteMutation(stream, "deleted", time_us=0, expired=False, soft=True))
    await rig.settle()
    before = len(objects(rig).names)
    assert await rig.content(branch) == wire(messages(60))
    await rig.crash()
    await cold_of(rig).move()
    assert len(objects(rig).names) == before
    branch = linked(rig, "fork")
    assert await rig.content(branch) == wire(messages(60))
    await delete_fork(rig, branch, cascade=True)
    await rig.settle()
    assert objects(rig).names == []


# -- metrics


@on_cold()
async def test_the_metrics_are_those_of_the_page(rig: Rig) -> None:
    await long_stream(rig)
    await cold_of(rig).move()
    families = list(tier_metrics(SimpleNamespace(store=rig.store)))  # type: ignore[arg-type]
    names = {each.name + "_total" * (each.type == "counter") for each in families}
    page = (ROOT / "docs" / "tiered-storage.md").read_text()
    assert names == set(re.findall(r"`(penstock_tier_\w+)", page))
    uploads = next(each for each in families if each.name == "penstock_tier_uploads")
    assert uploads.samples[0].value == stats(rig).uploads > 0


# -- looking at a stopped folder


@on_cold()
async def test_verify_checks_objects_when_it_is_asked_to(rig: Rig) -> None:
    store = objects(rig).store = MemoryStore.named(str(rig.folder))
    objects(rig).url = store.url
    await long_stream(rig)
    await cold_of(rig).move()
    await rig.store.close()
    try:
        assert overview(rig.folder).cold_url == store.url
        report = verify(rig.folder)
        assert report.problems == []
        assert report.cold_segments > 3
        assert "--cold" in report.notes[0]
        report = verify(rig.folder, cold=True)
        assert (report.problems, report.notes) == ([], [])
        first, second, *_ = sorted(objects(rig).names)
        body = store.get(first)
        store.put(first, body[:300] + b"?" + body[301:])
        store.delete([second])
        store.put(first.partition("/")[0] + "/stray", b"")
        report = verify(rig.folder, cold=True)
        assert [each.code for each in report.problems] == ["block-damaged", "object-missing"]
        assert [each.file for each in report.problems] == [first, second]
        assert "1 objects" in report.notes[0]
        view = stream_view(rig.folder, "a")
        assert view.segments[0].object == first
        assert view.preview.fault is not None
        assert "object store" in view.preview.fault
    finally:
        await rig.open()
