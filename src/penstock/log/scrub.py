"""The scrub of a store in use: every checksum of the catalog and of the segments, at a gentle pace.

Reads beside the server and changes nothing. What it reports was looked at twice: a segment that was
trimmed away meanwhile is no damage.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from penstock.errors import NotOnDisk, PenstockError
from penstock.log.background import CalledOff, Pace, on_thread
from penstock.log.disk.catalog import CATALOG_ERRORS, as_damage
from penstock.log.disk.catalog_cold import Cold
from penstock.log.disk.catalog_snapshot import CatalogSnapshot, CheckedStream
from penstock.log.disk.store import CATALOG_FILE, DiskStore
from penstock.log.offline.folder import SegmentFiles
from penstock.log.offline.report import Progress, Report
from penstock.log.offline.verify_segments import Owner, SegmentCheck
from penstock.protocol.headers import is_json

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.log.store import Store

log = logging.getLogger("penstock.log")

PAGE: Final = 256
"""Streams that are looked up at a time."""
LOGGED_MAX: Final = 100
"""Problems of one scrub that are logged; the rest is counted."""
CHECK_BYTES: Final = 64 * 1024
"""What a step of SQLite's own check counts as."""
FIRST_DELAY_S: Final = 600.0
"""When the first scrub begins after a start, at the latest."""
ADVICE: Final = (
    "stop the server, run `penstock verify`, and restore from a backup (`penstock restore`)"
)

Outcome = Literal["running", "done", "failed", "canceled"]


@dataclass(slots=True)
class ScrubRun:
    """A scrub that runs, or the last one. Written by its thread and read by others."""

    began_us: int
    pace: Pace
    report: Report = field(default_factory=Report)
    bytes_total: int = 0
    bytes_done: int = 0
    outcome: Outcome = "running"
    error: PenstockError | None = None
    ended_us: int | None = None


