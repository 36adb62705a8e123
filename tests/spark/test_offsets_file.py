"""Positions of many streams: a file that the commit names, and none that nobody needs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock import limits
from penstock.errors import WarehouseBroken, WarehouseMismatch
from penstock.spark.pipeline.checkpoint import Checkpoint, check_match
from penstock.spark.warehouse.events import BatchResult, EventsTable
from penstock.spark.warehouse.offsets_file import FOLDER, PositionFiles
from penstock.spark.warehouse.warehouse import Warehouse

NOTHING = BatchResult([], 0, 0, {})


def place(streams: int, seq: int = 7) -> dict[str, Any]:
    named = {f"shop/{number:05}": f"{1:016}_{99:016}@{seq}" for number in range(streams)}
    return {"version": 1, "server": "penstock", "streams": named}


def files(warehouse: Warehouse) -> list[str]:
    return sorted(path.name for path in Path(warehouse.path, "events", FOLDER).glob("*"))


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    found = Warehouse(str(tmp_path / "warehouse"))
    found.open()
    return found


def append(events: EventsTable, batch: int, positions: dict[str, Any]) -> None:
    events.append(NOTHING, query="q", batch=batch, positions=positions)


def test_few_streams_are_in_the_commit_itself(warehouse: Warehouse) -> None:
    append(warehouse.events, 0, place(3))
    assert warehouse.events.record.positions == place(3) == warehouse.events.positions()
    assert files(warehouse) == []


def test_a_commit_is_short_however_many_streams_there_are(warehouse: Warehouse) -> None:
    append(warehouse.events, 0, place(2000))
    log = Path(warehouse.path, "events", "_delta_log")
    assert max(path.stat().st_size for path in log.iterdir()) < limits.PIPELINE_POSITIONS_BYTES
    assert warehouse.events.positions() == place(2000)
    again = Warehouse(warehouse.path)
    assert again.events.positions() == place(2000)
    # Commits that bring no positions leave them as they were.
    again.open()
    again.events.add(NOTHING)
    assert Warehouse(warehouse.path).events.positions() == place(2000)


def test_they_have_to_match_the_checkpoint(warehouse: Warehouse, tmp_path: Path) -> None:
    append(warehouse.events, 0, place(2000))
    folder = tmp_path / "checkpoint"
    for name, text in (("metadata", '{"id":"q"}'), ("commits/0", ""), ("offsets/0", "v1\n{}\n")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    planned = folder / "offsets" / "0"
    planned.write_text(f"v1\n{{}}\n{str(place(2000)).replace(chr(39), chr(34))}")
    check_match(Checkpoint(str(folder)), warehouse.events)
    planned.write_text(planned.read_text().replace("@7", "@8", 1))
    with pytest.raises(WarehouseMismatch, match="other positions for batch 0"):
        check_match(Checkpoint(str(folder)), warehouse.events)


def test_old_ones_are_removed_and_the_last_stay(
    warehouse: Warehouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "PIPELINE_POSITIONS_KEPT", 3)
    for batch in range(12):
        append(warehouse.events, batch, place(400, batch))
        assert warehouse.events.positions() == place(400, batch)
        assert len(files(warehouse)) <= 6
    assert [int(name.partition("-")[0]) for name in files(warehouse)] == [9, 10, 11, 12]
    append(warehouse.events, 12, place(1))
    assert warehouse.events.positions() == place(1)


def test_without_the_file_nothing_is_known(warehouse: Warehouse) -> None:
    append(warehouse.events, 0, place(2000))
    [name] = files(warehouse)
    Path(warehouse.path, "events", FOLDER, name).unlink()
    assert warehouse.events.positions() is None


def test_what_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("a file where a folder should be")
    with pytest.raises(WarehouseBroken, match=f"{FOLDER} cannot be read or written"):
        PositionFiles(str(tmp_path), {}).put(1, place(2000))
