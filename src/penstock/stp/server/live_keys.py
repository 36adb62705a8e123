"""Whether a row that a table writes is an insert or an update: the live keys of tables, in memory.

The keys of a stream are read from the state index once, and every append to the stream is recorded,
so that a decision rests on the pending state. Of a stream with more keys than `table_keys_max`
those that are written are held, and the index is asked for each that is not. Runs on the event
loop.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.errors import PenstockError
from penstock.log.requests import NotYet
from penstock.state.event import ChangeEvent, ControlEvent
from penstock.state.server import entities
from penstock.stp.transcode import events_of

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.requests import Proposal
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

WAIT_S: Final = 1.0
"""How long a write waits for the index. After that it is an update, which readers apply alike: a
write is not refused because an index is behind."""
RETRY_S: Final = 10.0
"""Time after which an index that did not answer in time is asked again."""
STREAMS_MAX: Final = 10_000
"""Streams whose keys are held, also if they have none."""
WANTED_MAX: Final = 10_000
"""Keys that one question to the index covers, unless a single append has more."""
ABSENT: Final = -1
"""The position of a key that is not live."""

# Of the same length, so that positions do not depend on which of them is written.
INSERT: Final = b'"operation":"insert"'
UPDATE: Final = b'"operation":"update"'


class LiveKeys:
    """The live keys of the streams that were written as tables lately."""

    def __init__(self, indexer: StateIndexer, settings: Settings) -> None:
        self._indexer = indexer
        self._keys_max = settings.table_keys_max
        self._streams: OrderedDict[int, _Keys] = OrderedDict()
        self.keys = 0
        self.unknown = 0

    def want(self, stream: Stream, type: str, keys: Iterable[str]) -> None:
        """Announce keys of an append that may have to wait: one question covers all that wait."""
        existing = self._streams.get(stream.id)
        if existing is None or existing.is_complete or len(existing.wanted) >= WANTED_MAX:
            return
        positions = existing.types.get(type, {})
        existing.wanted.update((type, key) for key in keys if key not in positions)

    def resolve(
        self, proposal: Proposal, types: Iterable[str], events: Sequence[Any]
    ) -> tuple[bytes, int] | None:
        """Return the rows of an append, spelled as inserts, with an update for each live key.

        None leaves them as they are. Raises NotYet if the index has to be asked first.
        """
        keys = self._of(proposal, types)
        unknown = keys.unknown(events)
        if unknown:
            if asyncio.get_running_loop().time() >= keys.slow_until:
                keys.wanted |= unknown
                raise NotYet(partial(self._ask, keys), blocks=True)
            self.unknown += len(unknown)
        lines = proposal.wire.split(b",\n")[:-1]
        updates = keys.apply(proposal.start, proposal.earliest, lines, events)
        self._bound(keys)
        return (b",\n".join([*lines, b""]), len(lines)) if updates else None

    def record(self, proposal: Proposal, wire: bytes) -> None:
        """Record messages that somebody else is about to append to a stream."""
        keys = self._streams.get(proposal.stream.id)
        if keys is None:
            return
        if not keys.settle(proposal.start):
            self._drop(keys)
            return
        keys.begin(proposal.start)
        position = proposal.start
        event: Any
        for line, event in zip(wire.split(b",\n"), events_of(wire), strict=False):
            if isinstance(event, ChangeEvent):
                if event.operation == "delete":
                    keys.remove(event.type, event.key)
                else:
                    keys.set(event.type, event.key, position)
            elif isinstance(event, ControlEvent) and event.control == "reset":
                self._drop(keys)  # It has become deletes, unless a table is declared right now.
                return
            position += len(line) + 2
        keys.end = position
        self._bound(keys)

    def forget(self, stream: Stream) -> None:
        """Forget the keys of a stream to which somebody else appends so much that recording it
        would hold up the event loop; they are read again when a table writes."""
        keys = self._streams.get(stream.id)
        if keys is not None:
            self._drop(keys)

    def _of(self, proposal: Proposal, types: Iterable[str]) -> _Keys:
        """Return the keys of a stream as of its pending tail; new ones if they are not in step."""
        stream = proposal.stream
        keys = self._streams.get(stream.id)
        if keys is not None:
            if keys.settle(proposal.start) and keys.covers(types):
                self._streams.move_to_end(stream.id)
                return keys
            self._drop(keys)
        keys = _Keys(stream, proposal.start, types)
        keys.is_complete = keys.is_loaded = proposal.start == 0
        self._streams[stream.id] = keys
        if len(self._streams) > STREAMS_MAX:
            self._drop(next(iter(self._streams.values())))
        return keys

    def _drop(self, keys: _Keys) -> None:
        del self._streams[keys.stream.id]
        self.keys -= keys.counted

    def _bound(self, keys: _Keys) -> None:
        """Count the keys of a stream again, and forget the least used streams if there are too
        many in all."""
        if keys.stream.id not in self._streams:
            return
        count = keys.count
        self.keys += count - keys.counted
        keys.counted = count
        while self.keys > self._keys_max:
            oldest = next(iter(self._streams.values()))
            self._drop(oldest)
            if oldest is keys:
                # From here on the index is asked, for all changes before this moment.
                smaller = _Keys(keys.stream, keys.end, keys.types)
                smaller.is_loaded = True
                self._streams[keys.stream.id] = smaller
                return

    # -- asking the index

    async def _ask(self, keys: _Keys) -> None:
        try:
            async with asyncio.timeout(WAIT_S):
                await self._load(keys)
        except (TimeoutError, PenstockError):
            keys.slow_until = asyncio.get_running_loop().time() + RETRY_S

    async def _load(self, keys: _Keys) -> None:
        """Read all keys of a stream, if they are not too many, or else those that are wanted."""
        stream, at, limit = keys.stream, keys.base, self._keys_max
        if not keys.is_loaded:
            types = list(keys.types)
            rows = await self._indexer.answer(
                stream,
                at,
                lambda index: index.ask(
                    stream.id, at, lambda db, _: entities.positions(db, stream.id, types, limit + 1)
                ),
            )
            keys.is_loaded = True
            if len(rows) <= limit:
                keys.learn(rows)
                keys.is_complete = True
                self._bound(keys)
                return
        wanted, keys.wanted = keys.wanted, set()
        rows = await self._indexer.answer(
            stream,
            at,
            lambda index: index.ask(
                stream.id, at, lambda db, _: entities.positions_of(db, stream.id, wanted)
            ),
        )
        keys.learn(rows)
        keys.learn((type, key, ABSENT) for type, key in wanted)
        self._bound(keys)


class _Keys:
    """Keys of one stream, each with the position of the event that set it.

    All changes since `base` are in it. Of those before, it has all if `is_complete`, else those
    that the index was asked for.
    """

    __slots__ = (
        "_covered",
        "_has_learned",
        "_undo",
        "base",
        "counted",
        "end",
        "is_complete",
        "is_loaded",
        "slow_until",
        "start",
        "stream",
        "types",
        "wanted",
    )

    def __init__(self, stream: Stream, tail: int, types: Iterable[str]) -> None:
        self.stream = stream
        self.types: dict[str, dict[str, int]] = {type: {} for type in types}
        self.base = self.start = self.end = tail
        self.is_loaded = False
        self.is_complete = False
        self.slow_until = 0.0
        self.wanted: set[tuple[str, str]] = set()
        self.counted = 0
        # Three for each change: the positions of its type, its key, and the position before. Flat,
        # because a batch may have many, and the collector would go through as many tuples.
        self._undo: list[Any] = []
        self._has_learned = False
        self._covered: object = types

    @property
    def count(self) -> int:
        return sum(map(len, self.types.values()))

    def covers(self, types: Iterable[str]) -> bool:
        """Whether these types are among those whose keys are held."""
        if types is not self._covered:
            if not self.types.keys() >= set(types):
                return False
            self._covered = types  # The same object with every append, until tables change.
        return True

    def settle(self, tail: int) -> bool:
        """Undo the last append if it was refused after all, or its batch failed; return False if
        the stream has changed in another way, by a compaction for example."""
        if tail == self.end:
            return True
        if tail != self.start or self._has_learned:
            return False
        undo = self._undo
        for index in range(len(undo) - 3, -1, -3):
            positions, key, position = undo[index : index + 3]
            if position is None:
                positions.pop(key, None)
            else:
                positions[key] = position
        self._undo.clear()
        self.end = tail
        return True

    def begin(self, tail: int) -> None:
        """Begin to record an append at the pending tail."""
        self.start = self.end = tail
        self._undo.clear()
        self._has_learned = False

    def unknown(self, events: Iterable[Any]) -> set[tuple[str, str]]:
        """Return the keys of which nothing is known."""
        if self.is_complete:
            return set()
        types = self.types
        return {
            (event.type, event.key)
            for event in events
            if isinstance(event, ChangeEvent) and event.key not in types[event.type]
        }

    def apply(self, tail: int, earliest: int, lines: list[bytes], events: Sequence[Any]) -> int:
        """Record the rows of an append, and spell those of live keys as updates; return how many.

        A trim has deleted the keys that were set before `earliest`. Of an unknown key it is assumed
        that it is live.
        """
        self.begin(tail)
        # All in one loop, without a call for each row: batches may have many.
        types, undo, updates = self.types, self._undo, 0
        otherwise = ABSENT if self.is_complete else earliest
        for index, event in enumerate(events):
            line = lines[index]
            if not isinstance(event, ChangeEvent):
                pass  # Nothing of a table, but the log decides that.
            elif event.headers.operation == "delete":
                self.remove(event.type, event.key)
            else:
                positions, key = types[event.type], event.key
                before = positions.get(key)
                if (otherwise if before is None else before) >= earliest:
                    lines[index] = line.replace(INSERT, UPDATE, 1)
                    updates += 1
                undo += (positions, key, before)
                positions[key] = tail
            tail += len(line) + 2
        self.end = tail
        return updates

    def set(self, type: str, key: str, position: int) -> None:
        positions = self.types.get(type)
        if positions is not None:
            self._undo += (positions, key, positions.get(key))
            positions[key] = position

    def remove(self, type: str, key: str) -> None:
        positions = self.types.get(type)
        if positions is None:
            return
        before = positions.get(key)
        if before is None and self.is_complete:
            return
        self._undo += (positions, key, before)
        if self.is_complete:
            del positions[key]
        else:
            positions[key] = ABSENT

    def learn(self, rows: Iterable[tuple[str, str, int]]) -> None:
        """Add keys as the index has them; what was recorded since is newer."""
        self._has_learned = True  # What the last append has replaced is not known any more.
        for type, key, position in rows:
            self.types[type].setdefault(key, position)
