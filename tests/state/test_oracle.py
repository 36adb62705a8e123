"""Our reader against the JSON Schema that the protocol's own npm package ships, on what both know.

The schema forbids fields that it does not name, and lacks `upsert` and `up-to-date`: events with
those are left out of the comparison. It takes any text for an offset and any day for a leap second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.errors import InvalidEvent
from penstock.state.events import parse
from tests.state import examples
from tests.state.strategies import changes, controls, mutated
from tests.state.test_events import REFUSED, TIMESTAMPS, headed

PACKAGE = Path(__file__).parents[1] / "conformance/node_modules/@durable-streams/state"
SCHEMA = PACKAGE / "state-protocol.schema.json"

pytestmark = pytest.mark.skipif(
    not SCHEMA.exists(), reason="npm package @durable-streams/state is missing: run `make test`"
)


@pytest.fixture(scope="module")
def oracle() -> jsonschema_rs.Validator:
    return jsonschema_rs.validator_for(json.loads(SCHEMA.read_text()), validate_formats=True)


CHANGE_FIELDS = {"type", "key", "value", "old_value", "headers"}
CHANGE_HEADERS = {"operation", "txid", "timestamp"}


def is_common(event: Any) -> bool:
    """Whether both sides have a word for everything in the event."""
    if not isinstance(event, dict) or not isinstance(event.get("headers"), dict):
        return True
    headers = event["headers"]
    if headers.get("operation") == "upsert" or headers.get("control") == "up-to-date":
        return False
    if "operation" in headers and "control" not in headers:
        return event.keys() <= CHANGE_FIELDS and headers.keys() <= CHANGE_HEADERS
    return event.keys() <= {"headers"} and headers.keys() <= {"control", "offset"}


def is_ours(event: Any) -> bool:
    try:
        parse(json.dumps(event))
    except InvalidEvent:
        return False
    return True


@pytest.mark.parametrize("event", examples.EXAMPLES, ids=json.dumps)
def test_both_accept_every_example_of_the_texts(
    event: dict[str, Any], oracle: jsonschema_rs.Validator
) -> None:
    assert oracle.is_valid(event)
    assert is_ours(event)


@pytest.mark.parametrize("event", [event for event, *_ in REFUSED])
def test_the_oracle_refuses_what_we_refuse(event: Any, oracle: jsonschema_rs.Validator) -> None:
    assert not oracle.is_valid(event)


@pytest.mark.parametrize("text", TIMESTAMPS)
def test_both_agree_on_timestamps(text: str, oracle: jsonschema_rs.Validator) -> None:
    event = headed(examples.CONFIG, timestamp=text)
    assert oracle.is_valid(event) == is_ours(event)


@settings(max_examples=300)
@given(event=changes() | controls() | mutated() | st.lists(changes(), max_size=1))
def test_both_agree_on_random_events(event: Any, oracle: jsonschema_rs.Validator) -> None:
    if is_common(event):
        assert oracle.is_valid(event) == is_ours(event)


def test_the_comparison_is_not_empty() -> None:
    assert is_common(examples.INSERT)
    assert is_common({"headers": {}})
    assert not is_common({**examples.INSERT, "extra": 1})
