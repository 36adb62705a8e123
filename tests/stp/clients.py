"""Tables of both clients behind one blocking face, so that each test is written once."""

from __future__ import annotations

from typing import Any

from penstock import AsyncClient, Retry
from penstock.stp import AsyncNotifier, AsyncTable, Notifier, Table
from tests.client.driver import Blocking

QUICK = Retry(first_s=0.001, max_s=0.01)


def table_of(client: Any, path_or_url: str, **options: Any) -> Any:
    """The table, of the kind that belongs to the client."""
    if isinstance(client, Blocking):
        table = AsyncTable(_target(client), path_or_url, **options)
        return Blocking(table, client._runner)
    return Table(client, path_or_url, **options)


def notifier_of(client: Any) -> Any:
    if isinstance(client, Blocking):
        return Blocking(AsyncNotifier(_target(client)), client._runner)
    return Notifier(client)


def _target(client: Blocking) -> AsyncClient:
    target = client._target
    assert isinstance(target, AsyncClient)
    return target
