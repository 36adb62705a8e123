"""What the rules of a live state speak of: positions, plans, and the questions they ask."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from penstock.protocol.offsets import START
from penstock.state.event import ControlEvent

Entity: TypeAlias = tuple[str, str]  # (type, key)


class Count(NamedTuple):
    """How many messages are there from one offset to another? None if that cannot be told."""

    start: str
    until: str


class Exists(NamedTuple):
    """Can the stream be read from this offset on?"""

    offset: str


Question: TypeAlias = Count | Exists


class Cleared(NamedTuple):
    """In the trace of a batch: everything was forgotten here."""


class Written(NamedTuple):
    """In the trace of a batch: one entity was set, or removed if there is no value."""

    entity: Entity
    value: bytes | None


class Position(NamedTuple):
    """Where a state stands: all that has to be committed together with it."""

    offset: str = START
    in_snapshot: bool = False
    location: str = ""  # of the stream that the offset is of, if a reset has led to another one


@dataclass(slots=True)
class Plan:
    """All that a batch means: `writes` on top of what is there, or of nothing if it `clears`."""

    position: Position
    up_to_date: bool = False
    clears: bool = False
    skips: bool = False  # the position is not where the batch ends: read on from there
    moves_to: str | None = None  # the location of the stream to read on from
    replaces: bool = False  # the writes are all there is, known at once: told as differences
    writes: dict[Entity, bytes | None] = field(default_factory=dict)
    trace: list[Cleared | Written] | None = None
    controls: list[ControlEvent] = field(default_factory=list)
    txids: dict[str, None] = field(default_factory=dict)
    open_txid: str | None = None
    skipped: int = 0
