"""The streams that subscriptions are about, wherever they are: in this process, unless somebody
says otherwise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation
    from penstock.log.requests import Append, Appended
    from penstock.log.stream import Stream, StreamInfo


class Change(Enum):
    """What a commit of another process did to a stream."""

    APPENDED = auto()
    CREATED = auto()
    ENDED = auto()


Listener = Callable[[Sequence["Mutation"]], None]
OnChange = Callable[[Change, "Stream"], None]


class Streams(Protocol):
    """What subscriptions ask of streams. Those of other processes are there once they are
    covered, a little later than in their own process."""

    @property
    def restore_generation(self) -> int: ...

    async def cover(self, patterns: Iterable[str], paths: Iterable[str]) -> None:
        """Know all streams that match from now on, wherever they are; NotOwner if that is not
        possible now."""

    async def secret(self) -> bytes | None:
        """Return the key of tokens that all processes share; None if there is only this one."""

    def follow(self, on_change: OnChange) -> None:
        """Call `on_change` with what other processes commit."""

    def listen(self, listener: Listener) -> None: ...

    def unlisten(self, listener: Listener) -> None: ...

    def find(self, path: str, *, touch: bool) -> Stream: ...

    async def fetch(self, path: str) -> None:
        """Bring a stream into memory, if there is one, for a `find` that follows at once."""

    async def list_streams(self, prefix: str, after: str, limit: int) -> list[StreamInfo]: ...

    def token(self, stream: Stream, position: int) -> str: ...

    async def position(self, stream: Stream, offset: str) -> int: ...

    def append(self, path: str, request: Append) -> asyncio.Future[Appended]: ...


class LocalStreams:
    """The streams of one engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.listen = engine.listen
        self.unlisten = engine.unlisten
        self.fetch = engine.fetch
        self.find = engine.find
        self.list_streams = engine.list_streams
        self.token = engine.token
        self.position = engine.position
        self.append = engine.append

    @property
    def restore_generation(self) -> int:
        return self._engine.restore_generation

    async def cover(self, patterns: Iterable[str], paths: Iterable[str]) -> None:
        """All streams are here."""

    async def secret(self) -> bytes | None:
        return None

    def follow(self, on_change: OnChange) -> None:
        """There is no other process."""
