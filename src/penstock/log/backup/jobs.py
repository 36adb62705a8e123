"""Backups of a store that is in use: one at a time, each on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from penstock.clock import SYSTEM_CLOCK
from penstock.config.settings import Settings
from penstock.errors import BackupRunning, InvalidStorageUrl, NotOnDisk, PenstockError
from penstock.log.background import CalledOff, Pace, on_thread
from penstock.log.backup.manifest import Manifest
from penstock.log.backup.repository import Keep, Repository
from penstock.log.backup.writer import BackupWriter, Progress
from penstock.log.disk.cut import Cut
from penstock.log.disk.store import DiskStore
from penstock.log.disk.tiered.tiering import TIER_URL
from penstock.log.offline.folder import open_folder
from penstock.object_store import FolderStore, open_store

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.log.mutations import Mutation
    from penstock.log.store import Store

log = logging.getLogger("penstock.log")

NEVER_S = 1e9

Outcome = Literal["running", "done", "failed", "canceled"]


@dataclass(slots=True)
class BackupJob:
    """A backup that runs, or the last one."""

    destination: str
    """Without credentials."""
    began_us: int
    pace: Pace
    progress: Progress = field(default_factory=Progress)
    outcome: Outcome = "running"
    manifest: Manifest | None = None
    error: PenstockError | None = None
    ended_us: int | None = None


class Backups:
    """Belongs to the event loop."""

    def __init__(self, store: Store, settings: Settings, *, clock: Clock) -> None:
        self._store = store
        self._settings = settings
        self._clock = clock
        self._task: asyncio.Task[None] | None = None
        self.job: BackupJob | None = None
        self.finished = 0
        self.failed = 0
        self.last_success_us: int | None = None

    def start(self, destination: str, *, keep: Keep, rate_bytes_s: float | None) -> BackupJob:
        """Begin a backup. What is durable now will be in it. No rate means that of the settings, 0
        no bound."""
        store = self._store
        if not isinstance(store, DiskStore):
            raise NotOnDisk(
                "This server keeps its data in memory: there is nothing to back up. Start it "
                "without --memory."
            )
        if self.job is not None and self.job.outcome == "running":
            raise BackupRunning(
                f"A backup to {self.job.destination} is running. Wait for it, or stop it with "
                "`penstock backup cancel`."
            )
        target = open_store(destination)
        if isinstance(target, FolderStore) and store.holds(Path(target.url)):
            raise InvalidStorageUrl(
                f"{target.url} is in the data folder: what happens to that would happen to its "
                "backups. Use a folder on another disk."
            )
        rate = self._settings.backup_bytes_per_s if rate_bytes_s is None else rate_bytes_s
        self.job = job = BackupJob(target.url, self._clock.now_us(), Pace(rate))
        self._task = asyncio.create_task(self._run(store, Repository(target), job, keep))
        return job

    def cancel(self) -> None:
        """Stop the backup that runs, if there is one; the earlier ones stay as they are."""
        if self.job is not None:
            self.job.pace.call_off()

    async def wait(self) -> None:
        """Wait until no backup runs."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def _run(
        self, store: DiskStore, repository: Repository, job: BackupJob, keep: Keep
    ) -> None:
        try:
            async with store.cut() as cut:
                cut_us = self._clock.now_us()
                job.manifest = await on_thread(
                    lambda: self._write(repository, cut, job, keep, cut_us), "penstock-backup"
                )
        except CalledOff:
            job.outcome = "canceled"
        except PenstockError as error:
            job.outcome, job.error = "failed", error
        except Exception as error:  # noqa: BLE001 - becomes the outcome
            job.outcome = "failed"
            job.error = PenstockError(f"The backup failed: {type(error).__name__}: {error}")
        else:
            job.outcome = "done"
        job.ended_us = self._clock.now_us()
        job.progress.phase = job.outcome
        self._count(job)

    def _write(
        self, repository: Repository, cut: Cut, job: BackupJob, keep: Keep, cut_us: int
    ) -> Manifest:
        return BackupWriter(
            repository,
            cut,
            cut_us=cut_us,
            now_us=self._clock.now_us,
            pace=job.pace,
            keep=keep,
            progress=job.progress,
        ).run()

    def _count(self, job: BackupJob) -> None:
        if job.outcome == "done":
            self.finished += 1
            self.last_success_us = job.ended_us
            log.info("A backup to %s is complete.", job.destination)
        elif job.error is not None:
            self.failed += 1
            log.error("The backup to %s failed: %s", job.destination, job.error)


class _Nobody:
    """The observer of a store that nobody writes to."""

    def committed(self, batch: Sequence[Mutation]) -> None:
        pass

    def failed(self, batch: Sequence[Mutation], error: PenstockError) -> None:
        pass


async def back_up_folder(
    data_dir: Path,
    destination: str,
    *,
    keep: Keep,
    rate_bytes_s: float | None,
    on_start: Callable[[BackupJob], None],
) -> BackupJob:
    """Back up the folder of a stopped server. What only its journal has is moved to the catalog
    first, as a start of the server does it; nothing expires."""
    # Raises what is wrong with the folder, before a store would make a new one.
    with open_folder(data_dir) as folder:
        tier_url = str(folder.catalog.meta().get(TIER_URL) or "")
    settings = Settings(data_dir=data_dir, tier_url=tier_url, tier_interval_s=NEVER_S)
    store = DiskStore(settings, clock=SYSTEM_CLOCK)
    await store.open(_Nobody())
    try:
        backups = Backups(store, settings, clock=SYSTEM_CLOCK)
        job = backups.start(destination, keep=keep, rate_bytes_s=rate_bytes_s)
        on_start(job)
        try:
            await backups.wait()
        finally:
            backups.cancel()
    finally:
        await store.close()
    return job
