"""Filters by type and key against a plain reading of every message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidJson
from penstock.protocol.json_mode import frame
from penstock.state.filtering import EventFilter
from tests.state.strategies import NAMES, VALUES, changes, controls, mutated

OPERATIONS = {"insert", "update", "upsert", "delete"}
CONTROLS = {"snapshot-start", "snapshot-end", "reset", "up-to-date"}


def is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def passes(event: Any, types: set[str], keys: set[str]) -> bool:
    """The rules of the State Protocol's text, with Python's own JSON."""
    headers = event.get("headers") if isinstance(event, dict) else None
    if not isinstance(headers, dict) or ("operation" in headers) == ("control" in headers):
        return False
    if "control" in headers:
        known = headers["control"] in CONTROLS if is_text(headers["control"]) else False
        return known and ("offset" not in headers or is_text(headers["offset"]))
    operation = headers["operation"]
    if not is_text(operation) or operation not in OPERATIONS:
        return False
    if "txid" in headers and not is_text(headers["txid"]):
        return False
    if "timestamp" in headers and not isinstance(headers["timestamp"], str):
        return False
    if not is_text(event.get("type")) or not is_text(event.get("key")):
        return False
    if "value" not in event and operation != "delete":
        return False
    return (not types or event["type"] in types) and (not keys or event["key"] in keys)


def written(event: Any, style: int) -> str:
    """The JSON of an event: with escapes or without, or with an escape where none is needed."""
    text = json.dumps(event, ensure_ascii=style % 2 == 0, indent=None if style < 4 else 1)
    if style in (2, 3):
        for letter in "aeu":
            text = text.replace(letter, f"\\u{ord(letter):04x}")
        # Names of literals are not text.
        for word in ("true", "false", "null", "NaN"):
            spelled = "".join(f"\\u{ord(c):04x}" if c in "aeu" else c for c in word)
            text = text.replace(f" {spelled}", f" {word}").replace(f"[{spelled}", f"[{word}")
    return text


TEXTS = st.builds(written, changes() | controls() | mutated() | VALUES, st.integers(0, 5))
DOUBLED = st.sampled_from(
    [
        '{"type":"a","type":"b","key":"user","value":1,"headers":{"operation":"insert"}}',
        '{"type":"b","key":"x","key":"user","value":1,"headers":{"operation":"insert"}}',
        '{"headers":{"control":"reset"},"headers":{"operation":"insert"},"type":"a","key":"b",'
        '"value":{"control":1}}',
        '{"headers":{"operation":"insert"},"headers":{"control":"reset"},"type":"a","key":"b"}',
        '{"headers":{"control":"reset","control":"nothing"}}',
        '{"type":["a"],"key":{"a":"b"},"value":"a","headers":{"operation":"insert"}}',
        '{"type":"a","key":1e999,"value":"user","headers":{"operation":"insert"}}',
        '{"type":"a","key":"b","value":1e999,"headers":{"operation":"insert"}}',
        '{"type":"user","key":"a","value":123456789012345678901234567890,'
        '"headers":{"operation":"update","unknown":[1]},"more":"x"}',
        '{"type":"a","key":"b","value":"' + "x" * 70_000 + '","headers":{"operation":"upsert"}}',
        '{"type":"a","key":"\\ud83d\\udd11","value":1,"headers":{"operation":"upsert"}}',
    ]
)


@settings(max_examples=150)
@given(
    st.lists(TEXTS | DOUBLED, min_size=1, max_size=12),
    st.sets(NAMES, max_size=2),
    st.sets(NAMES, max_size=2),
)
@example(["{}"], {"a"}, set())
def test_a_filter_passes_what_a_plain_reading_passes(
    texts: list[str], types: set[str], keys: set[str]
) -> None:
    events, wire = [], b""
    for text in texts:
        try:
            framed, _ = frame(text.encode(), allow_empty=True)
        except InvalidJson:  # one of our odd spellings
            continue
        value = json.loads(text)
        events += value if isinstance(value, list) else [value]
        wire += framed
    event_filter = EventFilter(frozenset(types), frozenset(keys))
    passed = event_filter.apply(wire)
    result = [json.loads(line[:-1]) for line in passed.split(b"\n") if line]
    assert result == [event for event in events if passes(event, types, keys)]


@pytest.mark.parametrize("key", ['"', "\\", "\n", "\u2028", "a b", "é", "🔑", "'", "control", "1"])
def test_a_key_is_found_however_it_is_spelled(key: str) -> None:
    event = {"type": "t", "key": key, "value": 0, "headers": {"operation": "insert"}}
    other = {**event, "key": key + "x"}
    wire = b"".join(
        json.dumps(each, ensure_ascii=ascii).encode() + b",\n"
        for each in (event, other)
        for ascii in (True, False)
    )
    passed = EventFilter(frozenset(), frozenset({key})).apply(wire)
    assert [json.loads(line[:-1]) for line in passed.split(b"\n")[:-1]] == [event, event]


def test_filters_have_names_and_digests_of_their_own() -> None:
    filters = [
        EventFilter(frozenset({"a"}), frozenset()),
        EventFilter(frozenset(), frozenset({"a"})),
        EventFilter(frozenset({"a"}), frozenset({"b"})),
        EventFilter(frozenset({"a", "b"}), frozenset()),
    ]
    assert [each.names for each in filters] == ["type", "key", "type, key", "type"]
    assert len({each.digest for each in filters}) == 4
    assert filters[0] == EventFilter(frozenset({"a"}))
    assert hash(filters[0]) == hash(EventFilter(frozenset({"a"})))
