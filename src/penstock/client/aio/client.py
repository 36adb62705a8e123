"""The asyncio client: runs the flows on httpx2."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import httpx2

from penstock.client import http
from penstock.client.aio.runtime import Lifetime, Token, Value, call, field_values
from penstock.client.answers import Answer, StreamInfo
from penstock.client.flow import (
    Call,
    Close,
    Done,
    Effect,
    Emit,
    Exchange,
    Flow,
    Open,
    Pause,
    Piece,
    advance,
    fail,
    list_streams,
    send,
)
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.errors import ClientClosed

if TYPE_CHECKING:
    import ssl
    from pathlib import Path

    from penstock.client.access import NewToken, SignedLink, TokenInfo
    from penstock.client.aio.many import AsyncFollowMany
    from penstock.client.aio.stream import AsyncStream
    from penstock.client.aio.subscription import AsyncSubscription
    from penstock.client.checkpoint import Checkpoint
    from penstock.client.endurance import OnOutage
    from penstock.client.subscriptions import SubscriptionInfo, WebhookKey

T = TypeVar("T")


class AsyncClient:
    """A connection pool, with the headers and parameters of every request to one server.

    `url` is the server's; streams of other servers are named by their full URL. `headers` and
    `params` go with every request; a callable, async or not, is called for each. So may `token` be
    a callable: it is called again if the server refuses the token that it has returned. `ca` is a
    PEM file with the authorities to trust in place of the system's. One client may be used by many
    tasks.
    """

    def __init__(
        self,
        url: str,
        *,
        token: Value | None = None,
        headers: Mapping[str, Value] | None = None,
        params: Mapping[str, Value] | None = None,
        timeout_s: float | http.Timeouts = 30.0,
        retry: Retry | None = None,
        http2: bool = False,
        proxy: str | None = None,
        verify: bool | ssl.SSLContext = True,
        ca: str | Path | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        connections_max: int | None = None,
    ) -> None:
        self.url = http.checked_url(url)
        self.retry = retry or Retry()
        self._token = Token(token)
        self._headers = http.fields(headers)
        self._params = http.fields(params)
        self._timeouts = http.timeouts(timeout_s)
        self._lifetime = Lifetime()
        self._pools = http.Pools(
            httpx2.AsyncClient,
            http2=http2,
            proxy=proxy,
            verify=verify,
            ca=ca,
            transport=transport,
            connections_max=connections_max,
        )

    def stream(self, path_or_url: str, *, content_type: str | None = None) -> AsyncStream:
        """Return a stream of this server by its path, or of any server by its URL; sends nothing.

        Giving its `content_type` saves the request that asks for it.
        """
        from penstock.client.aio.stream import AsyncStream

        return AsyncStream(self, path_or_url, content_type=content_type)

    def list(self, prefix: str = "", *, limit: int | None = None) -> AsyncIterator[StreamInfo]:
        """Iterate over the server's streams by path (a feature of Penstock servers)."""
        return self.iterate(list_streams(self.url, prefix, limit, self.retry))

    def follow_many(
        self,
        streams: Mapping[str, str] | Iterable[str] | None = None,
        *,
        match: Mapping[str, str] | Iterable[str] | None = None,
        cursor: str | None = None,
        checkpoint: Checkpoint | None = None,
        checkpoint_key: str | None = None,
        idle_timeout_s: float | None = None,
        stop_when_up_to_date: bool = False,
        decode: bool = True,
        message_type: Any = None,
        retry: Retry | None = None,
        protocol_errors_max: int = 3,
        on_outage: OnOutage | None = None,
    ) -> AsyncFollowMany:
        """Iterate over batches of several streams, on one connection (a feature of Penstock
        servers).

        `streams` are paths, or the offset to start from by path; `match` are patterns, or "-1" or
        "now" by pattern. Without an offset a stream is read from its beginning. Streams that are
        created later and match join by themselves. The guide explains each option.
        """
        from penstock.client.aio.many import AsyncFollowMany
        from penstock.client.many import FollowManyOptions, ManyFollower, starts

        options = FollowManyOptions(
            streams=starts(streams),
            match=starts(match),
            cursor=cursor,
            checkpoint=checkpoint,
            checkpoint_key=checkpoint_key,
            idle_timeout_s=idle_timeout_s,
            stop_when_up_to_date=stop_when_up_to_date,
            decode=decode,
            message_type=message_type,
            retry=retry,
            protocol_errors_max=protocol_errors_max,
            on_outage=on_outage,
        )
        return AsyncFollowMany(self, ManyFollower(self.url, options, self.retry))

    def subscription(self, id: str) -> AsyncSubscription:
        """Return a subscription of this server by its id; sends nothing."""
        from penstock.client.aio.subscription import AsyncSubscription

        return AsyncSubscription(self, id)

    def subscriptions(self, prefix: str = "") -> AsyncIterator[SubscriptionInfo]:
        """Iterate over the server's subscriptions by id (a feature of Penstock servers)."""
        from penstock.client.subscriptions import list_subscriptions

        return self.iterate(list_subscriptions(self.url, prefix, self.retry))

    async def rotate_webhook_key(self) -> WebhookKey:
        """Replace the key that signs webhooks (a feature of Penstock servers)."""
        from penstock.client.subscriptions import rotate_webhook_key

        return await self.run(rotate_webhook_key(self.url, self.retry))

    async def create_token(
        self,
        allow: Iterable[str],
        *,
        expires_in_s: int | Literal["never"] | None = None,
        name: str = "",
    ) -> NewToken:
        """Store a token of rules such as `read:chat/42/**`; only this answer has its text.

        Without `expires_in_s` the server chooses: 90 days. (A feature of Penstock servers.)
        """
        from penstock.client.access import create_token

        return await self.run(create_token(self.url, allow, expires_in_s, name, self.retry))

    def tokens(self) -> AsyncIterator[TokenInfo]:
        """Iterate over the stored tokens of the server, by id."""
        from penstock.client.access import list_tokens

        return self.iterate(list_tokens(self.url, self.retry))

    async def revoke_token(self, id: str) -> None:
        """Remove a stored token: its requests are refused, and its live reads end."""
        from penstock.client.access import revoke_token

        await self.run(revoke_token(self.url, id, self.retry))

    async def sign_link(
        self,
        verb: str,
        path: str,
        *,
        expires_in_s: int,
        of: Literal["stream", "table", "state"] = "stream",
    ) -> SignedLink:
        """Return a URL that needs no token: for one verb, a path or a pattern, until it expires."""
        from penstock.client.access import sign_link

        return await self.run(sign_link(self.url, verb, path, expires_in_s, of, self.retry))

    async def rotate_link_key(self) -> None:
        """End all signed links and sessions of the server."""
        from penstock.client.access import rotate_link_key

        await self.run(rotate_link_key(self.url, self.retry))

    async def close(self) -> None:
        """Close every connection; operations that still run end with ClientClosed."""
        self._lifetime.close()
        for pool in self._pools.close():
            await pool.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def request(self, request: Request, *, retry: Retry | None = None) -> Answer:
        """Send a request, retried as far as that is allowed, and return its successful answer.

        Every other outcome is raised as a PenstockError. May be called from many tasks.
        """
        return await self.run(send(request, retry or self.retry))

    async def run(self, flow: Flow[T]) -> T:
        """Run a flow that emits nothing; return its result."""
        shell = Shell(self)
        try:
            effect = advance(flow)
            while not isinstance(effect, Done):
                effect = await shell.step(flow, effect)
            result: T = effect.value
            return result
        finally:
            flow.close()
            await shell.close()

    async def iterate(self, flow: Flow[Any]) -> AsyncGenerator[Any, None]:
        """Run a flow; yield what it emits."""
        shell = Shell(self)
        try:
            effect = advance(flow)
            while not isinstance(effect, Done):
                if isinstance(effect, Emit):
                    yield effect.value
                    effect = advance(flow)
                else:
                    effect = await shell.step(flow, effect)
        finally:
            flow.close()
            await shell.close()

    async def _send(self, request: Request, *, stream: bool) -> httpx2.Response:
        if self._lifetime.is_closed:
            raise ClientClosed("The client is closed: make a new one.")
        renewals = self._token.renewals
        token = await self._token.current()
        response = await self._send_with(token, request, stream=stream)
        if response.status_code == 401 and "Authorization" not in request.headers:
            renewed = await self._token.after(token, renewals)
            if renewed is not None:
                await response.aclose()
                return await self._send_with(renewed, request, stream=stream)
        return response

    async def _send_with(
        self, token: str | None, request: Request, *, stream: bool
    ) -> httpx2.Response:
        headers, params = await field_values(self._headers), await field_values(self._params)
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        pool = self._pools.of(request)
        prepared = http.build(pool, request, self._timeouts, headers, params)
        return await pool.send(prepared, stream=stream)


