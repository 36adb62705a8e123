"""The open live responses by their principal: when one ends, its responses end with it.

Knows readers, principals and time; nothing of streams.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final
from weakref import WeakSet

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.http.live.response import LiveReader

SWEEP_S: Final = 0.5
"""Time between two looks for principals that have ended."""
SWEEP_READERS_MAX: Final = 500
"""How many readers of one principal are ended in one turn of the loop."""


class LiveReaders:
    """All live responses of a server.

    The sets are weak: a response that never reaches its client is not counted for ever.
    """

    __slots__ = ("_by_principal", "_timer")

    def __init__(self) -> None:
        self._by_principal: dict[Principal, WeakSet[LiveReader]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, principal: Principal, reader: LiveReader) -> None:
        readers = self._by_principal.get(principal)
        if readers is None:
            readers = self._by_principal[principal] = WeakSet()
        readers.add(reader)
        reader.on_leave = readers.discard
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SWEEP_S, self._sweep)

    def count(self, principal: Principal) -> int:
        """Return the number of open responses of a principal."""
        return len(self._by_principal.get(principal, ()))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        now, pause_s = loop.time(), SWEEP_S
        for principal, readers in list(self._by_principal.items()):
            if not readers:
                del self._by_principal[principal]
            elif principal.until_s <= now:
                for reader in list(readers)[:SWEEP_READERS_MAX]:
                    reader.finish()
                    readers.discard(reader)
                pause_s = 0.0 if readers else pause_s
        self._timer = loop.call_later(pause_s, self._sweep) if self._by_principal else None
