"""Declarations that restrict types and keys: what a stream refuses."""

from __future__ import annotations

import json
from typing import Any

from tests.helpers.app import Client, with_app
from tests.http.test_metrics import scrape
from tests.state.test_server_schema import declare, event, post

DOCUMENT: dict[str, Any] = {
    "types": {
        "user": {"schema": {"type": "object"}, "key_pattern": "user:[0-9]+"},
        "flag": {"schema": True},
    },
    "unknown_types": "refuse",
}


def change(type: str, key: str, operation: str = "upsert") -> dict[str, Any]:
    return {**event(key, {}, operation), "type": type}


@with_app()
async def test_types_and_keys_that_are_not_expected_are_refused(client: Client) -> None:
    await client.put("s", content_type="application/json")
    assert (await declare(client, "s", DOCUMENT)).status == 201
    assert (await post(client, "s", change("user", "user:1"), change("flag", "any"))).status == 204
    for message, field, rule in (
        (change("role", "user:1"), "type", "unknown-type"),
        (change("role", "user:1", "delete"), "type", "unknown-type"),
        (change("user", "admin"), "key", "pattern"),
        (change("user", "user:1\n"), "key", "pattern"),
        (change("user", "xuser:12"), "key", "pattern"),
        (change("user", "admin", "delete"), "key", "pattern"),
    ):
        answer = await post(client, "s", change("user", "user:2"), message)
        problem = answer.json()
        assert answer.status == 422, message
        assert (problem["code"], problem["index"]) == ("validation-failed", 1)
        assert (problem["field"], problem["rule"], problem["path"]) == (field, rule, f"/{field}")
    state = await client.send("GET", "/v1/state/s")
    assert state.json()["types"] == {"flag": {"any": {}}, "user": {"user:1": {}}}


@with_app()
async def test_restrictions_are_a_part_of_the_declaration(client: Client) -> None:
    await client.put("s", content_type="application/json")
    first = (await declare(client, "s", DOCUMENT)).json()
    assert first["unknown_types"] == "refuse"
    assert first["types"]["user"]["key_pattern"] == "user:[0-9]+"
    assert (await client.send("GET", "/v1/schema/s")).json() == first
    assert (await declare(client, "s", first)).json()["version"] == 1
    wider = (await declare(client, "s", {**DOCUMENT, "unknown_types": "keep"})).json()
    assert (wider["version"], "unknown_types" in wider) == (2, False)
    assert (await post(client, "s", change("role", "1"))).status == 204
    assert (await post(client, "s", change("user", "1"))).status == 422


@with_app()
async def test_a_restriction_that_cannot_be_used_is_refused_by_its_place(client: Client) -> None:
    await client.put("s", content_type="application/json")
    for document, field in (
        ({"types": {}, "unknown_types": "drop"}, "unknown_types"),
        ({"types": {"user": {"schema": {}, "key_pattern": "("}}}, "types.user.key_pattern"),
        ({"types": {"user": {"schema": {}, "key_pattern": "a)|(b"}}}, "types.user.key_pattern"),
        ({"types": {"user": {"schema": {}, "key_pattern": "(?=a)a"}}}, "types.user.key_pattern"),
        ({"types": {"user": {"schema": {}, "key_pattern": 1}}}, "types.user.key_pattern"),
        ({"types": {"user": {"schema": {}, "keys": "a"}}}, "types.user"),
        ({"types": {"user": {"key_pattern": "a"}}}, "types.user"),
    ):
        answer = await declare(client, "s", document)
        assert (answer.status, answer.json()["field"]) == (422, field), document
        assert answer.json()["code"] == "invalid-schema"


@with_app()
async def test_mode_warn_counts_what_is_not_expected(client: Client) -> None:
    await client.put("s", content_type="application/json")
    await declare(client, "s", {**DOCUMENT, "mode": "warn"})
    assert (await post(client, "s", change("role", "1"), change("user", "x"))).status == 204
    assert (await scrape(client))["penstock_state_warnings_total"] == 2


@with_app()
async def test_declaring_a_table_keeps_the_restriction(client: Client) -> None:
    await client.put("s", content_type="application/json")
    await declare(client, "s", {"types": {"a": {"schema": {}}}, "unknown_types": "refuse"})
    table = {"schema": "rows", "type": "row", "record": "text"}
    answer = await client.send("PUT", "/v1/table/s", json.dumps(table).encode())
    assert answer.status == 201, answer.body
    declared = (await client.send("GET", "/v1/schema/s")).json()
    assert (declared["version"], declared["unknown_types"]) == (2, "refuse")
    assert sorted(declared["types"]) == ["a", "row"]
