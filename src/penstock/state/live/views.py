"""Reading a live state by key, by type, and by the fields of values. Knows no stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock.state.json import decode_value
from penstock.state.live.changes import StateBatch
from penstock.state.live.core import LiveCore
from penstock.state.lookup import as_json, matches, token
from penstock.state.schema import Collection, StateSchema


class LiveCollection:
    """The current entities of one type; with a schema, values of its type."""

    __slots__ = ("_collection", "_core", "type")

    def __init__(self, core: LiveCore, type: str, collection: Collection[Any] | None) -> None:
        self._core = core
        self._collection = collection
        self.type = type

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of an entity, or `default` if there is none."""
        raw = self._core.get(self.type, key)
        return default if raw is None else self._load(key, raw)

    def where(self, predicate: Callable[[Any], Any] | None = None, **fields: Any) -> list[Any]:
        """Return the values whose JSON has all these fields and for which the predicate is true.

        If one of the fields is indexed, this is a lookup; else it goes through all entities of
        the type.
        """
        return [value for _, value in self._matching(predicate, fields)]

    def keys_where(self, predicate: Callable[[Any], Any] | None = None, **fields: Any) -> list[str]:
        """Like `where`, for the keys."""
        return [key for key, _ in self._matching(predicate, fields)]

    def items(self) -> list[tuple[str, Any]]:
        return [(key, self._load(key, raw)) for key, raw in self._core.items(self.type)]

    def keys(self) -> list[str]:
        return [key for key, _ in self._core.items(self.type)]

    def values(self) -> list[Any]:
        return [value for _, value in self.items()]

    def __len__(self) -> int:
        return self._core.count(self.type)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and self._core.get(self.type, key) is not None

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __repr__(self) -> str:
        return f"LiveCollection({self.type!r}, {len(self)} entities)"

    def _matching(
        self, predicate: Callable[[Any], Any] | None, fields: Mapping[str, Any]
    ) -> Iterator[tuple[str, Any]]:
        expected = {field: as_json(value) for field, value in fields.items()}
        indexed = [field for field in self._core.indexes.get(self.type, ()) if field in expected]
        if indexed:
            field = indexed[0]
            entities = self._core.find(self.type, field, token(expected[field]))
        else:
            entities = self._core.items(self.type)
        for key, raw in entities:
            if matches(raw, expected):
                value = self._load(key, raw)
                if predicate is None or predicate(value):
                    yield key, value

    def _load(self, key: str, raw: bytes) -> Any:
        if self._collection is None:
            return decode_value(raw)
        return self._collection.load_value(raw, key)


class LiveReader:
    """The reading half of both live states. `state.users` is the schema's collection `users`."""

    _core: LiveCore
    _schema: StateSchema | None

    def __getattr__(self, name: str) -> LiveCollection:
        schema = self.__dict__.get("_schema")
        for own, collection in schema or ():
            if own == name:
                return LiveCollection(self._core, collection.type, collection)
        raise AttributeError(f"The state has no collection {name!r}: its schema does not name it.")

    def collection(self, type: str) -> LiveCollection:
        """Return the entities of a type, with or without a schema."""
        collection = None if self._schema is None else self._schema.collection(type)
        return LiveCollection(self._core, type, collection)

    def get(self, type: str, key: str, default: Any = None) -> Any:
        """Return the plain value of an entity, or `default` if there is none."""
        raw = self._core.get(type, key)
        return default if raw is None else decode_value(raw)

    def get_raw(self, type: str, key: str) -> bytes | None:
        """Return the JSON of an entity's value as it was written, or None if there is none."""
        return self._core.get(type, key)

    def get_type(self, type: str) -> dict[str, Any]:
        """Return all entities of a type as plain values: key → value."""
        return {key: decode_value(raw) for key, raw in self._core.items(type)}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return a copy of the state: type → key → value."""
        return {type: self.get_type(type) for type in self._core.types()}

    @property
    def types(self) -> list[str]:
        """The types that have entities."""
        return self._core.types()

    @property
    def offset(self) -> str:
        """The offset up to which the stream is applied."""
        return self._core.position.offset

    @property
    def stream_url(self) -> str:
        """The URL of the stream that the offset belongs to; a reset may redirect to another."""
        return self._core.url

    @property
    def in_snapshot(self) -> bool:
        """Whether the state is within a snapshot, and so incomplete."""
        return self._core.position.in_snapshot

    @property
    def up_to_date(self) -> bool:
        """Whether the last batch ended at the tail of the stream."""
        return self._core.up_to_date

    @property
    def skipped(self) -> int:
        """The number of invalid events that were left out since the start."""
        return self._core.skipped

    @property
    def ended(self) -> BaseException | None:
        """The reason for the end: an error, StreamClosed or ClientClosed; None while it follows."""
        return self._core.ended

    def on_change(self, listener: Callable[[str, str, Any, Any], Any]) -> Callable[[], None]:
        """Call `listener(type, key, old, new)` for each change; None stands for no entity.

        Calls are in order, after the commit. Returns a function that removes the listener.
        """
        self._core.on_change.append(listener)
        return lambda: self._core.on_change.remove(listener)

    def on_batch(self, listener: Callable[[StateBatch], Any]) -> Callable[[], None]:
        """Call `listener(batch)` after each commit with the changes that the stream has made.

        Each change has its operation, its offset and the values as they were written. Events that
        change nothing are included, and so are those that a transaction still hides. Returns a
        function that removes the listener.
        """
        self._core.on_batch.append(listener)
        return lambda: self._core.on_batch.remove(listener)

    def on_control(self, listener: Callable[[Any], Any]) -> Callable[[], None]:
        """Call `listener(event)` for each control event, after its batch is committed. Returns a
        function that removes the listener."""
        self._core.on_control.append(listener)
        return lambda: self._core.on_control.remove(listener)


def indexes_of(
    schema: StateSchema | None, indexes: Mapping[str, Iterable[str]] | None
) -> dict[str, tuple[str, ...]]:
    """Return the indexed fields by type; names are those of collections, or of types that the
    schema does not have."""
    collections = dict(schema or ())
    fields_by_type: dict[str, tuple[str, ...]] = {}
    for name, fields in (indexes or {}).items():
        if isinstance(fields, str):
            raise ValueError(f"The indexes of {name!r} are one text: pass a list of fields.")
        type = collections[name].type if name in collections else name
        fields_by_type[type] = tuple(dict.fromkeys(fields))
    return fields_by_type


def check_names(reader: type[LiveReader], schema: StateSchema | None) -> None:
    """Refuse collections that have the name of a method."""
    for name, _ in schema or ():
        if hasattr(reader, name):
            raise ValueError(
                f"A live state has a method {name!r}: give the collection another name."
            )
