"""What the OpenAPI document says of the documentation."""

from __future__ import annotations

from typing import Final

from penstock.error_guide import Advice
from penstock.errors import RouteNotFound
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    NO_SECURITY,
    Answer,
    Content,
    Description,
    Operation,
    Parameter,
    json,
)
from penstock.http.openapi.schemas import TEXT, array, mapping, nullable, record, reference

_HEADERS: Final = (shared.ETAG, shared.CACHE_CONTROL, shared.VARY)
_HTML: Final = (Content("text/html", TEXT),)
_UNCHANGED: Final = Answer(304, "It has not changed.", _HEADERS)
_NEGOTIATED: Final = (shared.ETAG._replace(required=False), shared.CACHE_CONTROL, shared.VARY)
_CODE: Final = Parameter(
    "code",
    "path",
    "The code of an error.",
    {"type": "string", "pattern": "^[a-z-]+$"},
    required=True,
    example="stream-closed",
)


def _page(path: str, id: str, summary: str, content: tuple[Content, ...] = _HTML) -> Operation:
    return Operation(
        method="GET",
        path=path,
        id=id,
        summary=summary,
        tag="server",
        parameters=(shared.IF_NONE_MATCH,),
        answers=(Answer(200, "The page.", _HEADERS, content), _UNCHANGED),
        security=NO_SECURITY,
    )


_OPERATIONS: Final = (
    _page("/docs", "readDocs", "An overview, for a browser"),
    _page("/docs/api", "readReference", "This document as a page"),
    _page(
        "/docs/style.css",
        "readDocsStyle",
        "The style of these pages",
        (Content("text/css", TEXT),),
    ),
    Operation(
        method="GET",
        path="/problems",
        id="listProblems",
        summary="List the codes of all errors",
        description="As HTML for a browser, else as JSON.",
        tag="server",
        parameters=(shared.IF_NONE_MATCH,),
        answers=(
            Answer(
                200,
                "The codes.",
                _NEGOTIATED,
                (
                    *json(
                        record({"problems": array(reference("ProblemEntry"))}),
                        {
                            "problems": [
                                {
                                    "code": "stream-closed",
                                    "title": "Stream is closed",
                                    "type": "/problems/stream-closed",
                                    "status": 409,
                                }
                            ]
                        },
                    ),
                    *_HTML,
                ),
            ),
            _UNCHANGED,
        ),
        security=NO_SECURITY,
    ),
    Operation(
        method="GET",
        path="/problems/{code}",
        id="readProblem",
        summary="What an error means, and what to do about it",
        description="The `type` of a problem document leads here. As HTML for a browser, else as "
        "JSON.",
        tag="server",
        parameters=(_CODE, shared.IF_NONE_MATCH),
        answers=(
            Answer(
                200,
                "About the error.",
                _NEGOTIATED,
                (
                    *json(
                        reference("ProblemPage"),
                        {
                            "code": "empty-body",
                            "title": "Empty body",
                            "status": 400,
                            "cause": "An append has no body.",
                            "remedy": "Send at least one byte.",
                            "fields": {},
                            "headers": {},
                        },
                    ),
                    *_HTML,
                ),
            ),
            _UNCHANGED,
        ),
        errors=(RouteNotFound,),
        security=NO_SECURITY,
    ),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    status = {"type": "integer", "minimum": 400, "maximum": 599}
    entry = {"code": TEXT, "title": TEXT}
    return Description(
        _OPERATIONS,
        {
            "ProblemEntry": record({**entry, "type": TEXT, "status": status}, optional=["status"]),
            "ProblemPage": record(
                {
                    **entry,
                    "status": nullable(status),
                    **dict.fromkeys(Advice._fields, TEXT),
                    "fields": mapping(TEXT),
                    "headers": mapping(TEXT),
                }
            ),
        },
    )
