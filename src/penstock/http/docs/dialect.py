"""The documentation as resources: `/docs` and the reference below it, and `/problems`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from penstock.errors import RouteNotFound
from penstock.http.console.assets import Asset, asset
from penstock.http.console.dialect import PAGE_HEADERS, VARY_PAGE, Pages, prefers_html
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.documents import document
from penstock.http.endpoint import public, readable
from penstock.http.headers import NO_CACHE
from penstock.http.message import Request, Response
from penstock.http.openapi.model import Description

PROBLEMS: Final = b"/problems/"


class DocsDialect(Dialect):
    """`describe_api` returns the OpenAPI document."""

    def __init__(self, services: Services, describe_api: Callable[[], dict[str, Any]]) -> None:
        self._pages = Pages(services.compressor)
        self._describe_api = describe_api
        self._rendered: dict[str, asyncio.Future[Asset]] = {}

    def routes(self) -> Routes:
        return Routes(
            fixed={
                b"/docs": readable(public(self.overview)),
                b"/docs/api": readable(public(self.reference)),
                b"/docs/style.css": readable(public(self.style)),
                b"/problems": readable(public(self.problems)),
            },
            prefixes={PROBLEMS: readable(public(self.problem))},
            below={PROBLEMS: {"{code}": ("GET", "HEAD")}},
        )

    def describe(self) -> Description:
        from penstock.http.docs.operations import describe

        return describe()

    async def overview(self, path: str, request: Request) -> Response:
        from penstock.http.docs.overview import overview_page

        return await self._page(request, "overview.html", overview_page)

    async def reference(self, path: str, request: Request) -> Response:
        from penstock.http.docs.reference import reference_page

        return await self._page(
            request, "reference.html", lambda: reference_page(self._describe_api())
        )

    async def style(self, path: str, request: Request) -> Response:
        from penstock.http.docs.page import STYLE

        return await self._page(request, "style.css", STYLE.encode)

    async def problems(self, path: str, request: Request) -> Response:
        from penstock.http.docs import problems

        if not prefers_html(request):
            return document(problems.listing(), 200, VARY_PAGE)
        return await self._page(request, "problems.html", problems.listing_page)

    async def problem(self, path: str, request: Request) -> Response:
        from penstock.error_guide import every_error
        from penstock.http.docs import problems

        error = every_error().get(path)
        if error is None:
            raise RouteNotFound("There is no error with this code; /problems lists all of them.")
        if not prefers_html(request):
            return document(problems.content(error), 200, VARY_PAGE)
        return await self._page(request, f"{path}.html", lambda: problems.problem_page(error))

    async def _page(self, request: Request, name: str, render: Callable[[], bytes]) -> Response:
        """Return a page; the first request for it renders it, off the loop."""
        if name not in self._rendered:
            rendering = asyncio.to_thread(lambda: asset(name, render()))
            self._rendered[name] = asyncio.ensure_future(rendering)
        # Shielded: a client that leaves must not cancel what others wait for.
        content = await asyncio.shield(self._rendered[name])
        return self._pages.send(content, request, [*PAGE_HEADERS, NO_CACHE], vary=VARY_PAGE)
