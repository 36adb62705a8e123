"""The registry: which NURLs listen to which tables, which wait for one, and which tables follow
which sources.

It is a state stream that the server alone writes, so that its entries survive restarts and can be
read like any state. Knows nothing of HTTP.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penstock.errors import MirrorReadOnly
from penstock.log.requests import Proposal, Writer
from penstock.log.system_stream import Event, SystemStream, Undo
from penstock.protocol.outbound import parse_url
from penstock.state.declaration import META as STATE
from penstock.state.declaration import Declaration
from penstock.state.declaration import encode as encode_declaration

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.stream import Stream
    from penstock.state.server.indexer import StateIndexer

PATH: Final = "__stp/registry"
PART_PATH: Final = "__ds/stp-registry"
"""Where a process that has only some of the tables keeps its entries: no client reads them."""
OWNER: Final = "stp-owner"
"""The meta value of streams that only the server writes: mirrors, and the registry."""
SERVER: Final = b"the server itself"
"""The value of `OWNER` in streams of records that no client may change, such as the registry."""
LAST_NOTIFIED: Final = "stp-told"
"""The meta value with the last SeqNo sent to each listener. It changes too often to be an event."""
LISTENER: Final = "listener"
FOLLOW: Final = "follow"
WAITING: Final = "waiting"
FOLLOWED: Final = "followed"
"""The event of a NURL that is to learn when the table that came with it is followed."""


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A NURL that is notified when a table of this server changes. `surl` is the table's URL as the
    listener knows it, `source` the table of its own that it named with the NURL."""

    table: str
    nurl: str
    surl: str
    event: str
    state: Literal["active", "given-up"] = "active"
    reason: str = ""
    source: str = ""

    @property
    def key(self) -> str:
        return f"{self.table} {self.nurl}"

    @property
    def host(self) -> str:
        return parse_url(self.nurl).host


class Follow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table of this server that mirrors another.

    The first `own_bytes` of its stream were there before. `base` is the URL of this server as the
    client that asked for the mirror knew it. `followed` are the NURLs that learn of the following.
    `links` is how deep the tables that its records name are followed; those have as their `root`
    the mirror where that began.
    """

    table: str
    surl: str
    stream: int
    nurl: str = ""
    own_bytes: int = 0
    base: str = ""
    followed: tuple[str, ...] = ()
    links: int = 0
    root: str = ""

    @property
    def key(self) -> str:
        return self.table

    @property
    def host(self) -> str:
        return parse_url(self.surl).host


class Waiting(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A NURL that a peer has advertised, and that nothing here uses yet.

    It becomes a listener when one of `tables` is declared, or learns of it when `source`, the
    peer's own table, is followed. `surl` is the URL of our table, if the peer named one; else it is
    made of `base`, the URL of this server as the peer knows it.
    """

    name: str
    event: str
    nurl: str
    expires_us: int
    tables: tuple[str, ...] = ()
    source: str = ""
    surl: str = ""
    base: str = ""

    @property
    def key(self) -> str:
        return f"{self.name} {self.event} {self.nurl} {self.source}".rstrip()

    @property
    def host(self) -> str:
        return parse_url(self.nurl).host


Entry = Listener | Follow | Waiting
_KINDS: Final[dict[type[Entry], str]] = {Listener: LISTENER, Follow: FOLLOW, Waiting: WAITING}
_TYPES: Final[dict[str, type[Entry]]] = {kind: type for type, kind in _KINDS.items()}


def check_writer(proposal: Proposal) -> None:
    """Refuse appends to the server's own streams unless the server makes them."""
    if proposal.writer is Writer.SERVER:
        return
    if proposal.value == SERVER:
        raise MirrorReadOnly(f"Only the server writes to {proposal.stream.path!r}; it can be read.")
    raise MirrorReadOnly(
        f"{proposal.stream.path!r} is written by {proposal.value.decode()[:200]} alone; "
        "to write to a mirror, end its following first."
    )


