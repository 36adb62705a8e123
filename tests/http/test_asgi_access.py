"""An embedding application that says whose requests are whose: `penstock.asgi(authorize=…)`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import penstock
from penstock.access.grant import principal_for
from penstock.errors import NotAllowed, Unauthorized
from tests.http.test_asgi_example import JSON, running
from tests.http.wire import on_loop

Hook = Callable[
    [penstock.AccessRequest], "penstock.Grant | Awaitable[penstock.Grant | None] | None"
]


def by_header(request: penstock.AccessRequest) -> penstock.Grant | None:
    user = request.headers.get("x-user")
    if user == "broken":
        raise ValueError("a bug of the application")
    if user == "mallory":
        raise NotAllowed("Mallory is not welcome.")
    if user is not None and not user.isalpha():
        raise Unauthorized("A user is a word.")
    return None if user is None else penstock.Grant(name=user, allow=(f"*:{user}/**",))


async def later(request: penstock.AccessRequest) -> penstock.Grant | None:
    await asyncio.sleep(0)
    return by_header(request)


@pytest.mark.parametrize("hook", [by_header, later], ids=["function", "coroutine"])
@on_loop
async def test_a_grant_decides(hook: Hook) -> None:
    async with running(penstock.asgi(memory=True, authorize=hook)) as client:
        ann = {"x-user": "ann", **JSON}
        assert (await client.put("/v1/stream/ann/a", headers=ann)).status_code == 201
        answer = await client.post("/v1/stream/ann/a", headers=ann, content=b"1")
        assert answer.status_code == 204
        assert (await client.get("/v1/stream/ann/a", headers=ann)).json() == [1]
        bob = await client.get("/v1/stream/ann/a", headers={"x-user": "bob"})
        nothing = await client.get("/v1/stream/bob/none", headers={"x-user": "bob"})
        assert (bob.status_code, bob.json()["code"]) == (404, nothing.json()["code"])
        assert (await client.put("/v1/stream/ann/b", headers={"x-user": "bob"})).status_code == 403


@on_loop
async def test_a_refusal_is_the_answer() -> None:
    async with running(penstock.asgi(memory=True, authorize=by_header)) as client:
        mallory = await client.get("/v1/stream/a", headers={"x-user": "mallory"})
        assert (mallory.status_code, mallory.json()["detail"]) == (403, "Mallory is not welcome.")
        number = await client.get("/v1/stream/a", headers={"x-user": "42"})
        assert (number.status_code, number.json()["code"]) == (401, "unauthorized")
        broken = await client.get("/v1/stream/a", headers={"x-user": "broken"})
        assert (broken.status_code, broken.json()["code"]) == (500, "internal")
        assert "bug" not in broken.text


@on_loop
async def test_without_a_grant_the_credentials_of_the_server_count() -> None:
    app = penstock.asgi(memory=True, authorize=by_header, auth_token="s3cret")
    async with running(app) as client:
        assert (await client.get("/v1/streams")).status_code == 401
        root = {"authorization": "Bearer s3cret"}
        assert (await client.get("/v1/streams", headers=root)).status_code == 200
    async with running(penstock.asgi(memory=True, authorize=by_header)) as client:
        assert (await client.get("/v1/streams")).status_code == 401


@on_loop
async def test_what_everybody_may_use_is_not_asked_about() -> None:
    asked: list[str] = []

    def refuse_all(request: penstock.AccessRequest) -> None:
        asked.append(request.path)
        raise NotAllowed("No.")

    async with running(penstock.asgi(memory=True, authorize=refuse_all)) as client:
        assert (await client.get("/healthz")).status_code == 200
        ack = "/v1/stream/__ds/subscriptions/a/ack"
        assert (await client.post(ack, headers=JSON, content=b"{}")).status_code in (400, 401)
        assert asked == []
        assert (await client.get("/metrics")).status_code == 403
        assert (await client.get("/nowhere")).status_code == 403
        assert asked == ["/metrics", "/nowhere"]


@on_loop
async def test_a_live_response_ends_with_its_grant() -> None:
    def briefly(request: penstock.AccessRequest) -> penstock.Grant:
        return penstock.Grant(name="ann", allow=("*:**",), expires_in_s=0.3)

    async with running(penstock.asgi(memory=True, authorize=briefly)) as client:
        assert (await client.put("/v1/stream/a", headers=JSON)).status_code == 201
        async with client.stream("GET", "/v1/stream/a?offset=-1&live=sse") as response:
            text = "".join([piece async for piece in response.aiter_text()])
        assert "event: control" in text


def test_equal_grants_share_what_is_compiled() -> None:
    grant = penstock.Grant(name="ann", allow=("read:a",))
    assert principal_for(grant) is principal_for(penstock.Grant(name="ann", allow=("read:a",)))
    brief = penstock.Grant(name="ann", allow=("read:a",), expires_in_s=1)
    assert principal_for(brief) is not principal_for(brief)


@on_loop
async def test_the_fastapi_example_with_depends() -> None:
    from examples.fastapi_access import app

    async with running(app) as client:
        ann, bob = {"x-user": "ann", **JSON}, {"x-user": "bob", **JSON}
        path = "/streams/v1/stream/rooms/ann"
        created = await client.put(path, headers=ann)
        assert created.status_code == 201
        assert created.headers["location"].endswith(path)
        assert (await client.post(path, headers=ann, content=b'{"n": 1}')).status_code == 204
        assert (await client.get(path, headers=ann)).json() == [{"n": 1}]
        assert (await client.get(path, headers=bob)).status_code == 404
        assert (await client.post(path, headers=bob, content=b"1")).status_code == 404
        assert (await client.get(path)).status_code == 401
        listed = await client.get("/streams/v1/streams", headers=ann)
        assert [each["path"] for each in listed.json()["streams"]] == ["rooms/ann"]
        assert (await client.get("/streams/v1/streams", headers=bob)).json()["streams"] == []
        async with client.stream("GET", f"{path}?offset=-1&live=sse", headers=ann) as response:
            assert response.headers["content-type"] == "text/event-stream"
            lines = aiter(response.aiter_lines())
            while await anext(lines) != "event: data":
                pass
            assert [await anext(lines) for _ in range(2)][1] == 'data:{"n": 1}'
