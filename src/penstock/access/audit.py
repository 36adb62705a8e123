"""The audit log: who has done what to the server, as events of a stream that the server writes.

Knows the log and principals; what counts as an action is decided by whoever reports it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from penstock.errors import PenstockError
from penstock.log import retention
from penstock.log.system_stream import Event, SystemStream
from penstock.protocol.headers import format_expires_at
from penstock.protocol.retention import Keep

if TYPE_CHECKING:
    from penstock.access.authenticator import Access
    from penstock.access.principal import Principal
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream

PATH: Final = "__ds/audit"
WAITING_MAX: Final = 1000
"""Events that wait for the creation of the stream."""
REFUSALS_MAX: Final = 60
"""Refused attempts that are written in REFUSALS_S: whoever is refused must not fill the log."""
REFUSALS_S: Final = 60.0
FORBIDDEN: Final = 403

log = logging.getLogger("penstock.access")


class Deed(NamedTuple):
    """One action, or the attempt of one.

    `status` is that of the response, None if the client went away before there was one; the action
    may have happened then.
    """

    action: str
    path: str
    status: int | None
    principal: Principal
    address: str
    request_id: str | None = None


class AuditLog:
    """Writes events in the order of the responses, without holding them up.

    An event that cannot be written is logged and counted in `lost`.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        access: Access,
        *,
        clock: Clock,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._access = access
        self._mode = settings.audit
        self._keep = Keep(int(settings.audit_age_s), settings.audit_bytes_max)
        self._clock = clock
        self._monotonic = monotonic
        self._stream = SystemStream(engine, PATH, prepare=self._prepare)
        self._is_open = False
        self._opening: asyncio.Task[None] | None = None
        self._waiting: list[Event] = []
        self._writing: set[asyncio.Future[Any]] = set()
        self._window_s = 0.0
        self._refusals = 0
        self._suppressed = 0
        self.written = 0
        self.lost = 0
        self.send: Callable[[list[Event]], asyncio.Future[Any]] | None = None
        """Hands events to the process that writes the log, if that is another."""

    @property
    def is_on(self) -> bool:
        if self._mode == "auto":
            return not self._access.is_open
        return self._mode == "on"

    # -- writing

    def record(self, deed: Deed) -> None:
        """Write an event about a deed that was done or refused; other failures change nothing.
        Never raises."""
        try:
            self._record(deed)
        except Exception as error:  # noqa: BLE001 - the action itself must not fail
            self._lose(1, repr(error))

    def _record(self, deed: Deed) -> None:
        status = deed.status
        if not self.is_on or (status is not None and status >= 400 and status != FORBIDDEN):
            return
        event: Event = {
            "time": format_expires_at(self._clock.now_us()),
            "action": deed.action,
            "path": deed.path,
            "status": status,
            "principal": deed.principal.name,
            "principal_id": deed.principal.id,
            "address": deed.address,
        }
        if deed.request_id is not None:
            event["request_id"] = deed.request_id
        if status == FORBIDDEN:
            if self._is_too_often():
                self._suppressed += 1
                return
            if self._suppressed:
                event["suppressed"], self._suppressed = self._suppressed, 0
        self._put(event)

    def _is_too_often(self) -> bool:
        now = self._monotonic()
        if now - self._window_s >= REFUSALS_S:
            self._window_s, self._refusals = now, 0
        self._refusals += 1
        return self._refusals > REFUSALS_MAX

    def _put(self, event: Event) -> None:
        if self._is_open or self.send is not None:
            self._write([event])
        elif len(self._waiting) >= WAITING_MAX:
            self._lose(1, "too many wait for the stream to be created")
        else:
            self._waiting.append(event)
            if self._opening is None:
                self._opening = asyncio.get_running_loop().create_task(self._open())

    async def _open(self) -> None:
        try:
            await self._stream.ensure()
        except PenstockError as error:
            self._lose(len(self._waiting), error.detail)
            self._waiting.clear()
            return
        finally:
            self._opening = None
        self._is_open = True
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._write(waiting)

    def _write(self, events: list[Event]) -> None:
        future = self._stream.write(events) if self.send is None else self.send(events)
        self._writing.add(future)
        future.add_done_callback(partial(self._settle, len(events)))

    def _settle(self, count: int, future: asyncio.Future[Any]) -> None:
        self._writing.discard(future)
        error = asyncio.CancelledError() if future.cancelled() else future.exception()
        if error is None:
            self.written += count
        else:
            self._lose(count, getattr(error, "detail", "the server is stopping"))

    def _lose(self, count: int, reason: str) -> None:
        self.lost += count
        log.error("%d events of the audit log were not written: %s", count, reason)

    async def take(self, events: list[Event]) -> bool:
        """Write events of another process; return whether they are durable."""
        lost = self.lost
        for event in events:
            self._put(event)
        await self.flush()
        return self.lost == lost

    async def flush(self) -> None:
        """Wait until everything that was recorded is durable, or lost."""
        if self._opening is not None:
            await asyncio.wait((self._opening,))
        if self._writing:
            await asyncio.wait(set(self._writing))

    # -- reading

    async def ensure(self) -> None:
        """Make sure that there is a stream to read, with everything that was recorded up to now.
        There is none where nothing is audited."""
        if self.is_on:
            await self._stream.ensure()
            await self.flush()

    async def _prepare(self, stream: Stream) -> None:
        # In place of that of other system streams, which is to keep everything.
        value = retention.encode(self._keep)
        await self._engine.set_meta(PATH, retention.META, value)
