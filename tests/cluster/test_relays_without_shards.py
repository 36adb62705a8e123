"""A live read that a relay was to answer, at a node that has lost its last shard meanwhile."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from penstock.config.settings import Settings
from penstock.http.cluster.relays import Relays
from penstock.http.message import Request, Response


def test_a_live_read_is_forwarded_if_the_last_shard_has_left_before_it_begins() -> None:
    forwarded: list[Request] = []

    async def forward(request: Request) -> Response:
        forwarded.append(request)
        return Response(204)

    shards: Any = SimpleNamespace(hosts={0: object()})
    front: Any = SimpleNamespace(forward=forward, forwarder=None)
    node: Any = SimpleNamespace()
    relays = Relays(node, shards, front, Settings())
    request = Request(method="GET", path=b"/v1/stream/a", query=b"offset=now&live=sse")
    assert relays.takes(request)
    reading = relays.answer(request)
    shards.hosts.clear()
    assert asyncio.run(reading).status == 204
    assert forwarded == [request]
