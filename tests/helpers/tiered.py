"""Stores whose segments or extents become cold at once, and object stores that go wrong when they
are told."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from penstock.clock import Clock
from penstock.config.settings import Settings
from penstock.errors import StorageUnavailable
from penstock.log.cluster.store import ClusterStore
from penstock.object_store import Blob, Data, MemoryStore, ObjectStore
from tests.crash.engines import QuickStore

ALL_COLD: dict[str, Any] = {
    "journal_file_bytes": 4096,
    "journal_batch_bytes_max": 1500,
    "segment_bytes_max": 1000,
    "inline_bytes_max": 100,
    "open_files_max": 4,
    "disk_reserve_bytes": 0,
    "reap_interval_s": 3600,
    "checkpoint_interval_s": 3600,
    "tier_url": "memory://",
    "tier_after_s": 0,
    "tier_cache_bytes_max": 3000,
    "tier_interval_s": 3600,
}
"""Segments move only when a test asks for it, and few pieces fit into the cache."""


class TestObjects:
    """A store that counts its calls, and can be told to do something in the middle of them."""

    __test__ = False

    def __init__(self, store: ObjectStore | None = None) -> None:
        self.store = store or MemoryStore()
        self.url = self.store.url
        self.confirms_checksums = False
        self.calls: Counter[str] = Counter()
        self.before: Callable[[str], None] = lambda operation: None
        self.after: Callable[[str], None] = lambda operation: None
        self._lock = threading.Lock()

    def fail(self, *operations: str) -> None:
        """From now on these calls fail, until `heal`."""

        def before(operation: str) -> None:
            if operation in operations:
                raise StorageUnavailable(f"{self.url}: told to fail.")

        self.before = before

    def heal(self) -> None:
        self.before = self.after = lambda operation: None

    def _call(self, operation: str, function: Callable[[], Any]) -> Any:
        with self._lock:
            self.calls[operation] += 1
        self.before(operation)
        result = function()
        self.after(operation)
        return result

    @property
    def names(self) -> list[str]:
        return [blob.key for blob in self.store.list()]

    def put(self, key: str, data: Data | Iterable[Data]) -> None:
        self._call("put", lambda: self.store.put(key, data))

    def put_if_absent(self, key: str, data: Data) -> bool:
        return bool(self._call("put", lambda: self.store.put_if_absent(key, data)))

    def get(self, key: str) -> bytes:
        return bytes(self._call("get", lambda: self.store.get(key)))

    def get_range(self, key: str, start: int, end: int) -> bytes:
        return bytes(self._call("get", lambda: self.store.get_range(key, start, end)))

    def head(self, key: str) -> Blob | None:
        return self._call("head", lambda: self.store.head(key))  # type: ignore[no-any-return]

    def list(self, prefix: str = "") -> Iterator[Blob]:
        return self.store.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._call("delete", lambda: self.store.delete(keys))

    def remove_unfinished(self) -> None:
        self.store.remove_unfinished()


class ColdStore(QuickStore):
    """A disk store that moves everything it can after each checkpoint."""

    objects: TestObjects

    def open_objects(self) -> ObjectStore:
        return self.objects

    async def checkpoint(self) -> bool:
        done = await super().checkpoint()
        if done:
            await self.move()
        return done

    async def move(self) -> None:
        assert self.tier is not None
        while await self.tier.tiering.round():
            pass


_OBJECTS: dict[Path, TestObjects] = {}


def cold_store(
    folder: Path, clock: Clock, *, settings: Settings | None = None, **options: Any
) -> ColdStore:
    """A store that is not open yet; another one of the same folder has the same objects."""
    settings = settings or Settings(data_dir=folder, **{**ALL_COLD, **options})
    store = ColdStore(settings, clock=clock)
    store.objects = _OBJECTS.setdefault(folder, TestObjects())
    return store


class ColdClusterStore(ClusterStore):
    """A store of a cluster that moves every full extent after each checkpoint."""

    objects: TestObjects

    def open_objects(self) -> ObjectStore:
        return self.objects

    async def checkpoint(self) -> bool:
        done = await super().checkpoint()
        if done:
            await self.move()
        return done

    async def move(self) -> None:
        assert self.mover is not None
        while await self.mover.move():
            pass


def cold_cluster_store(settings: Settings, *, clock: Clock) -> ColdClusterStore:
    """A store that is not open yet; another one of the same database has the same objects."""
    assert settings.cluster is not None
    name = settings.cluster.rpartition("/")[2]
    settings = dataclasses.replace(settings, cluster_extents=f"memory://{name}")
    store = ColdClusterStore(settings, clock=clock)
    key = Path(name)
    store.objects = _OBJECTS.setdefault(key, TestObjects(MemoryStore.named(name)))
    return store
