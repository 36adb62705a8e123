"""Notifies listeners that a table has changed: coalesced, retried with backoff, given up visibly.

A listener is notified only when the table's last SeqNo is greater than the one it was notified of
before. Knows NURLs and SeqNos; nothing of rows.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock.backoff import Backoff
from penstock.egress import HostSlots
from penstock.errors import EgressFailed, EgressRefused, PenstockError
from penstock.protocol.outbound import parse_url, shown_url
from penstock.stp.notify import FORM, SIGNATURE, form, sign

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.stp.server.peers import Peers
    from penstock.stp.server.registry import Listener, Registry

SAVE_S: Final = 1.0
"""Seconds until a sent SeqNo is made durable. After a crash in between it is sent once more."""

_log = logging.getLogger("penstock.stp")


class Notifier:
    """One task for each listener that has to be notified, and none for the others."""

    def __init__(
        self,
        settings: Settings,
        registry: Registry,
        egress: Egress,
        peers: Peers,
        last_seqno: Callable[[str], Awaitable[int]],
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._settings = settings
        self._registry = registry
        self._egress = egress
        self._peers = peers
        self._last_seqno = last_seqno
        self._chance = chance
        # Half of a wait is random: peers that failed together do not come back together.
        self._backoff = Backoff(
            base_s=settings.notify_retry_s, cap_s=settings.notify_retry_max_s, jitter=0.5
        )
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._changed: set[str] = set()
        self._host_slots = HostSlots(settings.notify_per_peer_max)
        self._saving: asyncio.Task[None] | None = None
        self._closed = False
        self.sent = 0
        self.failed = 0
        self.given_up = 0

    @property
    def pending(self) -> int:
        """The number of listeners that are being notified, or wait for another attempt."""
        return len(self._tasks)

    def notify(self, listener: Listener) -> None:
        """Notify a listener whose table has, or may have, a new last row."""
        key = listener.key
        if self._closed or listener.state != "active":
            return
        self._changed.add(key)
        if key not in self._tasks:
            task = asyncio.get_running_loop().create_task(self._run(key))
            self._tasks[key] = task
            task.add_done_callback(lambda done: self._ended(key, done))

    def close(self) -> None:
        """Stop all tasks. The SeqNos that were sent are queued for the disk when this returns."""
        self._closed = True
        for task in self._tasks.values():
            task.cancel()
        if self._saving is not None and not self._saving.done():
            self._saving.cancel()
            self._registry.save_last_notified().add_done_callback(_ignore)

    def _ended(self, key: str, task: asyncio.Task[None]) -> None:
        if self._tasks.get(key) is task:
            del self._tasks[key]
        if not task.cancelled() and task.exception() is not None:
            _log.error("notifying %s ended", shown_url(key), exc_info=task.exception())
        listener = self._registry.listeners.get(key)
        if listener is not None and key in self._changed:
            self.notify(listener)  # The table changed while the task ended.

    async def _run(self, key: str) -> None:
        """Notify a listener until it has the last SeqNo, or is given up."""
        attempts = 0
        while (listener := self._registry.listeners.get(key)) is not None:
            self._changed.discard(key)
            try:
                seqno = await self._last_seqno(listener.table)
            except PenstockError:
                return  # The table was deleted.
            if seqno <= self._registry.last_notified.get(key, 0):
                return
            try:
                await self.post(listener.nurl, form(listener.surl))
            except (EgressFailed, EgressRefused) as error:
                attempts += 1
                self.failed += 1
                if attempts >= self._settings.notify_attempts_max or _is_final(error):
                    await self._give_up(listener, attempts, error)
                    return
                await asyncio.sleep(self._backoff.wait_s(attempts, self._chance()))
            else:
                attempts = 0
                self.sent += 1
                self._registry.last_notified[key] = seqno
                self._save_soon()

    async def post(self, nurl: str, body: bytes) -> None:
        """POST a Notify form once; raise EgressFailed or EgressRefused if it is not accepted."""
        target = parse_url(nurl)
        headers = {"content-type": FORM, **self._peers.headers(target)}
        async with self._host_slots.take(target.host):
            if self._settings.notify_secret:
                headers[SIGNATURE] = sign(self._settings.notify_secret, body, int(time.time()))
            answer = await self._egress.request("POST", nurl, headers=headers, body=body)
        if not answer.is_success:
            error = EgressFailed(f"{target.origin} answered {answer.status} to a Notify.")
            error.status_seen = answer.status
            raise error

    async def _give_up(self, listener: Listener, attempts: int, error: PenstockError) -> None:
        self.given_up += 1
        reason = f"{error.detail} ({attempts} failed in a row)"
        nurl = shown_url(listener.nurl)
        _log.error("gave up notifying %s of %s: %s", nurl, listener.table, reason)
        await self._registry.put(replace(listener, state="given-up", reason=reason))

    def _save_soon(self) -> None:
        if self._saving is None or self._saving.done():
            self._saving = asyncio.get_running_loop().create_task(self._save())

    async def _save(self) -> None:
        await asyncio.sleep(SAVE_S)
        try:
            await self._registry.save_last_notified()
        except PenstockError as error:
            _log.error("cannot write the SeqNos that were sent to listeners: %s", error.detail)


def _ignore(future: asyncio.Future[None]) -> None:
    future.cancelled() or future.exception()


def _is_final(error: PenstockError) -> bool:
    """Whether another attempt is useless: the address is refused, or the NURL is gone for good."""
    return isinstance(error, EgressRefused) or getattr(error, "status_seen", None) == 410
