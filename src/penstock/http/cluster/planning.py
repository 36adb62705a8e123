"""Plans for nodes that read old bytes themselves: what a response to them has in place of a body
that is large enough.

Runs on the owner, which has decided about the response: who may read, from where to where, and what
its headers say.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from penstock.errors import Damaged
from penstock.http.bodies import LogBody
from penstock.http.forwarding.plans import (
    BLOCK_BYTES,
    HEADER,
    Fresh,
    InExtent,
    Inline,
    Plan,
    encode_plan,
)
from penstock.http.message import Response
from penstock.log.cluster.extents import places

if TYPE_CHECKING:
    from penstock.log.engine import Engine

PLANNED_BYTES_MIN: Final = 256 * 1024
"""Bodies of which a node could read fewer bytes itself are sent whole."""


def planned(response: Response, engine: Engine, shard: str) -> Response:
    """Return a response with a plan in place of its body; as it is if that is not worth it."""
    body = response.body
    if not isinstance(body, LogBody) or body.length < PLANNED_BYTES_MIN:
        return response
    stream, start, end = body.range
    parts: list[InExtent | Fresh | Inline] = []
    inline: list[bytes] = []

    def send(data: bytes | None) -> None:
        assert data is not None  # in memory
        if data:
            inline.append(data)
            parts.append(Inline(len(data)))

    if stream.is_json:
        send(b"[")
    try:
        where = places(stream, start, end)
    except Damaged:
        return response  # Whoever reads the body finds out why.
    for place in where:
        if place.info is not None:
            base = place.info.base
            low, high = place.start - base, place.end - base
            parts.append(InExtent(place.stream_id, place.info, low, high))
            continue
        first = min(-(-place.start // BLOCK_BYTES) * BLOCK_BYTES, place.end)
        last = max(place.end // BLOCK_BYTES * BLOCK_BYTES, first)
        send(engine.read_now(stream, place.start, first))
        if last > first:
            parts.append(Fresh(place.stream_id, first, last))
        send(engine.read_now(stream, last, place.end))
    if stream.is_json:
        send(b"]")
    if body.length - sum(map(len, inline)) < PLANNED_BYTES_MIN:
        return response
    body.close()
    plan = Plan(shard, stream.path, stream.id, body.length, parts)
    headers = [*response.headers, (HEADER, b"1")]
    return Response(response.status, headers, encode_plan(plan, inline))
