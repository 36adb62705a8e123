"""`GET /v1/cluster`: which nodes of a cluster live, and who owns which shard.

Read from the tables of the cluster, so that every node says the same. Nothing is stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

from penstock.access.rules import Verb
from penstock.config.settings import Settings
from penstock.errors import ClusterNotFound, ClusterRefused, ClusterUnavailable
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.documents import document
from penstock.http.endpoint import on_server, readable
from penstock.http.message import Request, Response

KEPT_S: Final = 1.0
"""However many ask, the tables are read once in so long."""


async def read_state(settings: Settings) -> dict[str, Any]:
    """Return the state of the cluster; ClusterUnavailable if PostgreSQL does not tell."""
    from penstock.log.cluster.status import read_status  # with asyncpg: servers without it start

    try:
        return await read_status(settings, count_streams=False)
    except ClusterRefused as error:
        raise ClusterUnavailable(error.detail, Retry_After="1") from None


class ClusterDialect(Dialect):
    def __init__(
        self,
        services: Services,
        *,
        read: Callable[[Settings], Awaitable[dict[str, Any]]] = read_state,
    ) -> None:
        self._settings = services.settings
        self._read = read
        self._reading: asyncio.Future[dict[str, Any]] | None = None
        self._begun_s = 0.0

    def routes(self) -> Routes:
        get = on_server(Verb.READ, "metrics", self.get)
        return Routes(fixed={b"/v1/cluster": readable(get)})

    def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()

    async def get(self, path: str, request: Request) -> Response:
        if self._settings.cluster is None:
            raise ClusterNotFound(
                "This server is not a node of a cluster: it was started without --cluster."
            )
        return document(await asyncio.shield(self._state()))

    def _state(self) -> asyncio.Future[dict[str, Any]]:
        """Return what is being read, or was a moment ago: one reader is enough for all."""
        now_s = asyncio.get_running_loop().time()
        reading = self._reading
        if reading is None or (reading.done() and now_s - self._begun_s >= KEPT_S):
            reading = self._reading = asyncio.ensure_future(self._read(self._settings))
            reading.add_done_callback(_retrieve)
            self._begun_s = now_s
        return reading


def _retrieve(reading: asyncio.Future[dict[str, Any]]) -> None:
    """Look at an error that nobody may wait for any more."""
    if not reading.cancelled():
        reading.exception()
