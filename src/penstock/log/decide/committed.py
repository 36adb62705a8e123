"""What follows when a batch is durable, or has failed: counters, watchers, listeners, undoing.

Runs on the event loop, before the futures of the batch are resolved.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence

from penstock.errors import PenstockError
from penstock.log.active import ActiveStreams
from penstock.log.mutations import Mutation, TailMutation
from penstock.log.stats import EngineStats
from penstock.log.stream import Stream

log = logging.getLogger("penstock.log")

Listener = Callable[[Sequence[Mutation]], None]
"""Called with every batch when it is durable and applied, or has failed and is undone, before its
futures are resolved."""


CHECKS_INVARIANTS = bool(os.environ.get("CHECK_PENSTOCK_INVARIANTS"))
"""Whether the invariants of streams are checked after every batch that concerns them: a switch for
tests. Off, it costs one comparison per batch."""


class Commits:
    """The store's observer."""

    def __init__(self, streams: ActiveStreams, stats: EngineStats) -> None:
        self._streams = streams
        self._stats = stats
        self._listeners: dict[Listener, None] = {}
        self._failure_listeners: dict[Listener, None] = {}

    def listen(self, listener: Listener) -> None:
        """Call `listener` with every batch from now on, after those that listen already."""
        self._listeners[listener] = None

    def unlisten(self, listener: Listener) -> None:
        self._listeners.pop(listener, None)

    def listen_to_failures(self, listener: Listener) -> None:
        """Call `listener` with every batch that fails from now on."""
        self._failure_listeners[listener] = None

    def committed(self, batch: Sequence[Mutation]) -> None:
        stats = self._stats
        advanced: dict[Stream, list[TailMutation]] = {}
        for mutation in batch:
            mutation.committed(stats)
            if isinstance(mutation, TailMutation) and mutation.stream.watchers:
                advanced.setdefault(mutation.stream, []).append(mutation)
            for stream in mutation.ended:
                self._end(stream)
        for stream, appends in advanced.items():
            wire = b"".join([append.payload for append in appends])
            for watcher in list(stream.watchers):
                watcher.advanced(appends[0].start, stream.tail, wire, stream.closed)
        # The batch is durable: its writers get their answer whatever a listener does.
        _call(self._listeners, batch, "A listener failed on a committed batch.")
        if CHECKS_INVARIANTS:
            check_invariants(batch)

    def failed(self, batch: Sequence[Mutation], error: PenstockError) -> None:
        for mutation in reversed(batch):
            mutation.undo(self._streams)
        _call(self._failure_listeners, batch, "A listener failed on a batch that failed.")
        if CHECKS_INVARIANTS:
            check_invariants(batch)

    def _end(self, stream: Stream) -> None:
        if stream.deleted:
            self._streams.remove(stream)
        watchers, stream.watchers = list(stream.watchers), {}
        self._stats.watchers -= len(watchers)
        for watcher in watchers:
            watcher.ended()


def _call(listeners: Iterable[Listener], batch: Sequence[Mutation], failure: str) -> None:
    for listener in list(listeners):
        try:
            listener(batch)
        except Exception:
            log.exception(failure)


def check_invariants(batch: Sequence[Mutation]) -> None:
    """Raise AssertionError if a stream that the batch concerns contradicts itself."""
    for mutation in batch:
        for stream in (mutation.stream, *mutation.ended, *mutation.related):
            stream.check_invariants()
