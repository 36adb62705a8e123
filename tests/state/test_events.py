"""Events against both texts: what is accepted, what is refused and why; nothing is lost."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidEvent
from penstock.state import events, parsing
from penstock.state.careful_parsing import read_event
from penstock.state.events import ChangeEvent, ControlEvent, parse, parse_many
from tests.state import examples
from tests.state.strategies import changes, controls, mutated

INSERT: dict[str, Any] = {"type": "t", "key": "k", "value": 1, "headers": {"operation": "insert"}}
DELETE: dict[str, Any] = {"type": "t", "key": "k", "headers": {"operation": "delete"}}
RESET: dict[str, Any] = {"headers": {"control": "reset"}}


def changed(event: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {**event, **fields}


def headed(event: dict[str, Any], **headers: Any) -> dict[str, Any]:
    return {**event, "headers": {**event["headers"], **headers}}


def without(event: dict[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in event.items() if name not in names}


@pytest.mark.parametrize("example", examples.EXAMPLES, ids=lambda example: json.dumps(example))
def test_every_example_of_the_texts_is_an_event_and_round_trips(example: dict[str, Any]) -> None:
    event = parse(json.dumps(example))
    assert json.loads(event.to_json()) == example
    assert json.loads(msgspec.json.encode(event)) == example
    assert isinstance(event, ControlEvent if "control" in example["headers"] else ChangeEvent)
    assert parse(example) == event


def test_the_fields_of_a_change_event() -> None:
    event = parse(examples.UPDATE)
    assert isinstance(event, ChangeEvent)
    assert (event.type, event.key, event.operation) == ("user", "user:123", "update")
    assert event.value == examples.ALICE_NEW
    assert event.old_value == examples.ALICE
    assert event.timestamp == "2025-01-15T10:35:00Z"
    assert event.txid is None
    assert event.extra == event.extra_headers == {}


def test_the_fields_of_a_control_event() -> None:
    start, end, reset = map(parse, examples.CONTROLS)
    assert isinstance(start, ControlEvent)
    assert isinstance(end, ControlEvent)
    assert isinstance(reset, ControlEvent)
    assert [start.control, end.control, reset.control] == [
        "snapshot-start",
        "snapshot-end",
        "reset",
    ]
    assert [start.offset, end.offset, reset.offset] == ["123456_000", "123456_789", "123456_000"]


@pytest.mark.parametrize("operation", ["insert", "update", "upsert", "delete"])
def test_every_operation_is_accepted(operation: str) -> None:
    event = parse(headed(INSERT, operation=operation))
    assert isinstance(event, ChangeEvent)
    assert event.operation == operation


@pytest.mark.parametrize("control", ["snapshot-start", "snapshot-end", "reset", "up-to-date"])
def test_every_control_is_accepted_with_and_without_offset(control: str) -> None:
    bare, marked = (
        parse({"headers": {"control": control, **more}}) for more in ({}, {"offset": "7"})
    )
    assert isinstance(bare, ControlEvent)
    assert isinstance(marked, ControlEvent)
    assert (bare.control, bare.offset, marked.offset) == (control, None, "7")


@pytest.mark.parametrize("value", ["text", 1, -1.5, True, None, [], [1, [2]], {}, {"a": {"b": 1}}])
def test_any_json_value_is_a_value(value: Any) -> None:
    event = parse(changed(INSERT, value=value, old_value=value))
    assert isinstance(event, ChangeEvent)
    assert event.value == event.old_value == value
    assert event.raw_value == event.raw_old_value == msgspec.json.encode(value)


def test_delete_ignores_its_value_but_keeps_it() -> None:
    for event in (DELETE, changed(DELETE, value=None), changed(DELETE, value={"any": "thing"})):
        parsed = parse(event)
        assert isinstance(parsed, ChangeEvent)
        assert json.loads(parsed.to_json()) == event


def test_null_and_no_value_are_told_apart() -> None:
    absent, null = parse(DELETE), parse(changed(DELETE, value=None))
    assert isinstance(absent, ChangeEvent)
    assert isinstance(null, ChangeEvent)
    assert (absent.raw_value, null.raw_value) == (None, b"null")
    assert absent.value is null.value is None
    assert absent != null


REFUSED: list[tuple[Any, str | None, str, str]] = [
    # what is no event at all
    (None, None, "type", "not null"),
    (1, None, "type", "not a number"),
    ("text", None, "type", "not a string"),
    ([], None, "type", "not an array"),
    (True, None, "type", "not true"),
    # headers and what tells the two kinds apart
    ({}, "headers", "required", "missing"),
    (without(INSERT, "headers"), "headers", "required", "missing"),
    (changed(INSERT, headers=None), "headers", "type", "not null"),
    (changed(INSERT, headers=[]), "headers", "type", "not an array"),
    (changed(INSERT, headers={}), "headers", "required", "neither"),
    (changed(INSERT, headers={"txid": "1"}), "headers", "required", "neither"),
    (headed(INSERT, control="reset"), "headers", "exclusive", "both"),
    (headed(RESET, operation="delete"), "headers", "exclusive", "both"),
    (headed(INSERT, control=None), "headers", "exclusive", "both"),
    # type and key
    (without(INSERT, "type"), "type", "required", "missing"),
    (without(INSERT, "key"), "key", "required", "missing"),
    (changed(INSERT, type=""), "type", "non-empty", "empty"),
    (changed(INSERT, key=""), "key", "non-empty", "empty"),
    (changed(INSERT, type=1), "type", "type", "not a number"),
    (changed(INSERT, key=None), "key", "type", "not null"),
    (changed(INSERT, key=["k"]), "key", "type", "not an array"),
    # operation and control
    (headed(INSERT, operation="replace"), "headers.operation", "vocabulary", "'replace'"),
    (headed(INSERT, operation="INSERT"), "headers.operation", "vocabulary", "insert, update"),
    (headed(INSERT, operation=""), "headers.operation", "vocabulary", "unknown"),
    (headed(INSERT, operation=None), "headers.operation", "type", "not null"),
    (headed(INSERT, operation=1), "headers.operation", "type", "not a number"),
    (headed(RESET, control="stop"), "headers.control", "vocabulary", "snapshot-start"),
    (headed(RESET, control=True), "headers.control", "type", "not true"),
    # value
    (without(INSERT, "value"), "value", "required", "insert"),
    (headed(without(INSERT, "value"), operation="update"), "value", "required", "update"),
    (headed(without(INSERT, "value"), operation="upsert"), "value", "required", "upsert"),
    # txid, timestamp, offset
    (headed(INSERT, txid=""), "headers.txid", "non-empty", "empty"),
    (headed(INSERT, txid=7), "headers.txid", "type", "not a number"),
    (headed(DELETE, txid=None), "headers.txid", "type", "not null"),
    (headed(INSERT, timestamp="yesterday"), "headers.timestamp", "rfc3339", "'yesterday'"),
    (headed(INSERT, timestamp=""), "headers.timestamp", "rfc3339", "RFC 3339"),
    (headed(INSERT, timestamp=1705312200000), "headers.timestamp", "type", "not a number"),
    (headed(RESET, offset=""), "headers.offset", "non-empty", "empty"),
    (headed(RESET, offset=5), "headers.offset", "type", "not a number"),
    (headed(RESET, offset=None), "headers.offset", "type", "not null"),
]  # fmt: skip


@pytest.mark.parametrize(("event", "field", "rule", "words"), REFUSED)
def test_what_breaks_a_rule_is_refused_by_name(
    event: Any, field: str | None, rule: str, words: str
) -> None:
    with pytest.raises(InvalidEvent) as alone:
        parse(json.dumps(event))
    assert (alone.value.field, alone.value.rule, alone.value.index) == (field, rule, None)
    assert words in alone.value.detail
    assert alone.value.detail.startswith(field or "An event")
    assert alone.value.raw == json.dumps(event).encode()
    with pytest.raises(InvalidEvent) as batched:
        parse_many(json.dumps([INSERT, RESET, event, None]))
    assert (batched.value.field, batched.value.rule, batched.value.index) == (field, rule, 2)
    assert batched.value.detail == f"Event 2: {alone.value.detail}"
    assert batched.value.raw == json.dumps(event).encode()


def test_the_error_is_an_answer_of_422() -> None:
    assert (InvalidEvent.status, InvalidEvent.code) == (422, "invalid-event")


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"nul", b'{"a":1}}', b"\xef\xbb\xbf{}", b'{"type":"\xff"}', b'"\\ud800"',
     b"NaN", b"[" * 5000, "\ud800"],
)  # fmt: skip
def test_what_is_not_json_is_refused(text: bytes | str) -> None:
    with pytest.raises(InvalidEvent, match="not JSON"):
        parse(text)
    with pytest.raises(InvalidEvent, match="not JSON"):
        parse_many(text)


def test_invalid_utf8_hides_nowhere() -> None:
    for place in (b'"value":"\xff"', b'"value":1,"x":"\xff"', b'"value":1,"old_value":["\xff"]'):
        raw = b'{"type":"t","key":"k",' + place + b',"headers":{"operation":"insert"}}'
        with pytest.raises(InvalidEvent, match="UTF-8"):
            parse(raw)
        with pytest.raises(InvalidEvent, match="UTF-8"):
            parse_many(b"[" + raw + b"]")


@pytest.mark.parametrize("text", ["{}", "1", '"x"', "null", json.dumps(INSERT)])
def test_parse_many_wants_an_array(text: str) -> None:
    with pytest.raises(InvalidEvent, match="array") as caught:
        parse_many(text)
    assert caught.value.rule == "array"


def test_no_events_are_fine() -> None:
    assert parse_many("[]") == parse_many(" [ ] ") == []


@pytest.mark.parametrize("field", ["value", "old_value"])
@pytest.mark.parametrize("more", ["", '"else":1,'])
def test_values_are_nested_at_most_so_deep(field: str, more: str) -> None:
    def event(depth: int) -> str:
        deep = '{"a":' * depth + "1" + "}" * depth
        return json.dumps(INSERT).replace('"headers"', f'"{field}":{deep},{more}"headers"')

    parse(event(128))
    parse_many(f"[{event(128)}]")
    for call in (lambda: parse(event(129)), lambda: parse_many(f"[{event(129)}]")):
        with pytest.raises(InvalidEvent, match="deeper than 128") as caught:
            call()
        assert (caught.value.field, caught.value.rule) == (field, "depth")


TIMESTAMPS = {
    "2025-01-15T10:30:00Z": True,
    "2025-01-15t10:30:00z": True,
    "2025-01-15T10:30:00.123456789012345678901Z": True,
    "2025-01-15T10:30:00+05:30": True,
    "2025-01-15T10:30:00-00:00": True,
    "2025-01-15T10:30:00+23:59": True,
    "0000-01-01T00:00:00Z": True,
    "9999-12-31T23:59:59Z": True,
    "2024-02-29T00:00:00Z": True,
    "2000-02-29T00:00:00Z": True,
    "1969-07-20T20:17:40Z": True,
    "2016-12-31T23:59:60Z": True,
    "2016-12-31T23:59:60.5Z": True,
    "2017-01-01T00:59:60+01:00": True,
    "2016-12-31T15:59:60-08:00": True,
    "2025-01-15T10:30:60Z": False,  # a leap second ends a day in UTC
    "2016-12-31T23:59:60+01:00": False,
    "2016-12-31T23:59:61Z": False,
    "2025-02-29T00:00:00Z": False,
    "1900-02-29T00:00:00Z": False,
    "2025-02-30T00:00:00Z": False,
    "2025-04-31T00:00:00Z": False,
    "2025-13-01T00:00:00Z": False,
    "2025-00-10T00:00:00Z": False,
    "2025-01-00T00:00:00Z": False,
    "2025-01-32T00:00:00Z": False,
    "2025-01-15T24:00:00Z": False,
    "2025-01-15T10:60:00Z": False,
    "2025-01-15T10:30:00": False,
    "2025-01-15": False,
    "2025-01-15 10:30:00Z": False,
    "2025-01-15T10:30Z": False,
    "2025-01-15T10:30:00.Z": False,
    "2025-01-15T10:30:00,5Z": False,
    "2025-01-15T10:30:00+0530": False,
    "2025-01-15T10:30:00+24:00": False,
    "2025-01-15T10:30:00+05:60": False,
    "2025-1-15T10:30:00Z": False,
    "25-01-15T10:30:00Z": False,
    "+2025-01-15T10:30:00Z": False,
    "2025-01-15T10:30:00Z ": False,
    "2025-01-15T10:30:00Z\n": False,
    "２025-01-15T10:30:00Z": False,
    "Wed, 15 Jan 2025 10:30:00 GMT": False,
}


@pytest.mark.parametrize(("text", "valid"), TIMESTAMPS.items())
def test_timestamps_are_rfc_3339_when_strict_and_any_text_when_not(text: str, valid: bool) -> None:
    event = json.dumps(headed(INSERT, timestamp=text))
    if valid:
        assert parse(event) == parse_many(f"[{event}]")[0]
    else:
        for call in (lambda: parse(event), lambda: parse_many(f"[{event}]")):
            with pytest.raises(InvalidEvent, match="timestamp"):
                call()
    tolerated = [parse(event, strict_timestamp=False)]
    assert parse_many(f"[{event}]", strict_timestamp=False) == tolerated
    assert isinstance(tolerated[0], ChangeEvent)
    assert tolerated[0].timestamp == text


UNKNOWN = [
    changed(INSERT, note={"a": [1, 2.50]}),
    changed(INSERT, extra=1, unknown=2, _value=3, operation="delete"),
    headed(INSERT, **{"from": "replica-1", "offset": "0_9", "trace": {"id": 1}}),
    headed(INSERT, **{"from": 5, "offset": None, "unknown": [], "from_": 1}),
    headed(changed(DELETE, patch=[]), region="eu"),
    changed(RESET, type="", key=7, value=None, reason="migration"),
    headed(RESET, **{"txid": "", "timestamp": "whenever", "from": "x", "by": "admin"}),
    headed(RESET, txid="t", timestamp="2025-01-15T10:30:00Z", offset="1"),
]


@pytest.mark.parametrize("event", UNKNOWN)
def test_unknown_fields_and_headers_are_kept(event: dict[str, Any]) -> None:
    parsed = parse(json.dumps(event))
    assert json.loads(parsed.to_json()) == event
    assert parse_many(json.dumps([INSERT, event])) == [parse(INSERT), parsed]
    named = {"type", "key", "value", "old_value"} if "operation" in event["headers"] else set()
    assert parsed.extra == without(event, "headers", *named)
    headers = {"operation", "txid", "timestamp"} if named else {"control", "offset"}
    assert parsed.extra_headers == without(event["headers"], *headers)


def test_the_general_encoder_refuses_what_it_would_lose() -> None:
    with pytest.raises(TypeError, match="UnknownFields"):
        msgspec.json.encode(parse(changed(INSERT, note=1)))


def test_values_keep_their_spelling() -> None:
    raw = b'{ "x": 1.50, "y": 1e999, "z": "\\u00e9" , "x":2}'
    event = parse(b'{"type":"t","key":"k","value":' + raw + b',"headers":{"operation":"insert"}}')
    assert isinstance(event, ChangeEvent)
    assert event.raw_value == raw
    assert raw in event.to_json()
    assert event.value == {"x": 2, "y": float("inf"), "z": "é"}


def test_numbers_of_any_size_can_be_read() -> None:
    digits = "9" * 5000
    text = json.dumps(INSERT).replace(": 1,", f": [{digits}, {digits[:400]}, 1e999, -1e999],")
    event = parse(text)
    assert isinstance(event, ChangeEvent)
    assert event.value == [10**5000 - 1, int(digits[:400]), float("inf"), float("-inf")]
    # Two numbers that differ in one of many digits are not the same.
    assert event != parse(text.replace(digits, f"{digits[:-1]}8"))


def test_equality_is_of_meaning() -> None:
    one = parse('{"type":"t","key":"k","value":{"a":1,"b":2},"headers":{"operation":"insert"}}')
    same = parse('{"headers":{"operation":"insert"},"key":"k","value": {"b":2,"a":1.0},"type":"t"}')
    assert one == same
    assert hash(one) == hash(same)
    assert one != parse(changed(INSERT, value={"a": True, "b": 2}))
    assert parse(changed(INSERT, value=[0])) != parse(changed(INSERT, value=[False]))
    assert parse(changed(INSERT, value=[0])) != parse(changed(INSERT, value=[0, 0]))
    assert parse(RESET) != parse(headed(RESET, offset="1"))
    assert parse(RESET) != one
    assert one != examples.INSERT


def test_events_are_frozen_and_show_themselves() -> None:
    event = parse(INSERT)
    with pytest.raises(AttributeError):
        event.type = "other"  # type: ignore[misc,union-attr]
    assert repr(event) == f"ChangeEvent({event.to_json().decode()})"


def test_invalid_events_can_be_left_out() -> None:
    failures: list[InvalidEvent] = []
    array = json.dumps([INSERT, headed(INSERT, operation="x"), RESET, 5, DELETE])
    assert parse_many(array, on_invalid=failures.append) == [
        parse(INSERT),
        parse(RESET),
        parse(DELETE),
    ]
    assert [(error.index, error.field) for error in failures] == [
        (1, "headers.operation"),
        (3, None),
    ]
    with pytest.raises(InvalidEvent, match="not JSON"):
        parse_many(b"[1,", on_invalid=failures.append)


# Building


def test_builders_make_what_the_texts_show() -> None:
    user = ("user", "user:123")
    at = "2025-01-15T10:{}:00Z".format
    built = [
        events.insert(*user, examples.ALICE, timestamp=at(30)),
        events.update(*user, examples.ALICE_NEW, old_value=examples.ALICE, timestamp=at(35)),
        events.delete(*user, old_value=examples.ALICE_NEW, timestamp=at(40)),
        events.snapshot_start(offset="123456_000"),
        events.snapshot_end(offset="123456_789"),
        events.reset(offset="123456_000"),
    ]
    expected = [examples.INSERT, examples.UPDATE, examples.DELETE, *examples.CONTROLS]
    assert [json.loads(event.to_json()) for event in built] == expected
    assert json.loads(events.up_to_date().to_json()) == {"headers": {"control": "up-to-date"}}
    upsert = events.upsert("t", "k", None, old_value=None, txid="7", headers={"from": "me"})
    assert json.loads(upsert.to_json()) == {
        "type": "t", "key": "k", "value": None, "old_value": None,
        "headers": {"operation": "upsert", "txid": "7", "from": "me"},
    }  # fmt: skip


def test_a_datetime_is_a_timestamp() -> None:
    moment = datetime(2025, 1, 15, 10, 30, tzinfo=UTC)
    assert events.delete("t", "k", timestamp=moment).timestamp == "2025-01-15T10:30:00Z"
    there = moment.astimezone(timezone(timedelta(hours=5, minutes=30)))
    assert events.delete("t", "k", timestamp=there).timestamp == "2025-01-15T16:00:00+05:30"
    with pytest.raises(InvalidEvent, match="time zone"):
        events.delete("t", "k", timestamp=datetime(2025, 1, 15))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("build", "field"),
    [
        (lambda: events.insert("", "k", 1), "type"),
        (lambda: events.insert("t", "", 1), "key"),
        (lambda: events.insert("t", 5, 1), "key"),  # type: ignore[arg-type]
        (lambda: events.insert("t", "k", 1, txid=""), "headers.txid"),
        (lambda: events.insert("t", "k", 1, timestamp="now"), "headers.timestamp"),
        (lambda: events.insert("t", "k", 1, headers={"txid": "x"}), "headers.txid"),
        (lambda: events.insert("t", "k", float("nan")), "value"),
        (lambda: events.insert("t", "k", {"a": [None, float("inf")]}), "value"),
        (lambda: events.insert("t", "k", object()), "value"),
        (lambda: events.insert("t", "k", b"bytes"), "value"),
        (lambda: events.insert("t", "k", "\ud800"), "value"),
        (lambda: events.insert("t", "k", msgspec.Raw(b"{")), "value"),
        (lambda: events.insert("t", "k", msgspec.Raw(b'"\xff"')), "value"),
        (lambda: events.update("t", "k", 1, old_value=object()), "old_value"),
        (lambda: events.change("insert", "t", "k"), "value"),
        (lambda: events.reset(offset=""), "headers.offset"),
    ],
)
def test_builders_refuse_what_a_reader_would(build: Any, field: str) -> None:
    with pytest.raises(InvalidEvent) as caught:
        build()
    assert caught.value.field == field


def test_encoded_json_is_taken_as_it_is() -> None:
    assert events.insert("t", "k", msgspec.Raw(b"[1.0 ]")).raw_value == b"[1.0 ]"


# Properties


@given(st.lists(changes() | controls(), max_size=5))
def test_valid_events_round_trip_one_by_one_and_together(documents: list[dict[str, Any]]) -> None:
    parsed = parse_many(json.dumps(documents))
    assert [json.loads(event.to_json()) for event in parsed] == documents
    assert parsed == [parse(event) for event in documents]
    assert parse_many(msgspec.json.encode(parsed)) == parsed


@given(st.lists(mutated(), max_size=4), st.booleans())
def test_the_fast_way_agrees_with_the_reader_that_explains(
    documents: list[Any], strict: bool
) -> None:
    expected, refused = [], []
    for index, event in enumerate(documents):
        try:
            expected.append(read_event(json.dumps(event).encode(), strict_timestamp=strict))
        except InvalidEvent as error:
            refused.append((index, error.field, error.rule))
    errors: list[InvalidEvent] = []
    array = json.dumps(documents)
    parsed = parse_many(array, strict_timestamp=strict, on_invalid=errors.append)
    assert [event.to_json() for event in parsed] == [event.to_json() for event in expected]
    assert [(error.index, error.field, error.rule) for error in errors] == refused
    fast = parsing.decode_exactly(array.encode(), strict_timestamp=strict)
    assert fast is None or (fast == expected and not refused)


@given(st.binary(max_size=40) | st.text(max_size=40))
def test_junk_raises_nothing_but_invalid_event(junk: bytes | str) -> None:
    for function in (parse, parse_many):
        try:
            function(junk)
        except InvalidEvent:
            pass


def test_a_reset_may_say_where_the_state_goes_on() -> None:
    event = events.reset(location="/v1/stream/b")
    assert event.location == "/v1/stream/b"
    assert event.extra_headers == {}
    assert json.loads(event.to_json()) == {
        "headers": {"control": "reset", "location": "/v1/stream/b"}
    }
    assert msgspec.json.decode(msgspec.json.encode(event)) == json.loads(event.to_json())
    [read] = parse_many(b"[" + event.to_json() + b"]")
    assert read == event
    assert events.reset().location is None


@pytest.mark.parametrize("location", [b'{"lat":1}', b'""', b"7", b'"Oslo"'])
def test_a_location_of_somebody_elses_is_kept_as_it_is(location: bytes) -> None:
    change = b'{"type":"a","key":"1","headers":{"operation":"delete","location":%s}}' % location
    control = b'{"headers":{"control":"up-to-date","location":%s}}' % location
    for raw in (change, control):
        [event] = parse_many(b"[" + raw + b"]")
        assert json.loads(event.to_json()) == json.loads(raw)
