"""The operations on a subscription as flows without I/O; `Subscription` and `AsyncSubscription`
run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote

import msgspec

from penstock.client.answers import Answer
from penstock.client.flow import Emit, Flow, send
from penstock.client.requests import JSON, STREAM_PREFIX, Request
from penstock.client.retry import Retry
from penstock.errors import ProtocolError

LIST_PATH: Final = STREAM_PREFIX + "__ds/subscriptions"
ROTATE_PATH: Final = STREAM_PREFIX + "__ds/rotate-key"
PAGE: Final = 1000

T = TypeVar("T")


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """A stream of a subscription, and the offset up to which it is processed."""

    path: str
    link_type: Literal["glob", "explicit"]
    acked_offset: str


class Work(Link, frozen=True, kw_only=True):
    """A stream of a wake. If it `has_pending`, process it up to `tail_offset`."""

    tail_offset: str
    has_pending: bool


class Webhook(msgspec.Struct, frozen=True, kw_only=True):
    url: str
    signing: dict[str, str | None] | None = None


class SubscriptionInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A subscription as the server describes it. In a listing `streams` is their number.

    The fields after `description` come from Penstock servers only.
    """

    id: str
    type: Literal["webhook", "pull-wake"]
    status: str
    lease_ttl_ms: int
    created_at: str
    streams: list[Link] | int
    pattern: str | None = None
    webhook: Webhook | None = None
    wake_stream: str | None = None
    description: str | None = None
    generation: int | None = None
    holder: str | None = None
    pending: int | None = None
    attempts: int | None = None
    next_attempt_at: str | None = None


class Wake(msgspec.Struct, frozen=True, kw_only=True):
    """A claimed wake: the streams to process, and the token for its acks."""

    wake_id: str
    generation: int
    token: str
    streams: list[Work]
    lease_ttl_ms: int

    @property
    def pending(self) -> list[Work]:
        return [each for each in self.streams if each.has_pending]


class WebhookKey(msgspec.Struct, frozen=True, kw_only=True):
    """A key that signs webhooks from the time `signs_from` on."""

    kid: str
    signs_from: str


class _Page(msgspec.Struct):
    subscriptions: list[SubscriptionInfo]
    next: str | None = None


class _Acked(msgspec.Struct):
    next_wake: bool = False


class Operations:
    """The flows of one subscription."""

    __slots__ = ("_retry", "id", "url")

    def __init__(self, base_url: str, id: str, retry: Retry) -> None:
        if not id:
            raise ValueError("A subscription needs an id that is not empty.")
        self.id = id
        self.url = f"{base_url.rstrip('/')}{LIST_PATH}/{quote(id, safe='')}"
        self._retry = retry

    def create(
        self,
        *,
        pattern: str | None,
        streams: Iterable[str],
        webhook: str | None,
        wake_stream: str | None,
        lease_ttl_ms: int | None,
        description: str | None,
    ) -> Flow[SubscriptionInfo]:
        if (webhook is None) == (wake_stream is None):
            raise ValueError(
                "A subscription has either a webhook or a wake_stream: give one of them."
            )
        document: dict[str, Any] = {
            "type": "pull-wake" if webhook is None else "webhook",
            "pattern": pattern,
            "streams": list(streams) or None,
            "webhook": None if webhook is None else {"url": webhook},
            "wake_stream": wake_stream,
            "lease_ttl_ms": lease_ttl_ms,
            "description": description,
        }
        body = {name: value for name, value in document.items() if value is not None}
        answer = yield from self._send("PUT", "", body)
        return _decoded(answer, SubscriptionInfo)

    def show(self) -> Flow[SubscriptionInfo]:
        return _decoded((yield from self._send("GET")), SubscriptionInfo)

    def delete(self) -> Flow[None]:
        yield from self._send("DELETE")

    def add(self, streams: Iterable[str]) -> Flow[None]:
        yield from self._send("POST", "/streams", {"streams": list(streams)})

    def remove(self, stream: str) -> Flow[None]:
        yield from self._send("DELETE", f"/streams/{quote(stream, safe='')}")

    def claim(self, worker: str) -> Flow[Wake]:
        # Not repeated when its outcome is unknown: the first request may hold the lease.
        answer = yield from self._send("POST", "/claim", {"worker": worker}, repeatable=False)
        return _decoded(answer, Wake)

    def ack(self, wake: Wake, acks: Mapping[str, str], *, done: bool) -> Flow[bool]:
        document = {
            **_wake_fields(wake),
            "acks": [{"stream": path, "offset": offset} for path, offset in acks.items()],
            "done": done,
        }
        # An ack that ends the wake would be fenced by its own first attempt.
        answer = yield from self._send(
            "POST", "/ack", document, token=wake.token, repeatable=not done
        )
        return _decoded(answer, _Acked).next_wake

    def release(self, wake: Wake) -> Flow[None]:
        yield from self._send(
            "POST", "/release", _wake_fields(wake), token=wake.token, repeatable=False
        )

    def _send(
        self,
        method: str,
        action: str = "",
        document: Any = None,
        *,
        token: str | None = None,
        repeatable: bool = True,
    ) -> Flow[Answer]:
        headers = {} if document is None else {"Content-Type": JSON}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        body = b"" if document is None else msgspec.json.encode(document)
        request = Request(method, self.url + action, headers, body=body, repeatable=repeatable)
        return (yield from send(request, self._retry))


def list_subscriptions(base_url: str, prefix: str, retry: Retry) -> Flow[None]:
    """Emit every subscription of a Penstock server, page after page."""
    after = ""
    while True:
        params = {"prefix": prefix, "after": after, "limit": str(PAGE)}
        params = {name: value for name, value in params.items() if value}
        request = Request("GET", base_url.rstrip("/") + LIST_PATH, params=params)
        page = _decoded((yield from send(request, retry)), _Page)
        for info in page.subscriptions:
            yield Emit(info)
        if page.next is None:
            return
        after = page.next


def rotate_webhook_key(base_url: str, retry: Retry) -> Flow[WebhookKey]:
    # Repeatable: a key that does not sign yet is not replaced.
    request = Request("POST", base_url.rstrip("/") + ROTATE_PATH, repeatable=True)
    return _decoded((yield from send(request, retry)), WebhookKey)


def _wake_fields(wake: Wake) -> dict[str, Any]:
    return {"wake_id": wake.wake_id, "generation": wake.generation}


def _decoded(answer: Answer, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(answer.body, type=kind)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"The server's answer about a subscription cannot be decoded: {error}."
        ) from error
