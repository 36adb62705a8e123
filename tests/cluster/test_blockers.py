"""A node that is silent in the middle of a transaction does not keep others from its shards."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from penstock.config.settings import Settings
from penstock.log.cluster import database, schema, slots
from penstock.log.cluster.database import Database, Session, Sessions
from penstock.log.cluster.node import Holding, Node
from tests.cluster.faults import behind
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.tcp_proxy import DOWN, TcpProxy, tcp_proxy

pytestmark = [*ON_POSTGRES, pytest.mark.anyio]
HALF = "SELECT 'half', $1::int"


def _settings(dsn: str) -> Settings:
    return Settings(cluster=dsn, cluster_durability="single", cluster_node="another")


async def _between_statements(proxy: TcpProxy, session: Session) -> None:
    proxy.cut()


async def _within_a_statement(proxy: TcpProxy, session: Session) -> None:
    """Send the text of a statement, and never its values: no time limit of PostgreSQL ends that."""
    proxy.cut(DOWN)
    sending = asyncio.ensure_future(session.fetch(HALF, 1))
    sending.add_done_callback(lambda done: done.exception())
    await asyncio.sleep(0)  # it is sent


@pytest.mark.parametrize("be_silent", [_between_statements, _within_a_statement])
async def test_a_shard_is_claimed_from_a_node_that_is_silent_in_a_transaction(
    be_silent: Callable[[TcpProxy, Session], Awaitable[None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = shared()
    dsn = server.fresh_database()
    with ExitStack() as stack:
        proxy = stack.enter_context(tcp_proxy("127.0.0.1", server.port))
        silent = await Database(_settings(behind(proxy, dsn, server))).open()
        stack.callback(silent.abort)
        await schema.prepare(silent, "penstock", 1)
        claim = await slots.claim(silent, 0, "silent")
        assert claim is not None
        transaction = silent.transaction()  # one that nobody holds would be rolled back
        await transaction.__aenter__()
        await slots.barrier(silent, claim.epoch)  # it has the lock that a checkpoint has
        await be_silent(proxy, silent)

        # Less than the silent one waits before it gives up: one that is frozen never does.
        monkeypatch.setattr(database, "STATEMENT_TIMEOUT_S", 5.0)
        node = Node(_settings(dsn))
        sessions = Sessions(node.open_session, size=1)
        stack.callback(sessions.close)
        stack.callback(node.end_watching)
        await node.look()
        claimed = await Holding(node, 0, sessions).try_claim(lambda reason: None)
        assert claimed is not None
        assert claimed.epoch == claim.epoch + 1
