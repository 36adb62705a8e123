"""The NURLs that peers have advertised: listed, notified when an application decides to, removed.

An application uses them for events that are no table of this server, such as a match. Knows the
registry; nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from penstock import limits
from penstock.errors import EgressFailed, EgressRefused, InvalidNotify, NurlNotFound
from penstock.protocol.headers import format_expires_at
from penstock.stp.notify import form
from penstock.stp.server.registry import FOLLOWED, Listener, Waiting

if TYPE_CHECKING:
    from penstock.clock import Clock
    from penstock.stp.server.mirrors import Mirrors
    from penstock.stp.server.notifier import Notifier
    from penstock.stp.server.registry import Registry


class Selection(NamedTuple):
    """Which NURLs are meant: those that agree with every member that is set."""

    nurl: str = ""
    event: str = ""
    table: str = ""
    source: str = ""


class Advertised(NamedTuple):
    """A NURL, what it was advertised for, and what the server does with it.

    `tables` are the tables of this server that it is notified of (`active`, `given-up`) or waits
    for (`waiting`), or the mirrors that it has learned of (`followed`). `source` is the table of
    its own that the peer named with it.
    """

    nurl: str
    event: str
    state: str
    tables: tuple[str, ...]
    source: str
    reason: str
    expires_at: str | None

    @property
    def place(self) -> str:
        """The place of the NURL in a list, which no other has."""
        return " ".join((self.nurl, self.event, *self.tables, self.source, self.state))

    def is_in(self, selection: Selection) -> bool:
        return (
            selection.nurl in ("", self.nurl)
            and selection.event in ("", self.event)
            and selection.source in ("", self.source)
            and (not selection.table or selection.table in self.tables)
        )


class Nurls:
    """All NURLs of the registry."""

    def __init__(
        self, registry: Registry, mirrors: Mirrors, notifier: Notifier, *, clock: Clock
    ) -> None:
        self._registry = registry
        self._mirrors = mirrors
        self._notifier = notifier
        self._clock = clock

    def all(self, selection: Selection) -> list[Advertised]:
        """Return the NURLs that are meant, in the order of their places."""
        now_us = self._clock.now_us()
        nurls = [_listening(each) for each in self._registry.listeners.values()]
        nurls += [
            _waiting(each) for each in self._registry.waiting.values() if each.expires_us > now_us
        ]
        nurls += [
            Advertised(nurl, FOLLOWED, FOLLOWED, (follow.table,), follow.surl, "", None)
            for follow in self._registry.follows.values()
            for nurl in follow.followed
        ]
        chosen = [each for each in nurls if each.is_in(selection)]
        return sorted(chosen, key=lambda each: each.place)

    async def send(
        self, selection: Selection, surl: str, callbacks: tuple[tuple[str, str], ...]
    ) -> dict[str, Any]:
        """POST a Notify to each NURL that is meant, once; return which have accepted it, and why
        others have not."""
        nurls = list(dict.fromkeys(each.nurl for each in self._some(selection)))
        if len(nurls) > limits.NOTIFY_SEND_MAX:
            raise InvalidNotify(
                f"{len(nurls)} NURLs are meant; one request sends to at most "
                f"{limits.NOTIFY_SEND_MAX}. Name the event, the table, the source or the NURL."
            )
        body = form(surl, callbacks)
        reasons = await asyncio.gather(*(self._send(nurl, body) for nurl in nurls))
        outcome = dict(zip(nurls, reasons, strict=True))
        return {
            "sent": [nurl for nurl, reason in outcome.items() if not reason],
            "failed": {nurl: reason for nurl, reason in outcome.items() if reason},
        }

    async def _send(self, nurl: str, body: bytes) -> str:
        try:
            await self._notifier.post(nurl, body)
        except (EgressFailed, EgressRefused) as error:
            return error.detail
        return ""

    async def remove(self, selection: Selection) -> int:
        """Remove the NURLs that are meant, durably; return their number."""
        nurls = self._some(selection)
        for each in nurls:
            if each.state == FOLLOWED:
                await self._mirrors.forget_followed(each.tables[0], each.nurl)
        registry = self._registry
        for listener in list(registry.listeners.values()):
            if _listening(listener).is_in(selection):
                await registry.remove(listener)
        for waiting in list(registry.waiting.values()):
            if _waiting(waiting).is_in(selection):
                await registry.remove(waiting)
        return len(nurls)

    def _some(self, selection: Selection) -> list[Advertised]:
        nurls = self.all(selection)
        if not nurls:
            raise NurlNotFound("No peer has advertised such a NURL; GET /v1/nurls lists them.")
        return nurls


def _listening(listener: Listener) -> Advertised:
    return Advertised(
        listener.nurl,
        listener.event,
        listener.state,
        (listener.table,),
        listener.source,
        listener.reason,
        None,
    )


def _waiting(waiting: Waiting) -> Advertised:
    expires_at = format_expires_at(waiting.expires_us)
    return Advertised(
        waiting.nurl, waiting.event, "waiting", waiting.tables, waiting.source, "", expires_at
    )
