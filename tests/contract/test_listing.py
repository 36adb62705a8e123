"""Listing: all streams in path order, whether they are saved yet or not."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from penstock.log.stream import Stream, StreamInfo
from tests.contract.rig import JSON, Rig, on_disk, on_stores


async def make(rig: Rig, *paths: str) -> None:
    for path in paths:
        await rig.create(path)


@on_stores()
async def test_streams_are_listed_in_byte_order_of_their_paths(rig: Rig) -> None:
    await make(rig, "b", "a/b", "a", "B", "a0", "a%20", "~", "a/b/c")
    expected = ["B", "a", "a%20", "a/b", "a/b/c", "a0", "b", "~"]
    assert await rig.paths() == expected
    await rig.settle()
    assert await rig.paths() == expected


@on_stores()
async def test_a_prefix_is_text_not_a_folder(rig: Rig) -> None:
    await make(rig, "a", "a/b", "a0", "a~", "b")
    for _ in range(2):
        assert await rig.paths("a") == ["a", "a/b", "a0", "a~"]
        assert await rig.paths("a/") == ["a/b"]
        assert await rig.paths("a~") == ["a~"]
        assert await rig.paths("c") == []
        await rig.settle()


@on_stores()
async def test_pages_follow_each_other_without_gap_or_repeat(rig: Rig) -> None:
    paths = [f"s/{number:02d}" for number in range(17)]
    await make(rig, *paths[::2])
    await rig.settle()
    await make(rig, "other", *paths[1::2])
    for limit in (1, 2, 3, 5, 16, 17, 18):
        listed: list[str] = []
        while page := await rig.paths("s/", listed[-1] if listed else "", limit):
            assert len(page) <= limit
            listed += page
        assert listed == paths


@on_stores()
async def test_a_page_starts_after_a_path_that_need_not_exist(rig: Rig) -> None:
    await make(rig, "a", "c")
    await rig.settle()
    await make(rig, "b", "d")
    assert await rig.paths(after="bb") == ["c", "d"]
    assert await rig.paths(after="c") == ["d"]
    assert await rig.paths(after="d") == []


@on_stores()
async def test_what_is_listed_is_the_newest_durable_state(rig: Rig) -> None:
    config = JSON._replace(ttl_s=60)
    stream = await rig.create("a", [b"1"], config=config)
    await rig.settle()
    rig.clock.advance(5)
    await rig.append(stream, [b"2"], closes=True)
    created = rig.clock.now_us() - 5_000_000
    for _ in range(2):
        (info,) = await rig.store.list_streams("", "", 9)
        assert (info.path, info.id, info.content_type) == ("a", stream.id, "application/json")
        assert (info.tail, info.messages, info.closed) == (6, 2, True)
        assert (info.created_us, info.touched_us) == (created, rig.clock.now_us())
        assert (info.ttl_s, info.expires_at_us) == (60, None)
        await rig.settle()


@on_stores()
async def test_deleted_streams_leave_no_hole_in_a_page(rig: Rig) -> None:
    await make(rig, "a", "b", "c", "d", "e")
    await rig.settle()
    for path in ("a", "b", "d"):
        await rig.delete(rig.find(path))
    assert await rig.paths(limit=2) == ["c", "e"]
    await rig.settle()
    assert await rig.paths(limit=2) == ["c", "e"]


@on_disk()
async def test_a_list_made_while_a_checkpoint_runs_is_complete(rig: Rig) -> None:
    await make(rig, "a", "c")
    await rig.settle()
    await rig.append(rig.find("a"), [b"1"])
    await make(rig, "b")
    lists: list[list[tuple[str, int]]] = []

    async def look() -> None:
        lists.append([(info.path, info.tail) for info in await rig.store.list_streams("", "", 9)])

    checkpoint = asyncio.create_task(rig.disk.checkpoint())
    while not checkpoint.done():
        await look()
        await asyncio.sleep(0)
    await look()
    assert len(lists) > 1
    assert all(listed == [("a", 3), ("b", 0), ("c", 0)] for listed in lists)


@on_disk()
async def test_a_page_describes_no_other_streams_than_its_own(rig: Rig) -> None:
    await make(rig, *[f"s/{number:03d}" for number in range(200)])
    described: list[str] = []
    info = Stream.info

    def counted(stream: Stream) -> StreamInfo:
        described.append(stream.path)
        return info(stream)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stream, "info", counted)
        listed: list[str] = []
        while page := await rig.paths("s/", listed[-1] if listed else "", 10):
            listed += page
    assert listed == described == [f"s/{number:03d}" for number in range(200)]


@on_disk()
async def test_pages_are_right_however_streams_come_and_go_between_them(rig: Rig) -> None:
    random = Random(15)
    existing: dict[str, Stream] = {}
    for step in range(300):
        path = f"s/{random.randrange(60):02d}"
        match random.randrange(6):
            case 0 | 1 if path not in existing:
                existing[path] = await rig.create(path)
            case 2 if path in existing:
                await rig.delete(existing.pop(path))
            case 3 if path in existing:
                await rig.append(existing[path], [b"1"])
            case 4 if step % 10 == 0:
                await rig.settle()
            case _:
                pass
        after = f"s/{random.randrange(60):02d}"
        expected = sorted(each for each in existing if each > after)
        assert await rig.paths("s/", after, 7) == expected[:7]
        assert await rig.paths("s/", "", 100) == sorted(existing)
