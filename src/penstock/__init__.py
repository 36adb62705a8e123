"""Penstock: durable, replayable streams over HTTP.

`penstock.Client` and `penstock.AsyncClient` are clients for any server of the protocol.
`penstock.asgi(...)` returns the server as an ASGI application; `penstock serve` runs it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock import plain_modules

if TYPE_CHECKING:
    from penstock.access.grant import AccessRequest, Grant
    from penstock.client.aio.client import AsyncClient
    from penstock.client.aio.producer import AsyncProducer
    from penstock.client.aio.stream import AsyncStream
    from penstock.client.checkpoint import (
        Checkpoint,
        FileCheckpoint,
        MemoryCheckpoint,
        SqliteCheckpoint,
    )
    from penstock.client.http import Timeouts
    from penstock.client.retry import Retry
    from penstock.client.sync.client import Client
    from penstock.client.sync.producer import Producer
    from penstock.client.sync.stream import Stream
    from penstock.client.writing import WriteProgress
    from penstock.http.asgi.app import asgi

plain_modules.choose()

__version__ = "0.1.0"
# The name to install; `penstock` on the package index is another project.
DISTRIBUTION = "penstock-streams"
__all__ = [
    "__version__",
    "AccessRequest",
    "AsyncClient",
    "AsyncProducer",
    "AsyncStream",
    "Checkpoint",
    "Client",
    "FileCheckpoint",
    "Grant",
    "MemoryCheckpoint",
    "Producer",
    "Retry",
    "SqliteCheckpoint",
    "Stream",
    "Timeouts",
    "WriteProgress",
    "asgi",
]

# Imported late, so that `import penstock` and `penstock --help` load neither server nor client.
_MODULES = {
    "AccessRequest": "penstock.access.grant",
    "AsyncClient": "penstock.client.aio.client",
    "AsyncProducer": "penstock.client.aio.producer",
    "AsyncStream": "penstock.client.aio.stream",
    "Checkpoint": "penstock.client.checkpoint",
    "Client": "penstock.client.sync.client",
    "FileCheckpoint": "penstock.client.checkpoint",
    "Grant": "penstock.access.grant",
    "MemoryCheckpoint": "penstock.client.checkpoint",
    "Producer": "penstock.client.sync.producer",
    "Retry": "penstock.client.retry",
    "SqliteCheckpoint": "penstock.client.checkpoint",
    "Stream": "penstock.client.sync.stream",
    "Timeouts": "penstock.client.http",
    "WriteProgress": "penstock.client.writing",
    "asgi": "penstock.http.asgi.app",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(_MODULES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
