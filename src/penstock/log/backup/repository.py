"""The place of backups: which objects it has, who writes to it, and what can be removed from it.

backups/<id>.json      a manifest; written last, so that a backup is there whole or not at all
contents/<sha256>      what the backup consists of
packs/<ss>/<sha256>    the bytes, each pack under its own checksum
LOCK.json              who writes here now
"""

from __future__ import annotations

import json
import platform
import secrets
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from penstock.errors import (
    BackupDamaged,
    BackupLocked,
    BackupNotFound,
    ObjectNotFound,
    PenstockError,
    StorageError,
)
from penstock.log.backup.manifest import (
    Contents,
    Manifest,
    decode_contents,
    decode_manifest,
    encode_contents,
    encode_manifest,
    is_id,
    sha256,
)
from penstock.object_store import ObjectStore

LOCK: Final = "LOCK.json"
LOCK_RENEW_S: Final = 30.0
LOCK_STALE_S: Final = 600.0
"""A lock that was not renewed for so long belongs to a process that is dead."""
DAY_US: Final = 86_400_000_000


class Keep(NamedTuple):
    """Which backups stay: the `newest`, so many, and those of the last `days`; None for all."""

    newest: int | None = None
    days: float | None = None

    def expired(self, manifests: list[Manifest], now_us: int) -> list[Manifest]:
        """Return those of `manifests`, which are in order of time, that need not stay."""
        if self.newest is None and self.days is None:
            return []
        newest = manifests[-(self.newest or 1) :]
        since_us = now_us if self.days is None else now_us - int(self.days * DAY_US)
        return [each for each in manifests if each not in newest and each.cut_us < since_us]


def pack_key(digest: str) -> str:
    return f"packs/{digest[:2]}/{digest}"


def contents_key(manifest: Manifest) -> str:
    return f"contents/{manifest.contents_sha256}"


def manifest_key(id: str) -> str:
    return f"backups/{id}.json"


class Repository:
    def __init__(self, store: ObjectStore) -> None:
        self.store = store

    # -- reading

    def ids(self) -> list[str]:
        """Return the ids of all backups, in order of time."""
        names = (blob.key.removeprefix("backups/") for blob in self.store.list("backups"))
        ids = (name.removesuffix(".json") for name in names if name.endswith(".json"))
        return sorted(id for id in ids if is_id(id))

    def manifest(self, id: str) -> Manifest:
        key = manifest_key(id)
        try:
            data = self.store.get(key)
        except ObjectNotFound:
            raise BackupNotFound(f"{self.store.url} has no backup {id!r}.") from None
        return decode_manifest(data, key)

    def manifests(self) -> tuple[list[Manifest], list[str]]:
        """Return the backups, in order of time, and what is wrong with those that cannot be
        read."""
        manifests, faults = [], []
        for id in self.ids():
            try:
                manifests.append(self.manifest(id))
            except BackupDamaged as error:
                faults.append(error.detail)
        return sorted(manifests, key=lambda each: (each.cut_us, each.id)), faults

    def contents(self, manifest: Manifest) -> Contents:
        try:
            data = self.store.get(contents_key(manifest))
        except ObjectNotFound:
            raise BackupDamaged(
                f"The contents of backup {manifest.id} are missing. Use another backup."
            ) from None
        return decode_contents(data, manifest)

    def pack(self, digest: str, size: int) -> bytes:
        """Return a pack; BackupDamaged if it is missing or not as it was written."""
        try:
            data = self.store.get(pack_key(digest))
        except ObjectNotFound:
            raise BackupDamaged(
                f"{pack_key(digest)} is missing in {self.store.url}. Use another backup."
            ) from None
        if len(data) != size or sha256(data) != digest:
            raise BackupDamaged(
                f"{pack_key(digest)} in {self.store.url} does not match its checksum. Use another "
                "backup."
            )
        return data

    def pack_sizes(self) -> dict[str, int]:
        """Return the packs that are there, by their names."""
        return {blob.key.rpartition("/")[2]: blob.size for blob in self.store.list("packs")}

    # -- writing

    def put_verified(self, key: str, data: bytes | bytearray) -> None:
        """Write an object, and see that the store has it as it was sent."""
        self.store.put(key, data)
        if self.store.confirms_checksums:
            head = self.store.head(key)
            is_whole = head is not None and head.size == len(data)
        else:
            is_whole = self.store.get(key) == data
        if not is_whole:
            raise StorageError(
                f"{self.store.url} does not have {key} as it was written. Check the storage."
            )

    def put_contents(self, contents: Contents) -> tuple[str, int]:
        """Return the checksum and the size of the object."""
        data = encode_contents(contents)
        digest = sha256(data)
        self.put_verified(f"contents/{digest}", data)
        return digest, len(data)

    def put_manifest(self, manifest: Manifest) -> None:
        self.put_verified(manifest_key(manifest.id), encode_manifest(manifest))

    def remove(self, *manifests: Manifest) -> None:
        """Remove manifests; their packs go with `collect`."""
        self.store.delete([manifest_key(each.id) for each in manifests])

    def remove_expired(self, keep: Keep, now_us: int) -> None:
        manifests, _ = self.manifests()
        self.remove(*keep.expired(manifests, now_us))

    def collect(self) -> int:
        """Remove every object that no manifest names, of killed backups too; return their bytes.
        Only whoever holds the lock may call this. Nothing is removed while a manifest cannot be
        read: nobody knows what it names."""
        manifests, faults = self.manifests()
        if faults:
            return 0
        named: set[str] = set()
        try:
            for manifest in manifests:
                named.add(contents_key(manifest))
                named.update(pack_key(digest) for digest, _ in self.contents(manifest).packs)
        except BackupDamaged:
            return 0
        garbage = [
            blob
            for prefix in ("packs", "contents")
            for blob in self.store.list(prefix)
            if blob.key not in named
        ]
        self.store.delete([blob.key for blob in garbage])
        self.store.remove_unfinished()
        return sum(blob.size for blob in garbage)


