"""Both producers behind one blocking face, used from any thread, and transports that misbehave.

The asyncio objects live in a loop of their own that runs all the time, so that what they do in the
background goes on between two calls, as it does in the threads of the blocking producer.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

import penstock
from penstock.client.aio.producer import AsyncProducer
from penstock.client.aio.stream import AsyncStream

WAIT_S = 60.0  # for what has to happen: reached only if a test fails
PASS, LOSE_ANSWER, LOSE_REQUEST, REFUSE = "pass", "lose answer", "lose request", "refuse"
WRITTEN = "http11.send_request_body.complete"  # what httpx2 calls the moment a request has left


class Rule:
    """What a transport asks: what to do with a request. Blocking holds it back."""

    def verdict(self, request: httpx2.Request) -> str:
        return PASS

    def overtaken(self, request: httpx2.Request) -> threading.Event | None:
        """The request seems to have left, but arrives only when this is set."""
        return None

    def answered(self, request: httpx2.Request, status: int) -> None: ...


class Verdicts(Rule):
    """Only the verdict, from a function; requests other than POST are let through."""

    def __init__(self, function: Callable[[], str]) -> None:
        self._function = function

    def verdict(self, request: httpx2.Request) -> str:
        return self._function() if request.method == "POST" else PASS


class Face:
    """An asyncio object, called from outside its loop."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._target, name)
        return self._method(attribute) if callable(attribute) else attribute

    def __enter__(self) -> Face:
        return self

    def __exit__(self, *raised: Any) -> None:
        self._method(self._target.__aexit__)(*raised)

    def _method(self, function: Callable[..., Any]) -> Callable[..., Any]:
        async def run(*args: Any, **options: Any) -> Any:
            value = function(*args, **options)
            return await value if inspect.isawaitable(value) else value

        def call(*args: Any, **options: Any) -> Any:
            future = asyncio.run_coroutine_threadsafe(run(*args, **options), self._loop)
            value = future.result(WAIT_S)
            if isinstance(value, AsyncStream | AsyncProducer):
                return Face(value, self._loop)
            return value

        return call


Connect = Callable[..., Any]


@contextmanager
def connecting(shell: str) -> Iterator[Connect]:
    """A function that makes clients of the given kind; they are closed at the end."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    clients: list[Any] = []

    def connect(url: str, *, rule: Rule | None = None, **options: Any) -> Any:
        client: Any
        if shell == "sync":
            if rule is not None:
                options["transport"] = Faulty(rule)
            client = penstock.Client(url, **options)
        else:
            if rule is not None:
                options["transport"] = AsyncFaulty(rule)
            client = Face(penstock.AsyncClient(url, **options), loop)
        clients.append(client)
        return client

    try:
        yield connect
    finally:
        for client in clients:
            client.close()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class Faulty(httpx2.BaseTransport):
    """Passes requests on, or does what the rule says."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._inner = httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        verdict = self._rule.verdict(request)
        if verdict == REFUSE:
            return httpx2.Response(503)
        if verdict == LOSE_REQUEST:
            raise httpx2.WriteError("lost", request=request)
        if (event := self._rule.overtaken(request)) is not None:
            request.extensions["trace"](WRITTEN, {})
            event.wait(WAIT_S)
        response = self._inner.handle_request(request)
        self._rule.answered(request, response.status_code)
        if verdict == LOSE_ANSWER:
            response.read()
            raise httpx2.ReadError("lost", request=request)
        return response

    def close(self) -> None:
        self._inner.close()


class AsyncFaulty(httpx2.AsyncBaseTransport):
    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        verdict = await asyncio.to_thread(self._rule.verdict, request)
        if verdict == REFUSE:
            return httpx2.Response(503)
        if verdict == LOSE_REQUEST:
            raise httpx2.WriteError("lost", request=request)
        if (event := self._rule.overtaken(request)) is not None:
            await request.extensions["trace"](WRITTEN, {})
            await asyncio.to_thread(event.wait, WAIT_S)
        response = await self._inner.handle_async_request(request)
        self._rule.answered(request, response.status_code)
        if verdict == LOSE_ANSWER:
            await response.aread()
            raise httpx2.ReadError("lost", request=request)
        return response

    async def aclose(self) -> None:
        await self._inner.aclose()
