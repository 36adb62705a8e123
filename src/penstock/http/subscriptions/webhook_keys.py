"""The keys that sign webhooks: `jwks.json` for receivers, and rotation on demand.

Renders responses; the service decides which key signs when.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from penstock.http.documents import document
from penstock.http.message import Request, Response
from penstock.limits import JWKS_MAX_AGE_S
from penstock.protocol.headers import format_expires_at

if TYPE_CHECKING:
    from penstock.subscriptions.service import Subscriptions

JWKS = b"/v1/stream/__ds/jwks.json"
ROTATE = b"/v1/stream/__ds/rotate-key"


class WebhookKeys:
    """The two resources of keys."""

    def __init__(self, service: Subscriptions) -> None:
        self._service = service

    async def jwks(self, path: str, request: Request) -> Response:
        await self._service.ready()
        headers = [
            (b"content-type", b"application/jwk-set+json"),
            (b"cache-control", b"public, max-age=%d" % JWKS_MAX_AGE_S),
        ]
        return Response(200, headers, msgspec.json.encode(self._service.keys.jwks()))

    async def rotate(self, path: str, request: Request) -> Response:
        key = await self._service.rotate_key()
        return document({"kid": key.kid, "signs_from": format_expires_at(key.from_us)})
