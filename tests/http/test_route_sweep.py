"""Every route × every method × no, a wrong and the right token, over both transports."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx
import pytest

from tests.helpers.server import Server, running_server
from tests.http.openapi_cases import ARGS, prepare

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "BREW")
TOKEN = "s3cret"
TOKENS = {"none": None, "wrong": "Bearer wrong", "right": f"Bearer {TOKEN}"}
NAMES = {"path": "rows", "id": "pull", "name": "shop", "code": "stream-closed"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Sweep(NamedTuple):
    server: Server
    document: dict[str, Any]


@pytest.fixture(scope="module", params=[False, True], ids=["native", "asgi"])
def sweep(request: pytest.FixtureRequest) -> Iterator[Sweep]:
    with running_server(args=[*ARGS, "--token", TOKEN], memory=True, asgi=request.param) as server:
        authorization = {"authorization": f"Bearer {TOKEN}"}
        prepare(server.url, authorization)
        document = httpx.get(f"{server.url}/openapi.json", headers=authorization).json()
        yield Sweep(server, document)


def ask(server: Server, method: str, target: str, token: str) -> Answer:
    """One request on a connection of its own, and every byte that came back."""
    authorization = TOKENS[token]
    head = f"{method} {target} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nConnection: close\r\n"
    if authorization is not None:
        head += f"Authorization: {authorization}\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as sock:
        sock.sendall(f"{head}Content-Length: 0\r\n\r\n".encode())
        data = b""
        while piece := sock.recv(65536):
            data += piece
    start, _, body = data.partition(b"\r\n\r\n")
    line, *lines = start.decode("latin-1").split("\r\n")
    headers = dict(each.split(": ", 1) for each in lines)
    return Answer(int(line.split()[1]), {name.lower(): headers[name] for name in headers}, body)


@pytest.mark.xdist_group("openapi")
@pytest.mark.parametrize("token", TOKENS)
def test_every_route_answers_every_method_as_it_should(sweep: Sweep, token: str) -> None:
    wrong: list[str] = []
    for path, item in sweep.document["paths"].items():
        target = re.sub(r"\{(\w+)\}", lambda match: NAMES[match[1]], path)
        for method in METHODS:
            answer = ask(sweep.server, method, target, token)
            fault = _fault(item, method, token, answer)
            if fault:
                wrong.append(f"{method} {path}: {answer.status}, {fault}")
    assert not wrong, "\n".join(wrong)
    assert len(sweep.document["paths"]) >= 27


def _fault(item: dict[str, Any], method: str, token: str, answer: Answer) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if method == "HEAD" and answer.body:
        return "HEAD has a body"
    if method == "BREW":
        return "" if answer.status == 400 else "HTTP has no such method"
    if method == "OPTIONS":
        return "" if answer.status == 204 and "allow" in answer.headers else "OPTIONS fails"
    operation = item.get(method.lower())
    if token != "right" and not _is_public(operation):
        if answer.status != 401:
            return "let in"
        return "" if "www-authenticate" in answer.headers else "no WWW-Authenticate"
    if operation is None:
        allowed = set(answer.headers.get("allow", "").split(", "))
        served = {name.upper() for name in item} | {"OPTIONS"}
        return "" if (answer.status, allowed) == (405, served) else f"Allow is {allowed}"
    if answer.status >= 500 or str(answer.status) not in operation["responses"]:
        return "not a documented status"
    return ""


def _is_public(operation: dict[str, Any] | None) -> bool:
    """Whether a request gets to its handler without the token of the server.

    Tokens of wakes are checked by the handlers, after the body. Which methods a path serves is told
    to those alone who have a token.
    """
    return operation is not None and operation.get("security") in ([], [{"wake": []}])
