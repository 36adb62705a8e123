"""The stream `__registry__`: which streams there are, as state events that the server writes.

The Test UI of the protocol's authors, and any state client, reads it to list streams. It has one
entity of type `stream` per stream and follows creations and deletions shortly after they are
durable; what a crash has kept it from writing is written after the next start. If several processes
serve together, the owner of its path writes it, and the others tell that one what they have.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import msgspec

from penstock.backoff import Backoff
from penstock.errors import (
    PenstockError,
    StreamClosed,
    StreamExists,
    StreamNotFound,
    StreamSoftDeleted,
)
from penstock.http.router import RESERVED
from penstock.log.system_stream import Event, SystemStream
from penstock.stp.server.registry import OWNER, SERVER

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation

PATH: Final = "__registry__"
_OWN: Final = f"{RESERVED}/"
_EVERYWHERE: Final = (_OWN, "__stp/")
"""Where every process has records of its own, so that none of them can be read as a stream."""
TYPE: Final = "stream"
PATHS_PER_APPEND: Final = 500
"""Streams whose events are written in one append, so that other appends have their turn."""
PAGE: Final = 500
"""Streams that are compared before other work gets the event loop."""

_log = logging.getLogger("penstock.http")
_backoff = Backoff(base_s=0.1, cap_s=30.0, jitter=0.5)


class Entry(NamedTuple):
    """A stream as the registry describes it."""

    content_type: str
    created_ms: int


class Others(Protocol):
    """The streams of other processes."""

    @property
    def is_complete(self) -> bool:
        """Whether all of them have said what they have."""

    def start(self, on_changed: Callable[[Iterable[str]], None]) -> None:
        """Ask them; `on_changed` gets the paths where something may be another than before, and is
        called when they are complete."""

    def find(self, path: str) -> Entry | None:
        """Return the stream at a path of another process, if it has said so."""

    def close(self) -> None: ...


class _Value(msgspec.Struct, frozen=True):
    content_type: str = msgspec.field(name="contentType")
    created_ms: int = msgspec.field(name="createdAt")


class _Event(msgspec.Struct, frozen=True):
    """An event of a stream at the registry's path, as far as the registry has written it."""

    type: str
    key: str
    value: _Value | None = None


_OTHER_USE = (StreamExists, StreamClosed, msgspec.MsgspecError)
"""What the registry meets at a stream that somebody else uses."""