class RepositoryLock:
    """LOCK.json, held by one writer. Renewed while it works, so that others can tell whether it is
    alive."""

    def __init__(self, repository: Repository, *, store_id: str, folder: str) -> None:
        self._store = repository.store
        self._owner = secrets.token_hex(8)
        self._self = {"store_id": store_id, "host": platform.node(), "folder": folder}
        self._renewed_s = 0.0

    def acquire(self) -> None:
        """Take the lock; BackupLocked while another writer has it. What a dead writer has left is
        taken over: one of the same folder is dead, because one process has the folder at a time."""
        for _ in range(3):
            if self._store.put_if_absent(LOCK, self._content()):
                self._renewed_s = time.monotonic()
                return
            head = self._store.head(LOCK)
            holder = self._holder()
            if head is None or holder is None:
                continue
            age_s = time.time() - head.modified_s
            is_ours = all(holder.get(name) == value for name, value in self._self.items())
            if not is_ours and age_s < LOCK_STALE_S:
                raise BackupLocked(
                    f"{self._store.url}: a backup from {holder.get('host')} "
                    f"({holder.get('folder')}) is being written there, and was alive "
                    f"{max(0, age_s):.0f} s ago. Wait for it; if it was killed, its lock ends "
                    f"after {LOCK_STALE_S:.0f} s."
                )
            self._store.delete([LOCK])
        raise BackupLocked(f"{self._store.url}: others write backups there. Try again later.")

    def renew(self) -> None:
        """Say that this writer is alive, now and then."""
        now_s = time.monotonic()
        if now_s - self._renewed_s >= LOCK_RENEW_S:
            self.check()
            self._store.put(LOCK, self._content())
            self._renewed_s = now_s

    def check(self) -> None:
        """Raise BackupLocked if another writer has taken the lock over."""
        holder = self._holder()
        if holder is None or holder.get("owner") != self._owner:
            raise BackupLocked(
                f"{self._store.url}: another writer has taken the lock over, because this one did "
                "not move for long. Run the backup again."
            )

    def release(self) -> None:
        try:
            self.check()
            self._store.delete([LOCK])
        except PenstockError:
            pass  # somebody else's by now, or the store is gone; it ends by its age

    def _content(self) -> bytes:
        return json.dumps({"owner": self._owner, **self._self}).encode()

    def _holder(self) -> dict[str, object] | None:
        try:
            holder = json.loads(self._store.get(LOCK))
        except ObjectNotFound:
            return None
        except ValueError:
            return {}
        return holder if isinstance(holder, dict) else {}


def choose(manifests: Iterable[Manifest], *, id: str | None, at_us: int | None) -> Manifest | None:
    """Return the backup with an id, or the newest that is not after a time; None if there is
    none."""
    candidates = [
        each
        for each in manifests
        if (id is None or each.id == id) and (at_us is None or each.cut_us <= at_us)
    ]
    return max(candidates, key=lambda each: (each.cut_us, each.id), default=None)
