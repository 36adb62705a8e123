"""Subscription documents: what a client may request, in normal form, and its hash.

Pure; whether a webhook's address may be called is decided by the rules for outbound requests.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final, Literal, NamedTuple, TypeVar

import msgspec

from penstock import limits
from penstock.errors import InvalidPath, InvalidSubscription
from penstock.protocol.globs import parse_pattern
from penstock.protocol.headers import parse_stream_path

WEBHOOK: Final = "webhook"
PULL_WAKE: Final = "pull-wake"
RESERVED: Final = "__ds"

Kind = Literal["webhook", "pull-wake"]
T = TypeVar("T")


class Config(msgspec.Struct, frozen=True, kw_only=True):
    """A requested subscription, in normal form."""

    type: Kind
    pattern: str | None = None
    streams: tuple[str, ...] = ()
    webhook_url: str | None = None
    wake_stream: str | None = None
    lease_ttl_ms: int = limits.LEASE_MS
    description: str | None = None

    @property
    def hash(self) -> str:
        """The hash of the configuration: equal for documents that mean the same."""
        return hashlib.sha256(msgspec.json.encode(self, order="sorted")).hexdigest()


class WebhookDocument(msgspec.Struct):
    url: str


class SubscriptionDocument(msgspec.Struct):
    """The document of a client; unknown members are ignored, as everywhere in the protocol."""

    type: str
    pattern: str | None = None
    streams: list[str] | None = None
    webhook: WebhookDocument | None = None
    wake_stream: str | None = None
    filter: Any = None
    lease_ttl_ms: int | None = None
    description: str | None = None


class Ack(msgspec.Struct, frozen=True):
    """Everything of `stream` before `offset` is processed."""

    stream: str
    offset: str


class Report(msgspec.Struct, frozen=True):
    """A report of a worker on a wake: a callback, an ack or a release."""

    wake_id: str
    generation: int
    acks: list[Ack] = []
    done: bool = False


class Claim(msgspec.Struct, frozen=True):
    worker: str


class Members(msgspec.Struct, frozen=True):
    streams: list[str]


class StreamView(NamedTuple):
    """A stream of a subscription, as it stands in a wake or an answer."""

    path: str
    link_type: Literal["explicit", "glob"]
    acked_offset: str
    tail_offset: str
    has_pending: bool


def decode(body: bytes, kind: type[T], shape: str) -> T:
    """Return a document of type `kind`; InvalidSubscription names `shape` and what is wrong."""
    if not body:
        raise InvalidSubscription(f"Send {shape} as JSON; the body is empty.")
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise InvalidSubscription(f"Send {shape} as JSON: {error}.") from None


def parse_config(body: bytes, *, path_bytes_max: int, streams_max: int) -> Config:
    document = decode(body, SubscriptionDocument, '{"type": …, "pattern": …, "streams": […], …}')
    if document.type not in (WEBHOOK, PULL_WAKE):
        raise InvalidSubscription(f"`type` has to be {WEBHOOK} or {PULL_WAKE}.")
    if document.filter is not None:
        raise InvalidSubscription(
            "`filter` is a draft of the protocol that is not served here; leave it out."
        )
    lease_ms = limits.LEASE_MS if document.lease_ttl_ms is None else document.lease_ttl_ms
    if not limits.LEASE_MS_MIN <= lease_ms <= limits.LEASE_MS_MAX:
        raise InvalidSubscription(
            f"`lease_ttl_ms` has to be from {limits.LEASE_MS_MIN} to {limits.LEASE_MS_MAX}."
        )
    check_text("description", document.description or "")
    streams = parse_members(document.streams or [], path_bytes_max, streams_max)
    if not document.pattern and not streams:
        raise InvalidSubscription("Name streams by `pattern`, by `streams`, or by both.")
    is_webhook = document.type == WEBHOOK
    if is_webhook and (document.webhook is None or not document.webhook.url):
        raise InvalidSubscription('A webhook subscription needs `webhook`: {"url": …}.')
    wake_stream = document.wake_stream if not is_webhook else None
    if not is_webhook and not wake_stream:
        raise InvalidSubscription("A pull-wake subscription needs `wake_stream`, a stream's path.")
    wake_path = None if not wake_stream else parse_member(wake_stream, path_bytes_max)
    if wake_path in streams:
        raise InvalidSubscription("A subscription cannot be woken by its own wake stream.")
    return Config(
        type=WEBHOOK if is_webhook else PULL_WAKE,
        pattern=_pattern(document.pattern, path_bytes_max) if document.pattern else None,
        streams=streams,
        webhook_url=document.webhook.url if is_webhook and document.webhook else None,
        wake_stream=wake_path,
        lease_ttl_ms=lease_ms,
        description=document.description,
    )


def parse_members(streams: list[str], path_bytes_max: int, streams_max: int) -> tuple[str, ...]:
    """Return paths in canonical form, sorted and without duplicates: equal for equal sets."""
    if len(streams) > streams_max:
        raise InvalidSubscription(
            f"`streams` names {len(streams)} streams; at most {streams_max} are allowed at a time. "
            "Add the others in further requests, or use a pattern."
        )
    return tuple(sorted({parse_member(text, path_bytes_max) for text in streams}))


def parse_member(text: str, path_bytes_max: int) -> str:
    try:
        path = parse_stream_path(text.strip("/").encode("utf-8"), bytes_max=path_bytes_max)
    except (InvalidPath, UnicodeError) as error:
        raise InvalidSubscription(f"{text[:100]!r} is not a stream path: {error}") from None
    if path.split("/", 1)[0] == RESERVED:
        raise InvalidSubscription(f"`{RESERVED}` is reserved; there are no streams below it.")
    return path


def _pattern(text: str, path_bytes_max: int) -> str:
    try:
        return parse_pattern(text, bytes_max=path_bytes_max)
    except InvalidPath as error:
        raise InvalidSubscription(error.detail) from None


def check_text(name: str, text: str) -> None:
    """Refuse a text that is too long."""
    if len(text.encode("utf-8", "replace")) > limits.SUBSCRIPTION_TEXT_BYTES_MAX:
        raise InvalidSubscription(
            f"`{name}` can have at most {limits.SUBSCRIPTION_TEXT_BYTES_MAX} bytes."
        )
