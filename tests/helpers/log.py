"""Engines and stores with bounds so small that every mechanism runs within a few appends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from penstock.clock import ManualClock
from penstock.config.settings import Settings
from penstock.log import memory_tail, ranges
from penstock.log.cluster.store import ClusterStore
from penstock.log.disk import reader, recovery, segment
from penstock.log.disk.store import DiskStore
from penstock.log.disk.tiered import cold_reader
from penstock.log.memory import MemoryStore
from penstock.log.store import Store
from tests.helpers import postgres
from tests.helpers.tiered import cold_cluster_store, cold_store

TINY: dict[str, Any] = {
    "journal_file_bytes": 4096,
    "journal_batch_bytes_max": 1500,
    "segment_bytes_max": 1000,
    "inline_bytes_max": 100,
    "open_files_max": 4,
    "disk_reserve_bytes": 0,
    "reap_interval_s": 3600,
    "checkpoint_interval_s": 3600,
}
"""Checkpoints and reaping happen only when a test asks for them."""

BLOCK_BYTES = 256


def shrink_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks, windows and chunks of a few messages, so that short streams cross their borders."""
    for module in (segment, reader, recovery):
        monkeypatch.setattr(module, "BLOCK_BYTES", BLOCK_BYTES)
    monkeypatch.setattr(cold_reader, "PIECE_BYTES", 2 * BLOCK_BYTES)
    monkeypatch.setattr(ranges, "WINDOW_BYTES", 96)
    monkeypatch.setattr(memory_tail, "CHUNK_BYTES_MAX", 128)
    monkeypatch.setattr(memory_tail, "OWN_CHUNK_BYTES", 32)
    monkeypatch.setattr(reader, "GATHERED_BYTES_MAX", 256)


def open_store(kind: str, folder: Path, clock: ManualClock, **options: Any) -> Store:
    """A store that is not open yet."""
    if kind == "memory":
        return MemoryStore(Settings(memory=True, **{**TINY, **options}))
    if kind == "cold":
        return cold_store(folder, clock, **options)
    if kind == "cluster":
        return ClusterStore(cluster_settings(**{**TINY, **options}), clock=clock)
    if kind == "cold-cluster":
        return cold_cluster_store(cluster_settings(**{**TINY, **options}), clock=clock)
    return DiskStore(Settings(data_dir=folder, **{**TINY, **options}), clock=clock)


def cluster_settings(**options: Any) -> Settings:
    """Settings of a node in an empty database, on the one PostgreSQL of this process."""
    if "cluster" not in options:
        options["cluster"] = postgres.shared().fresh_database()
    return Settings(**{"cluster_durability": "single", **options})


async def abandon(store: DiskStore) -> None:
    """Let go of a store as a killed process would: nothing is finished, nothing is marked clean.

    Work that a thread has already begun is waited for, so that two stores never share a folder.
    """
    if store.tier is not None:
        await store.tier.stop()
        await store.tier.close()
    store._schedule_task.cancel()
    await asyncio.gather(store._schedule_task, return_exceptions=True)
    store._schedule._executor.shutdown()
    store._committer.stop()
    store._journal.close()
    store._reader.close()
    store._catalog.close()
    store._lock.close()