class StreamRegistry:
    """The writer of `__registry__`.

    A commit only marks the paths that were created or deleted. A task compares each with the entry
    that the registry has, and writes the difference: what happens to a path meanwhile, how often a
    write is repeated, and what a crash has cut off, all come to the same.
    """

    def __init__(self, engine: Engine, settings: Settings, others: Others | None = None) -> None:
        self._engine = engine
        self._others = others
        self._log_bytes = settings.registry_log_bytes
        self._stream = SystemStream(engine, PATH)
        self._entries: dict[str, Entry] = {}
        self._marked: dict[str, None] = {}
        # Entries of streams that are not here, while it is not known what others have.
        self._unsure: dict[str, None] = {}
        self._moved = asyncio.Event()
        self._rewritten_from = 0
        self._rewritten_bytes = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._engine.listen(self._committed)
        if self._others is not None:
            self._others.start(self._changed_elsewhere)
        self._task = asyncio.get_running_loop().create_task(self._run())

    def close(self) -> None:
        self._engine.unlisten(self._committed)
        if self._others is not None:
            self._others.close()
        if self._task is not None:
            self._task.cancel()

    # -- commits

    def _committed(self, batch: Sequence[Mutation]) -> None:
        for mutation in batch:
            if mutation.creates:
                self._mark([mutation.stream.path])
            if mutation.ended:
                self._mark([stream.path for stream in mutation.ended])

    def _changed_elsewhere(self, paths: Iterable[str]) -> None:
        assert self._others is not None
        if self._unsure and self._others.is_complete:
            self._mark(self._unsure)
            self._unsure = {}
        self._mark(paths)

    def _mark(self, paths: Iterable[str]) -> None:
        is_alone = self._others is None
        self._marked.update(
            (path, None)
            for path in paths
            if (not path.startswith(_OWN) if is_alone else is_listed(path))
        )
        self._moved.set()

    # -- the task

    async def _run(self) -> None:
        failures = 0
        is_open = False
        while True:
            try:
                if not is_open:
                    await self._open()
                    is_open = True
                await self._write_marked()
                failures = 0
            except _OTHER_USE as error:
                _log.error(
                    "%s is in use for something else, and no registry is written: %s Delete the "
                    "stream and restart, or leave the setting `registry` out.",
                    PATH,
                    error,
                )
                self._engine.unlisten(self._committed)
                if self._others is not None:
                    self._others.close()
                return
            except PenstockError as error:
                failures += 1
                _log.warning("cannot write the stream %s, trying again: %s", PATH, error)
                await asyncio.sleep(_backoff.wait_s(failures, random.random()))
                continue
            await self._moved.wait()
            self._moved.clear()

    async def _open(self) -> None:
        """Read what the registry says, take it over, and find out what it does not say."""
        if self._stream.exists:
            if self._stream.find().closed:
                raise StreamClosed("It is closed.")
            await self._load()
        await self._stream.ensure()
        if self._stream.meta(OWNER) != SERVER:
            await self._stream.set_meta(OWNER, SERVER)
        await self._compare_all()

    async def _load(self) -> None:
        self._entries = {}
        self._rewritten_from = self._stream.find().earliest
        async for events in self._stream.pieces():
            for event in msgspec.convert(events, list[_Event]):
                if event.type == TYPE:
                    self._entries.pop(event.key, None)
                    if event.value is not None:
                        value = event.value
                        self._entries[event.key] = Entry(value.content_type, value.created_ms)

    async def _compare_all(self) -> None:
        """Mark every path where the registry differs from the streams that there are."""
        unlisted = dict.fromkeys(self._entries)
        after = ""
        while True:
            page = await self._engine.list_streams("", after, PAGE)
            for info in page:
                unlisted.pop(info.path, None)
                entry = Entry(info.content_type, info.created_us // 1000)
                if self._entries.get(info.path) != entry:
                    self._mark([info.path])
            if len(page) < PAGE:
                break
            after = page[-1].path
            await asyncio.sleep(0)
        self._mark(unlisted)

    async def _write_marked(self) -> None:
        while self._marked:
            paths = list(itertools.islice(self._marked, PATHS_PER_APPEND))
            current = {path: self._current(path) for path in paths}
            events: list[Event] = []
            for path in paths:
                del self._marked[path]
                if current[path] is None and self._is_unsure(path):
                    self._unsure[path] = None
                    current[path] = self._entries.get(path)
                events += _difference(path, self._entries.get(path), current[path])
            if events:
                try:
                    await self._stream.write(events)
                except BaseException:
                    self._mark(paths)
                    raise
                for path in paths:
                    self._set(path, current[path])
                await self._rewrite_if_long()
            await asyncio.sleep(0)

    def _set(self, path: str, entry: Entry | None) -> None:
        if entry is None:
            self._entries.pop(path, None)
        else:
            self._entries[path] = entry

    def _is_unsure(self, path: str) -> bool:
        """Whether an entry may be of a stream that another process has not named yet."""
        return self._others is not None and not self._others.is_complete and path in self._entries

    def _current(self, path: str) -> Entry | None:
        there = None if self._others is None else self._others.find(path)
        try:
            stream = self._engine.find(path, touch=False)
        except (StreamNotFound, StreamSoftDeleted):
            return there
        here = Entry(stream.config.content_type, stream.created_us // 1000)
        return here if there is None or there.created_ms < here.created_ms else there

    async def _rewrite_if_long(self) -> None:
        """Start the stream again with the current entries, if most of it is history."""
        stream = self._stream.find()
        start = stream.tail
        if start - self._rewritten_from <= max(self._log_bytes, 2 * self._rewritten_bytes):
            return
        offset = self._engine.token(stream, start)
        rows = _rows(self._entries)
        while some := list(itertools.islice(rows, PATHS_PER_APPEND)):
            await self._stream.write(some)
        self._rewritten_from = start
        self._rewritten_bytes = self._stream.find().tail - start
        await self._engine.trim(PATH, offset)


def is_listed(path: str) -> bool:
    """Whether a stream of one of several processes is in the registry."""
    return not path.startswith(_EVERYWHERE)


def is_left_over(engine: Engine) -> bool:
    """Whether a server that kept the registry has left it behind."""
    try:
        return engine.find(PATH, touch=False).meta.get(OWNER) == SERVER
    except (StreamNotFound, StreamSoftDeleted):
        return False


async def release(engine: Engine) -> None:
    """Give a registry that is no longer written back to clients, who may delete it."""
    try:
        await engine.set_meta(PATH, OWNER, None)
    except PenstockError as error:
        _log.warning("cannot release the stream %s: %s", PATH, error.detail)


def _difference(path: str, entry: Entry | None, current: Entry | None) -> list[Event]:
    """Return the events that lead from an entry to another. A stream that was recreated is deleted
    first, as its readers have seen it."""
    if entry == current:
        return []
    events: list[Event] = []
    if entry is not None:
        events.append({"type": TYPE, "key": path, "headers": {"operation": "delete"}})
    if current is not None:
        events.append(_insert(path, current))
    return events


def _insert(path: str, entry: Entry) -> Event:
    value = {"path": path, "contentType": entry.content_type, "createdAt": entry.created_ms}
    return {"type": TYPE, "key": path, "value": value, "headers": {"operation": "insert"}}


def _rows(entries: dict[str, Entry]) -> Iterator[Event]:
    return (_insert(path, entry) for path, entry in sorted(entries.items()))
