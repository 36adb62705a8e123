"""The HTTP clients that Spark's sources share within a process."""

from __future__ import annotations

from penstock.spark import server


def close_clients() -> None:
    """Close the shared clients, so that no connection outlives its server; the next reader opens
    new ones."""
    while server._clients:
        server._clients.popitem()[1].close()
