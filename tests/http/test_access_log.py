"""The access log: which requests it has, what it says of them, and what nobody can forge."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from penstock.config.settings import Settings
from penstock.errors import StreamNotFound
from penstock.http.access_log import LINES_MAX, AccessLog, visible
from penstock.http.asgi.app import AsgiApp
from penstock.http.exchange import Exchange
from penstock.http.log_format import configure
from penstock.http.message import Request, Response
from penstock.http.problems import problem
from penstock.http.route_stats import RouteStats
from tests.helpers.server import Server, running_server

TEXT = {"Content-Type": "text/plain"}


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    root = logging.getLogger("penstock")
    before = (root.handlers, root.level, root.propagate)
    yield
    root.handlers, root.level, root.propagate = before


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    args = ["--access-log", "all", "--memory", "--log-level", "warning", "--token", "s3cret-root"]
    with running_server(args=args) as running:
        yield running


def client_of(server: Server) -> httpx.Client:
    return httpx.Client(base_url=server.url, headers={"Authorization": "Bearer s3cret-root"})


def lines(text: str) -> list[dict[str, Any]]:
    return [
        line
        for line in map(json.loads, filter(None, text.splitlines()))
        if line["logger"] == "penstock.access"
    ]


def line_of(server: Server, request_id: str) -> dict[str, Any]:
    """Return the line of a request, once it is written."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for line in lines(server.stderr):
            if line["request_id"] == request_id:
                return line
        time.sleep(0.02)
    raise AssertionError(f"no line of {request_id}: {server.stderr}")


def test_a_line_says_who_asked_for_what_and_what_came_of_it(server: Server) -> None:
    with client_of(server) as client:
        client.put("/v1/stream/a", headers=TEXT)
        answer = client.post(
            "/v1/stream/a", content=b"hello", headers={**TEXT, "X-Request-Id": "one"}
        )
        assert answer.headers["x-request-id"] == "one"
        line = line_of(server, "one")
        assert line.pop("duration_ms") > 0
        assert line.pop("timestamp").endswith("Z")
        assert line.pop("event").startswith("POST /v1/stream/a 204 ")
        assert line == {
            "level": "info",
            "logger": "penstock.access",
            "request_id": "one",
            "method": "POST",
            "route": "/v1/stream/{path}",
            "path": "/v1/stream/a",
            "status": 204,
            "bytes_in": 5,
            "bytes_out": 0,
            "client": "127.0.0.1",
            "principal": "root",
        }
        client.get("/v1/stream/a", headers={"X-Request-Id": "two"})
        assert line_of(server, "two")["bytes_out"] == 5


def test_an_error_has_its_code_and_its_id_in_the_response(server: Server) -> None:
    with client_of(server) as client:
        answer = client.get("/v1/stream/none")
        assert answer.status_code == 404
        made = answer.headers["x-request-id"]
        assert answer.json()["request_id"] == made
        line = line_of(server, made)
        assert (line["status"], line["code"]) == (404, "stream-not-found")


def test_credentials_are_in_no_line(server: Server) -> None:
    with httpx.Client(base_url=server.url) as client:
        client.get(
            "/v1/stream/a?link=s3cret-link&token=s3cret-token",
            headers={"X-Request-Id": "hidden", "Authorization": "Bearer s3cret-wrong"},
        )
    line = line_of(server, "hidden")
    assert (line["status"], line["code"], line["principal"]) == (401, "unauthorized", "-")
    assert "s3cret" not in server.stderr


@pytest.mark.parametrize("sent", ["", "a b", "x" * 129, "é"])
def test_an_id_that_could_be_anything_is_replaced(server: Server, sent: str) -> None:
    with client_of(server) as client:
        answer = client.get("/v1/stream/a", headers={b"X-Request-Id": sent.encode()})
        made = answer.headers["x-request-id"]
        assert len(made) == 16
        assert line_of(server, made)["path"] == "/v1/stream/a"


def test_every_request_has_an_id_of_its_own(server: Server) -> None:
    with client_of(server) as client:
        client.put("/v1/stream/ids", headers=TEXT)
        # The same bytes again and again: the server has parsed them before.
        made = {
            client.post("/v1/stream/ids", content=b"x", headers=TEXT).headers["x-request-id"]
            for _ in range(5)
        }
    assert len(made) == 5


def test_a_live_response_is_logged_when_it_ends(server: Server) -> None:
    with client_of(server) as client:
        client.put("/v1/stream/live", headers=TEXT)
        target = "/v1/stream/live?live=sse&offset=-1"
        with client.stream("GET", target, headers={"X-Request-Id": "sse"}) as events:
            assert events.headers["x-request-id"] == "sse"
            client.post("/v1/stream/live", content=b"hello", headers=TEXT)
            pieces = events.iter_text()  # a loop that breaks would close the response
            while "hello" not in next(pieces):
                pass
            assert not [line for line in lines(server.stderr) if line["request_id"] == "sse"]
        line = line_of(server, "sse")
        assert line["status"] == 200
        assert line["bytes_out"] > 5


def test_a_client_that_goes_before_its_answer_is_logged(server: Server) -> None:
    with client_of(server) as client:
        tail = client.put("/v1/stream/wait", headers=TEXT).headers["stream-next-offset"]
        raw = socket.create_connection(("127.0.0.1", server.port))
        raw.sendall(
            f"GET /v1/stream/wait?live=long-poll&offset={tail} HTTP/1.1\r\nHost: localhost\r\n"
            "Authorization: Bearer s3cret-root\r\nX-Request-Id: gone\r\n\r\n".encode()
        )
        while 'long-poll"} 1.0' not in client.get("/metrics").text:
            time.sleep(0.01)
        raw.close()
        assert line_of(server, "gone")["status"] == 499


