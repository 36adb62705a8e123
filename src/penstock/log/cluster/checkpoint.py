"""Moves data from the journal of a cluster to its catalog and extents, on the checkpoint thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar, Final

from penstock.errors import ClusterRefused
from penstock.log.cluster.catalog import (
    Checkpoint,
    ExtentWrite,
    progress,
    write_checkpoint,
)
from penstock.log.cluster.database import Fenced, OutcomeUnknown, Refused, Session
from penstock.log.cluster.extents import plan_extents
from penstock.log.cluster.slots import Claim, barrier
from penstock.log.cluster.thread_session import ThreadSession
from penstock.log.disk.catalog_snapshot import CatalogSnapshot
from penstock.log.disk.checkpoint import Abandoned, Plan, Result
from penstock.log.disk.segment import SegmentInfo

log = logging.getLogger("penstock.log")

RETRY_S: Final = 0.5


class ClusterCheckpointer:
    errors: ClassVar[tuple[type[Exception], ...]] = (
        OutcomeUnknown,
        Refused,
        Fenced,
        ClusterRefused,
    )

    def __init__(
        self,
        place: ThreadSession,
        claim: Claim,
        checkpoints: int,
        *,
        extent_bytes: int,
        garbage_s: float = 0.0,
    ) -> None:
        self._place = place
        self._epoch = claim.epoch
        self._shard = claim.shard
        self.checkpoints = checkpoints
        """The checkpoints that are known to be in force."""
        self._extent_bytes = extent_bytes
        self._garbage_s = garbage_s
        self._abandoned = threading.Event()

    def passes(self, error: Exception) -> bool:
        """Whether the shard is still this node's."""
        return not isinstance(error, Fenced)

    def run(self, plan: Plan) -> Result:
        """Run a checkpoint; return when it is in force."""
        extents: dict[int, tuple[SegmentInfo, ...]] = {}
        writes: list[ExtentWrite] = []
        for item in plan.streams:
            if item.chunks:
                extents[item.row.id], new = plan_extents(
                    item.row.id,
                    item.row.segments,
                    item.chunks,
                    count_lines=item.count_lines,
                    extent_bytes=self._extent_bytes,
                )
                writes += new
        checkpoint = Checkpoint(
            self.checkpoints,
            self._epoch,
            plan.release_lsn,
            int(plan.meta["next_id"]),
            [
                item.row._replace(segments=extents.get(item.row.id, item.row.segments))
                for item in plan.streams
            ],
            writes,
            [(item.row.id, name, state) for item in plan.streams for name, state in item.producers],
            [stream_id for stream_id, _ in plan.deleted],
            [(item.row.id, info.base) for item in plan.streams for info in item.dropped],
            self._garbage_s,
            self._shard,
        )
        self._write(checkpoint)
        self.checkpoints += 1
        return Result(extents, None)

    def _write(self, checkpoint: Checkpoint) -> None:
        """Write a checkpoint. Whether one with an unknown outcome is there is found out first: the
        next would otherwise be written on other rows than those it was planned on."""
        is_doubtful = False
        while True:
            try:
                if is_doubtful and self._place.run(lambda session: self._is_there(session)):
                    return
                is_doubtful = True
                self._place.run(lambda session: write_checkpoint(session, checkpoint))
                return
            except (OutcomeUnknown, ClusterRefused) as error:
                log.warning("A checkpoint is tried again: %s", error)
            if self._abandoned.wait(RETRY_S):
                raise Abandoned

    async def _is_there(self, session: Session) -> bool:
        """Return whether the checkpoint after the last known one is there, everywhere."""
        # It waits for one that is being committed, and what is read after it is replicated.
        await barrier(session, self._epoch, self._shard)
        return (await progress(session, self._shard)).checkpoints > self.checkpoints

    def abandon(self) -> None:
        self._abandoned.set()

    # -- what there is on a disk only

    def make_room(self) -> None:
        pass

    def snapshot(self) -> CatalogSnapshot:
        raise TypeError("the catalog of a cluster is copied by PostgreSQL")

    @property
    def is_held(self) -> bool:
        return False

    def hold(self) -> None:
        pass

    def release(self) -> None:
        pass

    def remove(self, paths: Iterable[Path]) -> None:
        pass
