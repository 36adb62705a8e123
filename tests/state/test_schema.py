"""Collections build and check events; a bad event of one type never holds up or spoils another."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidEvent, ValidationFailed
from penstock.state.events import ChangeEvent, StateEvent, delete, insert, reset, update
from penstock.state.materialized import MaterializedState
from penstock.state.schema import Collection, StateSchema
from tests.state.models import ADA, SCHEMAS, StructUser

LATER = {"id": "ada", "years": 37}


def user_schema(schema: Any = StructUser, **options: Any) -> StateSchema:
    return StateSchema(
        users=Collection(type="user", schema=schema, primary_key="id"),
        flags=Collection(type="flag", schema=bool),
        **options,
    )


@pytest.mark.parametrize("name", SCHEMAS)
def test_collections_build_events_whatever_the_library(name: str) -> None:
    users = user_schema(SCHEMAS[name][0]).users
    event = users.insert(ADA, txid="7", timestamp="2025-01-15T10:30:00Z")
    assert json.loads(event.to_json()) == {
        "type": "user", "key": "ada", "value": ADA,
        "headers": {"operation": "insert", "txid": "7", "timestamp": "2025-01-15T10:30:00Z"},
    }  # fmt: skip
    event = users.update(LATER, old_value=ADA)
    assert (event.operation, event.value, event.old_value) == ("update", LATER, ADA)
    event = users.upsert(LATER, headers={"from": "here"})
    assert (event.operation, event.extra_headers) == ("upsert", {"from": "here"})
    for event in (
        users.delete("ada"),
        users.delete(old_value=ADA),
        users.delete("ada", old_value=ADA),
    ):
        assert (event.operation, event.key, event.raw_value) == ("delete", "ada", None)


def test_models_are_values() -> None:
    users = user_schema().users
    event = users.update(StructUser("ada", 37), old_value=StructUser("ada", 36))
    assert (event.key, event.value, event.old_value) == ("ada", LATER, ADA)


def test_what_is_sent_is_the_value_as_given() -> None:
    event = user_schema().users.insert({**ADA, "nick": "countess"})
    assert event.value == {**ADA, "nick": "countess"}
    raw = msgspec.Raw(b'{"id":"ada", "years":36}')
    assert user_schema().users.insert(raw).raw_value == bytes(raw)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda users: users.insert({"id": "ada", "years": -1}), "value.years"),
        (lambda users: users.update(ADA, old_value={"id": "ada"}), "old_value"),
        (lambda users: users.delete("ada", old_value={"id": 5, "years": 1}), "old_value.id"),
        (lambda users: users.insert(ADA, key="bob"), "key is 'bob', but the value's id is 'ada'"),
        (lambda users: users.delete(), "key is missing"),
        (lambda users: users.insert(object()), "value cannot be written"),
        (lambda users: users.insert(msgspec.Raw(b"{")), "value"),
    ],
)
def test_what_does_not_fit_is_refused_when_built(call: Any, words: str) -> None:
    with pytest.raises(ValidationFailed, match=words):
        call(user_schema().users)


def test_keys_are_found_in_the_value_or_given() -> None:
    counted = Collection[Any](type="item", schema={}, primary_key="n")
    assert counted.insert({"n": 5}).key == "5"
    assert counted.insert({"n": 5}, key="5").key == "5"
    assert counted.insert({"x": 1}, key="k").key == "k"
    for value in ({"n": None}, {"n": True}, {"n": 1.5}, {"n": ["a"]}, {}, "text"):
        with pytest.raises(ValidationFailed, match="key is missing"):
            counted.insert(value)
    with pytest.raises(InvalidEvent, match="empty"):
        counted.insert({"n": ""})
    with pytest.raises(ValidationFailed, match="no primary_key"):
        Collection[Any](type="item", schema={}).insert({"n": 5})


def test_keys_can_be_held_to_a_pattern() -> None:
    items = Collection[Any](type="item", schema={}, key_pattern="item:[0-9]+")
    schema = StateSchema(items=items)
    assert items.insert(1, key="item:1").key == "item:1"
    with pytest.raises(ValidationFailed, match="does not match") as caught:
        items.insert(1, key="item:1\n")
    assert (caught.value.field, caught.value.rule) == ("key", "pattern")
    for event in (insert("item", "other", 1), delete("item", "other")):
        with pytest.raises(ValidationFailed):
            schema.check(event)


def test_a_type_has_at_most_one_schema() -> None:
    with pytest.raises(ValueError, match="two collections"):
        StateSchema(a=Collection(type="user", schema=str), b=Collection(type="user", schema=int))


@pytest.mark.parametrize("name", ["check", "valid", "types", "collection", "_private", "__init__"])
def test_names_that_are_taken_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a collection"):
        StateSchema(**{name: Collection(type="t", schema=str)})  # type: ignore[arg-type]


def test_a_collection_needs_a_type() -> None:
    with pytest.raises(ValueError, match="empty"):
        Collection[str](type="", schema=str)


def test_collections_are_found_by_name_and_by_type() -> None:
    schema = user_schema()
    assert schema.types == ["user", "flag"]
    assert schema.collection("user") is schema.users
    assert schema.collection("other") is None
    assert [name for name, _ in schema] == ["users", "flags"]
    with pytest.raises(AttributeError, match="no collection 'others'"):
        schema.others  # noqa: B018


def test_checking_gives_the_librarys_own_value() -> None:
    schema = user_schema()
    assert schema.check(insert("user", "ada", ADA)) == StructUser("ada", 36)
    assert schema.check(delete("user", "ada")) is None
    assert schema.check(insert("other", "k", [1])) == [1]


def test_a_delete_needs_no_valid_value() -> None:
    event = user_schema().users.delete("ada")
    assert user_schema().check(event) is None


def test_unknown_types_can_be_refused() -> None:
    schema = user_schema(unknown_types="refuse")
    for event in (insert("other", "k", 1), delete("other", "k")):
        with pytest.raises(ValidationFailed, match="not one of the schema's: user, flag") as caught:
            schema.check(event)
        assert (caught.value.field, caught.value.rule) == ("type", "unknown-type")


def test_a_state_gives_typed_values() -> None:
    schema = user_schema()
    state = MaterializedState(schema)
    state.apply(schema.users.insert(ADA))
    assert schema.users.get(state, "ada") == StructUser("ada", 36)
    assert schema.users.get(state, "bob") is None
    assert schema.users.get(state, "bob", StructUser("bob", 1)).years == 1
    assert schema.users.all(state) == {"ada": StructUser("ada", 36)}


EVENTS: list[ChangeEvent] = [
    insert("user", "ada", ADA),
    insert("user", "ada", {"id": "ada", "years": -1}),
    insert("flag", "new", True),
    insert("flag", "new", "yes"),
    insert("other", "k", "anything"),
    update("user", "ada", LATER),
]
EXPECTED = {"user": {"ada": LATER}, "flag": {"new": True}, "other": {"k": "anything"}}


@pytest.mark.parametrize("name", SCHEMAS)
def test_skipping_one_type_never_blocks_another(name: str) -> None:
    state = MaterializedState(user_schema(SCHEMAS[name][0]), on_invalid="skip")
    assert state.apply_batch(EVENTS) == 4
    assert state.to_dict() == EXPECTED
    assert state.skipped == 2


def test_dead_letters_get_the_error_and_the_event() -> None:
    dead: list[InvalidEvent] = []
    state = MaterializedState(user_schema(), on_invalid=dead.append)
    state.apply_json(msgspec.json.encode(EVENTS))
    assert state.to_dict() == EXPECTED
    assert [(error.index, error.field) for error in dead] == [(1, "value.years"), (3, "value")]
    assert dead[0].raw == EVENTS[1].to_json()
    assert all(isinstance(error, ValidationFailed) and error.__cause__ for error in dead)
    assert dead[0].detail.startswith("Event 1: user 'ada': value.years: Expected `int` >= 0")


def test_malformed_events_go_the_same_way() -> None:
    dead: list[InvalidEvent] = []
    state = MaterializedState(user_schema(), on_invalid=dead.append)
    array = b"[5," + msgspec.json.encode(EVENTS)[1:]
    assert state.apply_json(array) == 4
    assert [type(error) for error in dead] == [InvalidEvent, ValidationFailed, ValidationFailed]


def test_raising_stops_before_the_bad_event() -> None:
    state = MaterializedState(user_schema())
    with pytest.raises(ValidationFailed) as caught:
        state.apply_batch(EVENTS)
    assert caught.value.index == 1
    assert state.to_dict() == {"user": {"ada": ADA}}


def test_a_single_event_is_refused_without_an_index() -> None:
    dead: list[InvalidEvent] = []
    state = MaterializedState(user_schema(), on_invalid=dead.append)
    state.apply(EVENTS[1])
    assert len(state) == 0
    assert dead[0].index is None
    assert dead[0].detail.startswith("user 'ada'")
    assert dead[0].raw == EVENTS[1].to_json()


def test_a_failing_check_of_any_kind_leaves_the_state_alone() -> None:
    def explode(value: Any) -> Any:
        raise RuntimeError("boom")

    state = MaterializedState(StateSchema(a=Collection(type="a", schema=explode)))
    state.apply(insert("b", "k", 1))
    with pytest.raises(ValidationFailed, match="boom") as caught:
        state.apply(insert("a", "k", 1))
    assert isinstance(caught.value.__cause__, RuntimeError)
    assert state.to_dict() == {"b": {"k": 1}}


def test_events_can_be_checked_without_a_state() -> None:
    schema, dead = user_schema(), list[InvalidEvent]()
    events: list[StateEvent] = [*EVENTS, reset()]
    assert len(list(schema.valid(events, on_invalid="skip"))) == 5
    assert list(schema.valid(events, on_invalid=dead.append))[-1] == reset()
    assert [error.index for error in dead] == [1, 3]
    with pytest.raises(ValidationFailed) as caught:
        list(schema.valid(events))
    assert caught.value.index == 1


USERS = st.fixed_dictionaries(
    {"id": st.just("ada"), "years": st.integers(-2, 2) | st.text(max_size=1)}
)


@given(st.lists(st.tuples(st.sampled_from(["user", "flag"]), USERS | st.booleans()), max_size=12))
def test_a_checked_state_never_holds_an_invalid_value(changes: list[tuple[str, Any]]) -> None:
    schema = user_schema()
    state = MaterializedState(schema, on_invalid="skip")
    events = [insert(type_, "ada", value) for type_, value in changes]
    state.apply_json(msgspec.json.encode(events))
    expected: dict[str, Any] = {}
    for type_, value in changes:
        valid = isinstance(value, bool) if type_ == "flag" else (
            isinstance(value, dict) and isinstance(value["years"], int) and value["years"] >= 0
        )  # fmt: skip
        if valid:
            expected[type_] = {"ada": value}
    assert state.to_dict() == expected
    assert state.skipped == len(changes) - state_applied(changes)


def state_applied(changes: list[tuple[str, Any]]) -> int:
    schema = user_schema()
    return len(list(schema.valid([insert(t, "ada", v) for t, v in changes], on_invalid="skip")))
