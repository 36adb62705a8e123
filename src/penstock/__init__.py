"""Penstock: durable, replayable streams over HTTP.

`penstock.asgi(...)` makes an ASGI application; everything else is run by the `penstock` command.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.http.asgi import asgi

__version__ = "0.1.0"
__all__ = ["__version__", "asgi"]


def __getattr__(name: str) -> Any:
    # Late, so that importing the package (and `penstock --help`) does not load the server.
    if name == "asgi":
        return import_module("penstock.http.asgi").asgi
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
