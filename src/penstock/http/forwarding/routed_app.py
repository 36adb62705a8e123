"""The Application of a process that serves with peers: what it owns is answered here, everything
else where it belongs.

`RoutedApp` stands before the App at the public address, `PeerApp` at the address for peers, where
no request is forwarded again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from penstock.errors import NotOwner, PenstockError, TableExists, TableNotFound
from penstock.http.forwarding.control import is_control
from penstock.http.forwarding.forwarder import kept, owner_named
from penstock.http.forwarding.gather import answered, later, merged_page
from penstock.http.forwarding.hop import HEADER, OWNER
from penstock.http.forwarding.owners import unowned
from penstock.http.forwarding.places import PAGES, PLACES, Place
from penstock.http.message import Request, Response
from penstock.http.problems import error_response, problem
from penstock.stp.declaration import table_locations

if TYPE_CHECKING:
    from penstock.http.app import App
    from penstock.http.endpoint import Answer, Handler
    from penstock.http.forwarding.control import Control
    from penstock.http.forwarding.forwarder import Forwarder
    from penstock.http.forwarding.gather import Gatherer
    from penstock.http.forwarding.homes import Homes
    from penstock.http.forwarding.hop import Hops
    from penstock.http.forwarding.owners import Owners, Peer
    from penstock.http.forwarding.shares import Shares

_LINK: Final = b"link="


class Forward:
    """The handler of a request that a peer answers. Requests of the same head share it."""

    __slots__ = ("_app", "_handler", "peer", "query")

    def __init__(
        self, app: RoutedApp, peer: Peer, handler: Handler, query: bytes | None = None
    ) -> None:
        self._app = app
        self._handler = handler
        self.query = query
        """The query as it was sent, if a credential was taken from it."""
        self.peer = peer

    def __call__(self, path: str, request: Request) -> Coroutine[Any, Any, Response]:
        return self._app.forwarded(self.peer, self._handler, path, kept(request, self.query))


class RoutedApp:
    """An Application over an App. Only the head of a request decides where it goes, but for what
    depends on links, which is looked up when it is answered."""

    def __init__(
        self,
        app: App,
        owners: Owners,
        forwarder: Forwarder,
        homes: Homes,
        gatherer: Gatherer,
        shares: Shares,
    ) -> None:
        self._app = app
        self._owners = owners
        self._forwarder = forwarder
        self._homes = homes
        self._gatherer = gatherer
        self._shares = shares
        self._here: dict[tuple[Handler, Place], Handler] = {}

    # -- Application

    def refuse(self, head: Request) -> Response | None:
        query = head.query
        response = self._app.refuse(head)
        if response is not None or head.route is None:
            return response
        try:
            self._place(head, query if _LINK in query else None)
        except PenstockError as error:
            return self._app.traffic.count(head.method, self._app.traffic.failed(error, head))
        return None

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        route = request.route
        if route is not None and route[0].__class__ is Forward:
            return route[0](route[1], request)
        return self._app.handle(request)

    def unreadable(self, error: PenstockError) -> Response:
        return self._app.unreadable(error)

    def drain(self) -> None:
        self._app.drain()

    # -- where requests go

    def _place(self, head: Request, query: bytes | None) -> None:
        """Set the handler of a request that was let in."""
        handler, path, stats = head.route
        place = PLACES[stats.route]
        if place is Place.HERE:
            return
        if place is Place.PATH or place is Place.TABLE:
            peer = self._owners.owner(path)
        elif place is Place.SUBSCRIPTION:
            peer = self._owners.owner(subscription_key(path))
        elif place is Place.FIRST:
            peer = self._shares.first()
        else:
            head.route = (self._gathered(handler, place, stats.route), path, stats)
            return
        if place is Place.TABLE:
            head.route = (partial(later, partial(self._table, handler)), path, stats)
        elif peer is None:
            if place is Place.PATH:
                head.route = (self._at_home(handler), path, stats)
            elif place is Place.SUBSCRIPTION:
                head.route = (self._shares.subscription(handler), path, stats)
            elif place is Place.FIRST:
                head.route = (self._shares.shared(handler, stats), path, stats)
        elif place is Place.PATH and self._homes.is_guest(path):
            head.route = (partial(self._guest, handler, peer), path, stats)
        else:
            head.route = (Forward(self, peer, handler, query), path, stats)

    def _at_home(self, handler: Handler) -> Handler:
        key = (handler, Place.PATH)
        wrapped = self._here.get(key)
        if wrapped is None:
            # Audited handlers are made per request: only those of endpoints are worth keeping.
            wrapped = partial(self._homes.at_home, handler)
            if not isinstance(handler, partial):
                self._here[key] = wrapped
        return wrapped

    def _guest(self, handler: Handler, home: Peer, path: str, request: Request) -> Answer:
        """Answer a request about a stream that lived here when its head was read."""
        if self._homes.is_guest(path) and request.method != "PUT":
            return handler(path, request)
        return self.forwarded(home, handler, path, kept(request))

    async def forwarded(
        self, peer: Peer, handler: Handler, path: str, request: Request
    ) -> Response:
        """Return the answer of a peer; of this process, if the peer says that it is here. Never
        raises."""
        try:
            response = await self._forwarder.forward(peer, request)
            if owner_named(response) == self._owners.name:
                return await answered(handler, path, request)
        except PenstockError as error:
            return self._app.traffic.failed(error, request)
        return response

    # -- tables

    async def _table(self, handler: Handler, path: str, request: Request) -> Response:
        """Answer a request about a table, which is of the stream at its path or the one above."""
        places = [stream for stream, _ in table_locations(path)]
        if request.method == "PUT" and b"key=" not in request.query:
            places = self._shares.declared_at(path, request.body, places)
            if len(places) > 1 and await self._is_taken(path, places):
                raise TableExists(
                    f"{path!r} is already a table of another stream; send that as `stream`."
                )
            places = places[:1]
        response = None
        asked: set[str] = set()
        for stream in places:
            name = await self._homes.locate(stream)
            if name in asked:
                continue
            asked.add(name)
            try:
                response = await self._table_at(name, handler, path, request)
            except TableNotFound as error:
                response = problem(error)
            if response.status != 404 or not is_missing_table(response):
                return response
        assert response is not None
        return response

    async def _table_at(self, name: str, handler: Handler, path: str, request: Request) -> Response:
        if name == self._owners.name:
            return await answered(handler, path, request)
        peer = self._owners.peer(name)
        assert peer is not None
        return await self._forwarder.forward(peer, request, is_local=True)

    async def _is_taken(self, path: str, places: list[str]) -> bool:
        """Whether another process than the one that is to declare a table has one at its path."""
        declaring, other = [await self._homes.locate(stream) for stream in places[:2]]
        if other == declaring:
            return False  # The declaration itself looks there.
        return await self._shares.has_table(other, path)

    # -- answers of all

    def _gathered(self, handler: Handler, place: Place, route: str) -> Handler:
        if place is Place.PAGES:
            return partial(later, partial(self._pages, handler, route))
        return self._shares.all(route, handler)

    async def _pages(self, handler: Handler, route: str, path: str, request: Request) -> Response:
        responses = await self._gatherer.ask(handler, path, request)
        return merged_page(PAGES[route], request, responses)


class PeerApp:
    """The Application for peers: it answers what is here, and says who owns the rest."""

    def __init__(
        self,
        app: App,
        owners: Owners,
        hops: Hops,
        homes: Homes,
        control: Control,
        shares: Shares,
    ) -> None:
        self._app = app
        self._owners = owners
        self._hops = hops
        self._homes = homes
        self._control = control
        self._shares = shares

    def refuse(self, head: Request) -> Response | None:
        value = head.headers.get(HEADER)
        hop = None if value is None else self._hops.parse(value)
        if hop is None:
            return problem(NotOwner("Only peers of this server are answered here."))
        head.sender = hop.sender
        if is_control(head):
            return None
        response = self._app.refuse(head)
        if response is not None or head.route is None:
            return response
        try:
            self._place(head, is_local=hop.is_local)
        except PenstockError as error:
            return problem(error)
        return None

    def handle(self, request: Request) -> Response | Awaitable[Response]:
        if is_control(request):
            return self._control.answer(request.path, request.body)
        return self._app.handle(request)

    def unreadable(self, error: PenstockError) -> Response:
        return error_response(error)

    def drain(self) -> None:
        """The App is drained at the public address."""

    def _place(self, head: Request, *, is_local: bool) -> None:
        handler, path, stats = head.route
        place = PLACES[stats.route]
        if place is Place.FIRST:
            head.route = (self._shares.shared(handler, stats), path, stats)
        if place is Place.SUBSCRIPTION:
            head.route = (self._shares.subscription(handler), path, stats)
            if self._owners.owner(subscription_key(path)) is not None:
                raise _elsewhere(path, None)
        if place is not Place.PATH:
            return
        home = self._owners.owner(path)
        if is_local:
            if home is not None:
                head.route = (partial(later, partial(self._homes.as_guest, handler)), path, stats)
            return
        if home is not None:
            raise _elsewhere(path, None)
        name = self._homes.linked(path)
        if head.method == "PUT":
            # The home itself decides where a stream is created, and asks there.
            head.route = (partial(self._homes.at_home, handler), path, stats)
        elif name is not None:
            raise _elsewhere(path, name)


def _elsewhere(path: str, owner: str | None) -> NotOwner:
    error = unowned(f"{path!r} is not owned here.")
    if owner is not None:
        error.headers[OWNER.decode()] = owner
    return error


def subscription_key(path: str) -> str:
    """Return what decides on the owner of the subscription at a path behind the prefix: its id."""
    return "__ds/subscriptions/" + unquote(path.partition("/")[0])


def is_missing_table(response: Response) -> bool:
    return isinstance(response.body, bytes) and TableNotFound.code.encode() in response.body
