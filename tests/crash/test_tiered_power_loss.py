"""The plug is pulled while segments move: what was acknowledged is in files or in objects."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import PenstockError
from penstock.log.disk.catalog_cold import ColdChanges
from penstock.log.disk.segment import ColdSegment
from penstock.log.disk.tiered.tiering import Tiering
from tests.crash.engines import small_blocks
from tests.crash.power import Commit, DeleteObjects, Luck, PutObject, Unlink
from tests.crash.power_run import check_cuts, check_left, record_run

BURSTS = 100
QUICK_CUTS = 15
TIERED: dict[str, Any] = {
    "tier_url": "memory://",
    "tier_after_s": 0,
    "tier_interval_s": 0.002,
    "tier_cache_bytes_max": 4000,
    "segment_bytes_max": 800,
    "checkpoint_bytes": 2500,
}
"""Segments move all the time."""
AFTERWARDS = {**TIERED, "tier_interval_s": 0.02}


@pytest.fixture(autouse=True)
def _small_blocks() -> Iterator[None]:
    with small_blocks():
        yield


def test_nothing_is_lost_when_the_power_fails_while_segments_move(tmp_path: Path) -> None:
    run = asyncio.run(record_run(tmp_path, 5, BURSTS, **TIERED))
    steps = run.record.steps
    puts = [number for number, step in enumerate(steps) if isinstance(step, PutObject)]
    deletes = [number for number, step in enumerate(steps) if isinstance(step, DeleteObjects)]
    assert len(puts) > 10
    assert len(deletes) > 2
    # Most of the cuts around the moves, some anywhere.
    chance = random.Random(5)
    near = {min(max(number + d, 0), len(steps)) for number in puts + deletes for d in range(-2, 8)}
    cuts = {*chance.sample(sorted(near), min(QUICK_CUTS, len(near)))}
    cuts |= {*chance.sample(range(len(steps)), 5)}
    asyncio.run(check_cuts(run, sorted(cuts), 5, **AFTERWARDS))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(30, 34))
def test_nothing_is_lost_at_any_step_while_segments_move(tmp_path: Path, seed: int) -> None:
    run = asyncio.run(record_run(tmp_path, seed, BURSTS, **TIERED))
    asyncio.run(check_cuts(run, range(len(run.record) + 1), seed, **AFTERWARDS))


def test_cuts_find_out_when_a_file_goes_before_the_catalog_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the cuts above prove nothing."""
    commit = Tiering._commit

    async def early(self: Tiering, changes: ColdChanges) -> None:
        cold: list[ColdSegment] = list(changes.cold)
        for each in cold:
            self._files.remove(self._folder.data_path(each.stream_id, each.base))
        await commit(self, changes)

    monkeypatch.setattr(Tiering, "_commit", early)
    run = asyncio.run(record_run(tmp_path, 6, BURSTS, **TIERED))
    steps = run.record.steps
    for cut, (step, following) in enumerate(pairwise(steps), 1):
        if not (isinstance(step, Unlink) and isinstance(following, Commit)):
            continue
        ((_, image),) = run.record.images([cut])
        try:
            asyncio.run(
                check_left(image.after_power_loss(Luck(cut, 1.0)), run.operations, cut, **TIERED)
            )
        except (AssertionError, PenstockError):
            return
    pytest.fail("nothing was lost")
