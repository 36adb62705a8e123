"""Schemas that mean more work than they look like: measured before use, checked apart, ended."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from penstock import limits
from penstock.errors import InvalidEvent, ValidationFailed
from penstock.state import declaration
from penstock.state.declaration import Compiled, Declaration, Question, encode, judge
from penstock.state.schema_cost import TooCostly, measure
from penstock.state.server.check_process import CheckProcess
from penstock.state.validators import JsonSchema
from tests.helpers.app import Answer, Client, with_app

JSON = "application/json"
Schema = dict[str, Any]


def doubling(levels: int, double: Callable[[Schema], Schema]) -> Schema:
    """A schema of so many definitions, each of them twice the one before."""
    definitions: Schema = {"d0": {"type": "object"}}
    for level in range(1, levels):
        definitions[f"d{level}"] = double({"$ref": f"#/$defs/d{level - 1}"})
    return {"$defs": definitions, "$ref": f"#/$defs/d{levels - 1}"}


def both(keyword: str) -> Callable[[Schema], Schema]:
    return lambda inner: {keyword: [inner, inner]}


HOSTILE = {
    "allOf": doubling(40, both("allOf")),
    "anyOf": doubling(40, both("anyOf")),
    "oneOf": doubling(40, both("oneOf")),
    "not": doubling(40, lambda inner: {"not": {"allOf": [inner, {"not": inner}]}}),
    "if": doubling(40, lambda inner: {"if": inner, "then": inner, "else": inner}),
    "patterns": doubling(40, lambda inner: {"patternProperties": {"a": inner, "^a": inner}}),
    "dependent": doubling(40, lambda inner: {"dependentSchemas": {"a": inner, "b": inner}}),
    "unevaluated": doubling(40, lambda i: {"allOf": [i], "unevaluatedProperties": False}),
    "anchors": {
        "$defs": {
            f"d{level}": {
                "$anchor": f"a{level}",
                "allOf": [{"$ref": f"#a{level - 1}"}] * 2 if level else [],
            }
            for level in range(40)
        },
        "$ref": "#a39",
    },
    "dynamic anchors": {
        "$defs": {
            f"d{level}": {
                "$dynamicAnchor": f"a{level}",
                "allOf": [{"$dynamicRef": f"#a{level - 1}"}] * 2 if level else [],
            }
            for level in range(40)
        },
        "$ref": "#/$defs/d39",
    },
    "embedded ids": {
        "$id": "https://example.com/root",
        "$defs": {
            f"d{level}": {
                "$id": f"d{level}",
                "allOf": [{"$ref": f"d{level - 1}"}] * 2 if level else [],
            }
            for level in range(40)
        },
        "$ref": "d39",
    },
    "outside of $defs": {
        "examples": [{"allOf": [{"$ref": f"#/examples/{n + 1}"}] * 2} for n in range(40)] + [{}],
        "$ref": "#/examples/0",
    },
    "long enum": {"enum": list(range(limits.SCHEMA_ENUM_MAX + 1))},
    "many patterns": {
        "properties": {
            f"p{n}": {"pattern": f"^{n}$"} for n in range(limits.SCHEMA_PATTERNS_MAX + 1)
        }
    },
    "large pattern": {"pattern": "(((a{0,100}){0,100}){0,100})$"},
    "chain": {
        "$defs": {f"d{n}": {"$ref": f"#/$defs/d{n + 1}"} for n in range(2000)} | {"d2000": {}},
        "$ref": "#/$defs/d0",
    },
}
FINE: dict[str, Schema | bool] = {
    "true": True,
    "wide": {"properties": {f"p{n}": {"type": "string"} for n in range(2000)}},
    "deep": doubling(40, lambda inner: {"properties": {"a": inner, "b": inner}}),
    "shared": {
        "$defs": {"id": {"type": "string", "minLength": 1}},
        "properties": {f"p{n}": {"$ref": "#/$defs/id"} for n in range(500)},
    },
    "enum": {"enum": [f"value {n}" for n in range(1000)]},
    "tree": {
        "$ref": "#/$defs/node",
        "$defs": {
            "node": {
                "properties": {
                    "left": {"$ref": "#/$defs/node"},
                    "right": {"$ref": "#/$defs/node"},
                }
            }
        },
    },
    "meta-schema": {"$ref": "https://json-schema.org/draft/2020-12/schema"},
    "extensible": {
        "$id": "https://example.com/strict",
        "$dynamicAnchor": "node",
        "$ref": "tree",
        "unevaluatedProperties": False,
        "$defs": {
            "tree": {
                "$id": "tree",
                "$dynamicAnchor": "node",
                "properties": {"children": {"items": {"$dynamicRef": "#node"}}},
            }
        },
    },
    "draft 4 id": {
        "$schema": "http://json-schema.org/draft-04/schema#",
        "id": "http://example.com/a",
        "definitions": {"x": {"id": "#x", "type": "string"}},
        "properties": {"a": {"$ref": "#x"}, "b": {"$ref": "http://example.com/a#/definitions/x"}},
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_schema_that_means_too_much_work_is_refused(name: str) -> None:
    assert len(json.dumps(HOSTILE[name])) < limits.SCHEMA_BYTES_MAX
    with pytest.raises(ValueError, match="JSON Schema"):
        JsonSchema(HOSTILE[name])


@pytest.mark.parametrize("name", FINE)
def test_schemas_as_people_write_them_are_used(name: str) -> None:
    JsonSchema(FINE[name]).load(b"{}" if name != "enum" else b'"value 7"')


def test_a_reference_that_cannot_be_followed_is_refused() -> None:
    with pytest.raises(ValueError, match="JSON Schema"):
        JsonSchema({"$ref": "https://example.com/other"})
    assert measure({"$ref": "https://example.com/other"}).unresolved == "https://example.com/other"


def test_only_a_recursion_that_meets_itself_branches() -> None:
    assert measure(FINE["tree"]).branches == 1
    variant = {"properties": {"inner": {"$ref": "#"}}}
    assert measure({"anyOf": [variant, variant, {"type": "null"}]}).branches == 2
    assert measure({"type": "object"}).branches == 0


def test_the_cost_of_a_value_grows_with_its_size_and_its_branches() -> None:
    variant = {"properties": {"inner": {"$ref": "#"}}, "required": ["x"]}
    cost = measure({"anyOf": [variant, variant]})
    costs = [cost.of(b'{"inner":' * depth + b"{}" + b"}" * depth) for depth in (1, 2, 3, 4)]
    assert all(later > 2 * earlier for earlier, later in itertools.pairwise(costs))
    assert cost.of(b'"' + b"x,[{" * 1000 + b'"') == cost.of(b'""')


@pytest.mark.parametrize("depth", [limits.SCHEMA_DEPTH_MAX - 10, limits.SCHEMA_DEPTH_MAX + 10])
def test_the_depth_of_a_schema_is_bounded(depth: int) -> None:
    schema: Schema = {}
    for _ in range(depth):
        schema = {"properties": {"a": schema}}
    if depth < limits.SCHEMA_DEPTH_MAX:
        assert measure(schema).steps == depth + 1
    else:
        with pytest.raises(TooCostly, match="levels deep"):
            measure(schema)


# -- appends

ALTERNATIVES = doubling(14, both("anyOf"))  # 8192 alternatives: an error takes long to put together
BRANCHING: Schema = {
    "anyOf": [
        {"properties": {"inner": {"$ref": "#"}, "kind": {"const": kind}}, "required": ["kind"]}
        for kind in ("a", "b", "c")
    ]
}


def nested(depth: int) -> Any:
    """A value that fails only at the last level, in each of the three alternatives."""
    value: Any = {"kind": "d"}
    for _ in range(depth):
        value = {"kind": "a", "inner": value}
    return value


def event(key: str, value: Any, type: str = "user") -> Schema:
    return {"type": type, "key": key, "value": value, "headers": {"operation": "upsert"}}


async def declare(client: Client, schema: Any, *, mode: str = "reject", path: str = "s") -> Answer:
    await client.put(path, content_type=JSON)
    document = {"mode": mode, "types": {"user": {"schema": schema}}}
    return await client.send("PUT", f"/v1/schema/{path}", json.dumps(document).encode())


async def post(client: Client, *events: Any, path: str = "s") -> Answer:
    return await client.post(path, json.dumps(events).encode(), content_type=JSON)


@with_app()
async def test_a_hostile_declaration_is_a_problem_and_changes_nothing(client: Client) -> None:
    for schema in HOSTILE.values():
        answer = await declare(client, schema)
        assert (answer.status, answer.json()["code"]) == (422, "invalid-schema")
        assert answer.json()["field"] == "types.user.schema"
    assert (await client.send("GET", "/v1/schema/s")).status == 404
    assert (await post(client, event("1", 1))).status == 204


@with_app()
async def test_the_patterns_of_all_types_share_their_limits(client: Client) -> None:
    await client.put("s", content_type=JSON)

    async def put(types: Any) -> Answer:
        body = json.dumps({"types": types}).encode()
        return await client.send("PUT", "/v1/schema/s", body)

    letters = {"pattern": r"^\p{L}{1,64}$"}  # a few megabytes when it is compiled
    assert (await put({"a": {"schema": letters}})).status == 201
    answer = await put({f"t{n}": {"schema": letters} for n in range(8)})
    assert (answer.status, answer.json()["code"]) == (422, "invalid-schema")
    answer = await put(
        {f"t{n}": {"schema": True, "key_pattern": letters["pattern"]} for n in range(8)}
    )
    assert (answer.status, answer.json()["code"]) == (422, "invalid-schema")
    small = {f"t{n}": {"schema": {"pattern": "^a"}, "key_pattern": "b"} for n in range(128)}
    assert (await put(small)).status == 200
    answer = await put({**small, "more": {"schema": {"pattern": "^a"}}})
    assert (answer.status, answer.json()["field"]) == (422, "types")
    assert "257 regular expressions" in answer.json()["detail"]


@with_app()
async def test_costly_values_are_checked_like_others(client: Client) -> None:
    assert (await declare(client, ALTERNATIVES)).status == 201
    assert (await post(client, event("1", {}), event("2", {"a": 1}))).status == 204
    answer = await post(client, event("3", {}), event("4", 4))
    assert (answer.status, answer.json()["code"]) == (422, "validation-failed")
    assert (answer.json()["index"], answer.json()["path"]) == (1, "/value")
    assert answer.json()["detail"].startswith("Event 1: user '4': value")
    assert len((await client.get("s")).json()) == 2


@with_app()
async def test_appends_behind_a_costly_one_keep_their_order(client: Client) -> None:
    await declare(client, ALTERNATIVES)
    costly = asyncio.ensure_future(post(client, event("1", {}), event("1", {"a": 1})))
    await asyncio.sleep(0)
    later = await client.post("s", json.dumps(event("2", {}, "other")).encode(), content_type=JSON)
    assert ((await costly).status, later.status) == (204, 204)
    assert [each["key"] for each in (await client.get("s")).json()] == ["1", "1", "2"]


@with_app(schema_check_timeout_s=0.3)
async def test_a_check_without_end_is_ended_while_others_go_on(client: Client) -> None:
    assert (await declare(client, BRANCHING)).status == 201
    assert (await post(client, event("1", {"kind": "a"}))).status == 204
    stuck = asyncio.ensure_future(post(client, event("2", nested(60))))
    others = 0
    await client.put("other", content_type=JSON)
    while not stuck.done():
        assert (await client.post("other", b"1", content_type=JSON)).status == 204
        others += 1
        await asyncio.sleep(0.01)
    answer = await stuck
    assert (answer.status, answer.json()["rule"]) == (422, "timeout")
    assert "simpler" in answer.json()["detail"]
    assert others > 5
    # The next check gets a new process.
    assert (await post(client, event("3", nested(0)))).status == 422
    assert (await post(client, event("4", {"kind": "b", "inner": {"kind": "c"}}))).status == 204


@with_app(schema_check_timeout_s=0.2)
async def test_mode_warn_counts_what_cannot_be_checked(client: Client) -> None:
    await declare(client, BRANCHING, mode="warn")
    assert (await post(client, event("2", nested(60)), event("3", {"kind": "x"}))).status == 204
    metrics = (await client.send("GET", "/metrics")).body.decode()
    assert "penstock_state_warnings_total 2.0" in metrics
    assert "penstock_state_checks_ended_total 1.0" in metrics


@with_app()
async def test_many_events_are_checked_in_slices_with_the_right_index(client: Client) -> None:
    await declare(client, {"type": "object", "required": ["name"]})
    events = [event(str(n), {"name": "x" * 50}) for n in range(3000)]
    assert (await post(client, *events)).status == 204
    events[2500]["value"] = {}
    answer = await post(client, *events)
    assert (answer.status, answer.json()["index"]) == (422, 2500)
    assert answer.json()["detail"].startswith("Event 2500: ")
    del events[2500]["headers"]
    answer = await post(client, *events)
    assert (answer.json()["code"], answer.json()["index"]) == ("invalid-event", 2500)
    assert (await client.get("s", "splits=1")).json()["ordinals"] == [0, 3000]


@with_app()
async def test_a_stored_declaration_beyond_the_limits_refuses_appends_with_advice(
    client: Client,
) -> None:
    await client.put("s", content_type=JSON)
    old = Declaration(
        version=1,
        mode="reject",
        types={"user": {"schema": HOSTILE["anyOf"]}},
        offset="-1",
        ordinal=0,
    )
    await client.engine.set_meta("s", declaration.META, encode(old))
    answer = await post(client, event("1", {}))
    assert (answer.status, answer.json()["code"]) == (422, "invalid-schema")
    assert "Declare it anew" in answer.json()["detail"]
    assert (await declare(client, {"type": "object"})).status == 200
    assert (await post(client, event("1", {}))).status == 204


def declared(schema: Any, mode: Any = "reject") -> tuple[Compiled, bytes]:
    value = Declaration(
        version=1, mode=mode, types={"user": {"schema": schema}}, offset="-1", ordinal=0
    )
    return Compiled(value), encode(value)


def test_only_costly_events_leave_the_process() -> None:
    compiled, value = declared(ALTERNATIVES)
    seen: list[bytes] = []
    wire = b"".join(
        json.dumps(each).encode() + b",\n"
        for each in (event("1", {}), event("2", 1, "other"), event("3", {}))
    )
    question = Question(compiled, value, wire, trusts_deletes=False, now_us=0)
    verdict = judge(question, lambda _, raw: seen.append(raw))
    assert verdict.error is None
    assert [json.loads(raw)["key"] for raw in seen] == ["1", "3"]
    cheap = Question(*declared({"type": "object"}), wire, trusts_deletes=False, now_us=0)
    assert judge(cheap, lambda *_: pytest.fail("sent")).error is None


def test_a_closed_process_refuses_and_a_running_check_is_ended() -> None:
    process = CheckProcess(timeout_s=30)
    _, value = declared(BRANCHING)
    process.check(value, json.dumps(event("1", {"kind": "a"})).encode())
    loop = asyncio.new_event_loop()
    started = time.monotonic()
    running = loop.run_in_executor(
        None, process.check, value, json.dumps(event("1", nested(60))).encode()
    )
    loop.call_later(0.1, process.close)
    with pytest.raises(Exception, match="stopping"):
        loop.run_until_complete(running)
    with pytest.raises(Exception, match="stopping"):
        process.check(value, b"{}")
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert time.monotonic() - started < 30  # it did not wait for the check


def test_the_error_of_the_process_is_that_of_the_library() -> None:
    process = CheckProcess(timeout_s=30)
    compiled, value = declared({"type": "object", "properties": {"a": {"type": "string"}}})
    raw = json.dumps(event("1", {"a": 1})).encode()
    with pytest.raises(ValidationFailed) as failed:
        process.check(value, raw)
    with pytest.raises(InvalidEvent) as direct:
        compiled.check(b"[" + raw + b"]")
    process.close()
    assert f"Event 0: {failed.value.detail}" == direct.value.detail
    assert (failed.value.path, failed.value.rule) == (direct.value.path, direct.value.rule)
    assert failed.value.field == direct.value.field
