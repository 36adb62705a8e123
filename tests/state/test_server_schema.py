"""Declaring state streams over HTTP: what is kept, what is refused, what appends may then do."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from penstock.config.settings import Settings
from penstock.http.app import App
from penstock.http.message import Response
from penstock.log import open_engine
from tests.helpers.app import Answer, Client, make_request, with_app
from tests.http.test_metrics import scrape

JSON = "application/json"
USER = {
    "type": "object",
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "tags": {"items": {"type": "string"}}},
}
DOCUMENT: dict[str, Any] = {"types": {"user": {"schema": USER}}, "mode": "reject"}


def event(key: str, value: Any, operation: str = "insert", **headers: Any) -> dict[str, Any]:
    return {
        "type": "user",
        "key": key,
        "value": value,
        "headers": {"operation": operation, **headers},
    }


async def declare(client: Client, path: str, document: Any = DOCUMENT, **headers: str) -> Answer:
    return await client.send("PUT", f"/v1/schema/{path}", json.dumps(document).encode(), **headers)


async def post(client: Client, path: str, *events: Any) -> Answer:
    return await client.post(path, json.dumps(list(events)).encode(), content_type=JSON)


@with_app()
async def test_a_declaration_is_created_once_and_versioned_by_its_content(client: Client) -> None:
    await client.put("s", content_type=JSON)
    first = await declare(client, "s")
    assert first.status == 201
    assert first.json()["version"] == 1
    assert first.json()["types"] == DOCUMENT["types"]
    again = await declare(client, "s")
    assert (again.status, again.json()["version"]) == (200, 1)
    assert again.headers["etag"] == first.headers["etag"]
    await post(client, "s", event("1", {"name": "Ann"}))
    changed = await declare(client, "s", {**DOCUMENT, "mode": "warn"})
    assert (changed.status, changed.json()["version"], changed.json()["ordinal"]) == (200, 2, 1)
    assert changed.json()["offset"] == (await client.head("s")).offset
    assert changed.headers["etag"] != first.headers["etag"]


@with_app()
async def test_two_declarations_at_once_get_two_versions(client: Client) -> None:
    await client.put("s", content_type=JSON)
    answers = await asyncio.gather(
        declare(client, "s"),
        declare(client, "s", {"types": {}}),
        declare(client, "s", {"types": {}}),
    )
    assert [answer.status for answer in answers] == [201, 200, 200]
    assert [answer.json()["version"] for answer in answers] == [1, 2, 2]


@with_app()
async def test_a_declaration_is_read_back_and_can_be_sent_again(client: Client) -> None:
    await client.put("s", content_type=JSON)
    missing = await client.send("GET", "/v1/schema/s")
    assert (missing.status, missing.json()["code"]) == (404, "schema-not-found")
    await declare(client, "s")
    answer = await client.send("GET", "/v1/schema/s")
    assert (answer.status, answer.json()["mode"]) == (200, "reject")
    assert (await declare(client, "s", answer.json())).json()["version"] == 1
    seen = await client.send("GET", "/v1/schema/s", if_none_match=answer.headers["etag"])
    assert (seen.status, seen.body) == (304, b"")


@with_app()
async def test_what_cannot_be_declared(client: Client) -> None:
    assert (await declare(client, "nothing")).status == 404
    await client.put("text", content_type="text/plain")
    answer = await declare(client, "text")
    assert (answer.status, answer.json()["code"]) == (409, "not-json-stream")
    await client.put("s", content_type=JSON)
    broken = await client.send("PUT", "/v1/schema/s", b'{"types": ')
    assert (broken.status, broken.json()["code"]) == (400, "invalid-json")
    large = await client.send("PUT", "/v1/schema/s", b'{"types": {}, "x": "%s"}' % (b"x" * 300_000))
    assert large.status == 413
    for document, field in (
        ([], None),
        ({}, "types"),
        ({"types": []}, "types"),
        ({"types": {"": {"schema": {}}}}, "types"),
        ({"types": {"user": {}}}, "types.user"),
        ({"types": {"user": {"schema": 1}}}, "types.user.schema"),
        ({"types": {"user": {"schema": {"type": "objekt"}}}}, "types.user.schema"),
        ({"types": {"user": {"schema": {"$ref": "http://x.example/s"}}}}, "types.user.schema"),
        ({"types": {}, "mode": "drop"}, "mode"),
        ({"types": {}, "other": 1}, "other"),
    ):
        answer = await declare(client, "s", document)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-schema"), document
        assert answer.json().get("field") == field
    assert (await client.send("GET", "/v1/schema/s")).status == 404
    assert (await client.send("POST", "/v1/schema/s")).status == 405


@with_app()
async def test_an_append_that_breaks_the_schema_is_refused_whole(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s")
    good, bad = event("1", {"name": "Ann"}), event("2", {"name": "Bob", "tags": ["a", 1]})
    answer = await post(client, "s", good, bad)
    assert answer.status == 422
    problem = answer.json()
    assert problem["code"] == "validation-failed"
    assert (problem["index"], problem["path"], problem["rule"]) == (1, "/value/tags/1", "type")
    assert problem["field"] == "value.tags[1]"
    assert "value.tags[1]" in problem["detail"]
    assert (await client.get("s")).json() == []
    assert (await post(client, "s", good)).status == 204


@with_app()
async def test_only_valid_events_are_accepted(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s")
    ann = {"name": "Ann"}
    for sent, path, rule in (
        ({"n": 1}, "/headers", "required"),
        (1, "", "type"),
        (event("", ann), "/key", "non-empty"),
        (event("1", ann, "remove"), "/headers/operation", "vocabulary"),
        (event("1", ann, timestamp="yesterday"), "/headers/timestamp", "rfc3339"),
        (event("1", ann, control="reset"), "/headers", "exclusive"),
    ):
        answer = await post(client, "s", event("0", ann), sent)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-event"), sent
        assert (answer.json()["index"], answer.json()["path"], answer.json()["rule"]) == (
            1, path, rule,
        )  # fmt: skip
    assert (await client.get("s")).json() == []
    values = await scrape(client)
    assert values["penstock_state_refused_total"] == 6
    other = {"type": "note", "key": "1", "value": 1, "headers": {"operation": "insert"}}
    gone = {"type": "user", "key": "1", "headers": {"operation": "delete"}}
    reset = {"headers": {"control": "reset"}}
    assert (await post(client, "s", other, gone, reset)).status == 204


@with_app()
async def test_mode_warn_counts_and_lets_in(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s", {**DOCUMENT, "mode": "warn"})
    sent = (event("1", {"name": "Ann"}), event("2", {}), {"n": 1}, event("3", 1))
    assert (await post(client, "s", *sent)).status == 204
    assert (await scrape(client))["penstock_state_warnings_total"] == 3
    state = await client.send("GET", "/v1/state/s")
    assert state.json()["types"] == {"user": {"1": {"name": "Ann"}, "2": {}, "3": 1}}


@with_app()
async def test_a_new_version_holds_for_the_appends_after_it(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s")
    assert (await post(client, "s", event("1", 5))).status == 422
    await declare(client, "s", {"types": {"user": {"schema": {"type": "integer"}}}})
    assert (await post(client, "s", event("1", 5))).status == 204
    assert (await post(client, "s", event("1", {"name": "Ann"}))).status == 422


@with_app()
async def test_a_refused_append_leaves_its_producer_where_it_was(client: Client) -> None:
    await client.put("s", content_type=JSON)
    await declare(client, "s")
    producer = {"producer_id": "p", "producer_epoch": "0", "producer_seq": "0"}
    body = json.dumps(event("1", 5)).encode()
    assert (await client.post("s", body, content_type=JSON, **producer)).status == 422
    body = json.dumps(event("1", {"name": "Ann"})).encode()
    assert (await client.post("s", body, content_type=JSON, **producer)).status == 200


@with_app()
async def test_a_transport_may_let_go_of_the_body_before_the_answer_is_there(
    client: Client,
) -> None:
    await client.put("s", content_type=JSON)
    request = make_request("PUT", "/v1/schema/s", json.dumps(DOCUMENT).encode())
    answer = client.app.handle(request)
    request.body = b""
    assert not isinstance(answer, Response)
    assert (await answer).status == 201


def test_a_declaration_outlives_a_restart(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path, disk_reserve_bytes=0, journal_file_bytes=1024 * 1024)

    async def run(*, first: bool) -> None:
        engine = open_engine(settings)
        await engine.start()
        app = App(engine, settings)
        client = Client(app, engine, None)  # type: ignore[arg-type]
        try:
            if first:
                await client.put("s", content_type=JSON)
                await declare(client, "s")
            assert (await client.send("GET", "/v1/schema/s")).json()["version"] == 1
            assert (await post(client, "s", event("1", 5))).status == 422
        finally:
            app.close()
            await engine.stop()

    asyncio.run(run(first=True))
    asyncio.run(run(first=False))


@with_app()
async def test_declared_streams_are_listed_for_those_who_may_list_them(client: Client) -> None:
    for path in ("a", "b/c", "d", "plain"):
        await client.put(path, content_type=JSON)
    for path in ("b/c", "a"):
        await declare(client, path, {"types": {"user": {"schema": {"type": "object"}}}})
    await client.send("PUT", "/v1/table/t", b'{"schema": "prices"}', content_type=JSON)
    listing = (await client.send("GET", "/v1/schema")).json()
    assert listing == {
        "streams": [
            {"path": "a", "types": ["user"], "version": 1, "table": False},
            {"path": "b/c", "types": ["user"], "version": 1, "table": False},
            {"path": "t", "types": ["prices"], "version": 1, "table": True},
        ],
        "next": None,
    }
    page = (await client.send("GET", "/v1/schema?limit=1&after=a")).json()
    assert ([each["path"] for each in page["streams"]], page["next"]) == (["b/c"], "b/c")
    await client.delete("a")
    listing = (await client.send("GET", "/v1/schema")).json()
    assert [each["path"] for each in listing["streams"]] == ["b/c", "t"]
