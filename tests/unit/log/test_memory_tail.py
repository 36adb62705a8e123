"""Views of a memory tail: the bytes themselves, that stay as they are whatever is appended."""

from __future__ import annotations

import pytest

from penstock.log.memory_tail import CHUNK_BYTES_MAX, OWN_CHUNK_BYTES, MemoryTail


def filled(*appends: bytes) -> tuple[MemoryTail, bytes]:
    tail, end = MemoryTail(0), 0
    for number, data in enumerate(appends):
        tail.add(end, data, number, 0)
        end += len(data)
    return tail, b"".join(appends)


SMALL, LARGE = b"0123456789", bytes(range(256)) * 80


@pytest.mark.parametrize("start", [0, 1, 9, 10, 15, 20, 20_000])
@pytest.mark.parametrize("end", [21, 25, 20_005, 20_500, 20_530])
def test_views_are_what_a_read_returns(start: int, end: int) -> None:
    tail, data = filled(SMALL, SMALL, LARGE, SMALL, LARGE[:20], SMALL * 2)
    views = tail.views(start, end)
    assert b"".join(views) == data[start:end] == tail.read(start, end)


def test_an_append_that_is_not_small_is_held_as_it_came() -> None:
    data = bytes(OWN_CHUNK_BYTES)
    tail, _ = filled(SMALL, data, SMALL, SMALL, data[1:], data)
    assert [len(chunk.data) for chunk in tail.chunks] == [10, len(data), 19 + len(data), len(data)]
    assert tail.chunks[1].data is data
    assert tail.chunks[3].data is data


def test_a_sealed_chunk_is_not_copied() -> None:
    tail, _ = filled(LARGE, LARGE)
    assert [
        view.obj is chunk.data
        for view, chunk in zip(tail.views(5, 30_000), tail.chunks, strict=True)
    ] == [
        True,
        True,
    ]


def test_a_chunk_can_grow_while_its_bytes_are_being_sent() -> None:
    tail, data = filled(SMALL, SMALL)
    views = tail.views(0, len(data))
    for _ in range(CHUNK_BYTES_MAX // len(SMALL) + 1):
        tail.add(tail.end, SMALL, 0, 0)
    assert b"".join(views) == data
    assert tail.read(0, 30) == SMALL * 3
