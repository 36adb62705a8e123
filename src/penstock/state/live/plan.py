"""The values of a live state's rules: positions, plans, and questions about the stream."""

from __future__ import annotations

from collections.abc import Callable, Set
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from penstock.client.batches import Batch
from penstock.protocol.offsets import START
from penstock.state.event import ControlEvent
from penstock.state.live.changes import ChangeOperation

Entity: TypeAlias = tuple[str, str]  # (type, key)


class Count(NamedTuple):
    """The question how many messages are between two offsets. The answer is None if unknown."""

    start: str
    until: str


class Exists(NamedTuple):
    """The question whether the stream can be read from an offset on."""

    offset: str


class Changed(NamedTuple):
    """The question which messages are between two offsets: `take` gets them as JSON arrays, in
    order. The answer is whether that was all of them.

    Where the beginning was trimmed, what remains is taken.
    """

    start: str
    until: str
    take: Callable[[bytes], None]


Question: TypeAlias = Count | Exists | Changed


class Cleared(NamedTuple):
    """In the trace of a batch: all entities were removed, by the message `number` of the batch."""

    number: int = 0


class Retained(NamedTuple):
    """In the trace of a batch: all other entities were removed, by the message `number` of the
    batch."""

    entities: Set[Entity]
    number: int = 0


class Written(NamedTuple):
    """In the trace of a batch: one entity was set, or removed if there is no value, by the message
    `number` of the batch."""

    entity: Entity
    value: bytes | None
    operation: ChangeOperation
    number: int = 0
    txid: str | None = None


class Position(NamedTuple):
    """The position of a state in its stream, which is committed together with the entities."""

    offset: str = START
    in_snapshot: bool = False
    location: str = ""  # of the stream that the offset belongs to, if a reset has redirected to it


@dataclass(slots=True)
class Plan:
    """The effect of a batch: `writes` on top of the entities, or of none if it `clears`."""

    position: Position
    up_to_date: bool = False
    clears: bool = False
    retains: Set[Entity] | None = None  # all other entities are removed before the writes
    skips: bool = False  # the position is not the end of the batch: read on from the position
    moves_to: str | None = None  # the location of the stream to read on from
    replaces: bool = False  # the writes are the whole new state: listeners get the differences
    writes: dict[Entity, bytes | None] = field(default_factory=dict)
    trace: list[Cleared | Retained | Written] | None = None
    batch: Batch | None = None  # the batch that the numbers of the trace refer to
    controls: list[ControlEvent] = field(default_factory=list)
    txids: dict[str, None] = field(default_factory=dict)
    open_txid: str | None = None
    skipped: int = 0
