"""A transaction on a live state: its changes, and the producer headers of its append.

Rules without I/O: the shells append it and wait for the echo.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Generic, NamedTuple, TypeVar

from penstock.errors import PenstockError
from penstock.state import events
from penstock.state.event import ChangeEvent
from penstock.state.live.core import LiveCore, Ticket
from penstock.state.schema import Collection, StateSchema


class Sequence:
    """The producer headers of one live state: each append has its own number.

    After an append with an unknown outcome a new epoch begins, which fences the lost request off if
    it arrives later.
    """

    def __init__(self, id: str | None = None) -> None:
        self.id = id or f"live-{uuid.uuid4().hex}"
        self.epoch = 0
        self.seq = 0

    @property
    def headers(self) -> tuple[str, int, int]:
        return (self.id, self.epoch, self.seq)

    def stored(self) -> None:
        self.seq += 1

    def restarted(self) -> Sequence:
        """Return the sequence of the same producer on another stream."""
        other = Sequence(self.id)
        other.epoch = self.epoch + 1
        return other

    def failed(self, error: BaseException) -> None:
        """Begin a new epoch, unless the server has refused the append."""
        refused = isinstance(error, PenstockError) and 400 <= error.status < 500
        if not refused:
            self.epoch += 1
            self.seq = 0


S = TypeVar("S")


class Outlet(NamedTuple, Generic[S]):
    """Where a live state appends: the stream, the sequence there, and the redirects before it."""

    stream: S
    sequence: Sequence
    moves: int = 0


class TransactionBase:
    """Changes that will be appended together. Readers of the state see each at once."""

    def __init__(
        self,
        core: LiveCore,
        schema: StateSchema | None,
        *,
        txid: str | None,
        conditional: bool,
    ) -> None:
        self.txid = txid or uuid.uuid4().hex
        self._core = core
        self._schema = schema
        self._events: list[ChangeEvent] = []
        self._if_match = core.position.offset if conditional else None
        self._ticket: Ticket = core.begin(self.txid)
        self._is_open = True

    def insert(self, type: str, key: str, value: Any, **options: Any) -> None:
        """Create an entity."""
        self._add(events.insert(type, key, value, txid=self.txid, **options))

    def update(self, type: str, key: str, value: Any, **options: Any) -> None:
        """Replace an entity's value."""
        self._add(events.update(type, key, value, txid=self.txid, **options))

    def upsert(self, type: str, key: str, value: Any, **options: Any) -> None:
        """Set an entity's value, new or not."""
        self._add(events.upsert(type, key, value, txid=self.txid, **options))

    def delete(self, type: str, key: str, **options: Any) -> None:
        """Remove an entity."""
        self._add(events.delete(type, key, txid=self.txid, **options))

    def __getattr__(self, name: str) -> TransactionCollection:
        for own, collection in self.__dict__.get("_schema") or ():
            if own == name:
                return TransactionCollection(self.txid, collection, self._add)
        raise AttributeError(f"The schema has no collection {name!r}.")

    def rollback(self) -> None:
        """Drop the changes; nothing is appended."""
        self._need_open()
        self._is_open = False
        self._settle()

    def _add(self, event: ChangeEvent) -> None:
        self._need_open()
        if self._schema is not None:
            self._schema.check(event)
        value = None if event.operation == "delete" else event.raw_value
        self._events.append(event)
        self._core.notify(self._core.show(self._ticket, (event.type, event.key), value))

    def _need_open(self) -> None:
        if not self._is_open:
            raise RuntimeError("The transaction has ended: begin another one.")

    def _finish(self) -> list[bytes]:
        """End the transaction; return the messages to append."""
        self._need_open()
        self._is_open = False
        return [event.to_json() for event in self._events]

    def _settle(self) -> None:
        self._core.notify(self._core.settle(self._ticket))


class TransactionCollection:
    """The changes of one collection: `tx.users.insert(value)`."""

    __slots__ = ("_add", "_collection", "_txid")

    def __init__(
        self, txid: str, collection: Collection[Any], add: Callable[[ChangeEvent], None]
    ) -> None:
        self._txid = txid
        self._collection = collection
        self._add = add

    def insert(self, value: Any, *, key: str | None = None, **options: Any) -> None:
        self._add(self._collection.insert(value, key=key, txid=self._txid, **options))

    def update(self, value: Any, *, key: str | None = None, **options: Any) -> None:
        self._add(self._collection.update(value, key=key, txid=self._txid, **options))

    def upsert(self, value: Any, *, key: str | None = None, **options: Any) -> None:
        self._add(self._collection.upsert(value, key=key, txid=self._txid, **options))

    def delete(self, key: str | None = None, **options: Any) -> None:
        self._add(self._collection.delete(key, txid=self._txid, **options))
