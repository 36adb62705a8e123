"""`POST /v1/notify/<name>`: a peer says that a table may have new rows, or where to notify it of
ours.

The body is a hint: it is parsed, never trusted. The hub decides what follows from it.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from penstock.access.rules import Verb
from penstock.errors import BodyTooLarge
from penstock.http.documents import document
from penstock.http.headers import server_url
from penstock.http.message import Request, Response
from penstock.http.permission import principal_of
from penstock.http.rates import announced
from penstock.stp.notify import SIGNATURE, Notice, check_form_type, check_signature, parse_form

if TYPE_CHECKING:
    from penstock.access.authenticator import Access
    from penstock.clock import Clock
    from penstock.config.settings import Settings
    from penstock.egress import Egress
    from penstock.stp.server.notify_hub import NotifyHub

PREFIX = b"/v1/notify/"


def is_notify(head: Request) -> bool:
    """Whether a request is a Notify, which may carry other tokens than the server's."""
    return head.path.startswith(PREFIX)


class Notify:
    """The resource for Notify POSTs."""

    __slots__ = (
        "_access",
        "_bytes_max",
        "_clock",
        "_egress",
        "_hub",
        "_public_url",
        "_secret",
        "_token",
        "_urls_max",
    )

    def __init__(
        self, hub: NotifyHub, settings: Settings, egress: Egress, access: Access, *, clock: Clock
    ) -> None:
        self._access = access
        self._hub = hub
        self._egress = egress
        self._clock = clock
        self._bytes_max = settings.notify_bytes_max
        self._urls_max = settings.notify_urls_max
        self._secret = settings.notify_secret
        self._public_url = settings.public_url.rstrip("/")
        token = settings.notify_token
        self._token = None if not token else token.encode()

    def refuse(self, head: Request) -> Response | None:
        """Refuse a Notify by its head alone: its size, or a token that no signature can replace."""
        if not is_notify(head):
            return None
        length = announced(head)
        if length is not None and length > self._bytes_max:
            raise self._too_large()
        if not self._secret:
            self._authorize(head, head.route[1])
        return None

    def post(self, path: str, request: Request) -> Awaitable[Response]:
        # Parsed now: a transport drops the body when this returns, also when that is a coroutine.
        if len(request.body) > self._bytes_max:
            raise self._too_large()
        self._authorize(request, path)
        content_type = request.headers.get(b"content-type")
        check_form_type(None if content_type is None else content_type.decode("latin-1"))
        notice = parse_form(request.body, self._egress.check, urls_max=self._urls_max)
        return self._accept(path, notice, server_url(request, self._public_url))

    async def _accept(self, path: str, notice: Notice, base: str) -> Response:
        content = await self._hub.notify(path, notice, base)
        return document(content, 202)

    def _authorize(self, request: Request, path: str) -> None:
        """Let in the token of peers, a signature, and whoever may follow tables at the path."""
        if self._access.is_open and not self._token and not self._secret:
            return
        scheme, _, sent = request.headers.get(b"authorization", b"").partition(b" ")
        is_peer = self._token is not None and hmac.compare_digest(sent.strip(), self._token)
        if is_peer and scheme.lower() == b"bearer":
            return
        if not self._access.is_open and principal_of(request).may(Verb.FOLLOW, path):
            return
        signature = request.headers.get(SIGNATURE.encode())
        check_signature(
            self._secret or "",
            request.body,
            # Without a secret nothing can be signed.
            None if signature is None or not self._secret else signature.decode("latin-1"),
            self._clock.now_us() // 1_000_000,
        )

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"A Notify may have at most {self._bytes_max} bytes; send several.")
