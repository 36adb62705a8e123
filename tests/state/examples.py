"""Every example of the two texts of the State Protocol, in their order (seen by the tests)."""

from __future__ import annotations

from typing import Any, Final

ALICE: Final = {"name": "Alice", "email": "alice@example.com"}
ALICE_NEW: Final = {"name": "Alice", "email": "alice.new@example.com"}


def _change(type_: str, key: str, operation: str, value: Any) -> dict[str, Any]:
    return {"type": type_, "key": key, "value": value, "headers": {"operation": operation}}


# v1.0, sections 4.1.1 to 4.1.3
INSERT: Final[dict[str, Any]] = {
    "type": "user",
    "key": "user:123",
    "value": ALICE,
    "headers": {"operation": "insert", "timestamp": "2025-01-15T10:30:00Z"},
}
UPDATE: Final[dict[str, Any]] = {
    "type": "user",
    "key": "user:123",
    "value": ALICE_NEW,
    "old_value": ALICE,
    "headers": {"operation": "update", "timestamp": "2025-01-15T10:35:00Z"},
}
DELETE: Final[dict[str, Any]] = {
    "type": "user",
    "key": "user:123",
    "old_value": ALICE_NEW,
    "headers": {"operation": "delete", "timestamp": "2025-01-15T10:40:00Z"},
}
DELETE_NULL: Final[dict[str, Any]] = {**DELETE, "value": None}

# v1.0, sections 4.2.1 and 4.2.2
CONTROLS: Final[list[dict[str, Any]]] = [
    {"headers": {"control": "snapshot-start", "offset": "123456_000"}},
    {"headers": {"control": "snapshot-end", "offset": "123456_789"}},
    {"headers": {"control": "reset", "offset": "123456_000"}},
]

# v1.0, section 6
MATERIALIZATION: Final = [
    _change("user", "1", "insert", {"name": "Alice"}),
    _change("user", "2", "insert", {"name": "Bob"}),
    _change("user", "1", "update", {"name": "Alice Smith"}),
]
MATERIALIZED: Final = {"user": {"1": {"name": "Alice Smith"}, "2": {"name": "Bob"}}}

# v1.0, section 8
CONFIG: Final = _change("config", "theme", "insert", "dark")
PRESENCE: Final = _change(
    "presence", "user:123", "update", {"status": "online", "lastSeen": 1705312200000}
)
MULTI_TYPE: Final = [
    _change("user", "user:123", "insert", {"name": "Alice"}),
    _change("message", "msg:456", "insert", {"userId": "user:123", "text": "Hello!"}),
    _change("reaction", "reaction:789", "insert", {"messageId": "msg:456", "emoji": "👍"}),
]
FLAG: Final = _change(
    "flag",
    "new-editor",
    "update",
    {"enabled": True, "rollout": {"type": "percentage", "value": 50}},
)

# v0.1, section 8
MESSAGE: Final = _change("message", "msg:456", "insert", {"userId": "user:123", "text": "Hello!"})

CHANGES: Final = [
    INSERT, UPDATE, DELETE, DELETE_NULL, *MATERIALIZATION, CONFIG, PRESENCE, *MULTI_TYPE, FLAG,
    MESSAGE,
]  # fmt: skip
EXAMPLES: Final = [*CHANGES, *CONTROLS]
