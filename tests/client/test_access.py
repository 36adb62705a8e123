"""Tokens and links through the clients, and tokens that are renewed when they are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

import penstock
from penstock import errors
from penstock.client.requests import Request
from tests.client.conftest import QUICK
from tests.client.driver import Connect
from tests.helpers.server import Server, running_server

ROOT = "root-token"


@pytest.fixture(scope="module")
def closed() -> Iterator[Server]:
    """A server with access rules."""
    with running_server(memory=True, env={"PENSTOCK_TOKEN": ROOT}) as server:
        yield server


@pytest.fixture
def root(connect: Connect, closed: Server) -> Any:
    return connect(closed.url, token=ROOT, retry=QUICK)


def test_a_token_is_created_listed_used_and_revoked(
    root: Any, connect: Connect, closed: Server, name: str
) -> None:
    root.stream(name).create()
    made = root.create_token([f"read:{name}"], expires_in_s=600, name="guest")
    assert made.token.startswith("pst_")
    assert made.token not in repr(made)
    listed = {each.id: each for each in root.tokens()}
    assert listed[made.id].name == "guest"
    assert listed[made.id].allow == [f"read:{name}"]
    guest = connect(closed.url, token=made.token, retry=QUICK)
    assert guest.stream(name).head().closed is False
    with pytest.raises(errors.NotAllowed) as caught:
        guest.stream(name).append(1)
    assert (caught.value.verb, caught.value.path) == ("append", name)
    root.revoke_token(made.id)
    with pytest.raises(errors.Unauthorized):
        guest.stream(name).head()
    with pytest.raises(errors.TokenNotFound):
        root.revoke_token(made.id)


def test_expiry_can_be_said_and_left_out(root: Any) -> None:
    assert root.create_token(["read:a"], expires_in_s="never").expires_at is None
    assert root.create_token(["read:a"]).expires_at is not None


def test_the_url_of_a_link_is_read_by_any_client(
    root: Any, connect: Connect, closed: Server, name: str
) -> None:
    root.stream(name).create()
    root.stream(name).append({"n": 1})
    link = root.sign_link("read", name, expires_in_s=60)
    assert link.link not in repr(link)
    stranger = connect(closed.url, retry=QUICK)
    assert stranger.stream(link.url).read().messages == [{"n": 1}]
    with pytest.raises(errors.Unauthorized):
        stranger.stream(name).read()
    root.rotate_link_key()
    with pytest.raises(errors.Unauthorized):
        stranger.stream(link.url).read()


class Refusing:
    """Answers 401 to all tokens but the newest one, and remembers those that were sent."""

    def __init__(self, valid: str) -> None:
        self.valid = valid
        self.sent: list[str] = []
        self._lock = threading.Lock()

    def __call__(self, request: httpx2.Request) -> httpx2.Response:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        with self._lock:
            self.sent.append(token)
        if token != self.valid:
            return httpx2.Response(401, content=b"")
        return httpx2.Response(200, headers={"stream-next-offset": "0_0"}, content=b"[]")


def test_a_token_is_renewed_once_when_it_is_refused(connect: Connect) -> None:
    server, tokens = Refusing("new"), iter(["new", "old", "new", "new"])
    client = connect(
        "http://a.example", token=lambda: next(tokens), transport=httpx2.MockTransport(server)
    )
    for _ in range(3):
        assert client.request(Request("GET", "http://a.example/x")).status == 200
    assert server.sent == ["new", "old", "new", "new"]


def test_a_second_refusal_reaches_the_caller(connect: Connect) -> None:
    server, calls = Refusing("unknown"), []

    def token() -> str:
        calls.append(1)
        return f"t{len(calls)}"

    client = connect("http://a.example", token=token, transport=httpx2.MockTransport(server))
    with pytest.raises(errors.Unauthorized):
        client.request(Request("GET", "http://a.example/x"))
    assert server.sent == ["t1", "t2"]


@pytest.mark.parametrize("source", ["fixed", lambda: "fixed"])
def test_the_same_token_is_not_sent_again(connect: Connect, source: Any) -> None:
    server = Refusing("other")
    client = connect("http://a.example", token=source, transport=httpx2.MockTransport(server))
    with pytest.raises(errors.Unauthorized):
        client.request(Request("GET", "http://a.example/x"))
    assert server.sent == ["fixed"]


def test_a_token_of_the_request_itself_is_not_replaced(connect: Connect) -> None:
    server, tokens = Refusing("new"), iter(["old", "new"])
    client = connect(
        "http://a.example", token=lambda: next(tokens), transport=httpx2.MockTransport(server)
    )
    with pytest.raises(errors.Unauthorized):
        client.request(Request("GET", "http://a.example/x", {"Authorization": "Bearer wake"}))
    assert server.sent == ["wake"]


def test_many_threads_renew_a_token_once() -> None:
    server, calls = Refusing("new"), []
    entered = threading.Barrier(8)

    def token() -> str:
        calls.append(1)
        return "old" if len(calls) <= 8 else "new"

    def send(request: httpx2.Request) -> httpx2.Response:
        answer = server(request)
        if answer.status_code == 401:
            entered.wait(10)  # All eight are refused before any of them renews the token.
        return answer

    with (
        penstock.Client(
            "http://a.example", token=token, transport=httpx2.MockTransport(send)
        ) as client,
        ThreadPoolExecutor(8) as pool,
    ):
        request = Request("GET", "http://a.example/x")
        answers = list(pool.map(lambda _: client.request(request).status, range(8)))
    assert answers == [200] * 8
    assert len(calls) == 8 + 1


def test_many_tasks_renew_a_token_once() -> None:
    server, calls = Refusing("new"), []

    async def token() -> str:
        calls.append(1)
        text = "old" if len(calls) <= 8 else "new"
        await asyncio.sleep(0.01)  # All eight begin with the old one.
        return text

    async def main() -> None:
        transport = httpx2.MockTransport(server)
        async with penstock.AsyncClient(
            "http://a.example", token=token, transport=transport
        ) as client:
            request = Request("GET", "http://a.example/x")
            answers = await asyncio.gather(*(client.request(request) for _ in range(8)))
        assert [answer.status for answer in answers] == [200] * 8

    asyncio.run(main())
    assert len(calls) == 8 + 1


def test_a_live_read_goes_on_with_a_renewed_token(closed: Server, name: str) -> None:
    with penstock.Client(closed.url, token=ROOT) as root:
        root.stream(name).create()
        made = [root.create_token([f"read:{name}"]) for _ in range(2)]
        valid = [each.token for each in made]
        with penstock.Client(closed.url, token=lambda: valid[0]) as reader:
            follow = iter(reader.stream(name).follow("-1"))
            root.stream(name).append(1)
            first = next(follow).messages
            root.revoke_token(made[0].id)
            del valid[0]
            root.stream(name).append(2)
            second = next(follow).messages
    assert [first, second] == [[1], [2]]
