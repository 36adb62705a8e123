"""A collection: the events and the schema of one type of entity."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar, overload

from msgspec import UNSET, Raw

from penstock.errors import InvalidEvent, ValidationFailed
from penstock.state.event import ChangeEvent, Operation
from penstock.state.events import Timestamp, change
from penstock.state.json import decode_value
from penstock.state.materialized import MaterializedState
from penstock.state.validators import Validator, path_text, reason_of, validator_for

T = TypeVar("T")


class Collection(Generic[T]):
    """The entities of one type, and the schema of their values.

    `schema` is anything that `validator_for` takes. With a `primary_key` the key of an event is
    that field of its value. `key_pattern` is a regular expression for whole keys.
    """

    def __init__(
        self,
        *,
        type: str,
        schema: type[T] | Validator[T] | Callable[[Any], T] | Mapping[str, Any] | bool | Any,
        primary_key: str | None = None,
        key_pattern: str | None = None,
    ) -> None:
        if not type:
            raise ValueError("The type of a collection must not be empty.")
        self.type = type
        self.primary_key = primary_key
        self.validator: Validator[T] = validator_for(schema)
        self._key_pattern = None if key_pattern is None else re.compile(key_pattern)

    def insert(
        self,
        value: T | Any,
        *,
        key: str | None = None,
        txid: str | None = None,
        timestamp: Timestamp = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent:
        """Return the event that creates an entity; the value is checked and sent unchanged."""
        return self._change("insert", key, value, UNSET, txid, timestamp, headers)

    def update(
        self,
        value: T | Any,
        *,
        key: str | None = None,
        old_value: T | Any = UNSET,
        txid: str | None = None,
        timestamp: Timestamp = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent:
        """Return the event that replaces an entity's value."""
        return self._change("update", key, value, old_value, txid, timestamp, headers)

    def upsert(
        self,
        value: T | Any,
        *,
        key: str | None = None,
        old_value: T | Any = UNSET,
        txid: str | None = None,
        timestamp: Timestamp = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent:
        """Return the event that sets an entity's value, new or not."""
        return self._change("upsert", key, value, old_value, txid, timestamp, headers)

    def delete(
        self,
        key: str | None = None,
        *,
        old_value: T | Any = UNSET,
        txid: str | None = None,
        timestamp: Timestamp = None,
        headers: Mapping[str, Any] | None = None,
    ) -> ChangeEvent:
        """Return the event that removes an entity, by its key or its old value."""
        return self._change("delete", key, UNSET, old_value, txid, timestamp, headers)

    def load(self, event: ChangeEvent) -> T | None:
        """Return the checked value of an event of this type; None for a delete."""
        self._check_key(event.key)
        raw = event.raw_value
        if event.operation == "delete" or raw is None:
            return None
        return self.load_value(raw, event.key)

    @overload
    def get(self, state: MaterializedState, key: str) -> T | None: ...
    @overload
    def get(self, state: MaterializedState, key: str, default: T) -> T: ...
    def get(self, state: MaterializedState, key: str, default: T | None = None) -> T | None:
        """Return an entity of a state, as the schema's type."""
        raw = state.get_raw(self.type, key)
        return default if raw is None else self.load_value(raw, key)

    def all(self, state: MaterializedState) -> dict[str, T]:
        """Return every entity of this type in a state, by key."""
        entities = {}
        for key in state.get_type(self.type):
            raw = state.get_raw(self.type, key)
            if raw is not None:
                entities[key] = self.load_value(raw, key)
        return entities

    def _change(
        self,
        operation: Operation,
        key: str | None,
        value: Any,
        old_value: Any,
        txid: str | None,
        timestamp: Timestamp,
        headers: Mapping[str, Any] | None,
    ) -> ChangeEvent:
        raw = self._dump(value, "value")
        raw_old = self._dump(old_value, "old_value")
        for field, encoded in (("value", raw), ("old_value", raw_old)):
            if encoded is not UNSET:
                self.load_value(bytes(encoded), key or "", field)
        event_key = self._key(key, raw_old if operation == "delete" else raw)
        self._check_key(event_key)
        return change(operation, self.type, event_key, raw, old_value=raw_old, txid=txid,
                      timestamp=timestamp, headers=headers)  # fmt: skip

    def _key(self, key: str | None, raw: Any) -> str:
        """Return the event's key: `key`, or the primary key of the value."""
        own = None
        if self.primary_key is not None and raw is not UNSET:
            value = decode_value(raw)
            own = value.get(self.primary_key) if isinstance(value, dict) else None
            if isinstance(own, int) and not isinstance(own, bool):
                own = str(own)
        if key is not None and (own is None or own == key):
            return key
        if key is None and isinstance(own, str):
            return own
        if key is not None:
            problem = f"is {key!r}, but the value's {self.primary_key} is {own!r}"
        elif self.primary_key is None:
            problem = "is missing: pass key, since the collection has no primary_key"
        else:
            problem = f"is missing: pass key, or a value whose {self.primary_key} is text"
        raise self._failed(f"key {problem}", key or "", field="key", rule="primary-key")

    def _check_key(self, key: str) -> None:
        pattern = self._key_pattern
        if pattern is not None and pattern.fullmatch(key) is None:
            problem = f"key {key[:64]!r} does not match {pattern.pattern}"
            raise self._failed(problem, key, field="key", rule="pattern")

    def _dump(self, value: Any, field: str) -> Any:
        if value is UNSET or isinstance(value, Raw):
            return value
        try:
            return Raw(self.validator.dump(value))
        except InvalidEvent as error:
            raise self._failed(error.detail, "", field=field, rule="json") from error
        except Exception as error:  # a validator may raise anything
            raise self._refusal(error, "", field) from error

    def load_value(self, raw: bytes, key: str, field: str = "value") -> T:
        """Return the checked value in JSON; raise ValidationFailed for that key and field."""
        try:
            return self.validator.load(raw)
        except Exception as error:  # a validator may raise anything
            raise self._refusal(error, key, field) from error

    def _refusal(self, error: Exception, key: str, field: str) -> ValidationFailed:
        path, rule, message = reason_of(error)
        where = field + path_text(path)
        return self._failed(f"{where}: {message}", key, field=where, rule=rule)

    def _failed(self, problem: str, key: str, *, field: str, rule: str) -> ValidationFailed:
        subject = f"{self.type} {key[:64]!r}" if key else self.type
        return ValidationFailed(f"{subject}: {problem.rstrip('.')}.", field=field, rule=rule)
