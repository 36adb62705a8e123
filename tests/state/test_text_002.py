"""The State Protocol v0.1, section by section: its examples, and what it demands.

| section | tests here |
|---|---|
| 2 assumptions | order, replay, exactly once |
| 4 event model | every item is an event, of one of two kinds |
| 4.1 change events | operations, value, old_value, order, once, timestamps and txid |
| 4.2 control events | telling apart, snapshots, up-to-date, reset, offset |
| 5 state semantics | the two rules for changes, the two for controls |
| 6 MaterializedState | apply, applyBatch, get, getType, and more |
| 7 schemas | one a type, producers, consumers, evolution |
| 8 transport binding | the example, in our words |
| A checklist | producer, consumer and transport, each line |

Sections 1, 3 and 9 demand nothing. docs/state-conformance.md has every demand and its test.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from penstock.client.sync.stream import Stream
from penstock.errors import InvalidEvent, StateReset, ValidationFailed
from penstock.state import (
    ChangeEvent,
    Collection,
    ControlEvent,
    LiveState,
    MaterializedState,
    SqliteBackend,
    StateSchema,
    delete,
    insert,
    parse,
    parse_many,
    reset,
    snapshot_end,
    snapshot_start,
    up_to_date,
    update,
    upsert,
)
from tests.state import examples
from tests.state.readers import WAIT_S, answer, declare, ours

SETS = [insert, update, upsert]


def folded(events: Iterable[ChangeEvent]) -> MaterializedState:
    state = MaterializedState()
    for event in events:
        state.apply(event)
    return state


def test_2_all_readers_see_one_order_and_can_replay_it_from_anywhere(stream: Stream) -> None:
    offsets = [stream.append(update("n", "n", number)).offset for number in range(5)]
    for number, offset in enumerate(offsets):
        rest = [event["value"] for event in stream.read_json(offset)]
        assert rest == list(range(number + 1, 5))
        assert answer(stream, offset=offset)["types"] == {"n": {"n": number}}


def test_4_every_item_of_a_declared_stream_is_a_state_event(stream: Stream) -> None:
    declare(stream)
    messages: list[Any] = [1, "text", [], {}, {"headers": {}}, {"type": "user"}]
    for no_event in messages:
        with pytest.raises(InvalidEvent):
            stream.append(no_event)
    assert stream.read_json() == []


def test_4_an_event_is_of_one_of_two_kinds() -> None:
    """With a type of its own for each: a discriminated union."""
    events = parse_many(json.dumps([*examples.CHANGES, *examples.CONTROLS]))
    kinds = [type(event) for event in events]
    assert kinds == [ChangeEvent] * len(examples.CHANGES) + [ControlEvent] * 3


@pytest.mark.parametrize("set_it", SETS)
@pytest.mark.parametrize(
    "before", [[], [insert("t", "k", 1)], [insert("t", "k", 1), delete("t", "k")]]
)
def test_4_1_1_insert_and_update_both_set(set_it: Any, before: list[ChangeEvent]) -> None:
    assert folded([*before, set_it("t", "k", 2)]).to_dict() == {"t": {"k": 2}}


def test_4_1_1_delete_removes() -> None:
    assert folded([insert("t", "k", 1), delete("t", "k")]).to_dict() == {}


@pytest.mark.parametrize("value", [None, {"still": "here"}, 0])
def test_4_1_2_the_value_of_a_delete_is_ignored(stream: Stream, value: Any) -> None:
    gone = {"type": "t", "key": "k", "value": value, "headers": {"operation": "delete"}}
    stream.append_many([insert("t", "k", 1), gone])
    assert ours(stream) == {}


def test_4_1_2_a_missing_value_is_an_error_or_left_out_by_policy() -> None:
    array = b'[{"type":"t","key":"k","headers":{"operation":"update"}}]'
    with pytest.raises(InvalidEvent):
        MaterializedState().apply_json(array)
    state = MaterializedState(on_invalid="skip")
    state.apply_json(array)
    assert (state.to_dict(), state.skipped) == ({}, 1)


def test_4_1_3_old_values_are_never_looked_at(stream: Stream) -> None:
    declare(stream, {"types": {"t": {"schema": {"type": "integer"}}}})
    stream.append_many([insert("t", "k", 1), update("t", "k", 2, old_value="nonsense")])
    stream.append(update("t", "other", 3, old_value=99))
    assert ours(stream) == {("t", "k"): 2, ("t", "other"): 3}


def test_4_1_4_changes_apply_in_order_and_later_ones_override() -> None:
    state = folded(update("t", "k", number) for number in range(10))
    assert state.get("t", "k") == 9


def test_4_1_5_a_consumer_that_resumes_processes_each_event_once(
    stream: Stream, tmp_path: Path
) -> None:
    """A consumer that counts what it is told of, stopped and started again and again."""
    changes: list[Any] = []
    for number in range(5):
        stream.append(update("t", "k", number))
        state = LiveState(stream, backend=SqliteBackend(tmp_path / "state.db"))
        state.on_change(lambda type, key, old, new: changes.append((old, new)))
        with state:
            state.wait_up_to_date(WAIT_S)
    assert changes == [(None, 0), (0, 1), (1, 2), (2, 3), (3, 4)]


def test_4_1_5_what_is_sent_twice_is_deduplicated_below_the_state(stream: Stream) -> None:
    """Producer headers make appends exactly once, so that no event comes twice."""
    for _ in range(3):
        stream.append(update("t", "k", 1), producer=("p", 0, 0))
    assert len(stream.read_json()) == 1


def test_4_1_6_timestamps_order_nothing(stream: Stream) -> None:
    stream.append(update("t", "k", "first", timestamp="2030-01-01T00:00:00Z"))
    stream.append(update("t", "k", "second", timestamp="1999-01-01T00:00:00Z"))
    assert ours(stream) == {("t", "k"): "second"}


def test_4_1_6_a_txid_may_map_mutations_to_commits(stream: Stream) -> None:
    with LiveState(stream) as state:
        stream.append_many([insert("t", "a", 1, txid="tx"), insert("t", "b", 2, txid="tx")])
        state.wait_txid("tx", WAIT_S)
        assert state.get_type("t") == {"a": 1, "b": 2}


def test_4_2_events_are_told_apart_by_their_headers() -> None:
    assert isinstance(parse({"headers": {"control": "reset"}}), ControlEvent)
    assert isinstance(parse(examples.CONFIG), ChangeEvent)
    for headers in ({"operation": "insert", "control": "reset"}, {}):
        with pytest.raises(InvalidEvent):
            parse({**examples.CONFIG, "headers": headers})


def test_4_2_1_a_stream_may_have_many_snapshots(stream: Stream) -> None:
    parts = [[snapshot_start(), update("t", "k", number), snapshot_end()] for number in range(3)]
    stream.append_many([event for part in parts for event in part])
    assert ours(stream) == {("t", "k"): 2}


def test_4_2_2_bounds_that_do_not_match_are_warned_of_and_processing_goes_on(
    stream: Stream, caplog: pytest.LogCaptureFixture
) -> None:
    """An end without a start, and a start before the end of the one before."""
    stream.append_many(
        [snapshot_end(), insert("t", "1", 1), snapshot_start(), snapshot_start(),
         insert("t", "2", 2), snapshot_end()]
    )  # fmt: skip
    with caplog.at_level(logging.WARNING, "penstock.state"):
        assert ours(stream) == {("t", "1"): 1, ("t", "2"): 2}
    assert "snapshot-end without a snapshot-start" in caplog.text
    assert "snapshot-start within a snapshot" in caplog.text


def test_4_2_3_at_up_to_date_everything_before_it_has_been_applied(stream: Stream) -> None:
    stream.append_many([insert("t", "1", 1), up_to_date()])
    seen: list[Any] = []
    state = LiveState(stream)
    state.on_control(lambda event: seen.append((event.control, state.to_dict())))
    with state:
        state.wait_up_to_date(WAIT_S)
    assert seen == [("up-to-date", {"t": {"1": 1}})]


def test_4_2_4_reset_applies_to_what_is_before_it(stream: Stream) -> None:
    stream.append_many([insert("t", "old", 1), reset(), insert("t", "new", 2)])
    assert ours(stream) == {("t", "new"): 2}


def test_4_2_4_the_strategy_for_reset_is_chosen(stream: Stream) -> None:
    """Clear and go on, surface an error, or whatever a function decides."""
    stream.append_many([insert("t", "old", 1), reset(), insert("t", "new", 2)])
    with LiveState(stream, on_reset="raise") as state, pytest.raises(StateReset):
        state.wait_up_to_date(WAIT_S)
    with LiveState(stream, on_reset=lambda event: "keep") as state:
        state.wait_up_to_date(WAIT_S)
        assert state.get_type("t") == {"old": 1, "new": 2}


def test_4_2_5_the_offset_of_a_control_is_there_for_who_wants_it() -> None:
    event = parse({"headers": {"control": "snapshot-end", "offset": "123456_789"}})
    assert isinstance(event, ControlEvent)
    assert event.offset == "123456_789"


@pytest.mark.parametrize("control", [snapshot_start(), snapshot_end(), up_to_date(), reset()])
def test_4_2_and_5_3_controls_do_not_modify_the_state_by_themselves(control: ControlEvent) -> None:
    state = folded([insert("t", "k", 1)])
    array = b"[" + control.to_json() + b"]"
    state.apply_json(array)
    assert state.to_dict() == {"t": {"k": 1}}


def test_5_2_one_event_changes_one_entity_and_no_other() -> None:
    before = [insert(type, key, 0) for type in "ab" for key in "xy"]
    changed = folded([*before, update("a", "x", 1)])
    assert changed.to_dict() == {"a": {"x": 1, "y": 0}, "b": {"x": 0, "y": 0}}
    removed = folded([*before, delete("a", "x")])
    assert removed.to_dict() == {"a": {"y": 0}, "b": {"x": 0, "y": 0}}


def test_5_2_updates_of_nothing_and_inserts_of_something_are_no_errors(stream: Stream) -> None:
    declare(stream)
    stream.append_many([update("t", "new", 1), insert("t", "new", 2), delete("t", "never")])
    assert ours(stream) == {("t", "new"): 2}


def test_6_apply_batch_is_apply_in_order() -> None:
    events = [insert("t", "k", 1), update("t", "k", 2), insert("t", "j", 3), delete("t", "k")]
    together = MaterializedState()
    together.apply_batch(events)
    assert together == folded(events)


def test_6_get_and_get_type() -> None:
    state = folded([insert("t", "1", {"a": 1}), insert("t", "2", None), insert("u", "1", 3)])
    assert state.get("t", "1") == {"a": 1}
    assert state.get("t", "absent") is None
    assert state.get("t", "2", "absent") is None  # null is a value
    assert state.get("absent", "1", "none") == "none"
    assert dict(state.get_type("t")) == {"1": {"a": 1}, "2": None}
    assert dict(state.get_type("absent")) == {}


def test_6_more_methods_respect_the_same_rules() -> None:
    state = folded([insert("t", "1", 1), insert("u", "1", 2)])
    assert (state.types, len(state)) == (["t", "u"], 2)
    state.clear()
    assert (state.types, len(state), state.to_dict()) == ([], 0, {})


def test_7_a_type_has_at_most_one_schema() -> None:
    """The example of the text; and the same type for another collection is refused."""
    schema = StateSchema(
        users=Collection(type="user", schema={"type": "object"}),
        messages=Collection(type="message", schema={"type": "object"}),
    )
    assert [collection.type for _, collection in schema] == ["user", "message"]
    with pytest.raises(ValueError, match="user"):
        StateSchema(
            users=Collection(type="user", schema=dict), people=Collection(type="user", schema=dict)
        )


def test_7_producers_check_before_they_append() -> None:
    schema = StateSchema(users=Collection(type="user", schema={"type": "object"}))
    with pytest.raises(ValidationFailed):
        schema.users.insert("no object", key="1")


def test_7_events_that_violate_a_schema_may_still_be_sent_and_corrupt_nothing(
    stream: Stream,
) -> None:
    """Mode `warn` lets them in; a reader with a schema leaves them out."""
    document = {"types": {"user": {"schema": {"type": "object"}}}, "mode": "warn"}
    declare(stream, document)
    stream.append_many([insert("user", "1", {}), update("user", "1", "no object")])
    schema = StateSchema(users=Collection(type="user", schema={"type": "object"}))
    with LiveState(stream, schema=schema) as state:
        state.wait_up_to_date(WAIT_S)
        assert (state.to_dict(), state.skipped) == ({"user": {"1": {}}}, 1)


def test_7_an_incompatible_schema_is_a_new_epoch_after_a_reset(stream: Stream) -> None:
    declare(stream, {"types": {"user": {"schema": {"type": "string"}}}})
    stream.append(insert("user", "1", "Alice"))
    declare(stream, {"types": {"user": {"schema": {"type": "object"}}}})
    stream.append_many([reset(), insert("user", "1", {"name": "Alice"})])
    assert ours(stream) == {("user", "1"): {"name": "Alice"}}


def test_8_the_example_of_the_binding(stream: Stream) -> None:
    """Create, append, consume and materialise, with the control events handled by the reader."""
    stream.append(examples.MESSAGE)
    stream.append(reset())
    stream.append(examples.MESSAGE)
    state = MaterializedState()
    resets = 0
    for batch in stream.iter_batches(decode=False):
        for event in parse_many(batch.data):
            if isinstance(event, ChangeEvent):
                state.apply(event)
            elif event.control == "reset":
                state.clear()
                resets += 1
    assert resets == 1
    assert state.get("message", "msg:456") == {"userId": "user:123", "text": "Hello!"}
    assert ours(stream) == {("message", "msg:456"): examples.MESSAGE["value"]}


def test_a_checklist_of_the_producer(stream: Stream) -> None:
    """Order, whole change events, deletes without a value or with null, controls of known kinds."""
    declare(stream)
    stream.append(insert("t", "k", 1, timestamp="2025-01-15T10:30:00Z"))
    stream.append_many(
        [delete("t", "k"), {**json.loads(delete("t", "k").to_json()), "value": None}]
    )
    stream.append_many([snapshot_start(), snapshot_end(), up_to_date(), reset()])
    kinds = [
        event["headers"].get("operation") or event["headers"]["control"]
        for event in stream.read_json()
    ]
    assert kinds == [
        "insert", "delete", "delete", "snapshot-start", "snapshot-end", "up-to-date", "reset",
    ]  # fmt: skip
    with pytest.raises(InvalidEvent):
        stream.append({"headers": {"control": "restart"}})


def test_a_checklist_of_the_transport(stream: Stream) -> None:
    """The structure of events arrives as it was sent, from any offset."""
    event = {
        **examples.UPDATE,
        "value": {"nested": [1, {"a": None}], "number": 1.5, "text": "é\n👍", "empty": {}},
        "of_our_own": [True],
    }
    before = stream.append(examples.INSERT).offset
    stream.append(event)
    assert stream.read_json(before) == [event]
