"""The registry: who is told of which table, and which tables follow whom.

It is itself a state stream, written by the server alone: what is there survives restarts and can be
read like any state.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Any, Final, Literal

import msgspec

from penstock.errors import MirrorReadOnly, PenstockError, StreamNotFound
from penstock.log import retention
from penstock.log.requests import Append, Proposal, Writer
from penstock.protocol.json_mode import unframe
from penstock.protocol.lifecycle import StreamConfig
from penstock.protocol.outbound import parse_url
from penstock.protocol.retention import FOREVER
from penstock.state.declaration import META as STATE
from penstock.state.declaration import Declaration
from penstock.state.declaration import encode as encode_declaration

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.state.server.indexer import StateIndexer

PATH: Final = "__stp/registry"
OWNER: Final = "stp-owner"
"""The meta value of streams that the server alone writes to: mirrors, and the registry."""
TOLD: Final = "stp-told"
"""What the listeners know: kept beside the events, for it changes too often to be one."""
LISTENER: Final = "listener"
FOLLOW: Final = "follow"
PIECE_BYTES: Final = 256 * 1024

_JSON: Final = "application/json"


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """A NURL that is told when a table of ours moves. `surl` is how its peer knows that table."""

    table: str
    nurl: str
    surl: str
    event: str
    state: Literal["active", "given-up"] = "active"
    reason: str = ""

    @property
    def key(self) -> str:
        return f"{self.table} {self.nurl}"

    @property
    def host(self) -> str:
        return parse_url(self.nurl).host


class Follow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A table of ours that mirrors another.

    `own_bytes` of its stream were there before; `base` is this server as who asked for it knew it.
    """

    table: str
    surl: str
    stream: int
    nurl: str = ""
    own_bytes: int = 0
    base: str = ""

    @property
    def key(self) -> str:
        return self.table

    @property
    def host(self) -> str:
        return parse_url(self.surl).host


Entry = Listener | Follow


def check_writer(proposal: Proposal) -> None:
    """Refuse appends to the server's own streams unless the server makes them."""
    if proposal.writer is not Writer.SERVER:
        raise MirrorReadOnly(
            f"{proposal.stream.path!r} is written by {proposal.value.decode()[:200]} alone; "
            "to write to a mirror, end its following first."
        )


class Registry:
    def __init__(self, engine: Engine, keeper: StateIndexer) -> None:
        self._engine = engine
        self._keeper = keeper
        self._making: asyncio.Future[None] | None = None
        self.listeners: dict[str, Listener] = {}
        self.follows: dict[str, Follow] = {}
        self.told: dict[str, int] = {}
        # How many entries are about each host.
        self.listener_hosts: Counter[str] = Counter()
        self.follow_hosts: Counter[str] = Counter()

    async def load(self) -> None:
        """Take up what was there before."""
        try:
            stream = self._engine.find(PATH, touch=False)
        except StreamNotFound:
            return
        start = stream.earliest
        while start < stream.tail:
            end = await self._engine.plan(stream, start, max_bytes=PIECE_BYTES)
            wire = await self._keeper.read(stream, start, end)
            for event in msgspec.json.decode(unframe(wire), type=list[dict[str, Any]]):
                self._apply(event)
            start = end
        known = stream.meta.get(TOLD)
        if known is not None:
            told = msgspec.json.decode(known, type=dict[str, int])
            self.told = {key: told[key] for key in self.listeners if key in told}

    async def put(self, entry: Entry) -> bool:
        """Keep an entry, durably; False if it was there just so."""
        kind, known = self._place(entry)
        before = known.get(entry.key)
        if before == entry:
            return False
        operation = "insert" if before is None else "update"
        await self._write(kind, entry.key, operation, entry)
        return True

    async def remove(self, entry: Entry) -> None:
        kind, known = self._place(entry)
        if entry.key in known:
            await self._write(kind, entry.key, "delete", None)

    def keep_told(self) -> asyncio.Future[None]:
        """Make durable what the listeners know."""
        self.told = {key: seqno for key, seqno in self.told.items() if key in self.listeners}
        return self._engine.set_meta(PATH, TOLD, msgspec.json.encode(self.told))

    def _place(self, entry: Entry) -> tuple[str, dict[str, Any]]:
        if isinstance(entry, Listener):
            return LISTENER, self.listeners
        return FOLLOW, self.follows

    async def _write(self, kind: str, key: str, operation: str, entry: Entry | None) -> None:
        await self._made()
        event: dict[str, Any] = {"type": kind, "key": key, "headers": {"operation": operation}}
        if entry is not None:
            event["value"] = msgspec.to_builtins(entry)
        body = msgspec.json.encode([event])
        request = Append(body, _JSON, False, None, None, None, Writer.SERVER)
        done = self._engine.append(PATH, request)
        # At once, so that what is decided next is decided on it; the answer waits for the disk.
        before = self._apply(event)
        try:
            await done
        except PenstockError:
            value = None if before is None else msgspec.to_builtins(before)
            self._apply({**event, "value": value})
            raise

    def _apply(self, event: dict[str, Any]) -> Entry | None:
        """Take an event in; what was there before it."""
        key, value = event["key"], event.get("value")
        is_listener = event["type"] == LISTENER
        known: dict[str, Any] = self.listeners if is_listener else self.follows
        hosts = self.listener_hosts if is_listener else self.follow_hosts
        before: Entry | None = known.pop(key, None)
        if before is not None:
            hosts[before.host] -= 1
        if value is not None:
            kind: Any = Listener if is_listener else Follow
            entry: Entry = msgspec.convert(value, kind)
            known[key] = entry
            hosts[entry.host] += 1
        return before

    async def _made(self) -> None:
        """The stream, made and declared when it is first needed."""
        if self._making is None or (self._making.done() and self._making.exception()):
            self._making = asyncio.ensure_future(self._make())
        await asyncio.shield(self._making)

    async def _make(self) -> None:
        engine = self._engine
        await engine.create(PATH, StreamConfig(_JSON, None, None), b"", closed=False)
        stream = engine.find(PATH, touch=False)
        await engine.set_meta(PATH, OWNER, b"the server itself")
        # A rule of retention for all streams must not take what is followed and who is told.
        await engine.set_meta(PATH, retention.META, retention.encode(FOREVER))
        if STATE not in stream.meta:
            types = {kind: {"schema": {"type": "object"}} for kind in (LISTENER, FOLLOW)}
            offset = engine.token(stream, stream.tail)
            declaration = Declaration(
                version=1, mode="reject", types=types, offset=offset, ordinal=stream.count
            )
            await engine.set_meta(PATH, STATE, encode_declaration(declaration))
        self._keeper.follow(stream)
