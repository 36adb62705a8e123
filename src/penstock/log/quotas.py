"""Keeps the streams of a path prefix or pattern within their number and their bytes.

What is durable is counted when it is committed, what is decided is reserved until then: no two
writers can use the same room. Counts by the sizes of streams alone, never by their data. Engines
that share the quotas have their part of the room granted, and ask for more when that is used.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.errors import InvalidPath, PenstockError, QuotaExceeded
from penstock.log.mutations import Mutation
from penstock.log.requests import NotYet
from penstock.log.retention import applies
from penstock.protocol.quotas import Quota, parse_quotas

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log.store import Store
    from penstock.log.stream import Stream

log = logging.getLogger("penstock.log")

PAGE: Final = 2000
"""Streams counted before other work gets the event loop."""
REST: Final = 4
"""The pause after a page, as a multiple of the time that the page took."""
_CACHED_MAX: Final = 65_536
_OWN: Final = ("__ds/", "__stp/")
"""Where the server has its own records: they count for nobody, and are never refused."""
_REGISTRY: Final = "__registry__"


class Amount(NamedTuple):
    """A number of streams and of bytes."""

    streams: int
    bytes: int


class Usage:
    """What the streams of one rule have, and what is decided and not durable yet. `granted` is how
    much of `used` there may be, if other engines share the quota."""

    __slots__ = (
        "bytes",
        "granted",
        "is_counted",
        "quota",
        "reserved_bytes",
        "reserved_streams",
        "rule",
        "since",
        "streams",
    )

    def __init__(self, rule: str, quota: Quota) -> None:
        self.rule = rule
        self.quota = quota
        self.streams = 0
        self.bytes = 0
        self.reserved_streams = 0
        self.reserved_bytes = 0
        self.is_counted = False
        self.since = Amount(0, 0)
        """What was decided since the start, until all streams are counted."""
        self.granted = Amount(0, 0)

    @property
    def used(self) -> Amount:
        """What there is, and what is decided; only what is new, while streams are being counted."""
        if not self.is_counted:
            return self.since
        return Amount(self.streams + self.reserved_streams, self.bytes + self.reserved_bytes)

    def check(self, streams: int, size: int) -> None:
        """Raise QuotaExceeded if there is no room for so many more streams and bytes."""
        refusal = refusal_of(self.rule, self.quota, self.used, Amount(streams, size))
        if refusal is not None:
            raise QuotaExceeded(refusal)

    def is_granted(self, streams: int, size: int) -> bool:
        """Whether so many more streams and bytes are within what was granted."""
        quota, granted, used = self.quota, self.granted, self.used
        if streams and quota.streams is not None and used.streams + streams > granted.streams:
            return False
        return not size or quota.bytes is None or used.bytes + size <= granted.bytes

    def reserve(self, streams: int, size: int) -> None:
        self.reserved_streams += streams
        self.reserved_bytes += size


def refusal_of(rule: str, quota: Quota, used: Amount, more: Amount) -> str | None:
    """Return why there is no room for more, None if there is."""
    if more.streams and quota.streams is not None and used.streams + more.streams > quota.streams:
        return (
            f"{rule!r} has {used.streams} streams, and may have {quota.streams} (quotas). "
            "Delete some, or ask the operator for more."
        )
    if more.bytes and quota.bytes is not None and used.bytes + more.bytes > quota.bytes:
        return (
            f"{rule!r} has {used.bytes} bytes of data and may have {quota.bytes} (quotas): "
            f"{more.bytes} more do not fit. Trim or delete streams, or ask the operator for more."
        )
    return None


Room = Callable[[Sequence[Usage], Amount], Awaitable[None]]
"""Has more granted to usages, or raises QuotaExceeded."""


class Quotas:
    """The quotas of one engine; there is none of these without rules.

    Until `count` has seen all streams nothing is refused.
    """

    def __init__(self, rules: list[tuple[str, Quota]], *, exempts_registry: bool) -> None:
        self.usages: Final = [Usage(rule, quota) for rule, quota in rules]
        self._exempts_registry = exempts_registry
        self._by_path: dict[str, tuple[Usage, ...]] = {}
        self._room: Room | None = None
        self._on_counted: Callable[[], None] | None = None
        self._counted_id: float = 0
        """Streams with ids up to this one are in the usages; `count` comes to the others."""

    @property
    def is_ready(self) -> bool:
        """Whether all streams are counted."""
        return self._counted_id == inf

    def share(self, room: Room, on_counted: Callable[[], None]) -> None:
        """Use only what is granted from now on: other engines have the same quotas. `room` is asked
        when that is used; `on_counted` is called when `used` is all that there is."""
        self._room = room
        self._on_counted = on_counted

    # -- deciding

    def admit(self, path: str, *, streams: int, size: int) -> None:
        """Reserve room for a new stream, or for more bytes; QuotaExceeded if there is none, NotYet
        if it has to be granted first. What is reserved is submitted in the same step."""
        usages = self._usages(path)
        if self._room is not None:
            if not all(usage.is_granted(streams, size) for usage in usages):
                raise NotYet(partial(self._room, usages, Amount(streams, size)), blocks=True)
        elif self.is_ready:
            for usage in usages:
                usage.check(streams, size)
        for usage in usages:
            usage.reserve(streams, size)
            if not usage.is_counted:
                since = usage.since
                usage.since = Amount(since.streams + streams, since.bytes + size)

    def _usages(self, path: str) -> tuple[Usage, ...]:
        usages = self._by_path.get(path)
        if usages is None:
            usages = () if self._is_exempt(path) else self._matching(path)
            if len(self._by_path) >= _CACHED_MAX:
                self._by_path.clear()
            self._by_path[path] = usages
        return usages

    def _matching(self, path: str) -> tuple[Usage, ...]:
        return tuple(usage for usage in self.usages if applies(usage.rule, path))

    def _is_exempt(self, path: str) -> bool:
        return path.startswith(_OWN) or (self._exempts_registry and path == _REGISTRY)

    # -- counting

    def committed(self, batch: Sequence[Mutation]) -> None:
        """Count what a batch has changed, in place of what was reserved for it."""
        self.failed(batch)
        for mutation in batch:
            self._settle(mutation.stream)
            for stream in (*mutation.ended, *mutation.related):
                self._settle(stream)

    def failed(self, batch: Sequence[Mutation]) -> None:
        """Release what was reserved for a batch."""
        for mutation in batch:
            streams, size = mutation.reserved
            if streams or size:
                for usage in self._usages(mutation.stream.path):
                    usage.reserve(-streams, -size)

    def _settle(self, stream: Stream) -> None:
        """Count a stream as it is now."""
        before, after = stream.counted_bytes, None if stream.deleted else stream.held_bytes
        if before == after:
            return
        stream.counted_bytes = after
        if stream.id <= self._counted_id:
            streams = (after is not None) - (before is not None)
            for usage in self._usages(stream.path):
                usage.streams += streams
                usage.bytes += (after or 0) - (before or 0)

    async def count(self, store: Store) -> None:
        """Count all streams of a store, while it is in use."""
        while not self.is_ready:
            started = time.perf_counter()
            try:
                await self._count_page(store)
            except PenstockError as error:
                log.error(
                    "Cannot count the streams for the quotas, which have no effect: %s", error
                )
                self._room = None
                return
            await asyncio.sleep((time.perf_counter() - started) * REST)

    async def _count_page(self, store: Store) -> None:
        page = await store.sizes(int(self._counted_id), PAGE)
        for path, size in page.sizes:
            # Not `_usages`: paths that are not in use would push out those that are.
            if not self._is_exempt(path):
                for usage in self._matching(path):
                    usage.streams += 1
                    usage.bytes += size
        self._counted_id = inf if page.last_id is None else page.last_id
        if self.is_ready:
            for usage in self.usages:
                usage.is_counted = True
            if self._on_counted is not None:
                self._on_counted()


def quotas_of(settings: Settings) -> Quotas | None:
    """Return the quotas of the setting; InvalidPath names a pattern that is wrong."""
    try:
        rules = parse_quotas(settings.quotas)
    except InvalidPath as error:
        raise InvalidPath(f"Setting quotas: {error.detail}") from None
    return Quotas(rules, exempts_registry=settings.registry) if rules else None
