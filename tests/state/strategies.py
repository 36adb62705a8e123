"""Random events: valid ones, and ones that are nearly so."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=4)
SCALARS = (
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False,
    allow_infinity=False) | TEXT
)  # fmt: skip
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)  # fmt: skip
NAMES = st.sampled_from(["a", "b", "user", "ключ", "🔑"])
TIMESTAMPS = st.sampled_from(
    ["2025-01-15T10:30:00Z", "2024-02-29t00:00:00.5z", "2016-12-31T23:59:60+00:00"]
)
OPERATIONS = st.sampled_from(["insert", "update", "upsert", "delete"])
CONTROLS = st.sampled_from(["snapshot-start", "snapshot-end", "reset", "up-to-date"])


@st.composite
def changes(draw: st.DrawFn) -> dict[str, Any]:
    """A valid change event without unknown fields."""
    headers = {"operation": draw(OPERATIONS)}
    if draw(st.booleans()):
        headers["txid"] = draw(NAMES)
    if draw(st.booleans()):
        headers["timestamp"] = draw(TIMESTAMPS)
    event: dict[str, Any] = {"type": draw(NAMES), "key": draw(NAMES), "headers": headers}
    if headers["operation"] != "delete" or draw(st.booleans()):
        event["value"] = draw(VALUES)
    if draw(st.booleans()):
        event["old_value"] = draw(VALUES)
    return event


@st.composite
def controls(draw: st.DrawFn) -> dict[str, Any]:
    """A valid control event without unknown fields."""
    headers = {"control": draw(CONTROLS)}
    if draw(st.booleans()):
        headers["offset"] = draw(NAMES)
    return {"headers": headers}


@st.composite
def mutated(draw: st.DrawFn) -> Any:
    """A valid event to which something was done that may or may not break it."""
    event = copy.deepcopy(draw(changes() | controls()))
    place = draw(st.sampled_from([event, event["headers"]]))
    name = draw(st.sampled_from(
        ["type", "key", "value", "old_value", "headers", "operation", "control", "txid",
         "timestamp", "offset", "from", "else"]
    ))  # fmt: skip
    match draw(st.sampled_from(["remove", "set", "nothing", "replace"])):
        case "remove":
            place.pop(name, None)
        case "set":
            place[name] = draw(VALUES | TIMESTAMPS | OPERATIONS | CONTROLS)
        case "replace":
            return draw(VALUES)
    return event
