"""What the OpenAPI document says of the console."""

from __future__ import annotations

from typing import Final

from penstock.errors import RouteNotFound
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import NO_SECURITY, Answer, Content, Description, Operation
from penstock.http.openapi.schemas import TEXT

_HEADERS: Final = (shared.ETAG, shared.CACHE_CONTROL, shared.VARY)
_HTML: Final = (Content("text/html", TEXT),)
_FILES: Final = tuple(
    Content(media, TEXT) for media in ("text/css", "text/javascript", "image/svg+xml")
)
_UNCHANGED: Final = Answer(304, "It has not changed.", _HEADERS)


def _page(path: str, id: str) -> Operation:
    return Operation(
        method="GET",
        path=path,
        id=id,
        summary="The console, for a browser",
        tag="server",
        parameters=(shared.IF_NONE_MATCH,),
        answers=(Answer(200, "A page without data.", _HEADERS, _HTML), _UNCHANGED),
        security=NO_SECURITY,
    )


_OPERATIONS: Final = (
    _page("/console", "readConsole"),
    _page("/console/", "readConsolePage"),
    Operation(
        method="GET",
        path="/console/{path}",
        id="readConsoleFile",
        summary="A script or a style of the console",
        tag="server",
        parameters=(
            shared.STREAM._replace(description="The name of the file.", example="app.js"),
            shared.IF_NONE_MATCH,
        ),
        answers=(Answer(200, "The file.", _HEADERS, _FILES), _UNCHANGED),
        errors=(RouteNotFound,),
        security=NO_SECURITY,
    ),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    return Description(_OPERATIONS)
