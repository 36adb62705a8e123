"""PUT /v1/table: which declarations are taken, over which streams, and what they do to them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from penstock import limits
from tests.helpers.app import Client, with_app
from tests.stp.tables import (
    JSON,
    append,
    change,
    control,
    declare,
    get,
    put,
    rows,
    schema,
    short,
    table,
)


@with_app()
async def test_a_declaration_is_new_the_same_again_or_another(client: Client) -> None:
    document: dict[str, Any] = {
        "schema": "endpoint_manifest", "version": 1, "type": "endpoint", "record": "text"
    }  # fmt: skip
    answer = await declare(client, "a/b", **document)
    assert answer.status == 201
    assert answer.headers["location"].endswith("/v1/table/a/b")
    full = {**document, "escape": False, "stream": "a/b", "table": "a/b"}
    assert answer.json() == full
    again = await declare(client, "a/b", **document)
    assert (again.status, again.json()) == (200, full)
    assert "location" not in again.headers
    assert (await declare(client, "a/b", **full)).status == 200
    for other in (
        {"schema": "x"}, {"version": 2}, {"type": "x"}, {"record": "json"}, {"escape": True}
    ):  # fmt: skip
        refused = await declare(client, "a/b", **{**document, **other})
        assert (refused.status, refused.json()["code"]) == (409, "table-exists"), other
        assert next(iter(other)) in refused.json()["detail"]


@with_app()
async def test_the_type_is_the_schema_id_unless_it_is_given(client: Client) -> None:
    answer = await declare(client, "t")
    assert answer.json() == {
        "table": "t", "stream": "t", "schema": "s", "version": 1, "type": "s", "record": "text",
        "escape": False,
    }  # fmt: skip
    await put(client, "k", "v")
    events = (await client.get("t")).json()
    assert [event["type"] for event in events] == ["s"]


@pytest.mark.parametrize(
    "document",
    [
        {}, {"schema": ""}, {"schema": 5}, {"schema": "a b"}, {"schema": "a;b"},
        {"schema": "x" * (limits.TABLE_SCHEMA_BYTES_MAX + 1)},
        {"schema": "s", "version": -1}, {"schema": "s", "version": True},
        {"schema": "s", "version": "1"}, {"schema": "s", "version": 1.5},
        {"schema": "s", "type": ""}, {"schema": "s", "type": None},
        {"schema": "s", "record": "xml"},
        {"schema": "s", "escape": 1}, {"schema": "s", "colour": "red"},
        {"schema": "s", "stream": 1},
        {"schema": "s", "stream": "other"}, {"schema": "s", "stream": "t/x"}, [], "s",
    ],
)  # fmt: skip
def test_an_unusable_declaration_is_refused_and_makes_nothing(document: Any) -> None:
    @with_app()
    async def check(client: Client) -> None:
        answer = await client.send("PUT", "/v1/table/t", json.dumps(document).encode())
        assert (answer.status, answer.json()["code"]) == (422, "invalid-table")
        assert (await client.head("t")).status == 404

    check("memory", None)


@with_app()
async def test_what_is_no_json_is_refused_as_such(client: Client) -> None:
    for body in (b"", b"{", b"schema=s"):
        answer = await client.send("PUT", "/v1/table/t", body)
        assert answer.status == 400


@with_app()
async def test_a_new_table_has_a_json_stream_with_a_declared_state(client: Client) -> None:
    await table(client, type="user")
    assert (await client.head("t")).headers["content-type"] == JSON
    declared = (await client.send("GET", "/v1/schema/t")).json()
    assert declared["types"] == {"user": {"schema": {"type": "string"}}}
    assert (await append(client, "t", change("user", "k", 5))).status == 422
    assert (await append(client, "t", change("user", "k", "v"))).status == 204


@with_app()
async def test_a_path_without_table_is_not_found(client: Client) -> None:
    await client.put("plain", content_type=JSON)
    for path in ("none", "plain", "plain/x", "none/x"):
        for method, query in (("GET", ""), ("HEAD", ""), ("PUT", "?key=k"), ("DELETE", "?key=k")):
            answer = await client.send(method, f"/v1/table/{path}{query}", b"v")
            assert answer.status == 404, (path, method)
            assert answer.json()["code"] == "table-not-found"
        assert (await client.send("POST", f"/v1/table/{path}", b"+\tk\tv")).status == 404


@with_app()
async def test_a_stream_with_events_has_to_be_declared_first(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await append(client, "t", change("s", "k", "v"))
    answer = await declare(client, "t")
    assert (answer.status, answer.json()["code"]) == (409, "not-declared")
    await schema(client, "t", {"s": {"type": "string"}})
    assert (await declare(client, "t")).status == 201
    assert await short(client) == ["1+k=v"]


@with_app()
async def test_an_empty_json_stream_is_taken_as_it_is(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await table(client)
    await put(client, "k", "v")
    assert await short(client) == ["1+k=v"]


@with_app()
async def test_only_json_streams_are_tables(client: Client) -> None:
    await client.put("t", b"bytes", content_type="text/plain")
    answer = await declare(client, "t")
    assert (answer.status, answer.json()["code"]) == (409, "not-json-stream")


@pytest.mark.parametrize(
    ("value_schema", "is_text"),
    [
        ({"type": "string"}, True), ({"type": "string", "minLength": 1}, True),
        ({"enum": ["a", "b"]}, True), ({"const": "a"}, True), ({"type": ["string"]}, True),
        ({"type": "object"}, False), ({}, False), (True, False),
        ({"type": ["string", "null"]}, False),
        ({"enum": ["a", 1]}, False),
    ],
)  # fmt: skip
def test_text_needs_a_schema_that_says_string(value_schema: Any, is_text: bool) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await client.put("t", content_type=JSON)
        await schema(client, "t", {"s": value_schema})
        answer = await declare(client, "t")
        assert answer.status == (201 if is_text else 409)
        if not is_text:
            assert answer.json()["code"] == "not-expressible"
            assert (await declare(client, "t", record="json")).status == 201

    check("memory", None)


@with_app()
async def test_several_tables_show_one_stream_each_its_type(client: Client) -> None:
    await client.put("shop", content_type=JSON)
    await schema(client, "shop", {"user": {"type": "string"}, "order": {"type": "object"}})
    await append(
        client,
        "shop",
        change("user", "u1", "Ann"),
        change("order", "o1", {"user": "u1", "sum": 1.50}),
        control("snapshot-start"),
        change("user", "u1", operation="delete"),
    )
    assert (await declare(client, "shop/users", stream="shop", type="user")).status == 201
    answer = await declare(client, "shop/orders", stream="shop", type="order", record="json")
    assert answer.json()["stream"] == "shop"
    await put(client, "u2", "Bob", "shop/users")
    await put(client, "o2", "{ }", "shop/orders")
    assert await short(client, "shop/users") == ["1+u1=Ann", "4-u1=", "5+u2=Bob"]
    assert await short(client, "shop/orders") == ['2+o1={"user":"u1","sum":1.5}', "6+o2={}"]
    assert (await get(client, "shop/users")).headers["stp-last-seqno"] == "5"
    assert (await get(client, "shop/orders")).headers["stp-last-seqno"] == "6"
    assert await short(client, "shop/users", "since_id=-2") == ["4-u1=", "5+u2=Bob"]
    assert await short(client, "shop/orders", "since_id=-1") == ["6+o2={}"]
    assert (await get(client, "shop")).status == 404


@with_app()
async def test_the_stream_is_named_as_in_its_url(client: Client) -> None:
    await table(client, "caf%C3%A9/%75ser", stream="caf%c3%a9", type="user")
    await put(client, "k", "v", "caf%C3%A9/user")
    assert (await client.head("caf%C3%A9")).status == 200
    assert (await declare(client, "café".encode().hex(), stream="café")).status == 400


@with_app()
async def test_one_path_is_one_table(client: Client) -> None:
    await table(client, "shop/user", stream="shop", type="user")
    refused = await declare(client, "shop/user")
    assert (refused.status, refused.json()["code"]) == (409, "table-exists")
    await table(client, "a/b")
    refused = await declare(client, "a/b", stream="a")
    assert (refused.status, refused.json()["code"]) == (409, "table-exists")
    await table(client, "shop/order", stream="shop", type="order")
    assert (await declare(client, "shop/order", stream="shop", type="order")).status == 200


@pytest.mark.parametrize(
    ("event", "members"),
    [
        (change("s", "a\tb", "v"), {}),
        (change("s", "a\nb", "v"), {}),
        (change("s", "a\rb", operation="delete"), {"record": "json"}),
        (change("s", "a", "x\ty"), {}),
        (change("s", "a", 5), {}),
        (control("reset", offset="0000000000000001_0000000000009999"), {}),
    ],
)
def test_history_that_no_row_can_express_is_not_shown(event: Any, members: dict[str, Any]) -> None:
    @with_app()
    async def check(client: Client) -> None:
        await client.put("t", content_type=JSON)
        await append(client, "t", change("s", "fine", "v"), event)
        await schema(client, "t", {"s": {"type": "string"}})
        answer = await declare(client, "t", **members)
        assert (answer.status, answer.json()["code"]) == (409, "not-expressible")
        assert "Event 2" in answer.json()["detail"]
        other = await declare(client, "t", type="other", **members)
        assert other.status == (409 if "control" in event["headers"] else 201)

    check("memory", None)


@with_app()
async def test_escaping_shows_what_else_would_break_a_row(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await append(client, "t", change("s", "a\tb", "x\n\\y"))
    await schema(client, "t", {"s": {"type": "string"}})
    await table(client, escape=True)
    answer = await get(client)
    assert answer.headers["content-type"].endswith("; version=1; escape=backslash")
    assert answer.body.endswith(b"\t+\ta\\tb\tx\\n\\\\y\n")
    assert [(row.key, row.record) for row in await rows(client, escape=True)] == [
        ("a\tb", "x\n\\y")
    ]


@with_app()
async def test_an_old_event_without_time_has_that_of_its_stream(client: Client) -> None:
    await client.put("t", content_type=JSON)
    client.clock.advance(3600)
    await append(client, "t", change("s", "k", "v"))
    await schema(client, "t", {"s": {"type": "string"}})
    await table(client)
    await append(client, "t", change("s", "l", "v"))
    assert [row.timestamp for row in await rows(client)] == [
        "2027-01-15T08:00:00.000Z",
        "2027-01-15T09:00:00.000Z",
    ]


@with_app()
async def test_a_table_is_not_declared_without_the_deletes_of_old_resets(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await schema(client, "t", {"s": {"type": "string"}})
    await append(client, "t", change("s", "old", "1"), control("reset"))
    entry = {"schema": {"type": "string"}, "key_pattern": "new-.*"}
    document = json.dumps({"types": {"s": entry}}).encode()
    assert (await client.send("PUT", "/v1/schema/t", document)).status == 200
    answer = await declare(client, "t")
    assert (answer.status, answer.json()["code"]) == (422, "validation-failed")
    assert (await client.send("GET", "/v1/table/t")).status == 404
    await schema(client, "t", {"s": {"type": "string"}})
    assert (await declare(client, "t")).status == 201
    assert await short(client) == ["1+old=1", "3-old="]


@with_app()
async def test_a_table_that_cannot_be_declared_deletes_nothing(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await schema(client, "t", {"s": {"type": "object"}})
    await append(client, "t", change("s", "old", {}), control("reset"))
    before = await client.get("t")
    answer = await declare(client, "t")
    assert (answer.status, answer.json()["code"]) == (409, "not-expressible")
    assert (await client.get("t")).body == before.body


@with_app()
async def test_any_number_of_old_keys_is_deleted(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await schema(client, "t", {"s": {"type": "string"}})
    await append(client, "t", *(change("s", f"key-{n}", "1") for n in range(3000)))
    await append(client, "t", control("reset"), change("s", "key-7", "2"))
    assert (await declare(client, "t")).status == 201
    deletes = (await short(client))[3001:]
    assert {line.partition("-")[2] for line in deletes} == {
        f"key-{n}=" for n in range(3000) if n != 7
    }


@with_app()
async def test_old_resets_become_deletes_when_the_stream_becomes_a_table(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await append(
        client, "t", change("s", "a", "1"), change("s", "b", "1"), change("x", "c", 1),
        control("reset"), change("s", "b", "2"),
    )  # fmt: skip
    await schema(client, "t", {"s": {"type": "string"}})
    await table(client)
    assert await short(client) == ["1+a=1", "2+b=1", "5+b=2", "6-a="]
    assert await short(client, query="view=active") == ["5+b=2"]
    events = (await client.get("t")).json()
    assert [event["key"] for event in events[5:]] == ["a", "c"]


@with_app()
async def test_two_declarations_at_once_are_one(client: Client) -> None:
    await client.put("t", content_type=JSON)
    await schema(client, "t", {"s": {"type": "string"}})
    for number in range(50):
        await append(client, "t", change("s", f"k{number}", "v"))
    appends = [append(client, "t", change("s", "z", str(n))) for n in range(20)]
    answers = await asyncio.gather(
        declare(client, "t"), *appends[:10], declare(client, "t"), *appends[10:],
        declare(client, "t", version=2),
    )  # fmt: skip
    statuses = sorted(answer.status for answer in answers if answer.status != 204)
    assert statuses in ([200, 201, 409], [201, 409, 409])
    assert len(await rows(client)) == 70


@with_app()
async def test_a_table_goes_with_its_stream(client: Client) -> None:
    await table(client)
    await put(client, "k", "v")
    assert (await client.send("DELETE", "/v1/stream/t")).status == 204
    assert (await get(client)).status == 404
    await table(client, version=7)
    assert await rows(client) == []


@with_app()
async def test_the_declaration_of_a_tables_stream_cannot_be_taken_back(client: Client) -> None:
    await table(client)
    answer = await client.send("DELETE", "/v1/schema/t")
    assert (answer.status, answer.json()["code"]) == (409, "conflict")
    assert (await put(client, "k", "v")).status == 204


@with_app()
async def test_a_trimmed_stream_can_be_declared_and_shows_the_rows_that_are_left(
    client: Client,
) -> None:
    for path, is_all in (("some", False), ("all", True)):
        await client.put(path, content_type=JSON)
        await schema(client, path, {"s": {"type": "string"}})
        first = await append(client, path, change("s", "a", "1"), change("s", "b", "2"))
        await append(client, path, change("s", "c", "3"))
        await client.engine.trim(path, "now" if is_all else first.offset)
        answer = await declare(client, path)
        assert answer.status == 201, answer.body
        await put(client, "d", "4", path)
        left = [(4, "d")] if is_all else [(3, "c"), (4, "d")]
        assert [(row.seqno, row.key) for row in await rows(client, path)] == left


@with_app()
async def test_an_event_that_is_no_row_is_numbered_from_the_start_of_a_trimmed_stream(
    client: Client,
) -> None:
    await client.put("t", content_type=JSON)
    await schema(client, "t", {})
    first = await append(client, "t", change("s", "a", "1"), change("s", "b", "2"))
    await append(client, "t", change("s", "a\tb", "3"))
    await client.engine.trim("t", first.offset)
    answer = await declare(client, "t", record="json")
    assert (answer.status, answer.json()["code"]) == (409, "not-expressible")
    assert "Event 3 of" in answer.json()["detail"]
