"""Rewriting a server-owned stream as its current rows, once most of it is history.

Rows are written behind everything else, and what was before them is trimmed. Knows the log; what
the rows mean is their owner's business.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from penstock.errors import PenstockError

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.log.system_stream import Event, SystemStream

ROWS_PER_APPEND: Final = 500
"""Rows rewritten in one append, so that other appends have their turn."""

_log = logging.getLogger(__name__)


class Rewriter:
    """`rows` returns the current rows, and is called when a rewrite begins. Of what changes
    meanwhile the owner writes rows as ever, behind the beginning: of two rows the later one holds.
    So `rows` yields each row as it is when it is asked for, and none that was removed."""

    def __init__(
        self,
        engine: Engine,
        stream: SystemStream,
        rows: Callable[[], Iterator[Event]],
        *,
        log_bytes: int,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._rows = rows
        self.log_bytes = log_bytes
        self._start = 0  # of the last rewrite
        self._rows_bytes = 0
        self.task: asyncio.Task[None] | None = None
        """The last rewrite."""

    def loaded(self) -> None:
        """Count history from the first event that is there."""
        self._start = self._stream.find().earliest

    def rewrite_if_long(self) -> None:
        """Begin a rewrite if most of the stream is history, and none is under way."""
        if self.task is not None and not self.task.done():
            return
        stream = self._stream.find()
        start = self._engine.pending(stream).tail
        if start - self._start > max(self.log_bytes, 2 * self._rows_bytes):
            rewrite = self._rewrite(stream, start, self._rows(), self._stream.failed)
            self.task = asyncio.ensure_future(rewrite)

    async def _rewrite(
        self, stream: Stream, start: int, rows: Iterator[Event], failed: int
    ) -> None:
        offset = self._engine.token(stream, start)
        try:
            while some := list(itertools.islice(rows, ROWS_PER_APPEND)):
                await self._stream.write(some)
            if self._stream.failed != failed:
                # What was queued before `start` is not there, and rows of this rewrite are in its
                # place: they must not be trimmed.
                _log.info("%s is rewritten later: a write has failed", self._stream.path)
                return
            self._start = start
            self._rows_bytes = stream.tail - start
            await self._engine.trim(self._stream.path, offset)
        except PenstockError as error:
            _log.warning("cannot rewrite %s: %s", self._stream.path, error.detail)

    def close(self) -> None:
        if self.task is not None:
            self.task.cancel()
