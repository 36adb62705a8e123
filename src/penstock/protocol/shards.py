"""Which shard owns a path: a stable hash, so that every process and every later start agrees.

Part of the format of a data folder: a change here would look for streams where they are not. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

HASH: Final = "blake2b-64"
"""The name of the hash in the format file of a data folder."""


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` equal shares of all paths."""

    index: int
    count: int

    def next_id(self, id: int) -> int:
        """Return the first id from `id` on that belongs to this shard: no two shards share one."""
        return id + (self.index - id) % self.count


WHOLE: Final = Shard(0, 1)


def shard_of(path: str, count: int) -> int:
    """Return the index of the shard that a path belongs to."""
    if count == 1:
        return 0
    # surrogatepass: whatever a path is made of, it has one home.
    digest = blake2b(path.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big") % count
