"""The answer to a change that is on its way to the disk.

What an asyncio.Future would be, for the many answers of one commit: it belongs to no event loop,
and who waits is called in the step in which the change is durable, not in a turn of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.errors import PenstockError

log = logging.getLogger("penstock.log")


class Receipt:
    """`result` is true once it is done and there is no `error`.

    `future` is the same answer for those who await it. Cancelling that changes nothing here.
    """

    __slots__ = ("_then", "error", "future", "is_done", "result")

    def __init__(self, result: Any) -> None:
        self.result = result
        self.error: PenstockError | None = None
        self.is_done = False
        self.future: asyncio.Future[Any] | None = None
        self._then: Callable[[Any], None] | None = None

    def then(self, call: Callable[[Any], None]) -> None:
        """Call `call` with this receipt once it is done. One caller can wait, and it is not done
        yet."""
        assert self._then is None
        assert not self.is_done
        self._then = call

    def as_future(self, loop: asyncio.AbstractEventLoop) -> asyncio.Future[Any]:
        """Return the answer as something to await."""
        future = self.future
        if future is None:
            future = self.future = loop.create_future()
            if self.is_done:
                self._tell(future)
        return future

    def resolve(self) -> None:
        """The change is durable."""
        self.is_done = True
        if self.future is not None:
            self._tell(self.future)
        if self._then is not None:
            self._call()

    def fail(self, error: PenstockError) -> None:
        """The change was not made."""
        self.error = error
        self.resolve()

    def _tell(self, future: asyncio.Future[Any]) -> None:
        if future.done():
            return
        if self.error is None:
            future.set_result(self.result)
        else:
            future.set_exception(self.error)

    def _call(self) -> None:
        call, self._then = self._then, None
        assert call is not None
        try:
            call(self)
        except Exception:
            # The others of the same commit get their answers all the same.
            log.exception("An answer failed.")
