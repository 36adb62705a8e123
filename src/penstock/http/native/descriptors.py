"""Notices that the process has no file descriptor left, when new connections are dropped.

Event loops say nothing of this: libuv accepts such connections and closes them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from typing import Final

log = logging.getLogger("penstock.http")

CHECK_S: Final = 1.0
REPEAT_S: Final = 60.0
"""Time between two reports, also if descriptors come and go in between."""
_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE})


class DescriptorWatch:
    """Tries once a second whether there is a descriptor left, and logs when there is none."""

    __slots__ = ("_connections", "_is_reported", "_loop", "_reported_s", "_socket", "_timer")

    def __init__(
        self, sock: socket.socket, loop: asyncio.AbstractEventLoop, connections: Callable[[], int]
    ) -> None:
        self._socket = sock
        self._loop = loop
        self._connections = connections
        self._is_reported = False  # the log says that there is none left
        self._reported_s = -REPEAT_S
        self._timer = loop.call_later(CHECK_S, self._tick)

    def stop(self) -> None:
        self._timer.cancel()

    def _tick(self) -> None:
        self._timer = self._loop.call_later(CHECK_S, self._tick)
        self.check()

    def check(self) -> None:
        """Look once."""
        try:
            self._socket.dup().close()
        except OSError as error:
            if error.errno in _EXHAUSTED:
                self._exhausted()
        else:
            if self._is_reported:
                self._is_reported = False
                log.warning("file descriptors are available again; connections are accepted")

    def _exhausted(self) -> None:
        now = self._loop.time()
        if now - self._reported_s < REPEAT_S:
            return
        self._is_reported, self._reported_s = True, now
        log.error(
            "no file descriptor is left (limit %s), with %d connections open: new connections are "
            "dropped, and files cannot be opened; raise the limit (ulimit -n, LimitNOFILE) or "
            "lower connections_max",
            descriptor_limit(),
            self._connections(),
        )


def descriptor_limit() -> str:
    """Return how many descriptors the process may have."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return "unknown"
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return str(soft)