class Shell:
    """Performs the effects of one flow; holds the one response that the flow may have open."""

    __slots__ = ("_client", "_pieces", "_request", "_response")

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._request: Request | None = None
        self._response: httpx2.Response | None = None
        self._pieces: AsyncIterator[bytes] | None = None

    async def step(self, flow: Flow[Any], effect: Effect) -> Effect | Done:
        """Perform an effect, pass its outcome to the flow, and return the next effect."""
        try:
            value = await self._perform(effect)
        except Exception as error:  # noqa: BLE001 - the flow handles it
            return fail(flow, error)
        return advance(flow, value)

    @property
    def response(self) -> httpx2.Response | None:
        """The open response, if there is one."""
        return self._response

    async def close(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            await response.aclose()

    async def _perform(self, effect: Effect) -> Any:
        match effect:
            case Piece():
                assert self._pieces is not None
                assert self._request is not None
                with http.network_errors(self._request):
                    return await anext(self._pieces, None)
            case Exchange(request):
                with http.network_errors(request):
                    return await self._exchange(request)
            case Open(request):
                with http.network_errors(request):
                    return await self._open(request)
            case Close():
                return await self.close()
            case Pause(seconds):
                return await self._client._lifetime.pause(seconds)
            case Call(function, arguments, blocking):
                return await call(function, arguments, blocking=blocking)
            case Emit():
                raise TypeError("A flow that emits needs iterate, not run.")

    async def _exchange(self, request: Request) -> Answer:
        response = await self._client._send(request, stream=False)
        return http.answer_of(response, response.content)

    async def _open(self, request: Request) -> Answer:
        await self.close()
        response = await self._client._send(request, stream=True)
        self._request, self._response = request, response
        self._pieces = response.aiter_bytes()
        return http.answer_of(response)
