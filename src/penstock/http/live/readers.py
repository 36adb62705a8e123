"""The live reads of a server by their principal: how many there may be, and when one ends, its
responses end with it.

Knows readers, principals and time; nothing of streams.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

from penstock.errors import LiveReadersFull, TooManyLiveReaders
from penstock.http.permission import principal_of
from penstock.http.rates import holder

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.config.settings import Settings
    from penstock.http.live.response import LiveReader
    from penstock.http.message import Request

SWEEP_S: Final = 0.5
"""Time between two looks for principals that have ended."""
SWEEP_READERS_MAX: Final = 500
"""How many readers of one principal are ended in one turn of the loop."""
RETRY_S: Final = 5
"""When to try again: live reads end after a minute at most."""


class _Reads:
    """The live reads of one principal, or of one address of those without credentials.

    The sets are weak: a response that never reaches its client is not counted for ever.
    """

    __slots__ = ("_all", "principal", "readers", "waiting")

    def __init__(self, principal: Principal, all_readers: WeakSet[LiveReader]) -> None:
        self.principal = principal
        self.readers: WeakSet[LiveReader] = WeakSet()
        self.waiting = 0
        self._all = all_readers

    def __len__(self) -> int:
        return len(self.readers) + self.waiting

    def discard(self, reader: LiveReader) -> None:
        self.readers.discard(reader)
        self._all.discard(reader)


class LiveReaders:
    """All live reads of a server: open responses, and long-polls that wait."""

    __slots__ = ("_all", "_by_holder", "_max", "_per_principal_max", "_timer", "_waiting")

    def __init__(self, settings: Settings) -> None:
        self._max = settings.live_readers_max
        self._per_principal_max = settings.live_readers_per_principal_max
        self._by_holder: dict[tuple[Principal, str | None], _Reads] = {}
        self._all: WeakSet[LiveReader] = WeakSet()  # empty unless there is a limit
        self._waiting = 0
        self._timer: asyncio.TimerHandle | None = None

    def add(self, request: Request, reader: LiveReader) -> None:
        """Count an open response until it ends; TooManyLiveReaders or LiveReadersFull if there are
        too many."""
        reads = self._admit(request)
        reads.readers.add(reader)
        if self._max:
            self._all.add(reader)
        reader.on_leave = reads.discard

    @contextmanager
    def waiting(self, request: Request) -> Iterator[None]:
        """Count a long-poll while it waits; TooManyLiveReaders or LiveReadersFull if there are too
        many."""
        reads = self._admit(request)
        reads.waiting += 1
        self._waiting += 1
        try:
            yield
        finally:
            reads.waiting -= 1
            self._waiting -= 1

    def count(self, principal: Principal) -> int:
        """Return the number of live reads of a principal."""
        return sum(len(reads) for key, reads in self._by_holder.items() if key[0] is principal)

    def finish(self) -> None:
        """End all open responses cleanly: their clients resume after the last message they have."""
        for reads in self._by_holder.values():
            for reader in list(reads.readers):
                reader.finish()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _admit(self, request: Request) -> _Reads:
        principal = principal_of(request)
        client = holder(principal, request.peer)
        if self._max and len(self._all) + self._waiting >= self._max:
            raise LiveReadersFull(
                f"The server has {self._max} live reads, as many as it takes (live_readers_max). "
                f"Retry in {RETRY_S} s, or read without live=.",
                Retry_After=str(RETRY_S),
            )
        reads = self._by_holder.get((principal, client))
        if reads is None:
            reads = self._by_holder[principal, client] = _Reads(principal, self._all)
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)
        most = self._per_principal_max
        if most and client is not None and len(reads) >= most:
            raise TooManyLiveReaders(
                f"{principal.name!r} has {most} live reads, as many as it may have at a time "
                f"(live_readers_per_principal_max). End one, or retry in {RETRY_S} s.",
                Retry_After=str(RETRY_S),
            )
        return reads

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now, pause_s = loop.time(), SWEEP_S
        for key, reads in list(self._by_holder.items()):
            if not len(reads):
                del self._by_holder[key]
            elif reads.principal.until_s <= now and reads.readers:
                for reader in list(reads.readers)[:SWEEP_READERS_MAX]:
                    reader.finish()
                    reads.discard(reader)
                pause_s = 0.0 if reads.readers else pause_s
        self._timer = loop.call_later(pause_s, self._sweep) if self._by_holder else None
