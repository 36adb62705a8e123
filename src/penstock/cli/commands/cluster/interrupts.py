"""Signals that end a command which starts processes, but never between the start of one and the
moment at which it is known: nobody would end it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_is_held = False
_is_pending = False


def install() -> None:
    """Let every signal that ends a program raise KeyboardInterrupt, as Ctrl-C does."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    global _is_pending  # signals belong to the process
    if _is_held:
        _is_pending = True
    else:
        raise KeyboardInterrupt


@contextmanager
def held() -> Iterator[None]:
    """Signals wait until the end of the block."""
    global _is_held, _is_pending
    _is_held = True
    try:
        yield
    finally:
        _is_held = False
    if _is_pending:
        _is_pending = False
        raise KeyboardInterrupt
