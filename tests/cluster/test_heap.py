"""What a node excludes from garbage collections, which would hold its event loop up."""

from __future__ import annotations

import gc
import weakref

from penstock.http.native.cluster import ClusterNode


class Cycle:
    """What only a collection removes, as the App of a shard is."""

    def __init__(self) -> None:
        self.itself = self


def test_what_a_closed_shard_has_left_is_collected_and_all_else_excluded() -> None:
    node = ClusterNode.__new__(ClusterNode)  # without its sockets and sessions
    node._has_closed = False
    shard = Cycle()
    left = weakref.ref(shard)
    try:
        node._settle()
        assert gc.get_freeze_count() > 0
        del shard
        gc.collect()
        assert left() is not None
        node._has_closed = True
        node._settle()
        assert left() is None
        assert gc.get_freeze_count() > 0
    finally:
        gc.unfreeze()
