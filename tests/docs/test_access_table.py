"""The table of docs/access.md says what each request needs, for every route that there is."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

from penstock.config.settings import Settings
from penstock.http.app import App, open_app
from penstock.http.endpoint import Need
from penstock.http.message import Request

PAGE = Path(__file__).parents[2] / "docs" / "access.md"
ROW = re.compile(r"^\| ((?:`[A-Z]+`(?:, )?)+) `(/[^`]*)` \| (.+?) \|$", re.M)


def test_every_route_is_in_the_table_with_what_it_needs() -> None:
    assert documented() == asyncio.run(served())


def documented() -> dict[tuple[str, str], str]:
    """Return the needs of the table by method and path."""
    section = PAGE.read_text().partition("| request | needs |")[2].partition("\n\n")[0]
    return {
        (method, path): need
        for methods, path, need in ROW.findall(section)
        for method in re.findall(r"`([A-Z]+)`", methods)
    }


async def served() -> dict[tuple[str, str], str]:
    """Return the needs of the router by method and path."""
    app = await open_app(Settings(memory=True))
    try:
        return {
            (method, path): words(need_of(app, method, path))
            for path, methods in app._router.templates().items()
            for method in methods
        }
    finally:
        await app.stop()


def need_of(app: App, method: str, template: str) -> Need:
    request = Request(method, re.sub(r"\{\w+\}", "x", template).encode())
    endpoint, _ = app._router.find(request)
    return endpoint.needs(request)


def words(need: Need) -> str:
    if need.ruled:
        return "any credentials, or a rule of `anonymous_allow`"
    if need.verb is None:
        return "nothing" if need.is_public else "any credentials"
    if need.resource is not None:
        return f"`{need.verb}` on `{need.resource}`"
    return f"`{need.verb}` " + ("somewhere" if need.somewhere else "on the path")
