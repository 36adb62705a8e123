"""How much of what is written the kernel may hold that it has not sent yet.

A stalled live reader must not cost megabytes. A body of megabytes has to be handed over in large
pieces: with a low limit each call hands over little, and the receiver is woken for it.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from typing import Final

BYTES: Final = 256 * 1024
BYTES_OF_LARGE: Final = 1024 * 1024
"""Of a connection that has a body of at least LARGE_BYTES to send."""
LARGE_BYTES: Final = 512 * 1024


def limit(sock: socket.socket, size: int) -> None:
    """Limit what the kernel holds. Sockets that are accepted inherit it."""
    if hasattr(socket, "TCP_NOTSENT_LOWAT"):  # Windows has no such option
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)


def limit_of(transport: asyncio.BaseTransport, size: int) -> None:
    """Limit what the kernel holds for a connection, if it is one of TCP."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            limit(sock, size)