class Scrubs:
    """Runs scrubs by time and when asked, one at a time. Belongs to the event loop."""

    def __init__(self, store: Store, settings: Settings, *, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self._schedule_task: asyncio.Task[None] | None = None
        self.last: ScrubRun | None = None
        self._bytes_before = 0
        self.errors_total = 0
        self.last_finished_us: int | None = None

    @property
    def bytes_total(self) -> int:
        """Bytes of segments that were checked since the start."""
        return self._bytes_before + (0 if self.last is None else self.last.bytes_done)

    @property
    def is_scheduled(self) -> bool:
        settings = self._settings
        return bool(
            isinstance(self._store, DiskStore)
            and settings.scrub_interval_s
            and settings.scrub_bytes_per_s
        )

    def begin_schedule(self) -> None:
        if self.is_scheduled:
            self._schedule_task = asyncio.create_task(self._repeat())

    def start(self) -> ScrubRun:
        """Begin a scrub; return the one that runs if there is one."""
        store = self._store
        if not isinstance(store, DiskStore):
            raise NotOnDisk(
                "This server keeps its data in memory: there is nothing to check. Start it without "
                "--memory."
            )
        if self.last is not None and self.last.outcome == "running":
            return self.last
        self._bytes_before = self.bytes_total
        pace = Pace(self._settings.scrub_bytes_per_s)
        self.last = run = ScrubRun(self._clock.now_us(), pace)
        self._task = asyncio.create_task(self._run(store, run))
        return run

    def cancel(self) -> None:
        if self._schedule_task is not None:
            self._schedule_task.cancel()
        if self.last is not None:
            self.last.pace.call_off()

    async def wait(self) -> None:
        """Wait until no scrub runs."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _repeat(self) -> None:
        interval_s = self._settings.scrub_interval_s
        await asyncio.sleep(min(interval_s, FIRST_DELAY_S))
        while True:
            self.start()
            await self.wait()
            await asyncio.sleep(interval_s)

    async def _run(self, store: DiskStore, run: ScrubRun) -> None:
        try:
            await on_thread(_Scrubber(store, run).run, "penstock-scrub")
        except CalledOff:
            run.outcome = "canceled"
        except PenstockError as error:
            run.outcome, run.error = "failed", error
        except Exception as error:  # noqa: BLE001 - becomes the outcome
            run.outcome = "failed"
            run.error = PenstockError(f"The scrub failed: {type(error).__name__}: {error}")
        else:
            run.outcome = "done"
            self.last_finished_us = self._clock.now_us()
        run.ended_us = self._clock.now_us()
        self.errors_total += run.report.problem_count
        _log(run)


def _log(run: ScrubRun) -> None:
    report = run.report
    for problem in report.problems[:LOGGED_MAX]:
        log.error("The scrub found damage: %s", problem)
    if run.outcome == "failed":
        log.error("The scrub could not be finished: %s", run.error)
    elif run.outcome == "done":
        log.log(
            logging.ERROR if report.problem_count else logging.INFO,
            "A scrub has checked %d streams and %d bytes: %d problems.",
            report.streams,
            run.bytes_done,
            report.problem_count,
        )


class _Paced(Progress):
    """Counts the bytes of a scrub, and waits until it may read more."""

    def __init__(self, run: ScrubRun) -> None:
        super().__init__()
        self._run = run

    def add(self, size: int) -> None:
        self._run.bytes_done += size
        self._run.pace.take(size)


class _Scrubber:
    """One scrub, on its thread."""

    def __init__(self, store: DiskStore, run: ScrubRun) -> None:
        self._store = store
        self._run = run
        self._progress = _Paced(run)

    def run(self) -> None:
        with self._store.glance().catalog as catalog:
            self._run.bytes_total = catalog.segment_bytes()
            self._check_database(catalog)
        after = 0
        while True:
            # One snapshot for all pages would keep the WAL from being emptied.
            glance = self._store.glance()
            with glance.catalog as catalog, as_damage():
                page = catalog.check_streams(after, PAGE)
            if not page:
                return
            after = page[-1].id
            # Of cold segments the index alone is checked: to read them all costs money.
            place = SegmentFiles(
                files=glance.files, root=glance.root, segments=glance.segments, cold=self._cold
            )
            for stream in page:
                self._check_stream(place, stream)
            self._run.pace.take()

    def _check_database(self, catalog: CatalogSnapshot) -> None:
        try:
            for fault in catalog.integrity(self._is_called_off):
                self._problem("catalog-damaged", fault)
        except CATALOG_ERRORS as error:
            self._run.pace.take()  # that it was called off looks like an error of SQLite
            self._problem("catalog-damaged", f"SQLite cannot read it ({error})")

    def _is_called_off(self) -> bool:
        try:
            self._run.pace.take(CHECK_BYTES)
        except CalledOff:
            return True
        return False

    def _check_stream(self, files: SegmentFiles, stream: CheckedStream) -> None:
        report = self._run.report
        report.streams += 1
        for fault in stream.faults:
            self._problem("row-damaged", fault, stream=stream.path)
        owner = Owner(stream.id, stream.path, is_json(stream.content_type), None)
        for info in stream.segments:
            own = Report()
            SegmentCheck(files, own, self._progress, owner, info).run()
            report.segments += 1
            report.blocks += own.blocks
            if own.problems and self._is_there(stream.id, info.base):
                for each in own.problems:
                    report.problem(
                        each.code,
                        each.file,
                        each.what,
                        position=each.position,
                        stream=each.stream,
                        advice=ADVICE,
                    )

    def _cold(self, stream_id: int, base: int) -> Cold | None:
        with self._store.glance().catalog as catalog:
            return catalog.cold(stream_id, base)

    def _is_there(self, stream_id: int, base: int) -> bool:
        """Whether the catalog still has a segment: what was trimmed may be gone."""
        with self._store.glance().catalog as catalog:
            return catalog.has_segment(stream_id, base)

    def _problem(self, code: str, what: str, *, stream: str | None = None) -> None:
        self._run.report.problem(code, CATALOG_FILE, what, stream=stream, advice=ADVICE)
