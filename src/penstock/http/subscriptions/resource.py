"""`/v1/stream/__ds/subscriptions/<id>` and what is below it, and their listing.

Parses documents and renders answers; what becomes of them is decided by the subscriptions.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote

from penstock.errors import (
    BodyTooLarge,
    InvalidPath,
    InvalidSubscription,
    MethodNotAllowed,
    RouteNotFound,
    SubscriptionError,
)
from penstock.http.documents import document
from penstock.http.headers import server_url
from penstock.http.message import Request, Response
from penstock.http.problems import problem
from penstock.http.query import parse_count, parse_query
from penstock.http.subscriptions.webhook_keys import JWKS
from penstock.limits import SUBSCRIPTION_ID_BYTES_MAX
from penstock.protocol.subscription import (
    Claim,
    Members,
    Report,
    check_text,
    decode,
    parse_config,
    parse_member,
    parse_members,
)
from penstock.subscriptions.workers import no_token

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.subscriptions.service import Subscriptions

LIST = b"/v1/stream/__ds/subscriptions"
PREFIX = LIST + b"/"
LIMIT_DEFAULT = 100

_OWN_TOKENS = frozenset({b"callback", b"ack", b"release"})
_REPORT = '{"wake_id": …, "generation": …, "acks": [{"stream": …, "offset": …}], "done": …}'


class Asked(NamedTuple):
    """What is needed of a request, taken before anything waits: a transport lets go of the body
    when it has the answer, be it a later one."""

    body: bytes
    authorization: bytes
    base: str


Handler = Callable[[str, Asked], Awaitable[Response]]


def is_public(head: Request) -> bool:
    """What needs no token of the server: keys are public, and workers have tokens of their own."""
    path = head.path
    if path == JWKS:
        return True
    if head.method != "POST" or not path.startswith(PREFIX):
        return False
    _, _, action = path[len(PREFIX) :].partition(b"/")
    return action in _OWN_TOKENS


class SubscriptionResource:
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

    # -- what the router finds

    def get(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        return self._told(
            self._elsewhere(action) if action else self._show(id, self._asked(request))
        )

    def put(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        return self._told(
            self._elsewhere(action) if action else self._put(id, self._asked(request))
        )

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        handler = self._actions.get(action)
        if handler is None:
            return self._told(self._elsewhere(action))
        return self._told(handler(id, self._asked(request)))

    def delete(self, path: str, request: Request) -> Awaitable[Response]:
        id, action = _split(path)
        if not action:
            return self._told(self._delete(id))
        kind, _, member = action.partition("/")
        if kind == "streams" and member:
            return self._told(self._leave(id, member))
        return self._told(self._elsewhere(action))

    async def _elsewhere(self, action: str) -> Response:
        """What is there takes other methods, or there is nothing."""
        kind, _, rest = action.partition("/")
        if not action:
            allowed = "GET, HEAD, PUT, DELETE"
        elif action in self._actions:
            allowed = "POST"
        elif kind == "streams" and rest:
            allowed = "DELETE"
        else:
            raise RouteNotFound(
                "Below a subscription are streams, claim, ack, release and callback, and nothing "
                "else."
            )
        raise MethodNotAllowed(f"Use {allowed} here.", Allow=f"{allowed}, OPTIONS")

    def listing(self, path: str, request: Request) -> Awaitable[Response]:
        return self._told(self._list(request.query, self._asked(request)))

    # -- the subscription

    async def _put(self, id: str, asked: Asked) -> Response:
        if len(id.encode()) > SUBSCRIPTION_ID_BYTES_MAX:
            raise InvalidSubscription(f"An id has at most {SUBSCRIPTION_ID_BYTES_MAX} bytes.")
        config = parse_config(
            asked.body,
            path_bytes_max=self._settings.path_bytes_max,
            streams_max=self._settings.subscription_streams_max,
        )
        subscription, created = await self._service.put(id, config, asked.base)
        return document(self._service.show(subscription, asked.base), 201 if created else 200)

    async def _show(self, id: str, asked: Asked) -> Response:
        subscription = await self._service.get(id)
        return document(self._service.show(subscription, asked.base))

    async def _delete(self, id: str) -> Response:
        await self._service.delete(id)
        return Response(204)

    async def _list(self, text: bytes, asked: Asked) -> Response:
        query = parse_query(text, frozenset({"prefix", "after", "limit"}))
        limit = min(LIMIT_DEFAULT, self._settings.list_limit_max)
        if "limit" in query:
            limit = parse_count("limit", query["limit"], maximum=self._settings.list_limit_max)
        await self._service.ready()
        prefix, after = query.get("prefix", ""), query.get("after", "")
        known = self._service.all
        ids = sorted(id for id in known if id > after and id.startswith(prefix))
        shown = [
            {
                **self._service.show(known[id], asked.base, links=False),
                "streams": len(known[id].links),
            }
            for id in ids[:limit]
        ]
        following = ids[limit - 1] if len(ids) > limit else None
        return document({"subscriptions": shown, "next": following})

    # -- its streams

    async def _join(self, id: str, asked: Asked) -> Response:
        wanted = decode(asked.body, Members, '{"streams": ["<path>", …]}')
        if not wanted.streams:
            raise InvalidSubscription("`streams` is empty; name at least one stream.")
        settings = self._settings
        paths = parse_members(
            wanted.streams, settings.path_bytes_max, settings.subscription_streams_max
        )
        await self._service.add_members(id, paths)
        return Response(204)

    async def _leave(self, id: str, member: str) -> Response:
        # A path in a URL is encoded once more, though its slashes may stand for themselves.
        paths = []
        for text in (unquote(member), member):
            try:
                paths.append(parse_member(text, self._settings.path_bytes_max))
            except InvalidSubscription:
                pass  # it cannot be linked either
        await self._service.remove_member(id, *paths)
        return Response(204)

    # -- its workers

    async def _claim(self, id: str, asked: Asked) -> Response:
        wanted = decode(asked.body, Claim, '{"worker": "<name>"}')
        if not wanted.worker:
            raise InvalidSubscription("`worker` is empty; name the worker that claims.")
        check_text("worker", wanted.worker)
        subscription = await self._service.get(id)
        return document(await self._service.workers.claim(subscription, wanted.worker))

    async def _callback(self, id: str, asked: Asked) -> Response:
        token, report = _bearer(asked), decode(asked.body, Report, _REPORT)
        subscription = await self._service.get(id)
        return _ok(await self._service.workers.callback(subscription, token, report))

    async def _ack(self, id: str, asked: Asked) -> Response:
        token, report = _bearer(asked), decode(asked.body, Report, _REPORT)
        subscription = await self._service.get(id)
        return _ok(await self._service.workers.ack(subscription, token, report))

    async def _release(self, id: str, asked: Asked) -> Response:
        token, report = _bearer(asked), decode(asked.body, Report, _REPORT)
        subscription = await self._service.get(id)
        await self._service.workers.release(subscription, token, report)
        return Response(204)

    def _asked(self, request: Request) -> Asked:
        bytes_max = self._settings.subscription_bytes_max
        if len(request.body) > bytes_max:
            raise BodyTooLarge(
                f"A document about a subscription has at most {bytes_max} bytes; "
                "add streams in several requests."
            )
        authorization = request.headers.get(b"authorization", b"")
        return Asked(request.body, authorization, server_url(request, self._public_url))

    async def _told(self, answer: Awaitable[Response]) -> Response:
        """Whatever it tells of, a refusal too, is durable before it is told."""
        response = await _rendered(answer)
        await self._service.store.caught_up()
        return response


async def _rendered(answer: Awaitable[Response]) -> Response:
    """Errors of subscriptions in the protocol's own form, which is plain JSON."""
    try:
        return await answer
    except SubscriptionError as error:
        response = problem(error)
        response.headers = [
            (name, b"application/json" if name == b"content-type" else value)
            for name, value in response.headers
        ]
        return response


def _split(path: str) -> tuple[str, str]:
    """The id, and what is behind it."""
    raw, _, action = path.partition("/")
    try:
        return unquote(raw, errors="strict"), action
    except UnicodeDecodeError:
        raise InvalidPath(f"The id {raw[:100]!r} is not UTF-8 behind its encoding.") from None


def _bearer(asked: Asked) -> str:
    scheme, _, token = asked.authorization.partition(b" ")
    if scheme.lower() != b"bearer":
        raise no_token()
    return token.strip().decode("latin-1")


def _ok(next_wake: bool) -> Response:
    return document({"ok": True, "next_wake": next_wake})
