"""The common core of both live states: entities, the overlays of transactions, listeners.

Does I/O only through its backend, and waits for nothing. Reading needs no lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from penstock import limits
from penstock.client.batches import Batch
from penstock.client.message_offsets import message_ends
from penstock.errors import ClientClosed, Gone, StreamClosed
from penstock.protocol.offsets import START
from penstock.state.event import ControlEvent
from penstock.state.json import decode_value, same_raw
from penstock.state.live.backends import Backend, Entities, Indexes, MemoryBackend
from penstock.state.live.changes import ChangeOperation, StateBatch, StateChange
from penstock.state.live.moves import Moving, relative, resolved
from penstock.state.live.plan import Entity, Plan, Position, Question, Retained, Written
from penstock.state.live.rules import Rules, log
from penstock.state.live.selection import Selection

OnChange = Callable[[str, str, Any, Any], Any]
OnBatch = Callable[[StateBatch], Any]
OnControl = Callable[[ControlEvent], Any]


class Change(NamedTuple):
    """The value of an entity for readers, before and after."""

    entity: Entity
    old: bytes | None
    new: bytes | None


class Committed(NamedTuple):
    """What listeners are told of a commit: the changes that readers see, and the batch."""

    changes: list[Change]
    batch: StateBatch | None = None


class Ticket:
    """A transaction whose echo is awaited. Its `writes` are an overlay until then."""

    __slots__ = ("moves", "offset", "seen", "txid", "writes")

    def __init__(self, txid: str) -> None:
        self.txid = txid
        self.moves = 0  # the redirects before it was stored
        self.seen = False
        self.offset: str | None = None  # the tail after it was stored, once known
        self.writes: dict[Entity, bytes | None] = {}


class LiveCore:
    """One state, with one follower."""

    def __init__(
        self,
        url: str,
        backend: Backend,
        rules: Rules,
        indexes: Indexes,
        *,
        selection: Selection | None = None,
    ) -> None:
        self.lock = threading.RLock()
        self.backend = backend
        self.indexes = indexes
        self.position = backend.open(url if selection is None else selection.name(url), indexes)
        # The stream of the position, which a reset may change, and the number of such redirects.
        location = self.position.location
        self.url = resolved(url, location) if location else url
        self.moves = 0
        self._moving: Moving | None = None
        self.up_to_date = False
        self.skipped = 0
        self.ended: BaseException | None = None
        self.on_change: list[OnChange] = []
        self.on_batch: list[OnBatch] = []
        self.on_control: list[OnControl] = []
        self._rules = rules
        self._open_txid: str | None = None
        self._seen: dict[str, None] = {}
        self._tickets: list[Ticket] = []
        self._overlays: tuple[Ticket, ...] = ()

    # -- what readers see

    def get(self, type: str, key: str) -> bytes | None:
        entity = (type, key)
        for ticket in reversed(self._overlays):
            if entity in ticket.writes:
                return ticket.writes[entity]
        return self.backend.get(type, key)

    def items(self, type: str) -> Entities:
        return _merged(self.backend.items(type), self._overlay(type))

    def find(self, type: str, field: str, token: bytes) -> Entities:
        """Return candidates: the entities with the token, and those in an overlay."""
        return _merged(self.backend.find(type, field, token), self._overlay(type))

    def count(self, type: str) -> int:
        return len(self.items(type)) if self._overlay(type) else self.backend.count(type)

    def types(self) -> list[str]:
        changed = [entity[0] for ticket in self._overlays for entity in list(ticket.writes)]
        types = dict.fromkeys([*self.backend.types(), *changed])
        return [type for type in types if not changed or self.count(type)]

    def _overlay(self, type: str) -> dict[str, bytes | None]:
        return {
            entity[1]: value
            for ticket in self._overlays
            for entity, value in list(ticket.writes.items())
            if entity[0] == type
        }

    # -- the follower

    @property
    def source(self) -> str:
        """The URL of the stream to read; during a redirect that of the new stream."""
        return self.url if self._moving is None else self._moving.url

    @property
    def next(self) -> Position:
        """The position to read that stream from."""
        return self.position if self._moving is None else self._moving.core.position

    def plan(self, batch: Batch) -> Generator[Question, Any, Plan]:
        if self._moving is not None:
            return self._moving.core.plan(batch)
        return self._rules.plan(batch, self.position, self._open_txid, trace=self._is_heard)

    @property
    def _is_heard(self) -> bool:
        return bool(self.on_change or self.on_batch)

    def gone(self, error: Gone) -> Plan:
        return self._rules.gone(error, self.next)

    def loaded(self, offset: str, entities: Mapping[Entity, bytes], url: str) -> Plan:
        plan = self._rules.loaded(offset, entities, trace=self._is_heard)
        location = self.position.location if url == self.url else relative(url)
        plan.position = plan.position._replace(location=location)
        self.url = url
        return plan

    def commit(self, plan: Plan) -> Committed:
        """Commit a plan; return what listeners are to be told."""
        with self.lock:
            if self.ended is not None:
                raise self.ended
            if self._moving is not None:
                arrived = self._moving.take(plan)
                if arrived is None:
                    return Committed([])
                plan, self.url, self._moving = arrived, self._moving.url, None
                self.moves += 1
            self._remove_others(plan)
            steps = self._steps(plan) if self._is_heard else []
            changes = self._uncovered(_change(step) for step in steps) if self.on_change else []
            if plan.writes or plan.clears or plan.position != self.position:
                self.backend.commit(self.position, plan.position, plan.writes, clear=plan.clears)
            self.position = plan.position
            self.up_to_date = plan.up_to_date
            self.skipped += plan.skipped
            self._open_txid = plan.open_txid
            if plan.moves_to is not None:
                self._moving = Moving(self.url, plan.moves_to, self._replacement)
            changes += self._notice(plan.txids)
            return Committed(changes, self._batch(steps) if self.on_batch else None)

    def _remove_others(self, plan: Plan) -> None:
        """Add the removal of all entities that a reset does not retain."""
        if plan.retains is None or plan.clears:
            return
        for entity in self.everything().keys() - plan.retains - plan.writes.keys():
            plan.writes[entity] = None

    def _batch(self, steps: Iterable[StateChange]) -> StateBatch:
        return StateBatch(
            changes=tuple(steps),
            offset=self.position.offset,
            url=self.url,
            up_to_date=self.up_to_date,
        )

    def _replacement(self, url: str) -> LiveCore:
        """Return an empty state with the same rules, to be filled before it replaces this one."""
        return LiveCore(url, MemoryBackend(), self._rules, {})

    def everything(self) -> dict[Entity, bytes | None]:
        """Return all entities, without overlays."""
        backend = self.backend
        return {(type, key): raw for type in backend.types() for key, raw in backend.items(type)}

    def txids(self) -> dict[str, None]:
        """Return the ids of the latest transactions."""
        return dict(self._seen)

    def end(self, cause: BaseException | None) -> None:
        """The follower has stopped; without a cause, because the stream is closed."""
        with self.lock:
            if self.ended is not None:
                return
            if cause is not None and not isinstance(cause, ClientClosed):
                log.error("a live state has stopped: %s", cause)
            self.ended = cause or StreamClosed("The stream is closed: no more changes will come.")

    def close(self) -> None:
        with self.lock:
            self.end(ClientClosed("The live state is closed: make a new one."))
            self._overlays = ()
            self.backend.close()

    def notify(self, committed: Committed, controls: Iterable[ControlEvent] = ()) -> None:
        """Call the listeners, without holding the lock."""
        for (type, key), old, new in committed.changes:
            for listener in tuple(self.on_change):
                _call(listener, type, key, _decoded(old), _decoded(new))
        if committed.batch is not None:
            for batch_listener in tuple(self.on_batch):
                _call(batch_listener, committed.batch)
        for control in controls:
            for control_listener in tuple(self.on_control):
                _call(control_listener, control)

    # -- transactions

    def await_txid(self, txid: str) -> Ticket:
        """Return a ticket for a transaction, which may have been seen already."""
        with self.lock:
            ticket = self.begin(txid)
            ticket.seen = txid in self._seen
        return ticket

    def begin(self, txid: str) -> Ticket:
        """Return a ticket for a future transaction; an earlier one of that id does not count."""
        ticket = Ticket(txid)
        with self.lock:
            self._tickets.append(ticket)
        return ticket

    def forget(self, ticket: Ticket) -> None:
        with self.lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def is_seen(self, ticket: Ticket) -> bool:
        """Whether the echo has come, or the follower is past its offset."""
        return ticket.seen or (
            ticket.offset is not None and self.is_at(ticket.offset, ticket.moves)
        )

    def is_at(self, offset: str, moves: int) -> bool:
        """Whether the state has applied `offset` of the stream it followed after `moves` redirects;
        any later stream implies it."""
        return self.moves > moves or self.position.offset >= offset

    def show(self, ticket: Ticket, entity: Entity, value: bytes | None) -> Committed:
        """Add a change to the overlay of a transaction; return what readers see change."""
        if not self._rules.selects(entity):
            return Committed([])
        with self.lock:
            old = self.get(*entity)
            ticket.writes[entity] = value
            if ticket not in self._overlays:
                self._overlays = (*self._overlays, ticket)
            return Committed(_differing([Change(entity, old, self.get(*entity))]))

    def settle(self, ticket: Ticket) -> Committed:
        """Remove the overlay of a transaction that is in the state, or has failed."""
        with self.lock:
            self.forget(ticket)
            return Committed(self._uncover([ticket]))

    def _notice(self, txids: Mapping[str, None]) -> list[Change]:
        self._remember(txids)
        done = [ticket for ticket in self._tickets if ticket.txid in txids or self.is_seen(ticket)]
        for ticket in done:
            ticket.seen = True
        self._tickets = [ticket for ticket in self._tickets if not ticket.seen]
        return self._uncover(done)

    def _remember(self, txids: Mapping[str, None]) -> None:
        """Remember the latest transactions, in the order of their last event."""
        seen = self._seen
        if not seen.keys().isdisjoint(txids):
            for txid in txids:
                seen.pop(txid, None)
        seen.update(txids)
        # Many at a time: removing the oldest entry of a dictionary one by one is slow.
        if len(seen) > 2 * limits.LIVE_TXIDS_MAX:
            self._seen = dict.fromkeys(list(seen)[-limits.LIVE_TXIDS_MAX :])

    def _uncover(self, tickets: list[Ticket]) -> list[Change]:
        if not any(ticket in self._overlays for ticket in tickets):
            return []
        entities = {entity: None for ticket in tickets for entity in ticket.writes}
        before = {entity: self.get(*entity) for entity in entities}
        self._overlays = tuple(ticket for ticket in self._overlays if ticket not in tickets)
        return _differing(Change(entity, before[entity], self.get(*entity)) for entity in entities)

    def _steps(self, plan: Plan) -> list[StateChange]:
        """Return the changes of a plan to the entities without overlays, event by event."""
        if plan.replaces:
            existing, writes, offset = self.everything(), plan.writes, plan.position.offset
            return [
                _step(Change(entity, existing.get(entity), writes.get(entity)), "reset", offset)
                for entity in sorted(existing.keys() | writes.keys())
                if not same_raw(existing.get(entity) or b"", writes.get(entity) or b"")
            ]
        offsets = self._offsets(plan) if self.on_batch else None
        before: dict[Entity, bytes | None] | None = None  # loaded for the first reset
        now: dict[Entity, bytes | None] = {}
        steps: list[StateChange] = []
        for step in plan.trace or ():
            offset = "" if offsets is None else offsets[step.number]
            if isinstance(step, Written):
                entity, old = step.entity, now.get(step.entity)
                if entity not in now:
                    old = self.backend.get(*entity) if before is None else before.get(entity)
                change = Change(entity, old, step.value)
                steps.append(_step(change, step.operation, offset, step.txid))
                now[entity] = step.value
                continue
            before = self.everything() if before is None else before
            before, now = {**before, **now}, {}
            retained = step.entities if isinstance(step, Retained) else frozenset()
            for entity in sorted(before.keys() - retained):
                old = before.pop(entity)
                if old is not None:
                    steps.append(_step(Change(entity, old, None), "reset", offset))
        return steps

    def _offsets(self, plan: Plan) -> Sequence[str]:
        """Return the offset after each message that the trace of a plan refers to."""
        if plan.batch is not None:
            return message_ends(plan.batch)
        # A state that was loaded is at its offset; a stream that is gone has none.
        is_loaded = plan.position.offset != START
        return [plan.position.offset if is_loaded else self.position.offset]

    def _uncovered(self, changes: Iterable[Change]) -> list[Change]:
        covered = {entity for ticket in self._overlays for entity in ticket.writes}
        return [change for change in _differing(changes) if change.entity not in covered]


def _merged(entities: Entities, overlay: Mapping[str, bytes | None]) -> Entities:
    if not overlay:
        return entities
    merged = {**dict(entities), **overlay}
    return [(key, value) for key, value in merged.items() if value is not None]


def _differing(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if not same_raw(change.old or b"", change.new or b"")]


def _step(
    change: Change, operation: ChangeOperation, offset: str, txid: str | None = None
) -> StateChange:
    (type, key), old, new = change
    return StateChange(
        type=type,
        key=key,
        operation=operation,
        old_raw=old,
        new_raw=new,
        offset=offset,
        txid=txid,
    )


def _change(step: StateChange) -> Change:
    return Change((step.type, step.key), step.old_raw, step.new_raw)


def _decoded(raw: bytes | None) -> Any:
    return None if raw is None else decode_value(raw)


def _call(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - a failure of the user's code, which is logged
        log.exception("a callback of a live state failed")
