"""The streams of all peers, as the registry lists them: what each peer has said, and what has
changed since.

A peer that goes away keeps what it had until it has said again what it has.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from penstock.http.forwarding.listing_feed import LISTED, QUESTION
from penstock.http.forwarding.peer_lines import lines_of, read_again
from penstock.http.streams.registry import Entry

if TYPE_CHECKING:
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Owners, Peer

OnChanged = Callable[[Iterable[str]], None]


class ListedElsewhere:
    """What all peers have. `start` begins to ask them."""

    def __init__(self, owners: Owners, forwarder: Forwarder) -> None:
        self._owners = owners
        self._forwarder = forwarder
        self._lists: list[PeerList] = []

    def start(self, on_changed: OnChanged) -> None:
        self._lists = [PeerList(peer, self._forwarder, on_changed) for peer in self._owners.peers()]

    def close(self) -> None:
        for each in self._lists:
            each.close()

    @property
    def is_complete(self) -> bool:
        """Whether every peer has said what it has: what none has named is not there."""
        return all(each.is_complete for each in self._lists)

    def find(self, path: str) -> Entry | None:
        """Return the newest stream at a path: of a fork that was deleted, and made again with
        another peer, the first one may not have said so yet."""
        entries = [each.known[path] for each in self._lists if path in each.known]
        return max(entries, key=lambda entry: entry.created_ms, default=None)


class PeerList:
    """What one peer has; it is asked again whenever it comes back."""

    def __init__(self, peer: Peer, forwarder: Forwarder, on_changed: OnChanged) -> None:
        self.known: dict[str, Entry] = {}
        self.is_complete = False
        self._peer = peer
        self._forwarder = forwarder
        self._on_changed = on_changed
        self._named: set[str] | None = None  # while all streams are being named
        self._task = asyncio.get_running_loop().create_task(read_again(self._read, peer))

    def close(self) -> None:
        self._task.cancel()

    async def _read(self) -> None:
        self._named = set()
        async with lines_of(self._peer, self._forwarder, QUESTION, b"null", self._line) as lines:
            await lines.ended

    def _line(self, line: list[Any]) -> None:
        if line == LISTED:
            named, self._named = self._named or set(), None
            gone = [path for path in self.known if path not in named]
            for path in gone:
                del self.known[path]
            self.is_complete = True
            self._on_changed(gone)
            return
        path, *entry = line
        if self._named is not None:
            self._named.add(path)
        if entry:
            self.known[path] = Entry(*entry)
        else:
            self.known.pop(path, None)
        self._on_changed([path])
