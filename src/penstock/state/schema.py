"""The schema of a state stream: its collections, and the policy for invalid events."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Literal

from penstock.errors import ValidationFailed
from penstock.state.collection import Collection
from penstock.state.event import ChangeEvent, StateEvent
from penstock.state.materialized import OnInvalid
from penstock.state.parsing import in_array

__all__ = ["Collection", "OnInvalid", "StateSchema"]


class StateSchema:
    """The collections of a stream, by name: `StateSchema(users=Collection(type="user", …))`.

    Events of other types are valid, unless `unknown_types="refuse"`.
    """

    def __init__(
        self, *, unknown_types: Literal["keep", "refuse"] = "keep", **collections: Collection[Any]
    ) -> None:
        self._refuse_unknown = unknown_types == "refuse"
        self._collections = dict(collections)
        self._by_type: dict[str, Collection[Any]] = {}
        for name, collection in collections.items():
            if name.startswith("_") or hasattr(type(self), name):
                raise ValueError(f"{name!r} cannot be the name of a collection: choose another.")
            if collection.type in self._by_type:
                raise ValueError(f"The type {collection.type!r} has two collections: remove one.")
            self._by_type[collection.type] = collection

    def __getattr__(self, name: str) -> Collection[Any]:
        try:
            # Not by attribute, which would call this method again: mypy takes the value for Any.
            return self.__dict__["_collections"][name]  # type: ignore[no-any-return]
        except KeyError:
            raise AttributeError(f"The schema has no collection {name!r}.") from None

    def __iter__(self) -> Iterator[tuple[str, Collection[Any]]]:
        """Iterate over the collections, each with its name."""
        return iter(self._collections.items())

    @property
    def types(self) -> list[str]:
        return list(self._by_type)

    def collection(self, type: str) -> Collection[Any] | None:
        """Return the collection of a type."""
        return self._by_type.get(type)

    def check(self, event: ChangeEvent) -> Any:
        """Return the checked value of an event, as its collection's type; else ValidationFailed.

        None for a delete; the plain value for a type without a collection.
        """
        collection = self._by_type.get(event.type)
        if collection is not None:
            return collection.load(event)
        if self._refuse_unknown:
            types = ", ".join(self._by_type)
            raise ValidationFailed(
                f"type {event.type[:64]!r} is not one of the schema's: {types}.",
                field="type",
                rule="unknown-type",
            )
        return event.value

    def valid(
        self, events: Iterable[StateEvent], *, on_invalid: OnInvalid = "raise"
    ) -> Iterator[StateEvent]:
        """Yield the valid events and control events, in order; `on_invalid` handles the rest."""
        for index, event in enumerate(events):
            if isinstance(event, ChangeEvent):
                try:
                    self.check(event)
                except ValidationFailed as error:
                    failure = in_array(error, index, event.to_json())
                    if on_invalid == "raise":
                        raise failure from error
                    if on_invalid != "skip":
                        on_invalid(failure)
                    continue
            yield event
