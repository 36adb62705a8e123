"""For tests of tables: requests to them, their rows as values, and events to append."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

from penstock.http.message import EventBody, Response
from penstock.stp.rows import Row, RowDecoder
from tests.helpers.app import Answer, Client, FakeSink, finish

JSON = "application/json"
TYPE = "text/sequence; charset=utf-8; schema=s; version=1"


async def declare(client: Client, path: str, **members: Any) -> Answer:
    document = {"schema": "s", **members}
    return await client.send("PUT", f"/v1/table/{path}", json.dumps(document).encode())


async def table(client: Client, path: str = "t", **members: Any) -> None:
    answer = await declare(client, path, **members)
    assert answer.status == 201, answer.body


async def get(client: Client, path: str = "t", query: str = "", **headers: str) -> Answer:
    """An answer without waiting, whole or streamed."""
    target = f"/v1/table/{path}?timeout=0&{query}"
    response = await client.respond("GET", target, b"", **headers)
    if not isinstance(response.body, EventBody):
        return await finish(response)
    sink = attached(response)
    await sink.until(lambda sink: sink.closed or sink.aborted)
    assert not sink.aborted
    return Answer(response.status, sink.headers, b"".join(sink.frames))


def attached(response: Response) -> FakeSink:
    assert isinstance(response.body, EventBody), response
    sink = FakeSink(response)
    response.body.attach(sink)
    return sink


async def stream(client: Client, path: str = "t", query: str = "") -> FakeSink:
    """An answer that stays open."""
    response = await client.respond("GET", f"/v1/table/{path}?{query}")
    assert response.status == 200
    return attached(response)


def seqnos(sink: FakeSink) -> list[int]:
    """The SeqNos of the rows that a reader got."""
    return [row.seqno for row in RowDecoder().feed(b"".join(sink.frames))]


async def rows(
    client: Client, path: str = "t", query: str = "", *, escape: bool = False
) -> list[Row]:
    answer = await get(client, path, query)
    assert answer.status == 200, answer.body
    decoder = RowDecoder(escape=escape)
    found = decoder.feed(answer.body)
    assert decoder.end() == b""
    return found


async def short(client: Client, path: str = "t", query: str = "") -> list[str]:
    """Rows as `1+key=record`."""
    found = await rows(client, path, query)
    return [f"{row.seqno}{row.action}{row.key}={row.record}" for row in found]


async def put(client: Client, key: str, record: str, path: str = "t", **headers: str) -> Answer:
    target = f"/v1/table/{path}?key={quote(key, safe='')}"
    return await client.send("PUT", target, record.encode(), **headers)


async def remove(client: Client, key: str, path: str = "t", **headers: str) -> Answer:
    target = f"/v1/table/{path}?key={quote(key, safe='')}"
    return await client.send("DELETE", target, b"", **headers)


async def write(client: Client, body: str, path: str = "t", **headers: str) -> Answer:
    return await client.send("POST", f"/v1/table/{path}", body.encode(), **headers)


def change(type: str, key: str, value: Any = None, operation: str = "upsert") -> dict[str, Any]:
    event = {"type": type, "key": key, "headers": {"operation": operation}}
    return event if operation == "delete" else {**event, "value": value}


def control(name: str, **headers: str) -> dict[str, Any]:
    return {"headers": {"control": name, **headers}}


async def append(client: Client, path: str, *events: Any, **headers: str) -> Answer:
    return await client.post(path, json.dumps(events).encode(), content_type=JSON, **headers)


async def schema(client: Client, path: str, types: dict[str, Any], mode: str = "reject") -> None:
    document = {"types": {name: {"schema": each} for name, each in types.items()}, "mode": mode}
    answer = await client.send("PUT", f"/v1/schema/{path}", json.dumps(document).encode())
    assert answer.status in (200, 201), answer.body
