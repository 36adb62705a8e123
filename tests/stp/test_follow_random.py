"""Following a source that does everything a server may do, and some things it may not: the mirror
ends with its state, whatever came in between.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing

import pytest

from penstock.stp.folding import fold
from penstock.stp.rows import Row, format_row
from tests.egress.scripted import Scripted
from tests.stp.nodes import node, run, until
from tests.stp.sources import STREAM, Source, chunk, once

ROWS = 300
KEYS = 12


class Unruly(Source):
    """Sends what is after `since_id`, and before it, in pieces, cut anywhere, or nothing at all."""

    def __init__(self, log: list[Row], chance: random.Random) -> None:
        Scripted.__init__(self, (), holds=False)
        self._log = log
        self._chance = chance

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        except (ConnectionError, asyncio.IncompleteReadError):  # the follower has been stopped
            writer.close()
            return
        chance = self._chance
        since = self.asked[-1] - chance.choice([0, 0, 3, 1000])  # some repeat what was sent
        rows = [row for row in self._log if row.seqno > since][: chance.randrange(1, 60)]
        body = b"".join(map(format_row, rows))
        if chance.random() < 0.3:
            body = body.replace(b"\n", b"\r\n")
        mischief = chance.randrange(6)
        if mischief == 0:
            answer = once(status=503)
        elif mischief == 1:
            answer = once(body[: chance.randrange(len(body) + 1)])  # a cut line, said to be whole
        elif mischief == 2:
            whole = once(body)
            answer = whole[: chance.randrange(len(whole))]  # a connection that breaks
        elif mischief == 3:
            middle = chance.randrange(len(body) + 1)
            answer = STREAM + b"".join(map(chunk, filter(None, (body[:middle], body[middle:]))))
            answer += b"0\r\n\r\n" if chance.random() < 0.5 else b""
        else:
            answer = once(body)
        writer.write(answer)
        writer.close()


@pytest.mark.parametrize("seed", range(6))
def test_the_mirror_ends_with_the_state_of_its_source(seed: int) -> None:
    chance = random.Random(seed)
    log: list[Row] = []
    seqno = 0
    for number in range(ROWS):
        seqno += chance.choice([1, 1, 1, 7])  # gaps are legal
        time = f"2026-01-08T00:{number // 60:02}:{number % 60:02}Z"
        key = f"k{chance.randrange(KEYS)}"
        if chance.random() < 0.3:
            log.append(Row(seqno, time, "-", key))
        else:
            log.append(Row(seqno, time, "+", key, f"é\u2028 {chance.randrange(4)}"))

    @run
    async def test() -> None:
        unruly = Unruly(log, chance)
        unruly._server = await asyncio.start_server(unruly.accept, "127.0.0.1", 0)
        async with aclosing(unruly), node(follow_retry_s=0.001, follow_poll_s=0.001) as hub:
            await hub.follow("m", unruly.surl)
            await until(lambda: hub.status("m").seqno == log[-1].seqno)
            state = (await hub.client.get("/v1/state/m")).json()["types"].get("s", {})
            assert state == {key: row.record for key, row in fold(log).items()}
            assert hub.status("m").conflicts == 0
            # Those that changed something, in their order, with their times, and no others.
            got = await hub.client.get("/v1/table/m?timeout=0")
            assert [line.split("\t")[1:] for line in got.content.decode().split("\n")[:-1]] == [
                [row.timestamp, row.action, row.key, row.record] for row in _changes(log)
            ]

    test()


def _changes(log: list[Row]) -> list[Row]:
    known: dict[str, str | None] = {}
    changes = []
    for row in log:
        record = row.record if row.action == "+" else None
        if known.get(row.key) != record:
            known[row.key] = record
            changes.append(row)
    return changes
