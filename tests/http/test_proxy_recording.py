"""The durable proxy against a scripted upstream: real servers, real connections."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any

import httpx
import pytest

import penstock
import penstock.testing
from penstock.config.setting import InvalidSetting
from penstock.http.proxy.events import REST_BYTES_MAX, WholeEvents
from penstock.http.proxy.upstreams import parse_upstreams, upstream_of
from tests.helpers.server import running_server
from tests.http.test_asgi_example import running
from tests.http.upstream import HEAD, LAST, Upstream, chunk, event, upstream, whole
from tests.http.wire import HANG_S

BOTH = b"data: one\n\ndata: two\n\n"
BODY = b'{"stream": true}'


def on_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), HANG_S))

    return run


class Proxy:
    """A client of a server with the proxy on."""

    def __init__(self, client: httpx.AsyncClient, scripted: Upstream) -> None:
        self.client = client
        self.upstream = scripted

    def request(self, path: str, *, key: str | None = "k1", **more: Any) -> Any:
        headers = {"upstream-url": f"{self.upstream.url}/v1/chat", "content-type": "text/json"}
        if key is not None:
            headers["idempotency-key"] = key
        headers |= more.pop("headers", {})
        method = more.pop("method", "POST")
        return self.client.stream(
            method, f"/v1/proxy/{path}", headers=headers, content=more.pop("content", BODY), **more
        )

    async def post(self, path: str, **more: Any) -> httpx.Response:
        async with self.request(path, **more) as response:
            await response.aread()
            return response  # type: ignore[no-any-return]

    async def state(self, path: str) -> str:
        head = await self.client.head(f"/v1/proxy/{path}")
        return head.headers["stream-recording"]


@asynccontextmanager
async def proxy(**settings: Any) -> AsyncIterator[Proxy]:
    async with upstream() as scripted:
        settings = {"development": True, "proxy_upstreams": (f"{scripted.url}/v1",), **settings}
        with penstock.testing.server(**settings) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=30, verify=False) as client:
                yield Proxy(client, scripted)


@on_loop
async def test_a_response_is_passed_on_and_recorded_as_it_arrives() -> None:
    async with proxy() as it:
        async with it.request("answers/1") as response:
            pieces = response.aiter_raw()
            assert await anext(pieces) == b"data: one\n\n"
            assert response.status_code == 200
            headers = response.headers
            assert headers["content-type"] == "text/event-stream; charset=utf-8"
            assert headers["location"] == f"{it.client.base_url}/v1/stream/answers/1"
            assert headers["x-request-id"] == "req-7"
            assert "set-cookie" not in headers
            assert (headers["stream-recording"], headers["upstream-status"]) == ("running", "200")
            # What the client has is in the stream already.
            early = await it.client.get(headers["location"])
            assert early.content == b"data: one\n\n"
            assert "stream-closed" not in early.headers
            it.upstream.go_on.set()
            assert b"".join([piece async for piece in pieces]) == b"data: two\n\n"
        stored = await it.client.get("/v1/stream/answers/1")
        assert (stored.content, stored.headers["stream-closed"]) == (BOTH, "true")
        assert await it.state("answers/1") == "complete"
        metrics = (await it.client.get("/metrics")).text
        assert 'penstock_proxy_recordings_total{state="complete"} 1.0' in metrics
        assert "penstock_proxy_calls 0.0" in metrics
        assert it.upstream.requests[0].line == "POST /v1/chat HTTP/1.1"
        assert it.upstream.requests[0].body == BODY


@on_loop
async def test_a_client_that_comes_again_gets_the_same_response_without_another_call() -> None:
    async with proxy() as it:
        async with it.request("a") as response:
            assert await anext(response.aiter_raw()) == b"data: one\n\n"
        # The connection is lost; the recording goes on.
        async with it.request("a") as joined, it.request("a", params={"skip": 11}) as rest:
            it.upstream.go_on.set()
            assert await joined.aread() == BOTH
            assert await rest.aread() == b"data: two\n\n"
        assert (await it.post("a")).content == BOTH
        assert (await it.client.get("/v1/proxy/a", params={"skip": 6})).content == BOTH[6:]
        assert len(it.upstream.requests) == 1
        live = await it.client.get("/v1/stream/a", params={"offset": "-1", "live": "long-poll"})
        assert live.content == BOTH


@on_loop
async def test_two_clients_that_come_at_once_are_one_call() -> None:
    async with proxy() as it:
        it.upstream.go_on.set()
        answers = await asyncio.gather(*(it.post("a") for _ in range(5)))
        assert [answer.content for answer in answers] == [BOTH] * 5
        assert len(it.upstream.requests) == 1


@on_loop
async def test_another_request_at_the_path_is_refused() -> None:
    async with proxy() as it:
        it.upstream.go_on.set()
        first = await it.post("a", key=None)
        assert first.headers["idempotency-key"]
        for more in ({"key": None}, {"key": "other"}):
            assert (await it.post("a", **more)).status_code == 409
        key = first.headers["idempotency-key"]
        assert (await it.post("a", key=key)).content == BOTH
        changed = await it.post("a", key=key, content=b"another question")
        assert (changed.status_code, changed.json()["code"]) == (409, "stream-exists")
        await it.client.put("/v1/stream/mine", headers={"content-type": "text/plain"})
        assert (await it.post("mine")).status_code == 409
        assert len(it.upstream.requests) == 1


@pytest.mark.parametrize("how", ["DELETE", "POST"])
@on_loop
async def test_an_abort_ends_the_call_and_marks_the_stream(how: str) -> None:
    async with proxy() as it:
        async with it.request("a") as response:
            pieces = response.aiter_raw()
            await anext(pieces)
            url = "/v1/proxy/a" if how == "DELETE" else "/v1/proxy/a?action=abort"
            aborted = await it.client.request(how, url)
            assert (aborted.status_code, aborted.headers["stream-recording"]) == (204, "aborted")
            await it.upstream.left.wait()
            last = b"".join([piece async for piece in pieces])
        name, data = last.decode().strip().split("\n")
        assert name == "event: error"
        assert json.loads(data.removeprefix("data: "))["error"]["type"] == "aborted"
        stored = await it.client.get("/v1/stream/a")
        assert stored.headers["stream-closed"] == "true"
        assert stored.content == b"data: one\n\n" + last
        again = await it.client.delete("/v1/proxy/a")
        assert (again.status_code, again.headers["stream-recording"]) == (204, "aborted")
        assert (await it.post("a")).content == stored.content
        assert len(it.upstream.requests) == 1


@on_loop
async def test_an_error_of_the_upstream_is_told_with_its_status_and_recorded() -> None:
    async with proxy() as it:

        async def limited(writer: asyncio.StreamWriter) -> None:
            body = b'{"error": {"type": "rate_limit"}}'
            type_, retry = "content-type: application/json", "retry-after: 7"
            writer.write(whole("429 Too Many Requests", body, type_, retry, "server: x"))

        it.upstream.script = limited
        for _ in range(2):
            response = await it.post("a")
            assert response.status_code == 429
            assert response.json() == {"error": {"type": "rate_limit"}}
            assert response.headers["content-type"] == "application/json"
            assert response.headers["retry-after"] == "7"
            assert response.headers["upstream-status"] == "429"
            assert "server" not in response.headers
        assert len(it.upstream.requests) == 1
        stored = await it.client.get("/v1/stream/a")
        assert stored.headers["content-type"] == "text/plain; charset=utf-8"
        assert stored.json() == {"error": {"type": "rate_limit"}}


@on_loop
async def test_a_response_that_breaks_off_is_closed_with_an_error_at_an_event_boundary() -> None:
    async with proxy() as it:

        async def broken(writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + event("one") + chunk(b'data: {"half'))
            await writer.drain()

        it.upstream.script = broken
        text = (await it.post("a")).text
        assert text.startswith('data: one\n\nevent: error\ndata: {"type":"error"')
        assert "half" not in text
        assert await it.state("a") == "failed"


@on_loop
async def test_half_of_a_body_without_a_form_for_errors_does_not_look_whole() -> None:
    async with proxy() as it:

        async def broken(writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD.replace(b"text/event-stream", b"text/plain") + chunk(b"half"))
            await writer.drain()

        it.upstream.script = broken
        with pytest.raises(httpx.RemoteProtocolError):
            await it.post("a")
        assert await it.state("a") == "failed"
        assert (await it.client.get("/v1/stream/a")).content == b"half"


@on_loop
async def test_limits_of_size_and_silence_end_a_recording() -> None:
    async with proxy(proxy_bytes_max=1000, proxy_idle_timeout_s=0.3) as it:

        async def large(writer: asyncio.StreamWriter) -> None:
            writer.write(HEAD + event("x" * 2000) + LAST)

        it.upstream.script = large
        assert "more than 1000 bytes" in (await it.post("large")).text
        it.upstream.script = it.upstream.answer  # which goes silent after one event
        assert "took too long" in (await it.post("silent", key="k2")).text

        async def mute(writer: asyncio.StreamWriter) -> None:
            await it.upstream.go_on.wait()

        it.upstream.script = mute
        response = await it.post("mute", key="k3")
        assert (response.status_code, response.json()["code"]) == (502, "egress-failed")
        # Nothing is recorded, so that the call can be tried again.
        assert (await it.client.get("/v1/proxy/mute")).status_code == 404


@on_loop
async def test_headers_and_keys_go_to_the_upstream_by_a_list(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-1")
    async with upstream() as scripted:
        scripted.go_on.set()
        named = f"{scripted.url}/v1 authorization=MODEL_KEY x-extra=MODEL_KEY"
        own = {"development": True, "proxy_upstreams": (named,), "proxy_headers": ("x-mine",)}
        sent = {
            "anthropic-version": "2023-06-01",
            "x-mine": "1",
            "x-other": "2",
            "cookie": "a=b",
            "authorization": "Bearer of-this-server",
            "upstream-authorization": "Bearer of-the-client",
        }
        with penstock.testing.server(**own) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=30, verify=False) as client:
                await Proxy(client, scripted).post("a", headers=sent)
        got = scripted.requests[0].headers
        assert (got["authorization"], got["x-extra"]) == ("Bearer sk-1", "sk-1")
        assert (got["anthropic-version"], got["x-mine"]) == ("2023-06-01", "1")
        assert not {"x-other", "cookie", "upstream-authorization", "idempotency-key"} & set(got)
        await asyncio.sleep(0)
        with penstock.testing.server(**own | {"proxy_upstreams": (f"{scripted.url}/v1",)}) as plain:
            async with httpx.AsyncClient(base_url=plain.url, timeout=30, verify=False) as client:
                await Proxy(client, scripted).post("a", headers=sent)
        assert scripted.requests[1].headers["authorization"] == "Bearer of-the-client"


@on_loop
async def test_only_upstreams_of_the_setting_are_called() -> None:
    async with proxy() as it:
        base = it.upstream.url
        for url, code in {
            f"{base}/v2/chat": "egress-refused",
            f"{base}/v1evil": "egress-refused",
            "https://example.com/v1/chat": "egress-refused",
            f"{base}/v1/../admin": "invalid-url",
            f"{base}/v1/%2e%2e/admin": "invalid-url",
            f"{base}/v1%2f..%2fadmin": "invalid-url",
            "ftp://example.com/": "invalid-url",
        }.items():
            response = await it.post("a", headers={"upstream-url": url})
            assert response.json()["code"] == code, url
        for bad in ({"upstream-method": "DELETE"}, {"idempotency-key": "a b"}, {"stream-ttl": "x"}):
            assert (await it.post("a", headers=bad)).status_code == 400
        missing = await it.client.post("/v1/proxy/a", content=BODY)
        assert (missing.status_code, "Upstream-URL" in missing.text) == (400, True)
        assert (await it.client.post("/v1/proxy/a?action=stop")).status_code == 400
        assert not it.upstream.requests


@on_loop
async def test_a_private_address_is_not_called_even_if_it_is_named() -> None:
    async with proxy(development=False) as it:
        response = await it.post("a")
        assert (response.status_code, response.json()["code"]) == (403, "egress-refused")
        assert not it.upstream.requests


@on_loop
async def test_a_redirect_is_not_followed() -> None:
    async with proxy() as it:

        async def moved(writer: asyncio.StreamWriter) -> None:
            writer.write(whole("302 Found", b"", "location: http://169.254.169.254/"))

        it.upstream.script = moved
        response = await it.post("a")
        assert (response.status_code, response.json()["code"]) == (502, "egress-failed")
        assert "redirect" in response.json()["detail"]


@on_loop
async def test_without_upstreams_the_proxy_is_off() -> None:
    async with proxy(proxy_upstreams=()) as it:
        response = await it.post("a")
        assert (response.status_code, "proxy_upstreams" in response.text) == (404, True)


@on_loop
async def test_recording_needs_append_and_create_and_reading_needs_read() -> None:
    async with proxy(auth_token="root-token-1234") as it:
        it.upstream.go_on.set()

        async def token(*allow: str) -> dict[str, str]:
            made = await it.client.post(
                "/v1/tokens",
                json={"allow": allow},
                headers={"authorization": "Bearer root-token-1234"},
            )
            return {"authorization": f"Bearer {made.json()['token']}"}

        both, one = await token("append:a", "create:a"), await token("append:a")
        reader = await token("read:a")
        assert (await it.post("a")).status_code == 401
        assert (await it.post("a", headers=one)).status_code == 403
        assert (await it.post("a", headers=both)).content == BOTH
        assert (await it.client.get("/v1/proxy/a", headers=reader)).content == BOTH
        assert (await it.client.get("/v1/proxy/a", headers=both)).status_code == 403
        assert (await it.client.delete("/v1/proxy/a", headers=reader)).status_code == 403


@on_loop
async def test_nobody_else_writes_to_a_recording_and_deleting_it_ends_the_call() -> None:
    async with proxy() as it:
        async with it.request("a") as response:
            pieces = response.aiter_raw()
            await anext(pieces)
            type_ = {"content-type": "text/event-stream; charset=utf-8"}
            forged = await it.client.post("/v1/stream/a", content=b"data: x\n\n", headers=type_)
            closed = await it.client.post("/v1/stream/a", headers={"stream-closed": "true"})
            assert (forged.status_code, closed.status_code) == (409, 409)
            assert (await it.client.delete("/v1/stream/a")).status_code == 204
            it.upstream.go_on.set()
            with pytest.raises(httpx.RemoteProtocolError):
                await anext(pieces)
        assert (await it.client.get("/v1/proxy/a")).status_code == 404


@on_loop
async def test_a_path_that_cannot_have_a_stream_is_told_why() -> None:
    async with proxy() as it:
        text = {"content-type": "text/plain"}
        await it.client.put("/v1/stream/source", headers=text)
        forked = {"stream-forked-from": "/v1/stream/source"}
        assert (await it.client.put("/v1/stream/fork", headers=forked)).status_code == 201
        await it.client.delete("/v1/stream/source")
        deleted = await it.post("source")
        assert (deleted.status_code, deleted.json()["code"]) == (410, "stream-soft-deleted")
        assert not it.upstream.requests


@on_loop
async def test_a_quota_that_is_used_up_ends_the_call() -> None:
    async with proxy(quotas="few/**=1streams") as it:
        it.upstream.go_on.set()
        assert (await it.post("few/1")).content == BOTH
        refused = await it.post("few/2", key="k2")
        assert refused.json()["code"] == "quota-exceeded"
        assert await it.state("few/1") == "complete"


@on_loop
async def test_a_recording_has_the_lifetime_of_the_setting_or_of_its_request() -> None:
    async with proxy(proxy_ttl_s=500) as it:
        it.upstream.go_on.set()
        await it.post("a")
        await it.post("b", key="k2", headers={"stream-ttl": "60"})
        assert (await it.client.head("/v1/stream/a")).headers["stream-ttl"] == "500"
        assert (await it.client.head("/v1/stream/b")).headers["stream-ttl"] == "60"


@on_loop
async def test_more_calls_than_the_limit_are_refused() -> None:
    async with proxy(proxy_calls_max=1) as it:
        async with it.request("a") as response:
            pieces = response.aiter_raw()
            await anext(pieces)
            full = await it.post("b", key="k2")
            assert (full.status_code, full.headers["retry-after"]) == (503, "1")
            it.upstream.go_on.set()
            assert [piece async for piece in pieces] == [b"data: two\n\n"]
        assert (await it.post("b", key="k2")).content == BOTH


@on_loop
async def test_a_stop_of_the_server_closes_recordings_as_interrupted(tmp_path: Path) -> None:
    async with upstream() as scripted:
        own: dict[str, Any] = {
            "development": True,
            "proxy_upstreams": (f"{scripted.url}/v1",),
            "memory": False,
            "data_dir": tmp_path / "data",
        }
        with penstock.testing.server(**own) as server:
            client = httpx.AsyncClient(base_url=server.url, timeout=30, verify=False)
            async with client, Proxy(client, scripted).request("a") as response:
                await anext(response.aiter_raw())
        with penstock.testing.server(**own) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=30, verify=False) as client:
                assert await Proxy(client, scripted).state("a") == "interrupted"
                stored = await client.get("/v1/stream/a")
                assert (stored.headers["stream-closed"], "interrupted" in stored.text) == (
                    "true",
                    True,
                )


@pytest.mark.parametrize("asgi", [False, True])
@on_loop
async def test_a_killed_server_closes_what_it_was_recording_when_it_starts(
    tmp_path: Path, asgi: bool
) -> None:
    async with upstream() as scripted:
        args = ["--development", "--proxy-upstreams", f"{scripted.url}/v1"]
        more: dict[str, Any] = {"args": args, "data_dir": tmp_path / "data", "asgi": asgi}
        with running_server(**more) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=30, verify=False) as client:
                it = Proxy(client, scripted)
                scripted.go_on.set()
                await it.post("b")
                scripted.go_on.clear()
                async with it.request("a") as response:
                    await anext(response.aiter_raw())
                    server.kill()
        # It is closed even if the proxy is off by now.
        more["args"] = []
        with running_server(**more) as server:
            async with httpx.AsyncClient(base_url=server.url, timeout=30, verify=False) as client:
                stored = await client.get("/v1/stream/a", params={"offset": "-1", "live": "sse"})
                assert stored.text.count('"interrupted"') == 1
                assert "streamClosed" in stored.text
                assert (await client.get("/v1/stream/b")).content == BOTH


@on_loop
async def test_it_works_mounted_in_another_application() -> None:
    from fastapi import FastAPI

    async with upstream() as scripted:
        scripted.go_on.set()
        streams = penstock.asgi(
            memory=True, development=True, proxy_upstreams=(f"{scripted.url}/v1",)
        )
        web = FastAPI(lifespan=streams.lifespan)
        web.mount("/streams", streams)
        async with running(web) as client:
            headers = {"upstream-url": f"{scripted.url}/v1/chat"}
            response = await client.post("/streams/v1/proxy/a", headers=headers, content=BODY)
            assert response.content == BOTH
            url = f"{client.base_url}/streams/v1/stream/a"
            assert response.headers["location"] == url
            assert (await client.get(url)).content == BOTH


def test_events_are_cut_at_their_ends_however_they_arrive() -> None:
    data = b"data: 1\n\ndata: 2\r\n\r\n: c\r\rdata: 3"
    for size in range(1, len(data)):
        events = WholeEvents()
        pieces = [events.feed(data[at : at + size]) for at in range(0, len(data), size)]
        assert b"".join(pieces) + events.rest == data
        assert events.rest == b"data: 3"
        assert all(not piece or piece.endswith((b"\n", b"\r")) for piece in pieces)
    endless = WholeEvents()
    assert endless.feed(b"x" * REST_BYTES_MAX) == b""
    assert len(endless.feed(b"x")) == REST_BYTES_MAX + 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "percent-encode"),
        ("api.example.com", "not an absolute"),
        ("https://api.example.com/?a=b", "query"),
        ("https://api.example.com key", "HEADER=VARIABLE"),
        ("https://api.example.com authorization=NO_SUCH_KEY", "NO_SUCH_KEY"),
    ],
)
def test_a_wrong_upstream_is_refused_at_the_start(text: str, reason: str) -> None:
    with pytest.raises(InvalidSetting, match=reason):
        parse_upstreams([text], {})


def test_an_upstream_is_an_origin_or_a_part_of_one() -> None:
    upstreams = parse_upstreams(["https://a.example", "https://b.example/v1/"], {})
    assert upstream_of(upstreams, "https://a.example/x?y=z").origin == "https://a.example"
    assert upstream_of(upstreams, "https://b.example/v1").prefix == "/v1"
