"""The console as resources: the page at `/` for browsers and at `/console`, and its files below.

The page holds no data: its scripts ask the API for it, with the rights of whoever uses them.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from penstock.errors import RouteNotFound
from penstock.http.compression import encode
from penstock.http.console.assets import PAGE, Asset, asset, load_assets
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.documents import not_modified
from penstock.http.endpoint import Handler, public, readable
from penstock.http.headers import NO_CACHE, VARY, weak
from penstock.http.message import Headers, Request, Response
from penstock.http.openapi.model import Description

if TYPE_CHECKING:
    from penstock.http.compression import Compressor

CONSOLE: Final = b"/console"
PREFIX: Final = b"/console/"
POLICY: Final = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    b"img-src 'self' data:; form-action 'none'; frame-ancestors 'none'; base-uri 'none'"
)
PAGE_HEADERS: Final[Headers] = [
    (b"content-security-policy", POLICY),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""What every page of this server for people carries: nothing but its own files may run in it."""
IMMUTABLE: Final = (b"cache-control", b"public, max-age=31536000, immutable")
VARY_PAGE: Final = (b"vary", b"Accept, Accept-Encoding")

_DIGEST: Final = re.compile(r"([0-9a-f]{16})/(.+)")


class ConsoleDialect(Dialect):
    """`index` answers at `/` whoever is no browser."""

    def __init__(self, services: Services, index: Handler) -> None:
        self._is_on = services.settings.console
        self._index = index
        self._pages = Pages(services.compressor, is_node=services.settings.cluster is not None)

    def routes(self) -> Routes:
        if not self._is_on:
            return Routes()
        pages = self._pages
        return Routes(
            fixed={
                b"/": readable(public(self.root)),
                CONSOLE: readable(public(pages.page)),
                PREFIX: readable(public(pages.page)),
            },
            prefixes={PREFIX: readable(public(pages.file))},
        )

    def describe(self) -> Description:
        from penstock.http.console.operations import describe

        return describe() if self._is_on else Description()

    def root(self, path: str, request: Request) -> Response:
        if prefers_html(request):
            return self._pages.page(path, request)
        response = self._index(path, request)
        assert isinstance(response, Response)
        return Response(response.status, [*response.headers, VARY_PAGE], response.body)


class Pages:
    """The page and its files. `is_node` says whether the server is a node of a cluster."""

    def __init__(self, compressor: Compressor, *, is_node: bool = False) -> None:
        self._compressor = compressor
        self._is_node = is_node
        self._assets = load_assets()
        self._encoded: dict[tuple[str, str], bytes] = {}
        page = self._assets.by_name[PAGE]
        # URLs in the page are relative, as nobody knows here where the server is mounted.
        self._page = self._linked(page, root="./", files=f"console/{self._assets.digest}/")
        self._page_below = self._linked(page, root="../", files=f"{self._assets.digest}/")

    @property
    def digest(self) -> str:
        """The name of the folder below `/console/` whose files never change."""
        return self._assets.digest

    def page(self, path: str, request: Request) -> Response:
        page = self._page_below if request.path == PREFIX else self._page
        return self.send(page, request, [*PAGE_HEADERS, NO_CACHE], vary=VARY_PAGE)

    def file(self, path: str, request: Request) -> Response:
        cache = NO_CACHE
        if match := _DIGEST.fullmatch(path):
            # A page of another version, during an upgrade of several servers, gets this one's.
            cache = IMMUTABLE if match[1] == self._assets.digest else NO_CACHE
            path = match[2]
        content = self._assets.by_name.get(path)
        if content is None or path == PAGE:
            raise RouteNotFound("The console has no such file; its page is at /console.")
        return self.send(content, request, [*PAGE_HEADERS, cache])

    def send(
        self,
        content: Asset,
        request: Request,
        headers: Headers,
        *,
        vary: tuple[bytes, bytes] = VARY,
    ) -> Response:
        """Return a page or a file, compressed, or 304 for whoever has it."""
        unchanged = not_modified(request, headers, content.tag, vary=vary)
        if unchanged is not None:
            return unchanged
        body, tag = content.body, content.tag.encode()
        headers = [*headers, vary, (b"content-type", content.content_type.encode())]
        if self._compressor.applies(content.content_type, len(body)):
            coding = self._compressor.choose(request.headers.get(b"accept-encoding"))
            if coding is not None:
                headers.append((b"content-encoding", coding.encode()))
                body, tag = self._encode(coding, content), weak(content.tag)
        return Response(200, [*headers, (b"etag", tag)], body)

    def _encode(self, coding: str, content: Asset) -> bytes:
        """Return a body encoded; there are few, and each is small, so all of them are kept."""
        body = self._encoded.get((coding, content.tag))
        if body is None:
            body = self._encoded[coding, content.tag] = encode(coding, content.body)
        return body

    def _linked(self, page: Asset, *, root: str, files: str) -> Asset:
        cluster = "node" if self._is_node else ""
        body = page.body
        for name, value in (("root", root), ("files", files), ("cluster", cluster)):
            body = body.replace(b"{%s}" % name.encode(), value.encode())
        return asset(PAGE, body)


def prefers_html(request: Request) -> bool:
    """Whether a client would rather have HTML than JSON: a browser that shows a page says so, other
    programs accept anything."""
    accept = request.headers.get(b"accept", b"").decode("latin-1")
    html = _weight(accept, "text/html")
    return html > 0 and html >= _weight(accept, "application/json")


def _weight(accept: str, media: str) -> float:
    """Return the weight of a media type that an Accept value names; 0.0 for one that it does not,
    as a wildcard says nothing of what is preferred."""
    for part in accept.split(","):
        name, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if name == media:
            weights = [text[2:] for text in parameters if text.startswith("q=")]
            try:
                return float(weights[0]) if weights else 1.0
            except ValueError:
                return 0.0
    return 0.0