class Registry:
    """All entries by their key, and the stream that has them."""

    def __init__(self, engine: Engine, indexer: StateIndexer, *, path: str = PATH) -> None:
        self._engine = engine
        self._indexer = indexer
        self._path = path
        self._stream = SystemStream(engine, path, prepare=self._declare)
        self.listeners: dict[str, Listener] = {}
        self.follows: dict[str, Follow] = {}
        self.waiting: dict[str, Waiting] = {}
        self.follows_version = 0
        """A number that grows with every change of `follows`."""
        self.last_notified: dict[str, int] = {}
        # The number of entries for each host.
        self.listener_hosts: Counter[str] = Counter()
        self.follow_hosts: Counter[str] = Counter()
        self.waiting_hosts: Counter[str] = Counter()

    @property
    def exists(self) -> bool:
        return self._stream.exists

    async def load(self) -> None:
        """Read all entries back after a start."""
        if not self.exists:
            return
        async for events in self._stream.pieces():
            for event in events:
                self._set(event["type"], event["key"], _decode(event))
        value = self._stream.meta(LAST_NOTIFIED)
        if value is not None:
            seqnos = msgspec.json.decode(value, type=dict[str, int])
            self.last_notified = {key: seqnos[key] for key in self.listeners if key in seqnos}

    async def put(self, entry: Entry) -> bool:
        """Add or replace an entry, durably; return False if it was the same before."""
        before = self._entries(_kind(entry)).get(entry.key)
        if before == entry:
            await self._stream.caught_up()  # It may have been put in this moment.
            return False
        await self._write(_kind(entry), entry.key, entry)
        return True

    async def remove(self, entry: Entry) -> None:
        """Remove an entry, durably; do nothing if there is none."""
        if entry.key in self._entries(_kind(entry)):
            await self._write(_kind(entry), entry.key, None)
        else:
            await self._stream.caught_up()

    def waiting_for(self, source: str, now_us: int) -> list[Waiting]:
        """Return the NURLs that are to learn when a table of their own is followed."""
        return [
            each
            for each in self.waiting.values()
            if each.event == FOLLOWED and each.source == source and each.expires_us > now_us
        ]

    def save_last_notified(self) -> asyncio.Future[None]:
        """Make the last SeqNos that were sent to listeners durable."""
        self.last_notified = {
            key: seqno for key, seqno in self.last_notified.items() if key in self.listeners
        }
        return self._stream.set_meta(LAST_NOTIFIED, msgspec.json.encode(self.last_notified))

    async def _write(self, kind: str, key: str, entry: Entry | None) -> None:
        await self._stream.ensure()
        # In memory at once, so that the next decision sees it; the answer waits for the disk.
        before = self._set(kind, key, entry)
        event = _event(kind, key, entry, is_new=before is None)
        await self._stream.write([event], undo=self._undo(kind, key, before, entry))

    def _undo(self, kind: str, key: str, before: Entry | None, after: Entry | None) -> Undo:
        def undo() -> None:
            if self._entries(kind).get(key) is after:
                self._set(kind, key, before)

        return undo

    def _set(self, kind: str, key: str, entry: Entry | None) -> Entry | None:
        """Set or remove an entry in memory; return the one before."""
        entries, hosts = self._entries(kind), self._hosts(kind)
        if kind == FOLLOW:
            self.follows_version += 1
        before: Entry | None = entries.pop(key, None)
        if before is not None:
            hosts[before.host] -= 1
        if entry is not None:
            entries[key] = entry
            hosts[entry.host] += 1
        return before

    def _entries(self, kind: str) -> dict[str, Any]:
        entries: dict[str, dict[str, Any]] = {
            LISTENER: self.listeners,
            FOLLOW: self.follows,
            WAITING: self.waiting,
        }
        return entries[kind]

    def _hosts(self, kind: str) -> Counter[str]:
        hosts = {LISTENER: self.listener_hosts, FOLLOW: self.follow_hosts}
        return hosts.get(kind, self.waiting_hosts)

    async def _declare(self, stream: Stream) -> None:
        """Reserve the new stream for the server and declare its types."""
        engine = self._engine
        await engine.set_meta(self._path, OWNER, SERVER)
        if STATE not in stream.meta:
            types = {kind: {"schema": {"type": "object"}} for kind in _TYPES}
            offset = engine.token(stream, stream.tail)
            declaration = Declaration(
                version=1, mode="reject", types=types, offset=offset, ordinal=stream.count
            )
            await engine.set_meta(self._path, STATE, encode_declaration(declaration))
        self._indexer.follow(stream)


def _kind(entry: Entry) -> str:
    return _KINDS[type(entry)]


def _event(kind: str, key: str, entry: Entry | None, *, is_new: bool) -> Event:
    if entry is None:
        return {"type": kind, "key": key, "headers": {"operation": "delete"}}
    operation = "insert" if is_new else "update"
    return {
        "type": kind,
        "key": key,
        "headers": {"operation": operation},
        "value": msgspec.to_builtins(entry),
    }


def _decode(event: Event) -> Entry | None:
    value = event.get("value")
    if value is None:
        return None
    return msgspec.convert(value, _TYPES[event["type"]])
