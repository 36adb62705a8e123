"""All recordings of a server: those that are going on, and those that a crash has interrupted.

A stream of the server's own has the paths of recordings that have begun and not ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from penstock.errors import Overloaded, PenstockError, ShuttingDown, StreamExists, StreamNotFound
from penstock.http.proxy.recording import (
    ENDED,
    Call,
    Record,
    Recording,
    check_free,
    close_as,
    record_of,
)
from penstock.log.system_stream import SystemStream

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.log.engine import Engine
    from penstock.log.requests import Proposal

PATH: Final = "__ds/proxy"
EVENTS_MAX: Final = 512
"""After so many events the stream is trimmed, as soon as nothing is going on."""

log = logging.getLogger("penstock.proxy")


class Recordings:
    endings = ENDED

    def __init__(self, engine: Engine, settings: Settings, egress: Egress) -> None:
        self._engine = engine
        self._settings = settings
        self._egress = egress
        self._stream = SystemStream(engine, PATH)
        self._running: dict[str, Recording] = {}
        self._events = 0
        self.ended: Counter[str] = Counter()
        """The number of recordings of this run by how they ended."""
        self._is_draining = False
        self._recovery: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Close what a crash has left open."""
        if self._stream.exists:
            self._recovery = asyncio.get_running_loop().create_task(self._recover())

    @property
    def running_count(self) -> int:
        return len(self._running)

    def record(self, path: str) -> Record | None:
        """Return what is stored of the recording at a path; None if there is none."""
        try:
            return record_of(self._engine.find(path, touch=False))
        except StreamNotFound:
            return None

    async def call(self, call: Call) -> Record:
        """Return the response to a call as far as it is known with its head: of one that is going
        on, of one that was recorded before, or of a new one."""
        running = self._running.get(call.path)
        if running is None:
            record = self.record(call.path)
            if record is not None:
                _check_same(call, record.id, record.digest)
                return record
            running = self._begin(call)
        else:
            _check_same(call, running.call.id, running.call.digest)
        return await asyncio.shield(running.head)

    async def abort(self, path: str) -> None:
        """End the call that is recorded at a path, if it is going on."""
        running = self._running.get(path)
        if running is not None:
            await running.end("aborted")

    def drain(self) -> None:
        """The server stops: end all calls."""
        self._is_draining = True
        for running in list(self._running.values()):
            running.end_soon("interrupted")

    def close(self) -> None:
        if self._recovery is not None:
            self._recovery.cancel()

    def check(self, proposal: Proposal) -> None:
        """Refuse appends of others to a stream that is being recorded."""
        if not proposal.is_by_server:
            raise StreamExists(
                f"The stream at {proposal.stream.path!r} is a recording, and written by the proxy "
                "alone."
            )

    def _begin(self, call: Call) -> Recording:
        if self._is_draining:
            raise ShuttingDown("The server is stopping; retry shortly.")
        if len(self._running) >= self._settings.proxy_calls_max:
            raise Overloaded(
                "Too many calls of upstreams are going on (proxy_calls_max); retry later.",
                Retry_After="1",
            )
        check_free(self._engine, call.path)
        self._running[call.path] = running = Recording(
            call,
            self._engine,
            self._settings,
            self._egress,
            opening=self._opening,
            ended=self._ended,
        )
        return running

    async def _opening(self, running: Recording) -> None:
        await self._stream.ensure()
        await self._stream.write([{"begin": running.call.path}])
        self._events += 1

    def _ended(self, running: Recording) -> None:
        self._running.pop(running.call.path, None)
        self.ended[running.state] += 1
        if self._stream.exists and not self._is_draining:
            self._forget([running.call.path])

    def _forget(self, paths: Iterable[str]) -> None:
        written = self._stream.write([{"end": path} for path in paths])
        written.add_done_callback(lambda done: done.cancelled() or done.exception())
        self._events += 1
        if self._events >= EVENTS_MAX and not self._running:
            stream = self._stream.find()
            self._events = 0
            trimming = self._engine.trim(PATH, self._engine.token(stream, stream.tail))
            trimming.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _recover(self) -> None:
        """Close the streams of recordings that were going on when the server was killed."""
        left: dict[str, None] = {}
        try:
            async for events in self._stream.pieces():
                for event in events:
                    if "begin" in event:
                        left[event["begin"]] = None
                    else:
                        left.pop(event["end"], None)
            paths = [path for path in left if path not in self._running]
            for path in paths:
                await self._interrupt(path)
            if paths:
                self._forget(paths)
        except PenstockError as error:
            log.error("recordings that were interrupted stay open: %s", error)

    async def _interrupt(self, path: str) -> None:
        try:
            stream = self._engine.find(path, touch=False)
            record = record_of(stream)
            if record is not None and not stream.closed:
                await asyncio.gather(*close_as(self._engine, path, record, "interrupted"))
                log.warning("the recording at %r was interrupted by the end of the server", path)
        except StreamNotFound:
            pass


def _check_same(call: Call, id: str, digest: str) -> None:
    if call.id != id:
        raise StreamExists(
            f"Another response is recorded at {call.path!r}. To get it again, send the "
            "Idempotency-Key of its request; to record another, use another path."
        )
    if call.digest != digest:
        raise StreamExists(
            f"The request with this Idempotency-Key, whose response is at {call.path!r}, had "
            "another URL or body."
        )
