"""kill -9 at random moments under 8 idempotent writers: nothing is missing, doubled or reordered.

When a server is killed is decided by how many appends were acknowledged, not by the clock. Before
the writers meet the next one, everything that was acknowledged to them is read back from it.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from penstock.log.offline.verify import verify
from tests.crash.writers import (
    STREAMS,
    WRITERS,
    Address,
    Progress,
    Writers,
    create_streams,
    read_stream,
)
from tests.helpers.server import running_server

SMALL = [
    *("--checkpoint-bytes", "24KiB"),
    *("--journal-file-bytes", "16KiB"),
    *("--segment-bytes-max", "16KiB"),
    *("--inline-bytes-max", "1KiB"),
    *("--chunk-size", "64KiB"),
    *("--disk-reserve-bytes", "0"),
    *("--log-level", "warning"),
]


def test_kill_12_times(tmp_path: Path) -> None:
    run_kills(tmp_path / "data", kills=12, seed=1, appends_max=150)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_kill_500_times(tmp_path: Path, seed: int) -> None:
    run_kills(tmp_path / "data", kills=500, seed=seed, appends_max=120)


def run_kills(
    data_dir: Path, *, kills: int, seed: int, appends_max: int, args: Sequence[str] = SMALL
) -> None:
    chance = random.Random(seed)
    address, progress = Address(), Progress()
    with Writers(address, progress) as writers:
        for number in range(kills):
            with running_server(data_dir=data_dir, args=args) as server:
                if number == 0:
                    create_streams(server.port)
                _check(server.port, progress, settled=False)
                if chance.random() < 0.9:  # else it dies before it has done anything
                    address.publish(server.port)
                    done = sum(progress.acknowledged)
                    progress.wait_for(done + chance.randrange(1, appends_max))
                server.kill()
            _check_folder(data_dir)
        with running_server(data_dir=data_dir, args=args) as server:
            address.publish(server.port)
            progress.wait_for(sum(progress.acknowledged) + WRITERS)
            writers.finish()
            _check(server.port, progress, settled=True)
            assert server.terminate() == 0
    assert not progress.errors
    _check_folder(data_dir)


def _check(port: int, progress: Progress, *, settled: bool) -> None:
    """Each writer's messages are there in order, once each, and all that was acknowledged.

    The append that a writer was at when the server died may be there as well; once the writers
    are done (`settled`) there is none.
    """
    for number, path in enumerate(STREAMS):
        sequences: dict[int, list[int]] = {
            writer: [] for writer in range(number, WRITERS, len(STREAMS))
        }
        for writer, seq in read_stream(port, path):
            sequences[writer].append(seq)
        for writer, numbers in sequences.items():
            acked = progress.acknowledged[writer]
            assert numbers == list(range(len(numbers))), f"writer {writer}: {numbers[-20:]}"
            assert acked <= len(numbers) <= acked + (0 if settled else 1), (
                writer,
                acked,
                len(numbers),
            )


def _check_folder(data_dir: Path) -> None:
    report = verify(data_dir)
    assert report.problems == []
