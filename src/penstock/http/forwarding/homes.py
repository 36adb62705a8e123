"""The home of a path: which stream is where, and who decides about a new one.

A path is at home with its owner. A fork lives with its source, so that the home of a fork may only
have a link to it: see path_links.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from penstock.errors import PenstockError, StreamNotFound
from penstock.http.forwarding.forwarder import kept
from penstock.http.forwarding.gather import answered
from penstock.http.forwarding.owners import unowned
from penstock.http.forwarding.path_links import GUEST, LINK
from penstock.http.router import parse_source

if TYPE_CHECKING:
    from penstock.http.endpoint import Answer, Handler
    from penstock.http.forwarding.control import Control
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.owners import Peer
    from penstock.http.forwarding.path_links import PathLinks
    from penstock.http.forwarding.peers import Peers
    from penstock.http.message import Request, Response
    from penstock.log.engine import Engine
    from penstock.log.mutations import Mutation

FORKED_FROM: Final = b"stream-forked-from"
SWEEP_AGAIN_S: Final = 5.0

_log = logging.getLogger("penstock.http")

T = TypeVar("T")


class Homes:
    """Answers requests about paths that are at home here, or whose stream is a guest here."""

    def __init__(
        self,
        engine: Engine,
        links: PathLinks,
        peers: Peers,
        forwarder: Forwarder,
        control: Control,
        *,
        path_bytes_max: int,
    ) -> None:
        self._engine = engine
        self._links = links
        self._peers = peers
        self._owners = peers.owners
        self._forwarder = forwarder
        self._path_bytes_max = path_bytes_max
        self._tasks: set[asyncio.Task[Any]] = set()
        self._releasing: set[str] = set()  # paths whose links may be about to go
        control.add("locate", self._locate_here)
        control.add("leads", self._leads)
        control.add("release", self._release_guest)
        control.add("unlink", self._unlink)
        control.add("relink", self._relink)

    def start(self) -> None:
        self._engine.listen(self._committed)
        self._spawn(self._sweep())

    def close(self) -> None:
        self._engine.unlisten(self._committed)
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- requests

    def is_guest(self, path: str) -> bool:
        return path in self._links.guests

    def linked(self, path: str) -> str | None:
        """Return the name of the peer where the stream of a path at home here lives, if any."""
        return self._links.links.get(path)

    def at_home(self, handler: Handler, path: str, request: Request) -> Answer:
        """Answer a request about a path that is at home here."""
        links = self._links
        if request.method == "PUT" and (
            FORKED_FROM in request.headers or path in links.links or links.is_moving(path)
        ):
            return self._create(handler, path, kept(request))
        name = links.links.get(path)
        if name is None:
            return handler(path, request)
        peer = self._owners.peer(name)
        assert peer is not None
        return self._forwarder.forward(peer, kept(request), is_local=True)

    async def as_guest(self, handler: Handler, path: str, request: Request) -> Response:
        """Answer a request that the home of a path has sent here: its stream is here, if any."""
        home = self._owners.owner(path)
        if request.method != "PUT" or home is None:
            return await answered(handler, path, request)
        # If the home goes away meanwhile, what was begun is finished before the path is given up.
        work = self._spawn(self._create_guest(handler, path, request, home))
        try:
            return await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_ignore)
            raise

    async def _create_guest(
        self, handler: Handler, path: str, request: Request, home: Peer
    ) -> Response:
        """Create a stream here, if its path leads here. A request that was late on its way may come
        when the path was given up: nobody would find the stream."""
        async with self._links.deciding(path):
            await self._links.set(GUEST, path, home.name)
            if not await self._peers.ask(home, "leads", [path, self._owners.name]):
                if not self._exists(path):
                    await self._links.set(GUEST, path, None)
                raise unowned(f"The path {path!r} does not lead here any more.")
            return await answered(handler, path, request)

    async def _create(self, handler: Handler, path: str, request: Request) -> Response:
        """Create a stream whose place has to be decided first."""
        async with self._links.deciding(path):
            name = self._links.links.get(path)
            if name is not None and not await self._released(path, name):
                peer = self._owners.peer(name)
                assert peer is not None
                return await self._forwarder.forward(peer, request, is_local=True)
            source = request.headers.get(FORKED_FROM)
            if source is None or self._exists(path):
                return await answered(handler, path, request)
            place = await self.locate(
                parse_source(source.decode("latin-1"), bytes_max=self._path_bytes_max)
            )
            peer = None if place == self._owners.name else self._owners.peer(place)
            if peer is None:
                return await answered(handler, path, request)
            await self._links.set(LINK, path, place)
            response = await self._forwarder.forward(peer, request, is_local=True)
            if response.status >= 400:
                await self._released(path, place)
            return response

    @contextlib.asynccontextmanager
    async def deciding(self, path: str) -> AsyncIterator[bool]:
        """Let nobody else decide about a new stream at a path that is at home here; the value is
        whether it can be here."""
        async with self._links.deciding(path):
            name = self._links.links.get(path)
            yield name is None or await self._released(path, name)

    def _exists(self, path: str) -> bool:
        try:
            self._engine.find(path, touch=False)
        except StreamNotFound:
            return False
        except PenstockError:
            pass  # it is kept for its forks
        return True

    # -- where streams live

    async def locate(self, path: str) -> str:
        """Return the name of the process where the stream of a path lives, if there is one."""
        home = self._owners.owner(path)
        if home is None:
            return await self._locate_here(path)
        if path in self._links.guests:
            return self._owners.name
        return str(await self._peers.ask(home, "locate", path))

    async def _locate_here(self, path: str) -> str:
        return self._links.links.get(path, self._owners.name)

    async def _leads(self, question: list[str]) -> bool:
        """Whether a path at home here has a link to a process, which stays for as long as that does
        not give the path up."""
        path, name = question
        if not self._engine.is_current():
            raise unowned(f"It is not known where {path!r} leads.")
        return self._links.links.get(path) == name and path not in self._releasing

    async def _released(self, path: str, name: str) -> bool:
        """Remove a link unless there is a stream behind it; return whether it was removed. It is
        being decided where the stream of the path lives."""
        self._releasing.add(path)
        try:
            peer = self._owners.peer(name)
            if peer is not None and not await self._peers.ask(peer, "release", path):
                return False
            await self._links.set(LINK, path, None)
            return True
        finally:
            self._releasing.discard(path)

    async def _release_guest(self, path: str) -> bool:
        """Give up a guest's path, if no stream is there."""
        async with self._links.deciding(path):
            if self._exists(path):
                return False
            await self._links.set(GUEST, path, None)
            return True

    async def _unlink(self, path: str) -> bool:
        """A guest has ended: remove the link to it, if it is not there again."""
        async with self._links.deciding(path):
            name = self._links.links.get(path)
            return name is None or await self._released(path, name)

    async def _relink(self, question: list[str]) -> bool:
        """A process has a guest that is at home here: make sure that there is a link to it."""
        path, name = question
        async with self._links.deciding(path):
            if path not in self._links.links and not self._exists(path):
                await self._links.set(LINK, path, name)
            return self._links.links.get(path) == name

    # -- upkeep

    def _committed(self, batch: Sequence[Mutation]) -> None:
        guests = self._links.guests
        if not guests:
            return
        for mutation in batch:
            for stream in mutation.ended:
                if stream.deleted and stream.path in guests:
                    self._spawn(self._ended(stream.path))

    async def _ended(self, path: str) -> None:
        home = self._owners.owner(path)
        if home is not None:
            try:
                await self._peers.ask(home, "unlink", path)
            except PenstockError as error:
                _log.info("the link to %r stays until the next start: %s", path, error.detail)

    async def _sweep(self) -> None:
        """Settle what a crash has left: links without a stream, and guests without a link."""
        left = [*((LINK, each) for each in self._links.links)]
        left += [(GUEST, each) for each in self._links.guests]
        while left:
            failed = []
            for kind, path in left:
                try:
                    await self._settle(kind, path)
                except PenstockError:
                    failed.append((kind, path))
            left = failed
            if left:
                await asyncio.sleep(SWEEP_AGAIN_S)

    async def _settle(self, kind: str, path: str) -> None:
        if kind == LINK:
            await self._unlink(path)
            return
        home = self._owners.owner(path)
        if home is None or not self.is_guest(path):
            return
        if self._exists(path):
            await self._peers.ask(home, "relink", [path, self._owners.name])
        else:
            await self._peers.ask(home, "unlink", path)


def _ignore(task: asyncio.Task[Any]) -> None:
    if not task.cancelled():
        task.exception()
