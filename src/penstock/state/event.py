"""The two kinds of state event as values. Parsing bytes into them is in `state/parsing`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias, cast

import msgspec
from msgspec import UNSET, Raw, UnsetType

from penstock.state.json import decode_value, same_raw

Operation: TypeAlias = Literal["insert", "update", "upsert", "delete"]
Control: TypeAlias = Literal["snapshot-start", "snapshot-end", "reset", "up-to-date"]
OPERATIONS: Final[tuple[Operation, ...]] = ("insert", "update", "upsert", "delete")
CONTROLS: Final[tuple[Control, ...]] = ("snapshot-start", "snapshot-end", "reset", "up-to-date")

NonEmpty: TypeAlias = Annotated[str, msgspec.Meta(min_length=1)]
# Empty, as no JSON value is. The encoder leaves out this very object.
ABSENT: Final = Raw(b"")

_encode: Final = msgspec.json.Encoder().encode


class UnknownFields:
    """Fields that the protocol does not name, as raw JSON.

    msgspec cannot encode it, on purpose: an event with unknown fields is written by its `to_json`,
    which preserves them.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: Mapping[str, bytes]) -> None:
        self.raw = dict(raw)


class Headers(
    msgspec.Struct,
    frozen=True,
    gc=False,  # it holds no containers, and a million of them must not slow the collector down
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"from_": "from"},
):
    """The `headers` of an event. Change events have an `operation`, control events a `control`."""

    operation: Operation | UnsetType = UNSET
    control: Control | UnsetType = UNSET
    txid: NonEmpty | UnsetType = UNSET
    timestamp: str | UnsetType = UNSET
    from_: NonEmpty | UnsetType = UNSET
    offset: NonEmpty | UnsetType = UNSET
    location: NonEmpty | UnsetType = UNSET
    # Not named by the protocol, and so of any type: see `state/expiry`.
    ttl: Raw | UnsetType = UNSET
    expires_at: Raw | UnsetType = UNSET
    reason: Raw | UnsetType = UNSET
    unknown: UnknownFields | UnsetType = UNSET

    def beyond_protocol(self) -> dict[str, bytes]:
        """Return the headers that the protocol does not name, as JSON."""
        own = {"ttl": self.ttl, "expires_at": self.expires_at, "reason": self.reason}
        named = {name: bytes(raw) for name, raw in own.items() if raw is not UNSET}
        return {**named, **(self.unknown.raw if self.unknown else {})}


class _Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The common part of both kinds. Its layout is that of the JSON, so any msgspec encoder writes
    it."""

    @property
    def extra(self) -> dict[str, Any]:
        """The fields that the protocol does not name."""
        return _decoded(self._unknown())

    @property
    def extra_headers(self) -> dict[str, Any]:
        """The headers that the protocol does not name."""
        return _decoded(self._unknown_headers())

    def to_json(self) -> bytes:
        """Return the event as one JSON object, with unknown fields and values as they were sent."""
        unknown, unknown_headers = self._unknown(), self._unknown_headers()
        headers = {**self._own_headers(), **_raw(unknown_headers)}
        return _encode({**self._own_fields(), "headers": headers, **_raw(unknown)})

    def __eq__(self, other: object) -> bool:
        """Events are equal if they mean the same: spelling and order of fields do not count."""
        if not isinstance(other, _Event):
            return NotImplemented
        return same_raw(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        return hash(tuple(self._own_headers().items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_json().decode()})"

    def _own_fields(self) -> dict[str, Any]:
        return {}

    def _own_headers(self) -> dict[str, Any]:
        return {}

    def _unknown(self) -> dict[str, bytes]:
        return {}

    def _unknown_headers(self) -> dict[str, bytes]:
        return {}


class ChangeEvent(
    _Event,
    frozen=True,
    eq=False,
    gc=False,
    omit_defaults=True,
    forbid_unknown_fields=True,
    rename={"_value": "value", "_old_value": "old_value"},
):
    """An insert, update, upsert or delete of the entity `(type, key)`.

    `insert`, `update`, `upsert`, `delete` and `parse` make and check events. An event of an array
    keeps the bytes of the whole array in memory.
    """

    headers: Headers
    type: NonEmpty = ""
    key: NonEmpty = ""
    _value: Raw = ABSENT
    _old_value: Raw = ABSENT
    unknown: UnknownFields | UnsetType = UNSET

    @property
    def operation(self) -> Operation:
        return cast("Operation", self.headers.operation)

    @property
    def value(self) -> Any:
        """The new value, decoded at each access; None also if there is none (see `raw_value`)."""
        return decode_value(self._value) if self._value else None

    @property
    def old_value(self) -> Any:
        """The value before, as the producer says; it is never checked."""
        return decode_value(self._old_value) if self._old_value else None

    @property
    def raw_value(self) -> bytes | None:
        """The JSON of the value as it was sent, or None if there is none."""
        return bytes(self._value) if self._value else None

    @property
    def raw_old_value(self) -> bytes | None:
        return bytes(self._old_value) if self._old_value else None

    @property
    def txid(self) -> str | None:
        return self.headers.txid or None

    @property
    def timestamp(self) -> str | None:
        """The time of the change. It has no effect on the order."""
        return None if self.headers.timestamp is UNSET else self.headers.timestamp

    def _own_fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"type": self.type, "key": self.key}
        if self._value:
            fields["value"] = self._value
        if self._old_value:
            fields["old_value"] = self._old_value
        return fields

    def _own_headers(self) -> dict[str, Any]:
        headers = self.headers
        own = {"operation": headers.operation, "txid": headers.txid}
        own["timestamp"] = headers.timestamp
        return {name: value for name, value in own.items() if value is not UNSET}

    def _unknown(self) -> dict[str, bytes]:
        return self.unknown.raw if self.unknown else {}

    def _unknown_headers(self) -> dict[str, bytes]:
        headers = self.headers
        foreign = {"from": headers.from_, "offset": headers.offset, "location": headers.location}
        named = {name: _encode(value) for name, value in foreign.items() if value is not UNSET}
        return {**named, **headers.beyond_protocol()}


class ControlEvent(_Event, frozen=True, eq=False, gc=False, omit_defaults=True):
    """A mark in the stream: the start or end of a snapshot, a reset, or up-to-date."""

    headers: Headers
    unknown: UnknownFields | UnsetType = UNSET

    @property
    def control(self) -> Control:
        return cast("Control", self.headers.control)

    @property
    def offset(self) -> str | None:
        """The offset in the stream that the event refers to."""
        return self.headers.offset or None

    @property
    def location(self) -> str | None:
        """Of a reset: the path or URL of the stream that continues the state."""
        return self.headers.location or None

    def _own_headers(self) -> dict[str, Any]:
        headers = self.headers
        own = {"control": headers.control, "offset": headers.offset}
        own["location"] = headers.location
        return {name: value for name, value in own.items() if value is not UNSET}

    def _unknown(self) -> dict[str, bytes]:
        return self.unknown.raw if self.unknown else {}

    def _unknown_headers(self) -> dict[str, bytes]:
        headers = self.headers
        foreign = {"txid": headers.txid, "timestamp": headers.timestamp, "from": headers.from_}
        named = {name: _encode(value) for name, value in foreign.items() if value is not UNSET}
        return {**named, **headers.beyond_protocol()}


StateEvent: TypeAlias = ChangeEvent | ControlEvent


def _decoded(raw: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: decode_value(value) for name, value in raw.items()}


def _raw(fields: Mapping[str, bytes]) -> dict[str, Raw]:
    return {name: Raw(value) for name, value in fields.items()}
