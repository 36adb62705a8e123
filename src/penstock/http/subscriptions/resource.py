"""`/v1/stream/__ds/subscriptions/<id>`, the resources below it, and the listing.

Parses documents and renders responses; the service decides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import unquote

from penstock.access.rules import Verb
from penstock.errors import (
    BodyTooLarge,
    InvalidPath,
    InvalidSubscription,
    MethodNotAllowed,
    Overloaded,
    PenstockError,
    RouteNotFound,
    SubscriptionError,
    SubscriptionNotFound,
)
from penstock.http.documents import document
from penstock.http.headers import server_url
from penstock.http.message import Request, Response
from penstock.http.permission import denied, principal_of
from penstock.http.problems import problem
from penstock.http.query import parse_count, parse_query
from penstock.limits import SUBSCRIPTION_ID_BYTES_MAX
from penstock.protocol.subscription import (
    Claim,
    Config,
    Members,
    Report,
    check_text,
    decode,
    parse_config,
    parse_member,
    parse_members,
)
from penstock.subscriptions.service import not_subscribed
from penstock.subscriptions.workers import no_token

if TYPE_CHECKING:
    from penstock.access.principal import Principal
    from penstock.config.settings import Settings
    from penstock.subscriptions.model import Subscription
    from penstock.subscriptions.service import Subscriptions

LIST = b"/v1/stream/__ds/subscriptions"
PREFIX = LIST + b"/"
LIMIT_DEFAULT = 100
SHOWN_MAX = 5
"""How often a document is rendered again because a change that it shows was undone."""

BELOW: Final = {
    "{id}": ("GET", "HEAD", "PUT", "DELETE"),
    "{id}/streams": ("POST",),
    "{id}/claim": ("POST",),
    "{id}/ack": ("POST",),
    "{id}/callback": ("POST",),
    "{id}/release": ("POST",),
    "{id}/streams/{path}": ("DELETE",),
}
"""The methods that are served at each path behind the prefix."""

_OWN_TOKENS = frozenset({b"callback", b"ack", b"release"})
_REPORT = '{"wake_id": …, "generation": …, "acks": [{"stream": …, "offset": …}], "done": …}'


class Parts(NamedTuple):
    """The parts of a request that are needed, taken before anything waits: a transport drops the
    body when a handler returns, also when it returns a coroutine."""

    body: bytes
    authorization: bytes
    base: str
    principal: Principal


Handler = Callable[[str, Parts], Awaitable[Response]]


def has_own_token(head: Request) -> bool:
    """Whether a POST below a subscription carries the token of a wake."""
    _, _, action = head.path[len(PREFIX) :].partition(b"/")
    return action in _OWN_TOKENS


class SubscriptionResource:
    """The methods of subscriptions."""

    def __init__(self, service: Subscriptions, settings: Settings) -> None:
        self._service = service
        self._settings = settings
        self._public_url = settings.public_url.rstrip("/")
        self._actions: dict[str, Handler] = {
            "streams": self._join,
            "claim": self._claim,
            "ack": self._ack,
            "callback": self._callback,
            "release": self._release,
        }

    # The methods

    def get(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        return self._durable(
            self._not_served(action) if action else self._show(id, self._parts(request))
        )

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        return self._durable(
            self._not_served(action) if action else self._put(id, self._parts(request))
        )

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        handler = self._actions.get(action)
        if handler is None:
            return self._durable(self._not_served(action))
        return self._durable(handler(id, self._parts(request)))

    def delete(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        parts = self._parts(request)
        if not action:
            return self._durable(self._delete(id, parts))
        kind, _, member = action.partition("/")
        if kind == "streams" and member:
            return self._durable(self._leave(id, member, parts))
        return self._durable(self._not_served(action))

    async def _not_served(self, action: str) -> Response:
        """Raise the error of a method that is not served at a path below a subscription."""
        kind, _, rest = action.partition("/")
        template = "{id}/streams/{path}" if kind == "streams" and rest else f"{{id}}/{action}"
        methods = BELOW.get(template.rstrip("/"))
        if methods is None:
            raise RouteNotFound(
                "Below a subscription there are only streams, claim, ack, release and callback."
            )
        allowed = ", ".join(methods)
        raise MethodNotAllowed(f"Use {allowed} here.", Allow=f"{allowed}, OPTIONS")

    def listing(self, path: str, request: Request) -> Awaitable[Response]:
        return self._durable(self._list(request.query, self._parts(request)))

    # The subscription

    async def _put(self, id: str, parts: Parts) -> Response:
        if len(id.encode()) > SUBSCRIPTION_ID_BYTES_MAX:
            raise InvalidSubscription(f"An id may have at most {SUBSCRIPTION_ID_BYTES_MAX} bytes.")
        config = parse_config(
            parts.body,
            path_bytes_max=self._settings.path_bytes_max,
            streams_max=self._settings.subscription_names_max,
        )
        check_config(parts.principal, config)
        subscription, created = await self._service.put(id, config, parts.base)
        if not created and not _may_manage(parts.principal, subscription):
            raise denied(parts.principal, Verb.SUBSCRIBE)
        shown = await self._seen(lambda: self._service.show(subscription, parts.base))
        return document(shown, 201 if created else 200)

    async def _show(self, id: str, parts: Parts) -> Response:
        async def show() -> dict[str, Any]:
            return await self._service.show(await self._find(id, parts.principal), parts.base)

        return document(await self._seen(show))

    async def _delete(self, id: str, parts: Parts) -> Response:
        with suppress(SubscriptionNotFound):  # A repeated DELETE is no error.
            await self._find(id, parts.principal)
            await self._service.delete(id)
        return Response(204)

    async def _list(self, text: bytes, parts: Parts) -> Response:
        query = parse_query(text, frozenset({"prefix", "after", "limit"}))
        limit = min(LIMIT_DEFAULT, self._settings.list_limit_max)
        if "limit" in query:
            limit = parse_count("limit", query["limit"], maximum=self._settings.list_limit_max)
        await self._service.ready()
        prefix, after = query.get("prefix", ""), query.get("after", "")

        async def show() -> dict[str, Any]:
            subscriptions = self._service.all
            ids = sorted(
                id
                for id, each in subscriptions.items()
                if id > after and id.startswith(prefix) and _may_manage(parts.principal, each)
            )
            page = [self._service.summary(subscriptions[id], parts.base) for id in ids[:limit]]
            return {"subscriptions": page, "next": ids[limit - 1] if len(ids) > limit else None}

        return document(await self._seen(show))

    # Its streams

    async def _join(self, id: str, parts: Parts) -> Response:
        members = decode(parts.body, Members, '{"streams": ["<path>", …]}')
        if not members.streams:
            raise InvalidSubscription("`streams` is empty; name at least one stream.")
        settings = self._settings
        paths = parse_members(
            members.streams, settings.path_bytes_max, settings.subscription_names_max
        )
        for path in paths:
            if not parts.principal.may(Verb.SUBSCRIBE, path):
                raise denied(parts.principal, Verb.SUBSCRIBE, path)
        await self._find(id, parts.principal)
        await self._service.add_members(id, paths)
        return Response(204)

    async def _leave(self, id: str, member: str, parts: Parts) -> Response:
        await self._find(id, parts.principal)
        # A path in a URL is percent-encoded once more, though its slashes need not be.
        paths = []
        for text in (unquote(member), member):
            try:
                paths.append(parse_member(text, self._settings.path_bytes_max))
            except InvalidSubscription:
                pass  # no stream can have such a path
        await self._service.remove_member(id, *paths)
        return Response(204)

    # Its workers

    async def _claim(self, id: str, parts: Parts) -> Response:
        claim = decode(parts.body, Claim, '{"worker": "<name>"}')
        if not claim.worker:
            raise InvalidSubscription("`worker` is empty; name the worker that claims.")
        check_text("worker", claim.worker)
        subscription = await self._find(id, parts.principal)
        return document(await self._service.workers.claim(subscription, claim.worker))

    async def _callback(self, id: str, parts: Parts) -> Response:
        token, report = _bearer(parts), decode(parts.body, Report, _REPORT)
        subscription = await self._service.get_by_token(id, token)
        return _ok(await self._service.workers.callback(subscription, token, report))

    async def _ack(self, id: str, parts: Parts) -> Response:
        token, report = _bearer(parts), decode(parts.body, Report, _REPORT)
        subscription = await self._service.get_by_token(id, token)
        return _ok(await self._service.workers.ack(subscription, token, report))

    async def _release(self, id: str, parts: Parts) -> Response:
        token, report = _bearer(parts), decode(parts.body, Report, _REPORT)
        subscription = await self._service.get_by_token(id, token)
        await self._service.workers.release(subscription, token, report)
        return Response(204)

    def _parts(self, request: Request) -> Parts:
        bytes_max = self._settings.subscription_bytes_max
        if len(request.body) > bytes_max:
            raise BodyTooLarge(
                f"A document about a subscription may have at most {bytes_max} bytes; "
                "add streams in several requests."
            )
        authorization = request.headers.get(b"authorization", b"")
        base = server_url(request, self._public_url)
        return Parts(request.body, authorization, base, principal_of(request))

    async def _find(self, id: str, principal: Principal) -> Subscription:
        """Return a subscription; raise SubscriptionNotFound also for one that nobody shares."""
        subscription = await self._service.get(id)
        if not _may_manage(principal, subscription):
            raise not_subscribed(id)
        return subscription

    async def _seen(self, show: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
        """Return what `show` returns, once all of it is durable: anew if some of it is undone."""
        store = self._service.store
        for _ in range(SHOWN_MAX):
            undone = store.undone
            shown = await show()
            with suppress(PenstockError):
                await store.caught_up()
            if store.undone == undone:
                return shown
        raise Overloaded("Changes of subscriptions cannot be written. Try again.", Retry_After="1")

    async def _durable(self, answer: Awaitable[Response]) -> Response:
        """Return the response, with errors of subscriptions as plain JSON, as the protocol says.

        A refusal rests on memory: it waits until that is durable, and if it is undone instead, the
        error of the write that failed is raised.
        """
        try:
            return await answer
        except SubscriptionError as error:
            await self._service.store.caught_up()
            response = problem(error)
            response.headers = [
                (name, b"application/json" if name == b"content-type" else value)
                for name, value in response.headers
            ]
            return response


def check_config(principal: Principal, config: Config) -> None:
    """Raise NotAllowed unless the principal may subscribe to all that a subscription names, and
    append to the stream of its wakes."""
    if config.pattern is not None and not principal.covers(Verb.SUBSCRIBE, config.pattern):
        raise denied(principal, Verb.SUBSCRIBE, config.pattern)
    for path in config.streams:
        if not principal.may(Verb.SUBSCRIBE, path):
            raise denied(principal, Verb.SUBSCRIBE, path)
    wakes = config.wake_stream
    if wakes is not None and not principal.may(Verb.APPEND, wakes):
        raise denied(principal, Verb.APPEND, wakes)


def _may_manage(principal: Principal, subscription: Subscription) -> bool:
    """Whether a principal may see and change a subscription: it may subscribe to all of it."""
    if principal.is_root:
        return True
    pattern = subscription.config.pattern
    if pattern is not None and not principal.covers(Verb.SUBSCRIBE, pattern):
        return False
    links = subscription.links.items()
    return all(principal.may(Verb.SUBSCRIBE, path) for path, link in links if link.explicit)


def _split(path: str) -> tuple[str, str]:
    """Return the id, and the path behind it."""
    raw, _, action = path.partition("/")
    try:
        return unquote(raw, errors="strict"), action
    except UnicodeDecodeError:
        raise InvalidPath(f"The id {raw[:100]!r} must be UTF-8, percent-encoded.") from None


def _bearer(parts: Parts) -> str:
    scheme, _, token = parts.authorization.partition(b" ")
    if scheme.lower() != b"bearer":
        raise no_token()
    return token.strip().decode("latin-1")


def _ok(next_wake: bool) -> Response:
    return document({"ok": True, "next_wake": next_wake})
