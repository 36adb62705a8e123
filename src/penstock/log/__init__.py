"""The durable log: streams, the stores that hold them, and the engine that decides about them.

`open_engine` is the way in for programs that use the log without HTTP: docs/embedding.md.
"""

from __future__ import annotations

from penstock.clock import SYSTEM_CLOCK, Clock
from penstock.config.settings import Settings
from penstock.errors import StoreError
from penstock.log.engine import Engine
from penstock.log.pubsub import StreamEvent, Subscription
from penstock.log.requests import Append
from penstock.log.store import Store
from penstock.protocol.lifecycle import StreamConfig

__all__ = ["Append", "Engine", "StreamConfig", "StreamEvent", "Subscription", "open_engine"]


def open_engine(settings: Settings, *, clock: Clock = SYSTEM_CLOCK) -> Engine:
    """Return an engine on the store that the settings name; `start()` opens it."""
    store: Store
    if settings.memory:
        if settings.cluster:
            raise StoreError("Streams are in memory or in a cluster: leave out memory or cluster.")
        if settings.tier_url:
            raise StoreError("Streams in memory have no segments to move: leave out tier_url.")
        from penstock.log.memory import MemoryStore

        store = MemoryStore(settings)
    elif settings.cluster:
        if settings.tier_url:
            raise StoreError(
                "A cluster has no segments to move: set cluster_extents instead of tier_url."
            )
        from penstock.log.cluster.store import ClusterStore

        store = ClusterStore(settings, clock=clock)
    else:
        from penstock.log.disk.store import DiskStore

        store = DiskStore(settings, clock=clock)
    return Engine(store, settings, clock=clock)
