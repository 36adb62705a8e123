"""Servers for the tests of Notify and following: in this loop, or as processes of their own.

async with node() as hub:
    await hub.table("endpoints")
    await hub.until(lambda: hub.app.hub.notifier.sent == 1)
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import uvloop

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.http.native.server import Server, listen
from penstock.log import open_engine
from penstock.stp.server.follower import Status

FORM = {"content-type": "application/x-www-form-urlencoded"}
TIMEOUT_S = 20


class Node:
    """A server whose insides can be looked at, and a client of it."""

    def __init__(self, app: App, url: str, client: httpx.AsyncClient) -> None:
        self.app = app
        self.url = url
        self.client = client

    def surl(self, table: str) -> str:
        return f"{self.url}/v1/table/{table}"

    def nurl(self, name: str) -> str:
        return f"{self.url}/v1/notify/{name}"

    async def table(self, path: str, *lines: str, schema: str = "endpoint_manifest") -> None:
        """Declare a table, and write rows such as `+ key record` to it."""
        declared = await self.client.put(f"/v1/table/{path}", json={"schema": schema})
        assert declared.status_code in (200, 201), declared.text
        if lines:
            await self.write(path, *lines)

    async def write(self, path: str, *lines: str) -> None:
        body = "".join("\t".join(line.split(" ", 2)) + "\n" for line in lines)
        answer = await self.client.post(f"/v1/table/{path}", content=body.encode())
        assert answer.status_code == 204, answer.text

    async def rows(self, path: str) -> list[list[str]]:
        """The rows of a table as fields, without SeqNo and time."""
        answer = await self.client.get(f"/v1/table/{path}?timeout=0")
        if answer.status_code == 404:
            return []
        assert answer.status_code == 200, answer.text
        return [line.split("\t")[2:] for line in answer.text.splitlines()]

    async def notify(self, name: str, **fields: str) -> httpx.Response:
        return await self.client.post(f"/v1/notify/{name}", data=fields)

    async def follow(self, path: str, surl: str, **more: Any) -> httpx.Response:
        return await self.client.put(f"/v1/follow/{path}", json={"surl": surl, **more})

    def status(self, path: str) -> Status:
        return self.app.hub.mirrors.followers[path].status

    async def registry(self) -> dict[str, Any]:
        answer = await self.client.get("/v1/state/__stp/registry")
        assert answer.status_code == 200, answer.text
        types: dict[str, Any] = answer.json()["types"]
        return types


@contextlib.asynccontextmanager
async def node(*, clock: Clock = SYSTEM_CLOCK, **settings: Any) -> AsyncIterator[Node]:
    """A server in memory unless a `data_dir` is given, in development mode, quick to try again."""
    where = {} if "data_dir" in settings else {"memory": True}
    quick = {"notify_retry_s": 0.01, "follow_retry_s": 0.01, "follow_poll_s": 0.02}
    plain = {"port": 0, "development": True, "table_idle_s": 0.2, "shutdown_timeout_s": 1}
    chosen = Settings(**{**plain, **quick, **where, **settings})
    with contextlib.closing(listen(chosen.host, chosen.port)) as listening:
        engine = open_engine(chosen, clock=clock)
        await engine.start()
        app = App(engine, chosen, clock=clock)
        server = Server(app, chosen)
        try:
            url = await server.start(listening)
            async with httpx.AsyncClient(base_url=url, timeout=TIMEOUT_S, verify=False) as client:
                yield Node(app, url, client)
        finally:
            app.drain()
            await server.stop()
            app.close()
            await engine.stop()


async def until(condition: Callable[[], object | Awaitable[object]]) -> None:
    """Let everything go on until the condition is true."""
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            met = condition()
            if isinstance(met, Awaitable):
                met = await met
            if met:
                return
            await asyncio.sleep(0)


def run(test: Callable[[], Awaitable[None]]) -> Callable[[], None]:
    """Make a plain test of an async one."""

    def plain() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:  # as the server does
            runner.run(asyncio.wait_for(test(), 3 * TIMEOUT_S))

    plain.__name__ = getattr(test, "__name__", "test")
    plain.__doc__ = test.__doc__
    return plain
