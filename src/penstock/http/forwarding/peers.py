"""Questions to peers: one at a time, or to all of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec

from penstock.errors import NotOwner, PenstockError
from penstock.http.forwarding.control import PREFIX

if TYPE_CHECKING:
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Owners, Peer


class Peers:
    """Asks what `Control` of another process answers."""

    __slots__ = ("_forwarder", "owners")

    def __init__(self, owners: Owners, forwarder: Forwarder) -> None:
        self.owners = owners
        self._forwarder = forwarder

    async def ask(self, peer: Peer, name: str, question: Any) -> Any:
        """Return the answer of a peer; NotOwner if it is not there or cannot answer."""
        response = await self._forwarder.ask(
            peer, "POST", PREFIX + name.encode(), msgspec.json.encode(question)
        )
        assert isinstance(response.body, bytes)
        content = msgspec.json.decode(response.body)
        if response.status != 200:
            raise NotOwner(f"{peer.name}: {content.get('detail', response.status)}")
        return content["answer"]

    async def ask_all(self, name: str, question: Any) -> dict[str, Any]:
        """Return the answers of all peers that are there, by their names."""
        peers = self.owners.peers()
        answers = await asyncio.gather(
            *(self.ask(peer, name, question) for peer in peers), return_exceptions=True
        )
        result = {}
        for peer, answer in zip(peers, answers, strict=True):
            if isinstance(answer, BaseException) and not isinstance(answer, PenstockError):
                raise answer
            if not isinstance(answer, BaseException):
                result[peer.name] = answer
        return result
