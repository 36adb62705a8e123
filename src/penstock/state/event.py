"""The two kinds of state event as values; how bytes become them is the parser's business."""

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
# Told from every value by being empty: JSON is not. Only this object is left out when encoding.
ABSENT: Final = Raw(b"")

_encode: Final = msgspec.json.Encoder().encode


class UnknownFields:
    """Fields that the protocol does not name, as raw JSON.

    The general encoder refuses it on purpose: an event that has unknown fields is written by its
    `to_json`, which keeps them.
    """

    __slots__ = ("raw",)

    def __init__(self, raw: Mapping[str, bytes]) -> None:
        self.raw = dict(raw)


class Headers(
    msgspec.Struct,
    frozen=True,
    gc=False,  # holds no containers, and a million of them must not slow the collector down
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
    unknown: UnknownFields | UnsetType = UNSET


class _Event(msgspec.Struct, frozen=True, eq=False, gc=False):
    """What both kinds share. The layout is that of the JSON, so any msgspec encoder writes it."""

    @property
    def extra(self) -> dict[str, Any]:
        """Fields beside those of the protocol."""
        return _decoded(self._unknown())

    @property
    def extra_headers(self) -> dict[str, Any]:
        """Headers beside those of the protocol, and `location` of control events."""
        return _decoded(self._unknown_headers())

    def to_json(self) -> bytes:
        """The event as one JSON object, unknown fields and the spelling of values included."""
        unknown, unknown_headers = self._unknown(), self._unknown_headers()
        headers = {**self._known_headers(), **_raw(unknown_headers)}
        return _encode({**self._known(), "headers": headers, **_raw(unknown)})

    def __eq__(self, other: object) -> bool:
        """Events are equal that mean the same: spelling and order of fields do not count."""
        if not isinstance(other, _Event):
            return NotImplemented
        return same_raw(self.to_json(), other.to_json())

    def __hash__(self) -> int:
        return hash(tuple(self._known_headers().items()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.to_json().decode()})"

    def _known(self) -> dict[str, Any]:
        return {}

    def _known_headers(self) -> dict[str, Any]:
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

    Made by `insert`, `update`, `upsert`, `delete` or `parse`, which check it. An event that came
    out of an array holds on to the bytes of that array.
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
        """The new value, decoded anew each time; None also if there is none (see `raw_value`)."""
        return decode_value(self._value) if self._value else None

    @property
    def old_value(self) -> Any:
        """What the producer says the value was before: never needed, never checked."""
        return decode_value(self._old_value) if self._old_value else None

    @property
    def raw_value(self) -> bytes | None:
        """The JSON of the value as it was sent, or None if it was left out."""
        return bytes(self._value) if self._value else None

    @property
    def raw_old_value(self) -> bytes | None:
        return bytes(self._old_value) if self._old_value else None

    @property
    def txid(self) -> str | None:
        return self.headers.txid or None

    @property
    def timestamp(self) -> str | None:
        """Advisory: it orders nothing."""
        return None if self.headers.timestamp is UNSET else self.headers.timestamp

    def _known(self) -> dict[str, Any]:
        known: dict[str, Any] = {"type": self.type, "key": self.key}
        if self._value:
            known["value"] = self._value
        if self._old_value:
            known["old_value"] = self._old_value
        return known

    def _known_headers(self) -> dict[str, Any]:
        headers = self.headers
        known = {"operation": headers.operation, "txid": headers.txid}
        known["timestamp"] = headers.timestamp
        return {name: value for name, value in known.items() if value is not UNSET}

    def _unknown(self) -> dict[str, bytes]:
        return self.unknown.raw if self.unknown else {}

    def _unknown_headers(self) -> dict[str, bytes]:
        headers = self.headers
        found = {"from": headers.from_, "offset": headers.offset, "location": headers.location}
        named = {name: _encode(value) for name, value in found.items() if value is not UNSET}
        return {**named, **(headers.unknown.raw if headers.unknown else {})}


class ControlEvent(_Event, frozen=True, eq=False, gc=False, omit_defaults=True):
    """A mark in the stream: the bounds of a snapshot, a reset, or that all is told for now."""

    headers: Headers
    unknown: UnknownFields | UnsetType = UNSET

    @property
    def control(self) -> Control:
        return cast("Control", self.headers.control)

    @property
    def offset(self) -> str | None:
        """The position in the stream that the event speaks of."""
        return self.headers.offset or None

    @property
    def location(self) -> str | None:
        """Of a reset: the stream that has the state from here on, as a path or a URL."""
        return self.headers.location or None

    def _known_headers(self) -> dict[str, Any]:
        headers = self.headers
        known = {"control": headers.control, "offset": headers.offset}
        known["location"] = headers.location
        return {name: value for name, value in known.items() if value is not UNSET}

    def _unknown(self) -> dict[str, bytes]:
        return self.unknown.raw if self.unknown else {}

    def _unknown_headers(self) -> dict[str, bytes]:
        headers = self.headers
        found = {"txid": headers.txid, "timestamp": headers.timestamp, "from": headers.from_}
        named = {name: _encode(value) for name, value in found.items() if value is not UNSET}
        return {**named, **(headers.unknown.raw if headers.unknown else {})}


StateEvent: TypeAlias = ChangeEvent | ControlEvent


def _decoded(raw: Mapping[str, bytes]) -> dict[str, Any]:
    return {name: decode_value(value) for name, value in raw.items()}


def _raw(fields: Mapping[str, bytes]) -> dict[str, Raw]:
    return {name: Raw(value) for name, value in fields.items()}
