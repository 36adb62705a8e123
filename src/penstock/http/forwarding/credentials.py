"""Tokens and the key of links in all processes: stored by the first, known to every one.

The first answers a change only when every other one that runs knows of it. One that starts asks the
first before it serves.
"""

from __future__ import annotations

import asyncio
import logging
from binascii import a2b_base64, b2a_base64
from typing import TYPE_CHECKING, Any, Final

import msgspec

from penstock.access.tokens import Token
from penstock.errors import NotOwner

if TYPE_CHECKING:
    from penstock.http.access.dialect import AccessDialect
    from penstock.http.forwarding.control import Control
    from penstock.http.forwarding.owners import Peer
    from penstock.http.forwarding.peers import Peers

log = logging.getLogger("penstock.http")

ASK_AGAIN_S: Final = 0.05
PUSH_TRIES: Final = 20


class SharedCredentials:
    """`first` is the process that stores credentials, None for this one."""

    def __init__(
        self, dialect: AccessDialect, peers: Peers, control: Control, first: Peer | None
    ) -> None:
        self._dialect = dialect
        self._peers = peers
        self._first = first
        control.add("credentials", self._show)
        control.add("adopt", self._adopt)

    async def fetch(self) -> None:
        """Learn all credentials at a start; wait until the first process can say them."""
        if self._first is None:
            return
        while True:
            try:
                await self._adopt(await self._peers.ask(self._first, "credentials", None))
            except NotOwner:
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                return

    async def push(self) -> None:
        """Tell all others; one that does not run learns it at its start."""
        snapshot = await self._show(None)
        await asyncio.gather(*(self._push(peer, snapshot) for peer in self._peers.owners.peers()))

    async def _push(self, peer: Peer, snapshot: Any) -> None:
        for _ in range(PUSH_TRIES):
            try:
                await self._peers.ask(peer, "adopt", snapshot)
            except NotOwner:
                await asyncio.sleep(ASK_AGAIN_S)
            else:
                return
        log.warning("%s does not run: it learns of new credentials when it starts", peer.name)

    async def _show(self, question: Any) -> dict[str, Any]:
        dialect = self._dialect
        key = dialect.links.key
        return {
            "exists": dialect.store.exists,
            "tokens": msgspec.to_builtins(dialect.store.all()),
            "key": None if key is None else b2a_base64(key, newline=False).decode(),
        }

    async def _adopt(self, snapshot: dict[str, Any]) -> bool:
        key = snapshot["key"]
        self._dialect.adopt(
            msgspec.convert(snapshot["tokens"], list[Token]),
            None if key is None else a2b_base64(key),
            exists=snapshot["exists"],
        )
        return True