def test_what_is_no_request_is_logged_too(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as raw:
        raw.sendall(b"GET /\nforged HTTP/1.1\r\n\r\n")
        assert b" 400 " in raw.recv(4096)
    with client_of(server) as client:
        client.get("/healthz", headers={"X-Request-Id": "after"})
    line_of(server, "after")
    refused = [line for line in lines(server.stderr) if line["status"] == 400]
    assert (refused[0]["method"], refused[0]["path"]) == ("-", "-")


# -- without a server


def exchange_of(
    response: Response | None,
    path: bytes = b"/v1/stream/a",
    seconds: float = 0.0,
    query: bytes = b"",
) -> Exchange:
    request = Request("GET", path, query)
    request.route = ("handler", "a", RouteStats("GET", "/v1/stream/{path}"))
    ended: list[Exchange] = []
    exchange = Exchange(request, 0, ended.append)
    if response is not None:
        exchange.answered(response)
    exchange.end()
    exchange.end()
    assert ended == [exchange]
    exchange.started_s = exchange.ended_s - seconds
    return exchange


def written(log: AccessLog, *exchanges: Exchange, form: str = "json") -> str:
    out = io.StringIO()
    configure("error", out, form=form)
    log.start()
    for exchange in exchanges:
        log(exchange)
    log.close()
    return out.getvalue()


def test_slow_has_what_is_slow_or_failed_and_no_live_read() -> None:
    ok, failed = Response(200), problem(StreamNotFound.at("a"))
    log = AccessLog(Settings(access_log="slow", access_log_slow_ms=500))
    text = written(
        log,
        exchange_of(ok, b"/fast", 0.4),
        exchange_of(ok, b"/slow", 0.5),
        exchange_of(ok, b"/live", 30, b"live=long-poll"),
        exchange_of(failed, b"/failed"),
        exchange_of(None, b"/gone"),
    )
    assert [line["path"] for line in lines(text)] == ["/slow", "/failed", "/gone"]


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_request_can_forge_a_line(form: str) -> None:
    hostile = "/a\r\n2027 info forged\x1b[2J\u2028\x85".encode()
    exchange = exchange_of(Response(200), hostile)
    text = written(AccessLog(Settings(access_log="all")), exchange, form=form)
    assert len(text.splitlines()) == 1
    assert "\x1b" not in text
    assert "forged" in text


def test_a_text_line_is_for_people() -> None:
    exchange = exchange_of(Response(200), seconds=0.25)
    text = written(AccessLog(Settings(access_log="all")), exchange, form="text")
    assert "GET /v1/stream/a 200 250.0 ms" in text
    assert f"request_id={exchange.id}" in text


def test_lines_that_cannot_be_written_in_time_are_counted() -> None:
    log = AccessLog(Settings(access_log="all"))
    exchange = exchange_of(Response(200))
    for _ in range(LINES_MAX + 3):  # nobody writes: the thread has not started
        log(exchange)
    assert log.dropped == 3


@pytest.mark.parametrize(
    ("text", "shown"), [("a/b", "a/b"), ("ä", "ä"), ("a\nb", "a\\nb"), ("\u202e", "\\u202e")]
)
def test_control_characters_are_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown


def over_asgi(run: Callable[[httpx.AsyncClient], Any], **settings: Any) -> None:
    async def main() -> None:
        app = AsgiApp(Settings(memory=True, **settings))
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            await run(client)
        await app.shutdown()

    asyncio.run(main())


def test_requests_over_asgi_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("penstock").propagate = True

    async def run(client: httpx.AsyncClient) -> None:
        await client.put("/v1/stream/a", headers=TEXT, content=b"hello")
        answer = await client.get("/v1/stream/a", headers={"X-Request-Id": "asgi"})
        assert answer.headers["x-request-id"] == "asgi"
        missing = await client.get("/v1/stream/b")
        assert missing.json()["request_id"] == missing.headers["x-request-id"]
        assert "penstock_access_log_dropped_total 0.0" in (await client.get("/metrics")).text

    over_asgi(run, access_log="all")
    # One record may be there twice, if another test has left pytest's handler on a logger.
    unique = {id(each): each for each in caplog.records if each.name == "penstock.access"}
    records = [vars(each) for each in unique.values()]
    assert [(each["path"], each["status"]) for each in records] == [
        ("/v1/stream/a", 201),
        ("/v1/stream/a", 200),
        ("/v1/stream/b", 404),
        ("/metrics", 200),
    ]
    assert [each["bytes_in"] for each in records] == [5, 0, 0, 0]
    assert records[1]["bytes_out"] == 5


def test_off_logs_nothing_and_returns_only_the_id_that_was_sent(
    caplog: pytest.LogCaptureFixture,
) -> None:
    logging.getLogger("penstock").propagate = True

    async def run(client: httpx.AsyncClient) -> None:
        answer = await client.get("/v1/stream/a", headers={"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert "request_id" not in answer.json()
        assert "x-request-id" not in (await client.get("/v1/stream/a")).headers

    over_asgi(run)
    assert not [each for each in caplog.records if each.name == "penstock.access"]
    with running_server(args=["--memory"]) as server, httpx.Client(base_url=server.url) as client:
        answer = client.get("/healthz", headers={"X-Request-Id": "mine"})
        assert answer.headers["x-request-id"] == "mine"
        assert "x-request-id" not in client.get("/healthz").headers
        assert "penstock.access" not in server.stderr
