"""The state that a sequence of events builds: (type, key) → value.

Values are stored as the JSON that was sent, and decoded at each access: that is cheaper to build,
takes a fraction of the memory, and callers cannot change the state through a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal, Protocol, TypeAlias

from penstock.errors import InvalidEvent, ValidationFailed
from penstock.state.event import ChangeEvent, ControlEvent, StateEvent
from penstock.state.json import decode_value, same_raw
from penstock.state.parsing import decode_exactly, decode_loosely, in_array, parse_many

OnInvalid: TypeAlias = Literal["raise", "skip"] | Callable[[InvalidEvent], None]


class Checks(Protocol):
    """Checks an event before it is applied: a StateSchema."""

    def check(self, event: ChangeEvent) -> Any:
        """Raise ValidationFailed for an event that must not be applied."""


class MaterializedState:
    """State in memory.

    With a `schema` every event is checked before it is applied. `on_invalid` is the policy for one
    that fails, and for messages of `apply_json` that are no events: `"raise"`, `"skip"`, or a
    function that gets the error (a dead-letter box). `skipped` counts the skipped events; the
    others are applied.

    Control events change nothing here: at a reset the application may call `clear()`.
    """

    __slots__ = ("_on_invalid", "_schema", "_types", "skipped")

    def __init__(self, schema: Checks | None = None, *, on_invalid: OnInvalid = "raise") -> None:
        self._types: dict[str, dict[str, bytes]] = {}
        self._schema = schema
        self._on_invalid = on_invalid
        self.skipped = 0

    def apply(self, event: StateEvent) -> None:
        """Set the entity's value, or remove it."""
        if self._schema is not None and isinstance(event, ChangeEvent):
            try:
                self._schema.check(event)
            except ValidationFailed as error:
                error.raw = event.to_json()
                self._refuse(error)
                return
        self._set_all((event,), None)

    def apply_batch(self, events: Iterable[StateEvent]) -> int:
        """Apply events in order; return the number of changes applied."""
        return self._apply_all(events, None)

    def apply_json(
        self, array: bytes | str, *, on_control: Callable[[ControlEvent], None] | None = None
    ) -> int:
        """Apply the events of a JSON array, as a read of a stream returns it; the fastest way.

        `on_control` is called with each control event, when all changes before it are applied and
        none after it. Timestamps may be any text. Unless `on_invalid` says otherwise, an array
        with an invalid event is refused whole.
        """
        data = array.encode() if isinstance(array, str) else bytes(array)
        events = decode_exactly(data, strict_timestamp=False)
        if events is None and self._schema is None:
            events = decode_loosely(data)
        if events is None:
            refuse = None if self._on_invalid == "raise" else self._refuse
            events = parse_many(data, strict_timestamp=False, on_invalid=refuse)
        return self._apply_all(events, on_control)

    def get(self, type: str, key: str, default: Any = None) -> Any:
        """Return the value of an entity, or `default` if there is none."""
        raw = self.get_raw(type, key)
        return default if raw is None else decode_value(raw)

    def get_raw(self, type: str, key: str) -> bytes | None:
        """Return the JSON of an entity's value, or None if there is none."""
        keys = self._types.get(type)
        return None if keys is None else keys.get(key)

    def get_type(self, type: str) -> Mapping[str, Any]:
        """Return all entities of a type as a live view: key → value."""
        return _View(self._types, type)

    def clear(self) -> None:
        """Remove all entities."""
        self._types.clear()

    @property
    def types(self) -> list[str]:
        """The types that have entities, in the order they appeared."""
        return list(self._types)

    @property
    def type_count(self) -> int:
        return len(self._types)

    def count(self, type: str) -> int:
        """Return the number of entities of a type."""
        return len(self._types.get(type, ()))

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return a copy of the state: type → key → value."""
        return {type: dict(self.get_type(type)) for type in self._types}

    def copy(self) -> MaterializedState:
        """Return an independent state with the same entities, schema and policy."""
        other = MaterializedState(self._schema, on_invalid=self._on_invalid)
        other._types = {type: dict(keys) for type, keys in self._types.items()}
        return other

    def __len__(self) -> int:
        return sum(map(len, self._types.values()))

    def __contains__(self, type_and_key: object) -> bool:
        if not (isinstance(type_and_key, tuple) and len(type_and_key) == 2):
            return False
        type, key = type_and_key
        return key in self._types.get(type, ())

    def __iter__(self) -> Iterator[tuple[str, str, Any]]:
        """Iterate over the entities as (type, key, value)."""
        for type, keys in self._types.items():
            for key, raw in keys.items():
                yield type, key, decode_value(raw)

    def __eq__(self, other: object) -> bool:
        """States are equal if they have the same entities with the same values, in any order."""
        if not isinstance(other, MaterializedState):
            return NotImplemented
        mine, theirs = self._types, other._types
        return mine.keys() == theirs.keys() and all(
            keys.keys() == theirs[type].keys()
            and all(same_raw(raw, theirs[type][key]) for key, raw in keys.items())
            for type, keys in mine.items()
        )

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        counts = ", ".join(f"{type}: {len(keys)}" for type, keys in self._types.items())
        return f"MaterializedState({counts})"

    def _apply_all(
        self, events: Iterable[StateEvent], on_control: Callable[[ControlEvent], None] | None
    ) -> int:
        if self._schema is not None:
            events = self._checked(self._schema, events)
        return self._set_all(events, on_control)

    def _set_all(
        self, events: Iterable[StateEvent], on_control: Callable[[ControlEvent], None] | None
    ) -> int:
        types = self._types
        applied = 0
        event: Any  # a cast for each would be a fifth of the cost of this loop
        for event in events:
            operation = event.headers.operation
            if not operation:
                if on_control is not None:
                    on_control(event)
                continue
            type = event.type
            keys = types.get(type)
            if operation == "delete":
                # A type without entities is removed, so that names do not accumulate.
                if keys is not None and keys.pop(event.key, None) is not None and not keys:
                    del types[type]
            else:
                if keys is None:
                    keys = types[type] = {}
                # Copied, or one small value would keep the whole array in memory.
                keys[event.key] = bytes(event._value)
            applied += 1
        return applied

    def _checked(self, schema: Checks, events: Iterable[StateEvent]) -> Iterator[StateEvent]:
        """Yield the valid events, each checked after those before it were applied."""
        for index, event in enumerate(events):
            if isinstance(event, ChangeEvent):
                try:
                    schema.check(event)
                except ValidationFailed as error:
                    self._refuse(in_array(error, index, event.to_json()))
                    continue
            yield event

    def _refuse(self, error: InvalidEvent) -> None:
        if self._on_invalid == "raise":
            raise error
        self.skipped += 1
        if self._on_invalid != "skip":
            self._on_invalid(error)


class _View(Mapping[str, Any]):
    """A live view of the entities of one type."""

    __slots__ = ("_type", "_types")

    def __init__(self, types: dict[str, dict[str, bytes]], type: str) -> None:
        self._types = types
        self._type = type

    def __getitem__(self, key: str) -> Any:
        return decode_value(self._keys()[key])

    def __contains__(self, key: object) -> bool:
        return key in self._keys()

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys())

    def __len__(self) -> int:
        return len(self._keys())

    def __repr__(self) -> str:
        return repr(dict(self))

    def _keys(self) -> dict[str, bytes]:
        return self._types.get(self._type) or {}
