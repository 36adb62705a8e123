"""Links to forks that live with a peer: what is durable of them is what memory has."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.http.forwarding import path_links
from penstock.http.forwarding.path_links import GUEST, LINK, PathLinks
from tests.unit.log.bench import Bench, with_bench


class Held:
    """Holds the answers to the writes of one path back."""

    def __init__(self, links: PathLinks, path: str) -> None:
        stream = links._stream
        self._write = stream.write
        self._path = path
        self.is_written = asyncio.Event()
        self.may_go_on = asyncio.Event()
        stream.write = self.write  # type: ignore[method-assign]

    def write(self, events: list[Any], **options: Any) -> Any:
        answer = self._write(events, **options)
        return self._later(answer) if events[0]["key"] == self._path else answer

    async def _later(self, answer: Any) -> Any:
        await answer
        self.is_written.set()
        await self.may_go_on.wait()


@with_bench()
async def test_a_link_that_is_being_written_is_not_lost_when_the_stream_begins_anew(
    bench: Bench,
) -> None:
    for kind in (LINK, GUEST):
        links = PathLinks(bench.engine)
        await links.set(kind, "ending", "peer")
        held = Held(links, "a")
        writing = asyncio.create_task(links.set(kind, "a", "peer"))
        await held.is_written.wait()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(path_links, "REWRITE_ROWS", -100)
            await links.set(kind, "b", "peer")
        held.may_go_on.set()
        await writing
        await links.set(kind, "ending", None)
        loaded = PathLinks(bench.engine)
        await loaded.load()
        assert loaded._table(kind) == links._table(kind) == {"a": "peer", "b": "peer"}
