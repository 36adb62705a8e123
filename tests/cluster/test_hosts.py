"""The URL of a cluster names several servers: one that takes writes is found among those that hang,
refuse, or are gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from penstock.config.settings import Settings
from penstock.log.cluster.database import Database, OutcomeUnknown
from tests.helpers.postgres import ON_POSTGRES, shared

pytestmark = list(ON_POSTGRES)


@pytest.fixture
def silent() -> Iterator[str]:
    """A server that takes connections and never says a word, such as one that is frozen."""
    with ExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _gone() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def _opened(dsn: str) -> int:
    """Open a session; return which server it is with."""

    async def open_one() -> int:
        database = Database(Settings(cluster=dsn, cluster_durability="single"))
        session = await database.open()
        try:
            ((port,),) = await session.fetch("SELECT inet_server_port()")
            return int(port)
        finally:
            session.abort()

    return asyncio.run(open_one())


@pytest.mark.parametrize("order", ["shg", "ghs", "gsh", "hsg", "ssh"])
def test_a_server_that_hangs_does_not_hide_the_others(silent: str, order: str) -> None:
    server = shared()
    here = f"127.0.0.1:{server.port}"
    hosts = {"s": silent, "g": _gone(), "h": here}
    named = ",".join(hosts[each] for each in order)
    assert _opened(server.fresh_database().replace(here, named)) == server.port


def test_none_of_them_is_there() -> None:
    with pytest.raises(OutcomeUnknown, match="cannot be reached"):
        _opened(f"postgresql://penstock@{_gone()},{_gone()}/streams")
