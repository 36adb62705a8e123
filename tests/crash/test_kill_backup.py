"""kill -9 of the server or of the command in the middle of backups, under 8 idempotent writers.

What was acknowledged before a backup began is in it; every restored stream is a beginning of what
was written; and whatever is killed, the earlier backups stay whole.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from penstock.log.backup.manifest import Manifest
from penstock.log.backup.repository import Repository
from penstock.log.backup.restore import restore, verify_backup
from penstock.log.offline.verify import verify
from penstock.object_store import FolderStore
from tests.crash.engines import read_all, small_settings, start
from tests.crash.writers import (
    STREAMS,
    WRITERS,
    Address,
    Progress,
    Writers,
    create_streams,
    is_json,
    parse,
)
from tests.helpers.server import Server, running_server

ARGS = [
    *("--checkpoint-bytes", "24KiB"),
    *("--journal-file-bytes", "16KiB"),
    *("--segment-bytes-max", "16KiB"),
    *("--inline-bytes-max", "1KiB"),
    *("--disk-reserve-bytes", "0"),
    *("--backup-rate", "500KiB"),  # so that a backup lasts for many appends
    *("--scrub-interval", "0"),
    *("--log-level", "warning"),
]
TIMEOUT_S = 60.0


def test_backups_survive_kills(tmp_path: Path) -> None:
    _run(tmp_path, rounds=5, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3, 4])
def test_backups_survive_many_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, rounds=150, seed=seed)


def _run(tmp_path: Path, *, rounds: int, seed: int) -> None:
    chance = random.Random(seed)
    address, progress = Address(), Progress()
    place = Place(tmp_path / "place")
    with Writers(address, progress) as writers:
        for number in range(rounds):
            with running_server(data_dir=tmp_path / "data", args=ARGS) as server:
                if number == 0:
                    create_streams(server.port)
                address.publish(server.port)
                done = sum(progress.acknowledged)
                progress.wait_for(done + chance.randrange(1, 120))
                place.begin(server, progress)
                is_last = number == rounds - 1
                _harm(server, place, progress, chance, is_last=is_last)
                if is_last:
                    writers.finish()
            place.check_whole()
    assert not progress.errors
    assert len(place.begun) >= rounds // 4  # or nothing of this was tried
    for number, manifest in enumerate(place.manifests()):
        if manifest.id in place.begun:
            _check(tmp_path / f"copy-{number}", place, manifest)


class Place:
    """Where the backups go, and what had been acknowledged before each that was completed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.repository = Repository(FolderStore(folder))
        self.begun: dict[str, list[int]] = {}
        self._command: subprocess.Popen[bytes] | None = None
        self._acknowledged: list[int] = []

    def begin(self, server: Server, progress: Progress) -> None:
        self._before = {each.id for each in self.manifests()}
        self._acknowledged = list(progress.acknowledged)
        self._command = subprocess.Popen(
            [sys.executable, "-m", "penstock.cli", "backup", str(self.folder), "--url", server.url],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def end_command(self, *, kill: bool = False) -> None:
        assert self._command is not None
        if kill:
            self._command.kill()
        self._command.wait(TIMEOUT_S)

    def manifests(self) -> list[Manifest]:
        manifests, faults = self.repository.manifests()
        assert faults == []
        return manifests

    def check_whole(self) -> None:
        """Every backup that is there is whole; one that is new has what was acknowledged before."""
        manifests = self.manifests()
        assert verify_backup(self.repository, manifests, on_progress=lambda *_: None) == []
        for manifest in manifests:
            if manifest.id not in self._before:
                self.begun[manifest.id] = self._acknowledged


def _harm(
    server: Server, place: Place, progress: Progress, chance: random.Random, *, is_last: bool
) -> None:
    appends = sum(progress.acknowledged) + chance.randrange(1, 250)
    if is_last:
        place.end_command()
    elif chance.random() < 0.4:
        progress.wait_for(appends)
        server.kill()
        place.end_command()
    else:
        if chance.random() < 0.7:
            progress.wait_for(appends)
            place.end_command(kill=True)
        else:
            place.end_command()
        _wait_for_the_server(server)
        server.kill()


def _wait_for_the_server(server: Server) -> None:
    """Wait until no backup runs: the server goes on with one whose command was killed."""
    deadline = time.monotonic() + TIMEOUT_S
    while _state(server)["state"] == "running":
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _state(server: Server) -> dict[str, Any]:
    connection = HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/v1/backup")
        answer: dict[str, Any] = json.loads(connection.getresponse().read())
        return answer
    finally:
        connection.close()


def _check(folder: Path, place: Place, manifest: Manifest) -> None:
    restore(place.repository, manifest, folder)
    assert verify(folder).problems == []
    acknowledged = place.begun[manifest.id]
    for number, path in enumerate(STREAMS):
        body = asyncio.run(_read(folder, path))
        if is_json(path):
            body = b"[" + body.removesuffix(b",\n") + b"]"
        sequences: dict[int, list[int]] = {
            writer: [] for writer in range(number, WRITERS, len(STREAMS))
        }
        for writer, seq in parse(path, body):
            sequences[writer].append(seq)
        for writer, numbers in sequences.items():
            assert numbers == list(range(len(numbers)))
            assert len(numbers) >= acknowledged[writer]


async def _read(folder: Path, path: str) -> bytes:
    engine = await start(small_settings(folder))
    try:
        return await read_all(engine, path)
    finally:
        await engine.stop()
