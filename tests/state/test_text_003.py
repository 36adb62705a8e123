"""The State Protocol v1.0, section by section: its examples word for word, and what it demands.

| section | tests here |
|---|---|
| 3 overview | a stream of JSON, appended to and read as an array |
| 4.1, 5.1 change messages | required and optional fields, one example an operation |
| 4.2, 5.2 control messages | required and optional fields, one example a control |
| 6 materialization | order, the example, storage |
| 7 schema validation | before materialisation, by policy, type by type |
| 8 use cases | key/value, presence, multi-type, flags |
| 9 security | malformed, invalid, untrusted, expected types and keys, transactions |

Sections 1, 2, 10 and 11 demand nothing. docs/state-conformance.md has every demand and its test.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync.stream import Stream
from penstock.errors import InvalidEvent, ValidationFailed
from penstock.state import (
    ChangeEvent,
    Collection,
    ControlEvent,
    LiveState,
    MaterializedState,
    MemoryBackend,
    SqliteBackend,
    StateSchema,
    delete,
    insert,
    parse,
    update,
)
from tests.state import examples
from tests.state.readers import WAIT_S, answer, declare, lived, ours

Json = dict[str, Any]


def without(event: Json, *path: str) -> Json:
    """A copy that lacks one field."""
    copy: Json = json.loads(json.dumps(event))
    inner = copy
    for name in path[:-1]:
        inner = inner[name]
    del inner[path[-1]]
    return copy


def refused(event: Any) -> str | None:
    """The field that a strict reader complains about."""
    with pytest.raises(InvalidEvent) as caught:
        parse(json.dumps(event))
    return caught.value.field


def test_3_messages_are_appended_to_a_json_stream_and_read_as_an_array(stream: Stream) -> None:
    for event in examples.MATERIALIZATION:
        stream.append(event)
    assert stream.head().content_type == "application/json"
    assert json.loads(stream.read_bytes()) == examples.MATERIALIZATION
    assert ours(stream) == {
        ("user", key): value for key, value in examples.MATERIALIZED["user"].items()
    }


@pytest.mark.parametrize("path", [("type",), ("key",), ("headers",), ("headers", "operation")])
@pytest.mark.parametrize("example", [examples.INSERT, examples.UPDATE, examples.DELETE])
def test_4_1_a_change_has_type_key_headers_and_operation(
    example: Json, path: tuple[str, ...]
) -> None:
    parse(json.dumps(example))
    assert refused(without(example, *path)) in (".".join(path), "headers")


@pytest.mark.parametrize("example", [examples.INSERT, examples.UPDATE])
def test_4_1_insert_and_update_need_a_value(example: Json) -> None:
    assert refused(without(example, "value")) == "value"


def test_4_1_what_may_be_there_may_be_left_out() -> None:
    bare = {"type": "t", "key": "k", "value": 1, "headers": {"operation": "update"}}
    for more in (
        {},
        {"old_value": None},
        {"headers": {"operation": "update", "txid": "tx-1"}},
        {"headers": {"operation": "update", "timestamp": "2025-01-15T10:30:00Z"}},
    ):
        event = parse(json.dumps({**bare, **more}))
        assert isinstance(event, ChangeEvent)
        assert event.value == 1


def test_4_1_1_insert_operation(stream: Stream) -> None:
    """An insert creates; the builder has no place for an old value."""
    stream.append(examples.INSERT)
    assert ours(stream) == {("user", "user:123"): examples.ALICE}
    built = insert("user", "user:123", examples.ALICE, timestamp="2025-01-15T10:30:00Z")
    assert json.loads(built.to_json()) == examples.INSERT
    with pytest.raises(TypeError):
        insert("user", "1", 1, old_value=2)  # type: ignore[call-arg]


def test_4_1_2_update_operation(stream: Stream) -> None:
    stream.append_many([examples.INSERT, examples.UPDATE])
    assert ours(stream) == {("user", "user:123"): examples.ALICE_NEW}
    built = update(
        "user", "user:123", examples.ALICE_NEW,
        old_value=examples.ALICE, timestamp="2025-01-15T10:35:00Z",
    )  # fmt: skip
    assert json.loads(built.to_json()) == examples.UPDATE
    assert built.old_value == examples.ALICE


@pytest.mark.parametrize("example", [examples.DELETE, examples.DELETE_NULL])
def test_4_1_3_delete_operation(stream: Stream, example: Json) -> None:
    stream.append_many([examples.INSERT, examples.UPDATE, example])
    assert ours(stream) == {}
    event = parse(json.dumps(example))
    assert isinstance(event, ChangeEvent)
    assert event.old_value == examples.ALICE_NEW
    built = delete(
        "user", "user:123", old_value=examples.ALICE_NEW, timestamp="2025-01-15T10:40:00Z"
    )
    assert json.loads(built.to_json()) == examples.DELETE


@pytest.mark.parametrize("path", [("headers",), ("headers", "control")])
@pytest.mark.parametrize("example", examples.CONTROLS)
def test_4_2_a_control_has_headers_and_a_control(example: Json, path: tuple[str, ...]) -> None:
    assert isinstance(parse(json.dumps(example)), ControlEvent)
    assert (refused(without(example, *path)) or "headers").startswith("headers")
    assert refused({"headers": {"control": "begin"}}) == "headers.control"


@pytest.mark.parametrize("example", examples.CONTROLS)
def test_4_2_the_offset_of_a_control_may_be_left_out(example: Json) -> None:
    event = parse(json.dumps(without(example, "headers", "offset")))
    assert isinstance(event, ControlEvent)
    assert event.offset is None


def test_4_2_1_snapshot_boundaries(stream: Stream) -> None:
    """What lies between them counts like anything else."""
    begin, end = examples.CONTROLS[:2]
    stream.append_many([begin, examples.INSERT])
    with LiveState(stream) as state:
        state.wait_up_to_date(WAIT_S)
        inside = [state.in_snapshot]
        stream.append(end)
        state.wait_up_to_date(WAIT_S)
        inside.append(state.in_snapshot)
    assert inside == [True, False]
    assert ours(stream) == {("user", "user:123"): examples.ALICE}


def test_4_2_2_reset_control_clears_and_an_offset_elsewhere_only_warns(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """The example names an offset that this stream has not: it is not gone to."""
    reset = examples.CONTROLS[2]
    stream.append_many([examples.INSERT, reset, examples.CONFIG])
    with caplog.at_level(logging.WARNING, "penstock.state"):
        assert ours(stream) == {("config", "theme"): "dark"}
    assert "123456_000" in caplog.text


def test_4_2_2_reset_control_restarts_from_the_offset_that_it_names(stream: Stream) -> None:
    """An offset that lies ahead is gone to: what is in between does not count."""
    stream.append(examples.INSERT)
    generation, at = stream.head().offset.split("_")
    skipped = json.dumps(examples.PRESENCE, separators=(",", ":"))
    control = {"headers": {"control": "reset", "offset": f"{generation}_{0:016d}"}}
    length = len(json.dumps(control, separators=(",", ":"))) + 2 + len(skipped) + 2
    control["headers"]["offset"] = f"{generation}_{int(at) + length:016d}"
    stream.append_many([control, examples.PRESENCE, examples.CONFIG])
    assert lived(stream) == {("config", "theme"): "dark"}
    assert answer(stream)["types"] == {"config": {"theme": "dark"}}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"type": ""}, "type"),
        ({"type": 1}, "type"),
        ({"key": ""}, "key"),
        ({"key": None}, "key"),
        ({"headers": {"operation": "replace"}}, "headers.operation"),
        ({"headers": {"operation": "insert", "txid": ""}}, "headers.txid"),
        ({"headers": {"operation": "insert", "timestamp": "15 January"}}, "headers.timestamp"),
        ({"headers": []}, "headers"),
    ],
)
def test_5_1_field_requirements_of_a_change(change: Json, field: str) -> None:
    assert refused({**examples.CONFIG, **change}) == field


@pytest.mark.parametrize("value", ["text", 1.5, True, None, [1, [2]], {"a": {"b": None}}])
def test_5_1_values_and_old_values_are_any_json(stream: Stream, value: Any) -> None:
    stream.append({**examples.CONFIG, "value": value, "old_value": value})
    assert ours(stream) == {("config", "theme"): value}


@pytest.mark.parametrize("message", [[], "text", 1, None, {}])
def test_5_messages_are_objects(message: Any) -> None:
    refused(message)


def test_5_2_field_requirements_of_a_control() -> None:
    for control in ("snapshot-start", "snapshot-end", "reset"):
        parse({"headers": {"control": control}})
    assert refused({"headers": {"control": 1}}) == "headers.control"
    for offset in ("", 7, None):
        event = {"headers": {"control": "reset", "offset": offset}}
        assert refused(event) == "headers.offset"


def test_6_messages_are_processed_in_stream_order(stream: Stream) -> None:
    for number in range(50):
        stream.append({**examples.CONFIG, "value": number})
    assert ours(stream) == {("config", "theme"): 49}


def test_6_the_example_materialization(stream: Stream) -> None:
    stream.append_many(examples.MATERIALIZATION)
    state = MaterializedState()
    state.apply_batch(parse(json.dumps(event)) for event in examples.MATERIALIZATION)
    assert state.to_dict() == examples.MATERIALIZED
    assert answer(stream)["types"] == examples.MATERIALIZED
    declare(stream)
    assert answer(stream)["types"] == examples.MATERIALIZED


def test_6_state_is_stored_in_memory_or_in_sqlite_or_elsewhere(
    stream: Stream, tmp_path: Path
) -> None:
    class Custom(MemoryBackend):
        commits = 0

        def commit(self, *arguments: Any, **options: Any) -> None:
            Custom.commits += 1
            super().commit(*arguments, **options)

    stream.append_many(examples.MATERIALIZATION)
    for backend in (MemoryBackend(), SqliteBackend(tmp_path / "state.db"), Custom()):
        with LiveState(stream, backend=backend) as state:
            state.wait_up_to_date(WAIT_S)
            assert state.to_dict() == examples.MATERIALIZED
    assert Custom.commits == 1


NAMED = {"type": "object", "required": ["name"]}


def test_7_values_are_validated_before_they_are_materialized(stream: Stream) -> None:
    """By policy: left out and counted, put aside, or raised. Other types go on."""
    bad = {**examples.MATERIALIZATION[2], "value": {"nickname": "Al"}}
    stream.append_many([*examples.MATERIALIZATION[:2], bad, examples.CONFIG])
    schema = StateSchema(users=Collection(type="user", schema=NAMED))
    put_aside: list[InvalidEvent] = []
    for on_invalid in ("skip", put_aside.append):
        with LiveState(stream, schema=schema, on_invalid=on_invalid) as state:
            state.wait_up_to_date(WAIT_S)
            assert state.get_type("user") == {"1": {"name": "Alice"}, "2": {"name": "Bob"}}
            assert state.get("config", "theme") == "dark"
            assert state.skipped == 1
    assert isinstance(put_aside[0], ValidationFailed)
    with LiveState(stream, schema=schema, on_invalid="raise") as state:
        with pytest.raises(ValidationFailed):
            state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {}


def test_7_a_server_validates_what_is_appended(stream: Stream) -> None:
    declare(stream, {"types": {"user": {"schema": NAMED}}})
    stream.append_many(examples.MATERIALIZATION)
    with pytest.raises(ValidationFailed) as caught:
        stream.append_many([examples.CONFIG, {**examples.MATERIALIZATION[2], "value": {}}])
    assert (caught.value.index, caught.value.path, caught.value.rule) == (1, "/value", "required")
    assert answer(stream)["types"] == examples.MATERIALIZED


@pytest.mark.parametrize(
    "example", [examples.CONFIG, examples.PRESENCE, examples.FLAG], ids=["8.1", "8.2", "8.4"]
)
def test_8_single_entity_use_cases(stream: Stream, example: Json) -> None:
    declare(stream)
    stream.append(example)
    assert ours(stream) == {(example["type"], example["key"]): example["value"]}


def test_8_3_multi_type_streams(stream: Stream) -> None:
    stream.append_many(examples.MULTI_TYPE)
    assert ours(stream) == {
        (event["type"], event["key"]): event["value"] for event in examples.MULTI_TYPE
    }
    assert list(answer(stream, type="reaction")["types"]) == ["reaction"]


MALFORMED: list[Any] = [
    {"type": "user", "key": "", "value": 1, "headers": {"operation": "insert"}},
    {"type": "user", "key": "1", "headers": {"operation": "insert"}},
    {**examples.CONFIG, "headers": {"operation": "insert", "control": "reset"}},
    {"headers": {}},
    "text",
]


@pytest.mark.parametrize("message", MALFORMED)
def test_9_1_malformed_messages_are_rejected(stream: Stream, message: Any) -> None:
    """By readers, who leave them out and count them, and by servers."""
    stream.append_many([message, examples.CONFIG])
    with LiveState(stream) as state:
        state.wait_up_to_date(WAIT_S)
        assert state.to_dict() == {"config": {"theme": "dark"}}
        assert state.skipped == 1
    assert answer(stream)["types"] == {"config": {"theme": "dark"}}
    declare(stream)
    with pytest.raises(InvalidEvent):
        stream.append(message)
    assert answer(stream)["types"] == {"config": {"theme": "dark"}}


def test_9_2_invalid_values_are_rejected_before_materialization() -> None:
    schema = StateSchema(users=Collection(type="user", schema=NAMED))
    state = MaterializedState(schema)
    state.apply(insert("user", "1", {"name": "Alice"}))
    with pytest.raises(ValidationFailed):
        state.apply(update("user", "1", "confused"))
    assert state.get("user", "1") == {"name": "Alice"}


@pytest.mark.parametrize(
    "junk",
    [
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"type":"a","key":"b","value":' + b"[" * 500 + b"]" * 500 + b',"headers":'
        b'{"operation":"insert"}}',
        b'{"headers":{"operation":"insert"},"headers":{"control":"reset"}}',
        b'{"type":"\\ud800","key":"k","value":1,"headers":{"operation":"insert"}}',
    ],
)
def test_9_3_contents_are_untrusted(junk: bytes) -> None:
    """Whatever comes is an event or is refused as none; nothing else is raised."""
    try:
        parse(junk)
    except InvalidEvent:
        pass
    with pytest.raises(InvalidEvent):
        MaterializedState().apply_json(b"[" + junk[:200])


def test_9_4_types_and_keys_can_be_held_to_what_is_expected() -> None:
    users: Collection[Any] = Collection(type="user", schema=NAMED, key_pattern=r"user:\d+")
    schema = StateSchema(unknown_types="refuse", users=users)
    state = MaterializedState(schema, on_invalid="skip")
    state.apply(insert("user", "user:1", {"name": "Alice"}))
    state.apply(insert("user", "admin", {"name": "Mallory"}))
    state.apply(insert("role", "user:1", {"name": "root"}))
    assert state.to_dict() == {"user": {"user:1": {"name": "Alice"}}}
    assert state.skipped == 2


def test_9_5_a_txid_promises_nothing_to_who_applies_events() -> None:
    """Events of one transaction are applied one by one, and whatever their txid."""
    state = MaterializedState()
    state.apply(insert("user", "1", 1, txid="tx"))
    assert state.get("user", "1") == 1
    state.apply(insert("user", "2", 2, txid="tx"))
    other = MaterializedState()
    other.apply(insert("user", "1", 1, txid="a"))
    other.apply(insert("user", "2", 2))
    assert state == other
