"""Plain counters that are cheap enough for the hot path; `/metrics` reads them."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple

SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096)


class Histogram:
    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class TierStats:
    """Counters of tiered storage."""

    def __init__(self) -> None:
        self.local_bytes = 0
        self.cold_bytes = 0
        self.cold_segments = 0
        self.uploads = 0
        self.upload_bytes = 0
        self.upload_failures = 0
        self.removals = 0
        self.removal_failures = 0
        self.fetches = 0
        self.fetched_bytes = 0
        self.fetch_failures = 0
        self.damaged_objects = 0
        self.cache_hits = 0
        self.cache_misses = 0
        self.cache_bytes = 0


class StoreStats:
    """Counters of a store."""

    def __init__(self) -> None:
        self.commits = 0
        self.commit_records = Histogram(COUNTS)
        self.commit_seconds = Histogram(SECONDS)
        self.commit_failures = 0
        self.sync_seconds = Histogram(SECONDS)
        self.journal_bytes_written = 0
        self.journal_bytes = 0
        self.checkpoints = 0
        self.checkpoint_failures = 0
        self.checkpoint_seconds = Histogram(SECONDS)
        self.memory_bytes = 0  # in the memory tails of all active streams
        self.replayed_records = 0
        self.catalog_repairs = 0
        self.journal_cut_bytes = 0
        self.journal_files_set_aside = 0
        self.disk_free_bytes: int | None = None  # None in memory, and before it is known
        self.tier: TierStats | None = None  # with an object store for cold segments


class Totals(NamedTuple):
    """All streams of a store, and the bytes that it holds for them."""

    streams: int
    bytes: int


class EngineStats:
    """Counters of the engine."""

    def __init__(self) -> None:
        self.opened: Totals | None = None  # what there was at the start, once that is counted
        self.added_streams = 0
        self.added_bytes = 0  # by everything but appends, which have `append_bytes`
        self.creates = 0
        self.appends = 0
        self.append_messages = 0
        self.append_bytes = 0
        self.duplicates = 0
        self.forks = 0
        self.trims = 0
        self.compactions = 0
        self.compacted_bytes = 0
        self.deletes = 0
        self.expired = 0
        self.reads = 0
        self.read_bytes = 0
        self.watchers = 0
        self.active_streams = 0
        self.loaded = 0

    @property
    def totals(self) -> Totals | None:
        """What there is now; None while that is not known."""
        opened = self.opened
        if opened is None:
            return None
        return Totals(
            opened.streams + self.added_streams,
            opened.bytes + self.append_bytes + self.added_bytes,
        )
