"""The common part of both live states: entities, what transactions lay over them, who is told.
Does no I/O but through its backend, and waits for nothing. Reading needs no lock."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, NamedTuple

from penstock import limits
from penstock.client.batches import Batch
from penstock.errors import ClientClosed, Gone, StreamClosed
from penstock.state.event import ControlEvent
from penstock.state.json import decode_value, same_raw
from penstock.state.live.backends import Backend, Found, Indexes, MemoryBackend
from penstock.state.live.moves import Moving, relative, resolved
from penstock.state.live.plan import Cleared, Entity, Plan, Position, Question
from penstock.state.live.rules import Rules, log

OnChange = Callable[[str, str, Any, Any], Any]
OnControl = Callable[[ControlEvent], Any]


class Change(NamedTuple):
    """An entity as readers saw it before and see it now."""

    entity: Entity
    old: bytes | None
    new: bytes | None


class Ticket:
    """Somebody waits for a transaction to come by. Its `writes` are shown until then."""

    __slots__ = ("moves", "offset", "seen", "txid", "writes")

    def __init__(self, txid: str) -> None:
        self.txid = txid
        self.moves = 0  # how often the state had moved when it was stored
        self.seen = False
        self.offset: str | None = None  # where the stream ended when it was stored, once known
        self.writes: dict[Entity, bytes | None] = {}


class LiveCore:
    """One state, fed by one follower."""

    def __init__(self, url: str, backend: Backend, rules: Rules, indexes: Indexes) -> None:
        self.lock = threading.RLock()
        self.backend = backend
        self.indexes = indexes
        self.position = backend.open(url, indexes)
        # The stream that the position is of, which a reset may change, and how often one has.
        location = self.position.location
        self.url = resolved(url, location) if location else url
        self.moves = 0
        self._moving: Moving | None = None
        self.up_to_date = False
        self.skipped = 0
        self.ended: BaseException | None = None
        self.on_change: list[OnChange] = []
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

    def items(self, type: str) -> Found:
        return _merged(self.backend.items(type), self._overlay(type))

    def find(self, type: str, field: str, token: bytes) -> Found:
        """Candidates: all that have the token, and all that a transaction has changed."""
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
        """The stream to read: another one already while the state moves there."""
        return self.url if self._moving is None else self._moving.url

    @property
    def next(self) -> Position:
        """Where to read on in it."""
        return self.position if self._moving is None else self._moving.core.position

    def plan(self, batch: Batch) -> Generator[Question, Any, Plan]:
        if self._moving is not None:
            return self._moving.core.plan(batch)
        return self._rules.plan(batch, self.position, self._open_txid, trace=bool(self.on_change))

    def gone(self, error: Gone) -> Plan:
        return self._rules.gone(error, self.next)

    def loaded(self, offset: str, entities: Mapping[Entity, bytes], url: str) -> Plan:
        plan = self._rules.loaded(offset, entities, trace=bool(self.on_change))
        location = self.position.location if url == self.url else relative(url)
        plan.position = plan.position._replace(location=location)
        self.url = url
        return plan

    def commit(self, plan: Plan) -> list[Change]:
        """Make a plan true; what readers see differently since, in order."""
        with self.lock:
            if self.ended is not None:
                raise self.ended
            if self._moving is not None:
                arrived = self._moving.take(plan)
                if arrived is None:
                    return []
                plan, self.url, self._moving = arrived, self._moving.url, None
                self.moves += 1
            seen = self._trace(plan) if self.on_change else []
            if plan.writes or plan.clears or plan.position != self.position:
                self.backend.commit(self.position, plan.position, plan.writes, clear=plan.clears)
            self.position = plan.position
            self.up_to_date = plan.up_to_date
            self.skipped += plan.skipped
            self._open_txid = plan.open_txid
            if plan.moves_to is not None:
                self._moving = Moving(self.url, plan.moves_to, self._beside)
            return seen + self._notice(plan.txids)

    def _beside(self, url: str) -> LiveCore:
        """An empty state by the same rules, to be filled before it takes this one's place."""
        return LiveCore(url, MemoryBackend(), self._rules, {})

    def everything(self) -> dict[Entity, bytes | None]:
        backend = self.backend
        return {(type, key): raw for type in backend.types() for key, raw in backend.items(type)}

    def txids(self) -> dict[str, None]:
        """The transactions that were seen last."""
        return dict(self._seen)

    def end(self, cause: BaseException | None) -> None:
        """The follower has stopped; without a cause since the stream was closed."""
        with self.lock:
            if self.ended is not None:
                return
            if cause is not None and not isinstance(cause, ClientClosed):
                log.error("a live state has stopped: %s", cause)
            self.ended = cause or StreamClosed("The stream is closed: no more will come.")

    def close(self) -> None:
        with self.lock:
            self.end(ClientClosed("The live state was closed."))
            self._overlays = ()
            self.backend.close()

    def tell(self, changes: Iterable[Change], controls: Iterable[ControlEvent] = ()) -> None:
        """Call back, without holding the lock."""
        for (type, key), old, new in changes:
            for listener in tuple(self.on_change):
                _call(listener, type, key, _decoded(old), _decoded(new))
        for control in controls:
            for hearer in tuple(self.on_control):
                _call(hearer, control)

    # -- transactions

    def await_txid(self, txid: str) -> Ticket:
        """A ticket that is seen when the transaction is."""
        with self.lock:
            ticket = self.begin(txid)
            ticket.seen = txid in self._seen
        return ticket

    def begin(self, txid: str) -> Ticket:
        """A ticket for a transaction to come: an earlier one of that name is not it."""
        ticket = Ticket(txid)
        with self.lock:
            self._tickets.append(ticket)
        return ticket

    def forget(self, ticket: Ticket) -> None:
        with self.lock:
            if ticket in self._tickets:
                self._tickets.remove(ticket)

    def is_seen(self, ticket: Ticket) -> bool:
        """Whether it has come by; what the follower had to skip has come by, too."""
        return ticket.seen or (
            ticket.offset is not None and self.is_at(ticket.offset, ticket.moves)
        )

    def is_at(self, offset: str, moves: int) -> bool:
        """Whether the state has got to an offset of the stream that it followed after so many
        moves: a stream that it was led on to has all of those before."""
        return self.moves > moves or self.position.offset >= offset

    def show(self, ticket: Ticket, entity: Entity, value: bytes | None) -> list[Change]:
        """Lay a change over the state."""
        with self.lock:
            old = self.get(*entity)
            ticket.writes[entity] = value
            if ticket not in self._overlays:
                self._overlays = (*self._overlays, ticket)
            return _differing([Change(entity, old, self.get(*entity))])

    def settle(self, ticket: Ticket) -> list[Change]:
        """Take a transaction's overlay away: it is in the state by now, or never will be."""
        with self.lock:
            self.forget(ticket)
            return self._uncover([ticket])

    def _notice(self, txids: Mapping[str, None]) -> list[Change]:
        self._remember(txids)
        done = [ticket for ticket in self._tickets if ticket.txid in txids or self.is_seen(ticket)]
        for ticket in done:
            ticket.seen = True
        self._tickets = [ticket for ticket in self._tickets if not ticket.seen]
        return self._uncover(done)

    def _remember(self, txids: Mapping[str, None]) -> None:
        """Keep the last ones, in the order they were seen last."""
        seen = self._seen
        if not seen.keys().isdisjoint(txids):
            for txid in txids:
                seen.pop(txid, None)
        seen.update(txids)
        # All at once and seldom: a dictionary is slow to give up its oldest, one by one.
        if len(seen) > 2 * limits.LIVE_TXIDS_MAX:
            self._seen = dict.fromkeys(list(seen)[-limits.LIVE_TXIDS_MAX :])

    def _uncover(self, tickets: list[Ticket]) -> list[Change]:
        if not any(ticket in self._overlays for ticket in tickets):
            return []
        entities = {entity: None for ticket in tickets for entity in ticket.writes}
        before = {entity: self.get(*entity) for entity in entities}
        self._overlays = tuple(ticket for ticket in self._overlays if ticket not in tickets)
        return _differing(Change(entity, before[entity], self.get(*entity)) for entity in entities)

    def _trace(self, plan: Plan) -> list[Change]:
        """What readers will see change, event by event; overlays hide what is under them."""
        if plan.replaces:
            standing, writes = self.everything(), plan.writes
            steps = [Change(each, old, writes.get(each)) for each, old in standing.items()]
            steps += [
                Change(each, None, new) for each, new in writes.items() if each not in standing
            ]
            return self._uncovered(steps)
        now: dict[Entity, bytes | None] = {}
        changes: list[Change] = []
        cleared = False
        for step in plan.trace or ():
            if isinstance(step, Cleared):
                standing = {} if cleared else self.everything()
                standing.update(now)
                changes.extend(Change(entity, old, None) for entity, old in standing.items())
                now, cleared = {}, True
                continue
            entity, value = step
            under = None if cleared or entity in now else self.backend.get(*entity)
            old = now.get(entity, under)
            changes.append(Change(entity, old, value))
            now[entity] = value
        return self._uncovered(changes)

    def _uncovered(self, changes: Iterable[Change]) -> list[Change]:
        covered = {entity for ticket in self._overlays for entity in ticket.writes}
        return [change for change in _differing(changes) if change.entity not in covered]


def _merged(found: Found, overlay: Mapping[str, bytes | None]) -> Found:
    if not overlay:
        return found
    merged = {**dict(found), **overlay}
    return [(key, value) for key, value in merged.items() if value is not None]


def _differing(changes: Iterable[Change]) -> list[Change]:
    return [change for change in changes if not same_raw(change.old or b"", change.new or b"")]


def _decoded(raw: bytes | None) -> Any:
    return None if raw is None else decode_value(raw)


def _call(function: Callable[..., Any], *arguments: Any) -> None:
    try:
        function(*arguments)
    except Exception:  # noqa: BLE001 - logged, and none of ours
        log.exception("a callback of a live state failed")
