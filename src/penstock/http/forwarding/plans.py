"""The plan of a large body: which bytes a node reads itself, and those that the owner has sent.

Pure. The owner has decided about everything else of the response: its plan stands for a range of
durable bytes, which never change.
"""

from __future__ import annotations

from struct import Struct
from typing import Final

import msgspec

from penstock.http.message import Headers, Response
from penstock.log.disk.segment import SegmentInfo

HEADER: Final = b"penstock-plan"
"""The header of a response whose body is a plan."""
BLOCK_BYTES: Final = 16 * 1024
"""Bytes that are in no extent yet are kept by nodes in blocks: of this size, or of the larger ones
below, at multiples of their size. Others come with the plan."""
_BLOCK_SIZES: Final = (1024 * 1024, 256 * 1024, 64 * 1024, BLOCK_BYTES)

_LENGTH: Final = Struct(">I")


class InExtent(msgspec.Struct, frozen=True, array_like=True, tag="e"):
    """Bytes from `low` to `high` of an extent, as the owner knows it."""

    stream_id: int
    info: SegmentInfo
    low: int
    high: int


class Fresh(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Bytes that are in no extent yet, by their positions: multiples of BLOCK_BYTES."""

    stream_id: int
    start: int
    end: int


class Inline(msgspec.Struct, frozen=True, array_like=True, tag="i"):
    """Bytes that come with the plan."""

    size: int


class Plan(msgspec.Struct, frozen=True):
    """A body of `length` bytes. `shard`, `path` and `id` name the stream at its owner."""

    shard: str
    path: str
    id: int
    length: int
    parts: list[InExtent | Fresh | Inline]


_ENCODER: Final = msgspec.msgpack.Encoder()
_DECODER: Final = msgspec.msgpack.Decoder(Plan)


def encode_plan(plan: Plan, inline: list[bytes]) -> bytes:
    content = _ENCODER.encode(plan)
    return b"".join((_LENGTH.pack(len(content)), content, *inline))


def decode_plan(data: bytes) -> tuple[Plan, memoryview]:
    """Return a plan and the bytes that came with it; ValueError if it is none."""
    try:
        start = _LENGTH.size + _LENGTH.unpack_from(data)[0]
        plan = _DECODER.decode(memoryview(data)[_LENGTH.size : start])
    except (ValueError, OverflowError) as error:
        raise ValueError("no plan") from error
    inline = memoryview(data)[start:]
    if sum(each.size for each in plan.parts if isinstance(each, Inline)) != len(inline):
        raise ValueError("no plan: its bytes are missing")
    return plan, inline


def blocks(start: int, end: int) -> list[tuple[int, int]]:
    """Return the largest blocks that make [start, end), both multiples of BLOCK_BYTES: readers from
    different offsets share them."""
    result = []
    while start < end:
        size = next(each for each in _BLOCK_SIZES if start % each == 0 and start + each <= end)
        result.append((start, start + size))
        start += size
    return result


def is_planned(response: Response) -> bool:
    return response.status == 200 and any(name == HEADER for name, _ in response.headers)


def without_plan(headers: Headers) -> Headers:
    return [each for each in headers if each[0] != HEADER]
