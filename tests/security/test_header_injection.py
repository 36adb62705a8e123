"""Nothing that a client sent can add a header or a response of its own."""

from __future__ import annotations

import pytest

from penstock.errors import BadRequest
from penstock.http.message import Response
from penstock.http.problems import problem
from tests.http.wire import get, native, on_loop


@pytest.mark.parametrize(
    "value",
    [b"a\r\nSet-Cookie: x=1", b"a\nb: c", b"a\rb: c", b"a\r\n\r\nHTTP/1.1 200 OK\r\n", b"a\0b"],
)
@pytest.mark.parametrize("where", ["value", "name", "problem"])
@on_loop
async def test_line_breaks_in_a_header_become_a_500(value: bytes, where: str) -> None:
    if where == "value":
        response = Response(200, [(b"stream-next-offset", value)], b"secret")
    elif where == "name":
        response = Response(200, [(value, b"1")], b"secret")
    else:
        response = problem(BadRequest("no", X_Echo=value.decode("latin-1")))
    async with native() as server:
        server.app.routes[b"/x"] = lambda _: response
        client = await server.connect()
        answer = await client.ask(get("/x"))
        assert answer.status == 500
        assert b"secret" not in answer.body
        assert not {"set-cookie", "b", "stream-next-offset", "x-echo"} & set(answer.headers)
        assert (await client.ask(get("/y"))).body == b"/y|"
