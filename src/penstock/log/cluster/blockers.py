"""Sessions that keep a shard from being claimed: a node that is frozen or cut off in a transaction
holds its locks. PostgreSQL ends a session that is idle in one; not one whose client has sent a part
of a statement and owes the rest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

from penstock.errors import ClusterRefused
from penstock.log.cluster.database import OutcomeUnknown, Refused, Session

log = logging.getLogger("penstock.log")

PATIENCE_S: Final = 0.5
"""So long a claim waits for a transaction that waits for its client."""
PID: Final = "SELECT pg_backend_pid()"
END: Final = """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE pid = ANY(pg_blocking_pids($1)) AND usename = current_user AND wait_event = 'ClientRead'
AND state_change < clock_timestamp() - make_interval(secs => $2)"""


@asynccontextmanager
async def ending_blockers(
    session: Session, open_session: Callable[[], Awaitable[Session]]
) -> AsyncIterator[None]:
    """While a session claims a shard, end those that it waits for and that wait for a node: the
    node was silent before, or the shard could not be claimed. What waits for a standby goes on."""
    pid = (await session.fetch(PID))[0][0]
    watching = asyncio.create_task(_watch(pid, open_session))
    try:
        yield
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


async def _watch(pid: int, open_session: Callable[[], Awaitable[Session]]) -> None:
    while True:
        await asyncio.sleep(PATIENCE_S)
        # Not from the pool: claims of other shards may wait there, too.
        with contextlib.suppress(OutcomeUnknown, Refused, ClusterRefused):
            session = await open_session()
            try:
                ended = await session.fetch(END, pid, PATIENCE_S)
            finally:
                session.abort()
            if ended:
                log.warning(
                    "A shard could not be claimed: a silent node has a transaction there. It was "
                    "ended."
                )
