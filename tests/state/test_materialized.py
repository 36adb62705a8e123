"""The state after any sequence of events is what a five-line fold says."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidEvent
from penstock.state.events import (
    ControlEvent,
    delete,
    insert,
    parse,
    parse_many,
    reset,
    update,
    upsert,
)
from penstock.state.json import same_json
from penstock.state.materialized import MaterializedState
from tests.state import examples
from tests.state.strategies import changes, controls, mutated


def fold(events: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    state: dict[tuple[str, str], Any] = {}
    for event in events:
        if event["headers"].get("operation") == "delete":
            state.pop((event["type"], event["key"]), None)
        elif "operation" in event["headers"]:
            state[event["type"], event["key"]] = event["value"]
    return state


def contents(state: MaterializedState) -> dict[tuple[str, str], Any]:
    return {(type_, key): value for type_, key, value in state}


def applied(*events: Any) -> MaterializedState:
    state = MaterializedState()
    state.apply_batch(parse(event) for event in events)
    return state


def test_the_example_of_the_text() -> None:
    state = MaterializedState()
    assert state.apply_json(json.dumps(examples.MATERIALIZATION)) == 3
    assert state.to_dict() == examples.MATERIALIZED
    assert applied(*examples.MATERIALIZATION) == state


def test_the_life_of_the_user_in_the_text() -> None:
    state = MaterializedState()
    state.apply(parse(examples.INSERT))
    assert state.get("user", "user:123") == examples.ALICE
    state.apply(parse(examples.UPDATE))
    assert state.get("user", "user:123") == examples.ALICE_NEW
    state.apply(parse(examples.DELETE))
    assert state.get("user", "user:123") is None
    assert len(state) == 0


def test_the_use_cases_of_the_text_live_side_by_side() -> None:
    use_cases = [examples.CONFIG, examples.PRESENCE, *examples.MULTI_TYPE, examples.FLAG]
    state = applied(*use_cases)
    assert state.types == ["config", "presence", "user", "message", "reaction", "flag"]
    for event in use_cases:
        assert state.get(event["type"], event["key"]) == event["value"]


@pytest.mark.parametrize("set_it", [insert, update, upsert])
@pytest.mark.parametrize("before", [[], [insert("t", "k", 1)], [delete("t", "k")]])
def test_insert_update_and_upsert_all_set(set_it: Any, before: list[Any]) -> None:
    state = MaterializedState()
    state.apply_batch([*before, set_it("t", "k", 2)])
    assert contents(state) == {("t", "k"): 2}


@pytest.mark.parametrize("value", [{}, {"value": None}, {"value": {"still": "here"}}])
def test_delete_removes_whatever_its_value_says(value: dict[str, Any]) -> None:
    state = applied(examples.INSERT, {**without_value(examples.DELETE), **value})
    assert ("user", "user:123") not in state
    assert state.types == []


def without_value(event: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name != "value"}


def test_deleting_what_is_not_there_changes_nothing() -> None:
    state = applied(examples.CONFIG)
    state.apply_batch([delete("config", "other"), delete("other", "theme")])
    assert state.to_dict() == {"config": {"theme": "dark"}}


def test_old_values_timestamps_and_txids_do_not_count() -> None:
    state = MaterializedState()
    state.apply_batch([
        insert("t", "k", "first", timestamp="2030-01-01T00:00:00Z", txid="2"),
        update("t", "k", "second", old_value="x", timestamp="1999-01-01T00:00:00Z", txid="1"),
    ])  # fmt: skip
    assert state.get("t", "k") == "second"


def test_control_events_change_nothing() -> None:
    state = applied(examples.CONFIG, *examples.CONTROLS, {"headers": {"control": "up-to-date"}})
    assert state == applied(examples.CONFIG)


def test_a_reset_can_clear_in_stream_order() -> None:
    state = MaterializedState()
    seen: list[tuple[str, int]] = []

    def control(event: ControlEvent) -> None:
        seen.append((event.control, len(state)))
        if event.control == "reset":
            state.clear()

    array = json.dumps([examples.CONFIG, examples.CONTROLS[0], examples.PRESENCE,
                        examples.CONTROLS[2], examples.FLAG])  # fmt: skip
    assert state.apply_json(array, on_control=control) == 3
    assert seen == [("snapshot-start", 1), ("reset", 2)]
    assert state.types == ["flag"]


def test_control_events_keep_their_unknown_fields() -> None:
    seen: list[ControlEvent] = []
    event = {"headers": {"control": "reset"}, "reason": "migration"}
    MaterializedState().apply_json(json.dumps([examples.CONFIG, event]), on_control=seen.append)
    assert seen[0].extra == {"reason": "migration"}


def test_null_is_a_value() -> None:
    state = applied(insert("t", "k", None).to_json())
    assert ("t", "k") in state
    assert state.get("t", "k", "default") is None
    assert state.get("t", "other", "default") == "default"
    assert state.get_raw("t", "k") == b"null"
    assert state.get_raw("t", "other") is state.get_raw("other", "k") is None
    state.apply(delete("t", "k"))
    assert len(state) == 0


def test_a_type_is_a_live_view() -> None:
    state = MaterializedState()
    users = state.get_type("user")
    assert dict(users) == {}
    state.apply_json(json.dumps(examples.MATERIALIZATION))
    assert users == examples.MATERIALIZED["user"]
    assert "1" in users
    assert users.get("3") is None
    assert repr(users) == repr(examples.MATERIALIZED["user"])
    state.clear()
    assert len(users) == 0
    with pytest.raises(KeyError):
        users["1"]


def test_what_was_read_cannot_change_the_state() -> None:
    state = applied(examples.INSERT)
    state.get("user", "user:123")["name"] = "Mallory"
    state.get_type("user")["user:123"].clear()
    state.to_dict()["user"].clear()
    assert state.get("user", "user:123") == examples.ALICE


def test_counts_and_membership() -> None:
    state = applied(*examples.MATERIALIZATION, examples.CONFIG)
    assert (len(state), state.type_count, state.types) == (3, 2, ["user", "config"])
    assert (state.count("user"), state.count("config"), state.count("other")) == (2, 1, 0)
    assert ("user", "1") in state
    assert "user" not in state
    assert ("user", "1", "x") not in state
    assert repr(state) == "MaterializedState(user: 2, config: 1)"
    state.clear()
    assert (len(state), state.type_count) == (0, 0)


def test_types_without_entities_do_not_pile_up() -> None:
    state = MaterializedState()
    for number in range(100):
        state.apply_batch([insert(f"type-{number}", "k", 1), delete(f"type-{number}", "k")])
    assert state.type_count == 0
    assert state == MaterializedState()


def test_equality_is_of_meaning() -> None:
    one, other = MaterializedState(), MaterializedState()
    one.apply_json(
        b'[{"type":"t","key":"k","value":{"a":1,"b":[]},"headers":{"operation":"insert"}}]'
    )
    other.apply(update("t", "k", {"b": [], "a": 1.0}, txid="7"))
    assert one == other
    other.apply(update("t", "k", {"b": [], "a": True}))
    assert one != other
    other.apply_batch([update("t", "k", {"a": 1, "b": []}), insert("u", "k", 1)])
    assert one != other
    assert one != {}
    with pytest.raises(TypeError):
        hash(one)


def test_a_copy_goes_its_own_way() -> None:
    state = applied(examples.CONFIG)
    copy = state.copy()
    copy.apply(delete("config", "theme"))
    assert (len(state), len(copy)) == (1, 0)


def test_an_array_with_something_invalid_is_refused_whole() -> None:
    state = applied(examples.CONFIG)
    for bad in ({}, {**examples.FLAG, "key": ""}, {**examples.FLAG, "headers": {}}):
        with pytest.raises(InvalidEvent) as caught:
            state.apply_json(json.dumps([examples.FLAG, reset_json(), bad, examples.PRESENCE]))
        assert caught.value.index == 2
    assert state == applied(examples.CONFIG)


def reset_json() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(reset().to_json())
    return document


def test_invalid_events_can_be_skipped_or_collected() -> None:
    array = json.dumps([examples.CONFIG, {"type": "t"}, examples.FLAG, 5])
    dead: list[InvalidEvent] = []
    for policy in ("skip", dead.append):
        state = MaterializedState(on_invalid=policy)
        assert state.apply_json(array) == 2
        assert (state.types, state.skipped) == (["config", "flag"], 2)
    assert [(error.index, error.raw) for error in dead] == [(1, b'{"type": "t"}'), (3, b"5")]


def test_unknown_fields_and_odd_timestamps_do_not_hinder() -> None:
    event = {
        **examples.CONFIG,
        "note": 1,
        "headers": {"operation": "insert", "timestamp": "noon", "x": 1},
    }
    state = MaterializedState()
    assert state.apply_json(json.dumps([event, examples.FLAG])) == 2
    assert state.types == ["config", "flag"]


def test_a_small_value_does_not_keep_a_large_array() -> None:
    state = MaterializedState()
    state.apply_json(json.dumps([insert_json("big", "x" * 100_000), insert_json("small", 1)]))
    raw = state.get_raw("t", "small")
    assert type(raw) is bytes
    assert raw == b"1"


def insert_json(key: str, value: Any) -> dict[str, Any]:
    return {"type": "t", "key": key, "value": value, "headers": {"operation": "insert"}}


EVENTS = st.lists(changes() | controls(), max_size=30)


@given(EVENTS)
def test_the_state_is_a_five_line_fold(events: list[dict[str, Any]]) -> None:
    state = MaterializedState()
    state.apply_json(json.dumps(events))
    expected = fold(events)
    assert contents(state).keys() == expected.keys()
    assert all(same_json(state.get(*at), value) for at, value in expected.items())
    assert len(state) == len(expected)
    assert set(state.types) == {type_ for type_, _ in expected}
    for type_ in state.types:
        assert set(state.get_type(type_)) == {key for found, key in expected if found == type_}


@given(EVENTS, st.integers(0, 30))
def test_batches_are_the_same_as_one_by_one(events: list[dict[str, Any]], cut: int) -> None:
    parsed = parse_many(json.dumps(events))
    batch, single, divided = MaterializedState(), MaterializedState(), MaterializedState()
    assert batch.apply_batch(parsed) == sum("operation" in event["headers"] for event in events)
    for event in parsed:
        single.apply(event)
    divided.apply_json(json.dumps(events[:cut]))
    divided.apply_json(json.dumps(events[cut:]))
    assert batch == single == divided


@given(st.lists(mutated(), max_size=5))
def test_the_loose_way_gives_the_same_state_as_the_exact_one(events: list[Any]) -> None:
    fast, slow = MaterializedState(on_invalid="skip"), MaterializedState()
    array = json.dumps(events)
    fast.apply_json(array)
    slow.apply_batch(parse_many(array, strict_timestamp=False, on_invalid=lambda _: None))
    assert fast == slow
