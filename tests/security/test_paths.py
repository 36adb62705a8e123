"""Paths that try to leave their place are refused by the real App; the rest stay apart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.log import open_engine
from tests.http.wire import Native, get, native, on_loop, post


@asynccontextmanager
async def real() -> AsyncIterator[Native]:
    settings = Settings(memory=True)
    engine = open_engine(settings)
    await engine.start()
    app = App(engine, settings)
    try:
        async with native(app) as server:
            yield server
    finally:
        app.close()
        await engine.stop()


def put(path: str, *headers: str) -> bytes:
    headers = headers or ("Content-Type: application/json",)
    return post(path, b"", *headers).replace(b"POST", b"PUT", 1)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "..",
        "a/../b",
        "../../etc/passwd",
        "a/..",
        "./a",
        "a/./b",
        "%2e%2e/a",
        "a/%2E%2e/b",
        "a/.%2e",
        "a//b",
        "/a",
        "a/",
        "a%00b",
        "a%0d%0aSet-Cookie:x",
        "a%1f",
        "a%7f",
        "a%",
        "a%zz",
        "a%4",
        "a" * 2000,
    ],
)
@on_loop
async def test_path_is_refused(path: str) -> None:
    async with real() as server:
        client = await server.connect()
        for request in (put(f"/v1/stream/{path}"), get(f"/v1/stream/{path}")):
            answer = await client.ask(request)
            assert answer.status == 400 or (path == "" and answer.status in (400, 404))
            assert answer.headers["content-type"] == "application/problem+json"
            assert "set-cookie" not in answer.headers


@on_loop
async def test_encoded_and_plain_paths_are_different_streams() -> None:
    async with real() as server:
        client = await server.connect()
        for path in ("a/b", "a%2Fb", "a%252Fb", "a%5Cb", "...", "a/...b", "%25"):
            assert (await client.ask(put(f"/v1/stream/{path}"))).status == 201
        # The same stream however its unreserved characters and hex digits are written.
        assert (await client.ask(put("/v1/stream/%61%2fb"))).status == 200


@pytest.mark.parametrize(
    "header",
    [
        "Content-Type: text/plain\tx",
        "Content-Type: text/plain; a=\xe9\x85",
        "Content-Type: text/plain, text/html",
        "Content-Type: nonsense",
    ],
)
@on_loop
async def test_content_type_that_cannot_be_echoed_safely_is_refused(header: str) -> None:
    async with real() as server:
        client = await server.connect()
        answer = await client.ask(put("/v1/stream/a", header))
        assert answer.status == 400
        assert (await client.ask(get("/v1/stream/a"))).status == 404


@on_loop
async def test_what_is_echoed_is_one_header() -> None:
    async with real() as server:
        client = await server.connect()
        assert (
            await client.ask(put("/v1/stream/a", "Content-Type: text/plain; x=y"))
        ).status == 201
        answer = await client.ask(get("/v1/stream/a?offset=-1"))
        assert answer.headers["content-type"] == "text/plain; x=y"
        for junk in ("a%0d%0aX-Own:%201", "%00", "-1%0aX:%201"):
            for request in (f"/v1/stream/a?offset={junk}", f"/v1/stream/a?offset=-1&{junk}=1"):
                answer = await client.ask(get(request))
                assert not {"x-own", "x"} & set(answer.headers)
            await client.send(get(f"/v1/stream/a?offset=now&live=sse&cursor={junk}&{junk}"))
            assert not {"x-own", "x"} & set((await client.head()).headers)
            client = await server.connect()
