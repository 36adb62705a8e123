"""Reading a live state: by key, by type, by the fields of values. Knows no stream."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from penstock.state.json import decode_value
from penstock.state.live.core import LiveCore
from penstock.state.lookup import as_json, matches, token
from penstock.state.schema import Collection, StateSchema


class LiveCollection:
    """The entities of one type, now; with a schema as its own kind of values."""

    __slots__ = ("_collection", "_core", "type")

    def __init__(self, core: LiveCore, type: str, collection: Collection[Any] | None) -> None:
        self._core = core
        self._collection = collection
        self.type = type

    def get(self, key: str, default: Any = None) -> Any:
        """The value of an entity, or `default` if there is none."""
        raw = self._core.get(self.type, key)
        return default if raw is None else self._load(key, raw)

    def where(self, predicate: Callable[[Any], Any] | None = None, **fields: Any) -> list[Any]:
        """The values whose JSON has all these fields, and that the predicate is true of.

        One of the fields being indexed makes it a lookup; else all entities of the type are
        looked at.
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
        wanted = {field: as_json(value) for field, value in fields.items()}
        indexed = [field for field in self._core.indexes.get(self.type, ()) if field in wanted]
        if indexed:
            field = indexed[0]
            found = self._core.find(self.type, field, token(wanted[field]))
        else:
            found = self._core.items(self.type)
        for key, raw in found:
            if matches(raw, wanted):
                value = self._load(key, raw)
                if predicate is None or predicate(value):
                    yield key, value

    def _load(self, key: str, raw: bytes) -> Any:
        if self._collection is None:
            return decode_value(raw)
        return self._collection._load(raw, key, "value")


class LiveReader:
    """What both live states can be asked. `state.users` is the schema's collection `users`."""

    _core: LiveCore
    _schema: StateSchema | None

    def __getattr__(self, name: str) -> LiveCollection:
        schema = self.__dict__.get("_schema")
        for own, collection in schema or ():
            if own == name:
                return LiveCollection(self._core, collection.type, collection)
        raise AttributeError(f"the state has no collection {name!r}: its schema does not name it")

    def collection(self, type: str) -> LiveCollection:
        """The entities of a type, with or without a schema."""
        found = None if self._schema is None else self._schema.collection(type)
        return LiveCollection(self._core, type, found)

    def get(self, type: str, key: str, default: Any = None) -> Any:
        """The plain value of an entity, or `default` if there is none."""
        raw = self._core.get(type, key)
        return default if raw is None else decode_value(raw)

    def get_type(self, type: str) -> dict[str, Any]:
        """All entities of a type, as plain values: key → value."""
        return {key: decode_value(raw) for key, raw in self._core.items(type)}

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """A copy of everything: type → key → value."""
        return {type: self.get_type(type) for type in self._core.types()}

    @property
    def types(self) -> list[str]:
        """The types that have entities."""
        return self._core.types()

    @property
    def offset(self) -> str:
        """Where in the stream the state stands."""
        return self._core.position.offset

    @property
    def in_snapshot(self) -> bool:
        """Whether the state stands within a snapshot, which is not complete then."""
        return self._core.position.in_snapshot

    @property
    def up_to_date(self) -> bool:
        """Whether the last that was heard of the stream was its end."""
        return self._core.up_to_date

    @property
    def skipped(self) -> int:
        """How many invalid events have been left out since the start."""
        return self._core.skipped

    @property
    def ended(self) -> BaseException | None:
        """Why nothing more is followed: an error, or StreamClosed or ClientClosed; else None."""
        return self._core.ended

    def on_change(self, listener: Callable[[str, str, Any, Any], Any]) -> Callable[[], None]:
        """Call `listener(type, key, old, new)` when readers see another value; None is no entity.

        Called in order, when the change is committed. Returns a function that ends it.
        """
        self._core.on_change.append(listener)
        return lambda: self._core.on_change.remove(listener)

    def on_control(self, listener: Callable[[Any], Any]) -> Callable[[], None]:
        """Call `listener(event)` for each control event, after the batch that it came in."""
        self._core.on_control.append(listener)
        return lambda: self._core.on_control.remove(listener)


def indexes_of(
    schema: StateSchema | None, indexes: Mapping[str, Iterable[str]] | None
) -> dict[str, tuple[str, ...]]:
    """Indexes by type, from the names of collections, or of types that are in no schema."""
    collections = dict(schema or ())
    found: dict[str, tuple[str, ...]] = {}
    for name, fields in (indexes or {}).items():
        if isinstance(fields, str):
            raise ValueError(f"indexes of {name!r}: give a list of fields, not one text")
        type = collections[name].type if name in collections else name
        found[type] = tuple(dict.fromkeys(fields))
    return found


def check_names(reader: type[LiveReader], schema: StateSchema | None) -> None:
    """Refuse collections that would be hidden behind a method."""
    for name, _ in schema or ():
        if hasattr(reader, name):
            raise ValueError(f"{name!r} is not free as the name of a collection of a live state")
