"""Tells systemd, or another service manager, how the server is doing: ready, stopping, alive.

One datagram per message to the socket that NOTIFY_SOCKET names (`man sd_notify`). Without that
variable nothing is sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator, Mapping
from typing import Final

FEEDS_PER_TIMEOUT: Final = 2
"""Signs of life sent in the time after which the manager takes the server for dead."""


class ServiceManager:
    """The manager of one process, by its environment."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._address = _address(environ.get("NOTIFY_SOCKET", ""))
        self._interval_s = _watchdog_s(environ) / FEEDS_PER_TIMEOUT
        self._timer: asyncio.TimerHandle | None = None

    @contextlib.contextmanager
    def serving(self, url: str) -> Iterator[None]:
        """Report a server that is ready, and then that it stops.

        In between the event loop itself sends the signs of life: if it hangs, they end.
        """
        self._send("READY=1", f"STATUS=Serving {url}", f"MAINPID={os.getpid()}")
        if self._interval_s:
            self._feed(asyncio.get_running_loop())
        try:
            yield
        finally:
            self._send("STOPPING=1", "STATUS=Finishing what is in flight")

    def close(self) -> None:
        """Send no more signs of life. They go on while a server stops, which may take long."""
        if self._timer is not None:
            self._timer.cancel()

    def _feed(self, loop: asyncio.AbstractEventLoop) -> None:
        self._send("WATCHDOG=1")
        self._timer = loop.call_later(self._interval_s, self._feed, loop)

    def _send(self, *lines: str) -> None:
        if self._address is None:
            return
        # A manager that has gone or does not read must not stop the server.
        with (
            contextlib.suppress(OSError),
            socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock,
        ):
            sock.setblocking(False)
            sock.sendto("\n".join(lines).encode(), self._address)


def _address(name: str) -> str | None:
    """Return the address of a socket: a path, or an abstract name, which is written with `@`."""
    if name.startswith("/"):
        return name
    return f"\0{name[1:]}" if name.startswith("@") else None


def _watchdog_s(environ: Mapping[str, str]) -> float:
    """Return the time in which a sign of life is expected, 0 if none is."""
    usec, pid = environ.get("WATCHDOG_USEC", ""), environ.get("WATCHDOG_PID", "")
    is_meant = not pid or pid == str(os.getpid())
    return int(usec) / 1_000_000 if usec.isdigit() and is_meant else 0.0
