"""The plug is pulled at every step of a scenario: what was acknowledged is there, and nothing else.

Unsynced bytes survive by the page and unsynced names one by one, in any combination. The same
checks have to fail as soon as one of the syncs they rest on is left out.
"""

from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from penstock.errors import PenstockError
from penstock.log.disk.journal_mark import MARK_FILE
from penstock.log.disk.store import CATALOG_FILE
from tests.crash.engines import small_blocks
from tests.crash.power import Luck, Rename, Sync, SyncAll, SyncFolder, Unlink
from tests.crash.power_run import ODDS, check_cuts, check_left, record_run
from tests.crash.scenario import Operation, State, apply

BURSTS = 60
QUICK_CUTS = 120


@pytest.fixture(autouse=True)
def _small_blocks() -> Iterator[None]:
    with small_blocks():
        yield


def test_scenario_reaches_everything_that_can_go_wrong(tmp_path: Path) -> None:
    """Else the cuts below prove nothing."""
    run = asyncio.run(record_run(tmp_path, 1, BURSTS))
    steps = run.record.steps
    renames = [step for step in steps if isinstance(step, Rename)]
    assert sum(step.target.suffix == ".spare" for step in renames) > 5
    assert sum(step.source.suffix == ".spare" for step in renames) > 3
    removed = {step.name.suffix for step in steps if isinstance(step, Unlink)}
    assert removed >= {".segment", ".index", ".journal"}
    assert sum(isinstance(step, SyncAll) for step in steps) > 0
    assert sum(isinstance(step, SyncFolder) for step in steps) > 10
    assert sum(isinstance(step, Sync) for step in steps) > 50
    kinds = [operation.kind for operation in run.operations]
    assert kinds.count("delete") > 3
    assert kinds.count("create") > 5
    assert kinds.count("fork") > 5
    within = [each for each in run.operations if each.fork_at is not None]
    assert len(within) > 1
    assert kinds.count("trim") > 3
    assert kinds.count("snapshot") > 3
    assert _soft_deletes(run.operations) > 2
    assert all(operation.answered_at is not None for operation in run.operations)


def _soft_deletes(operations: list[Operation]) -> int:
    """How often a stream was deleted that still had forks."""
    states: dict[str, State] = {}
    found = 0
    for operation in operations:
        apply(states, operation)
        state = states.get(operation.path)
        found += operation.kind == "delete" and state is not None and state.soft_deleted
    return found


@pytest.mark.parametrize("queued", [False, True], ids=["thread", "queue"])
def test_nothing_acknowledged_is_lost_when_the_power_fails(tmp_path: Path, queued: bool) -> None:
    run = asyncio.run(record_run(tmp_path, 1, BURSTS, queued=queued))
    steps = range(len(run.record) + 1)
    cuts = sorted(random.Random(1).sample(steps, QUICK_CUTS))
    asyncio.run(check_cuts(run, [*cuts, steps[-1]], seed=1))


def test_nothing_is_lost_when_the_power_fails_after_a_killed_server_came_back(
    tmp_path: Path,
) -> None:
    """What a killed process wrote may be in memory only, and is read back from there."""
    _check_killed_then_cut(tmp_path, seed=2, kills=6, cuts_a_kill=8)


@pytest.mark.soak
@pytest.mark.parametrize("queued", [False, True], ids=["thread", "queue"])
@pytest.mark.parametrize("seed", range(10, 18))
def test_nothing_is_lost_at_any_step(tmp_path: Path, seed: int, queued: bool) -> None:
    run = asyncio.run(record_run(tmp_path, seed, BURSTS, queued=queued))
    asyncio.run(check_cuts(run, range(len(run.record) + 1), seed))


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(20, 24))
def test_nothing_is_lost_after_kill_and_cut_at_many_steps(tmp_path: Path, seed: int) -> None:
    _check_killed_then_cut(tmp_path, seed, kills=40, cuts_a_kill=20)


def _check_killed_then_cut(tmp_path: Path, seed: int, *, kills: int, cuts_a_kill: int) -> None:
    chance = random.Random(seed)
    (tmp_path / "first").mkdir()
    first = asyncio.run(record_run(tmp_path / "first", seed, BURSTS // 2))
    places = sorted(chance.sample(range(len(first.record)), kills))
    for cut, image in first.record.images(places):
        remains = copy.deepcopy(image)
        if chance.random() < 0.3:
            remains = image.after_power_loss(Luck(cut, chance.choice(ODDS)))
        folder = tmp_path / str(cut)
        folder.mkdir()
        second = asyncio.run(
            record_run(folder, cut, 4, start_from=remains, after=(first.operations, cut))
        )
        opened_at = second.operations[0].answered_at or 0
        steps = range(opened_at, len(second.record) + 1)
        cuts = sorted(chance.sample(steps, min(cuts_a_kill, len(steps))))
        asyncio.run(check_cuts(second, cuts, seed))


def _in_journal(path: Path) -> bool:
    return path.parent.name == "journal"


def _in_segments(path: Path) -> bool:
    return path.suffix in (".segment", ".index") or path.name == "data"


def _is_catalog(path: Path) -> bool:
    return path.name == CATALOG_FILE


def _is_journal_folder(path: Path) -> bool:
    return path.name == "journal"


def _is_segment_folder(path: Path) -> bool:
    return path.name == "segments" or path.parent.name == "segments" or path.name == "data"


def _is_format_file(path: Path) -> bool:
    return path.name.startswith("PENSTOCK")


def _is_mark(path: Path) -> bool:
    return path.name == MARK_FILE


def _is_above_root(path: Path) -> bool:
    return path.name == "new"


@pytest.mark.parametrize(
    "skips",
    [
        _in_journal,
        _in_segments,
        _is_catalog,
        _is_journal_folder,
        _is_segment_folder,
        _is_format_file,
        _is_mark,
        _is_above_root,
    ],
)
def test_cuts_find_out_when_a_sync_is_missing(
    tmp_path: Path, skips: Callable[[Path], bool]
) -> None:
    run = asyncio.run(record_run(tmp_path, 3, BURSTS // 2, skips=skips))
    chance = random.Random(3)
    steps = len(run.record)
    # Early ones too: once a checkpoint has synced the whole file system, what was never synced by
    # itself is safe as well, and how soon that happens is a matter of timing.
    early = range(1, steps // 4, max(1, steps // 160))
    cuts = [(cut, 0.0) for cut in early]
    cuts += [
        (cut, chance.choice((0.0, 0.5))) for cut in chance.sample(range(steps // 4, steps), 60)
    ]
    for cut, survivors in cuts:
        ((_, image),) = run.record.images([cut])
        remains = image.after_power_loss(Luck(cut, survivors))
        try:
            asyncio.run(check_left(remains, run.operations, cut))
        except (AssertionError, PenstockError):
            return
    pytest.fail(f"{len(cuts)} power losses, and nothing was lost")
