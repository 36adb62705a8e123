"""/v1/cluster: what it says where there is none, and how often the tables are read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from penstock.config.settings import Settings
from penstock.errors import ClusterUnavailable
from penstock.http.cluster_state import KEPT_S, ClusterDialect, read_state
from penstock.http.message import Response
from tests.helpers.app import Client, make_request, with_app

NODE = Settings(cluster="postgresql://penstock@127.0.0.1:1/streams")
TARGET = "/v1/cluster"


class Tables:
    """The tables of a cluster, which count how often they are read."""

    def __init__(self) -> None:
        self.readings = 0
        self.answer = asyncio.Event()
        self.error: Exception | None = None

    async def read(self, settings: Settings) -> dict[str, Any]:
        self.readings += 1
        await self.answer.wait()
        if self.error is not None:
            raise self.error
        return {"readings": self.readings}


class OfNode:
    """Services of a node; the dialect asks for nothing but its settings."""

    settings = NODE


def ask(dialect: ClusterDialect) -> asyncio.Task[Response]:
    return asyncio.create_task(dialect.get("", make_request("GET", TARGET)))


@with_app()
async def test_a_server_that_is_no_node_says_so(client: Client) -> None:
    answer = await client.send("GET", TARGET)
    assert answer.status == 404
    assert answer.json()["code"] == "cluster-not-found"
    page = await client.send("GET", "/console")
    assert b'<meta name="penstock-cluster" content="">' in page.body


async def _many_are_answered_by_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables()
    dialect = ClusterDialect(OfNode(), read=tables.read)  # type: ignore[arg-type]  # has settings
    first, gone, last = (ask(dialect) for _ in range(3))
    await asyncio.sleep(0)
    gone.cancel()  # who waits for the same reading does not notice
    tables.answer.set()
    bodies = {(await first).body, (await last).body, (await ask(dialect)).body}
    assert bodies == {b'{"readings":1}'}
    later = asyncio.get_running_loop().time() + KEPT_S
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later)
    assert (await ask(dialect)).body == b'{"readings":2}'


def test_many_are_answered_by_one_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_many_are_answered_by_one_reading(monkeypatch))


async def _a_failure_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = Tables()
    dialect = ClusterDialect(OfNode(), read=tables.read)  # type: ignore[arg-type]  # has settings
    tables.error = ClusterUnavailable("PostgreSQL does not answer.")
    tables.answer.set()
    with pytest.raises(ClusterUnavailable):
        await ask(dialect)
    tables.error = None
    later = asyncio.get_running_loop().time() + KEPT_S
    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: later)
    assert (await ask(dialect)).status == 200


def test_a_failure_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncio.run(_a_failure_is_forgotten(monkeypatch))


def test_a_database_that_does_not_answer_is_a_503_that_says_so() -> None:
    pytest.importorskip("asyncpg")
    with pytest.raises(ClusterUnavailable, match=r"127\.0\.0\.1:1/streams cannot be reached"):
        asyncio.run(read_state(NODE))
