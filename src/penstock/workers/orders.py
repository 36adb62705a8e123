"""What the supervisor tells a worker at its start, and what a worker says when it is ready.

Orders go through the worker's stdin, so that secrets are in no list of processes; its end is the
sign that the supervisor has gone. The answer is a line on stdout.
"""

from __future__ import annotations

import json
import pickle
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Final

if TYPE_CHECKING:
    from penstock.config.settings import Settings

_LENGTH: Final = struct.Struct("!I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    settings: Settings
    """Those of this worker: its own folder, the shared port."""
    index: int
    secret: str
    sockets: str
    """The folder of the sockets between workers."""
    restarts: int
    """How often this worker was started again."""


def encode(orders: Orders) -> bytes:
    data = pickle.dumps(orders)
    return _LENGTH.pack(len(data)) + data


def read(file: BinaryIO) -> Orders:
    (length,) = _LENGTH.unpack(file.read(_LENGTH.size))
    orders = pickle.loads(file.read(length))  # noqa: S301 - our own supervisor has written it
    assert isinstance(orders, Orders)
    return orders


def ready_line(url: str) -> bytes:
    return json.dumps({"url": url}).encode() + b"\n"


def failure_line(detail: str, code: str) -> bytes:
    return json.dumps({"error": detail, "code": code}).encode() + b"\n"
