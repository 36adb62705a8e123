"""The rules of a live state: the plan for each batch of its stream. No I/O.

A backend commits a plan as a whole. A rule that has to know more about the stream yields a question
(see `live/questions`).
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

from msgspec import UNSET, Raw

from penstock.client.batches import Batch
from penstock.errors import Gone, InvalidEvent, StateReset, ValidationFailed
from penstock.protocol.offsets import START
from penstock.state.event import ChangeEvent, ControlEvent, Headers, StateEvent
from penstock.state.live.plan import (
    Changed,
    Cleared,
    Count,
    Entity,
    Exists,
    Plan,
    Position,
    Question,
    Retained,
    Written,
)
from penstock.state.live.selection import Selection
from penstock.state.materialized import Checks, OnInvalid
from penstock.state.parsing import (
    decode_exactly,
    decode_loosely,
    in_array,
    odd_timestamps,
    parse_many,
)

log = logging.getLogger("penstock.state")

_INSERT: Final = Headers(operation="insert")

ResetChoice: TypeAlias = Literal["clear", "keep"]
OnReset: TypeAlias = Literal["clear", "raise"] | Callable[[ControlEvent | Gone], ResetChoice | None]


class Rules:
    """The policies of one live state."""

    def __init__(
        self,
        *,
        schema: Checks | None = None,
        on_invalid: OnInvalid = "skip",
        on_reset: OnReset = "clear",
        selection: Selection | None = None,
    ) -> None:
        if not (callable(on_invalid) or on_invalid in ("raise", "skip")):
            raise ValueError(f"on_invalid is {on_invalid!r}: use raise, skip or a function.")
        if not (callable(on_reset) or on_reset in ("raise", "clear")):
            raise ValueError(f"on_reset is {on_reset!r}: use clear, raise or a function.")
        self._schema = schema
        self._on_invalid = on_invalid
        self._on_reset = on_reset
        self._selection = None if selection is None or selection.is_all else selection

    def selects(self, entity: Entity) -> bool:
        """Whether the state holds an entity."""
        return self._selection is None or self._selection.selects(entity)

    def plan(
        self, batch: Batch, position: Position, open_txid: str | None, *, trace: bool = False
    ) -> Generator[Question, Any, Plan]:
        """Return the plan of a batch that starts at the position.

        `open_txid` is the transaction that may be incomplete at the end of the last batch.
        """
        plan = Plan(
            position=position._replace(offset=batch.next_offset),
            up_to_date=batch.up_to_date,
            trace=[] if trace else None,
            batch=batch if trace else None,
        )
        if open_txid is not None:
            plan.txids[open_txid] = None
        events, indexes = self._events(batch.data, plan)
        odd = odd_timestamps(events)
        if odd:
            log.warning("timestamps of %d events up to %s are not RFC 3339", odd, batch.next_offset)
        selection = self._selection
        skip_below = 0
        last_txid: Any = None
        event: Any  # a cast for each would be a large part of the cost of this loop
        for number, event in enumerate(events):
            if number < skip_below:
                continue
            headers = event.headers
            operation = headers.operation
            if not operation:
                last_txid = None
                below = yield from self._control(event, number, events, indexes, batch, plan)
                if plan.moves_to is not None:
                    # The part before the reset is shown; after a restart the batch is read again.
                    plan.position, plan.up_to_date = position, False
                if below is None:
                    break
                skip_below = below
                continue
            last_txid = headers.txid
            if last_txid is not UNSET:
                plan.txids[last_txid] = None
            entity = (event.type, event.key)
            if selection is not None and not selection.selects(entity):
                continue
            if self._schema is not None and not self._is_valid(event, indexes[number], plan):
                continue
            value = None if operation == "delete" else bytes(event._value)
            plan.writes[entity] = value
            if plan.trace is not None:
                index, txid = indexes[number], event.txid
                plan.trace.append(Written(entity, value, operation, index, txid))
        else:
            # Batches are cut anywhere: the next may begin with more of the same transaction.
            if last_txid and not batch.up_to_date:
                del plan.txids[last_txid]
                plan.open_txid = last_txid
        return plan

    def gone(self, error: Gone, position: Position) -> Plan:
        """Return the plan for an offset that was trimmed away, or whose stream was recreated."""
        if position.offset == START or self._choose(error) == "keep":
            raise error
        start = Position(location=position.location)
        return Plan(position=start, clears=True, skips=True, trace=[Cleared()])

    def loaded(self, offset: str, entities: Mapping[Entity, bytes], *, trace: bool = False) -> Plan:
        """Return the plan of a state that was loaded from the server."""
        plan = Plan(position=Position(offset), clears=True, trace=[Cleared()] if trace else None)
        if self._schema is None and not trace:
            plan.writes.update(entities)
            return plan
        for number, (entity, value) in enumerate(entities.items()):
            if self._schema is not None:
                event = ChangeEvent(_INSERT, *entity, Raw(value))
                if not self._is_valid(event, number, plan):
                    continue
            plan.writes[entity] = value
            if plan.trace is not None:
                plan.trace.append(Written(entity, value, "load"))
        return plan

    # -- controls

    def _control(
        self,
        event: ControlEvent,
        number: int,
        events: Sequence[StateEvent],
        indexes: Sequence[int],
        batch: Batch,
        plan: Plan,
    ) -> Generator[Question, Any, int | None]:
        """Apply a control event; return the number of the next event, None to leave the batch."""
        plan.controls.append(event)
        control = event.control
        if control == "snapshot-start":
            if plan.position.in_snapshot:
                log.warning("snapshot-start within a snapshot: the one before has no end")
            plan.position = plan.position._replace(in_snapshot=True)
        elif control == "snapshot-end":
            if not plan.position.in_snapshot:
                log.warning("snapshot-end without a snapshot-start; going on")
            plan.position = plan.position._replace(in_snapshot=False)
        elif control == "reset" and self._choose(event) == "clear":
            if event.location is not None:
                plan.moves_to, plan.skips = event.location, True
                return None
            plan.position = plan.position._replace(in_snapshot=False)
            if event.offset is not None:
                return (
                    yield from self._restart(event.offset, number, events, indexes, batch, plan)
                )
            self._clear(indexes[number], plan)
        return number + 1

    @staticmethod
    def _clear(index: int, plan: Plan) -> None:
        plan.clears, plan.retains = True, None
        plan.writes.clear()
        if plan.trace is not None:
            plan.trace.append(Cleared(index))

    def _restart(
        self,
        target: str,
        number: int,
        events: Sequence[StateEvent],
        indexes: Sequence[int],
        batch: Batch,
        plan: Plan,
    ) -> Generator[Question, Any, int | None]:
        """Apply a reset that names an offset: nothing before that offset counts any more."""
        if target <= batch.offset:
            retained = yield from self._changed(target, batch.offset)
            if retained is not None:
                retained |= self._entities_of(events[:number])
                self._retain(retained, indexes[number], plan)
                return number + 1
            log.warning("reset to %.64s, which cannot be read; going on", target)
        elif target < batch.next_offset:
            count: int | None = yield Count(batch.offset, target)
            if count is not None:
                first = bisect_left(indexes, count)
                if first >= number:
                    self._clear(indexes[number], plan)
                else:
                    retained = self._entities_of(events[first:number])
                    self._retain(retained, indexes[number], plan)
                return max(first, number + 1)
            log.warning("reset to %.64s, where no message begins; going on", target)
        self._clear(indexes[number], plan)
        if target == batch.next_offset:
            return None
        if target > batch.next_offset:
            if (yield Exists(target)):
                plan.position = plan.position._replace(offset=target)
                plan.skips = True
                return None
            log.warning("reset to %.64s, where the stream cannot be read; going on", target)
        return number + 1

    def _changed(self, start: str, until: str) -> Generator[Question, Any, set[Entity] | None]:
        """Return the entities that were changed between two offsets; None if that is unknown."""
        entities: set[Entity] = set()
        if start == until:
            return entities

        def take(data: bytes) -> None:
            events = parse_many(data, strict_timestamp=False, on_invalid=lambda _: None)
            entities.update(self._entities_of(events))

        is_all: bool | None = yield Changed(start, until, take)
        return entities if is_all else None

    def _entities_of(self, events: Iterable[StateEvent]) -> set[Entity]:
        """Return the entities of the changes that the state has applied."""
        entities: set[Entity] = set()
        for event in events:
            if not isinstance(event, ChangeEvent) or not self.selects((event.type, event.key)):
                continue
            try:
                if self._schema is not None:
                    self._schema.check(event)
            except ValidationFailed:
                continue
            entities.add((event.type, event.key))
        return entities

    @staticmethod
    def _retain(entities: set[Entity], index: int, plan: Plan) -> None:
        plan.retains = entities if plan.retains is None else plan.retains & entities
        for entity in plan.writes.keys() - entities:
            plan.writes[entity] = None
        if plan.trace is not None:
            plan.trace.append(Retained(entities, index))

    def _choose(self, cause: ControlEvent | Gone) -> ResetChoice:
        if self._on_reset == "clear":
            return "clear"
        if self._on_reset == "raise":
            if isinstance(cause, Gone):
                raise cause
            raise StateReset("A reset in the stream has made the state before it invalid.")
        choice = self._on_reset(cause) or "clear"
        if choice not in ("clear", "keep"):
            raise ValueError(f"on_reset returned {choice!r}: return clear, keep or None.")
        return choice

    # -- events

    def _events(self, data: bytes, plan: Plan) -> tuple[list[StateEvent], Sequence[int]]:
        """Return the valid events of an array, and the index of each in the array."""
        if not data:
            return [], (0,)
        events = decode_exactly(data, strict_timestamp=False)
        if events is None and self._schema is None:
            events = decode_loosely(data)
        if events is not None:
            return events, range(len(events) + 1)
        bad: set[int] = set()

        def refuse(error: InvalidEvent) -> None:
            bad.add(error.index or 0)
            self._refuse(error, plan)

        events = parse_many(data, strict_timestamp=False, on_invalid=refuse)
        return events, [index for index in range(len(events) + len(bad) + 1) if index not in bad]

    def _is_valid(self, event: ChangeEvent, index: int, plan: Plan) -> bool:
        assert self._schema is not None
        try:
            self._schema.check(event)
        except ValidationFailed as error:
            self._refuse(in_array(error, index, event.to_json()), plan)
            return False
        return True

    def _refuse(self, error: InvalidEvent, plan: Plan) -> None:
        if self._on_invalid == "raise":
            raise error
        plan.skipped += 1
        if self._on_invalid == "skip":
            log.warning("skipped: %.300s", error.detail)
        else:
            self._on_invalid(error)
