"""What the OpenAPI document says of the resources about the server itself, and of itself."""

from __future__ import annotations

from typing import Final

from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    NO_SECURITY,
    Answer,
    Content,
    Description,
    Operation,
    json,
)
from penstock.http.openapi.schemas import TEXT, mapping, record, reference

_NO_STORE: Final = (shared.CACHE_CONTROL,)
_OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/",
        id="readIndex",
        summary="Name everything that is served",
        tag="server",
        answers=(
            Answer(
                200,
                "URL templates by name.",
                _NO_STORE,
                json(mapping(TEXT), {"name": "penstock", "streams": "/v1/stream/{path}"}),
            ),
        ),
        security=NO_SECURITY,
    ),
    Operation(
        method="GET",
        path="/healthz",
        id="checkHealth",
        summary="Whether the process answers",
        tag="server",
        answers=(Answer(200, "It does.", _NO_STORE, json(reference("Health"), {"status": "ok"})),),
        security=NO_SECURITY,
    ),
    Operation(
        method="GET",
        path="/readyz",
        id="checkReadiness",
        summary="Whether the server has recovered and can be written to",
        tag="server",
        answers=(
            Answer(200, "It is ready.", _NO_STORE, json(reference("Health"), {"status": "ok"})),
            Answer(
                503,
                "It is not.",
                _NO_STORE,
                json(
                    reference("Health"),
                    {"status": "unavailable", "reason": "The server is stopping."},
                ),
            ),
        ),
        security=NO_SECURITY,
    ),
    Operation(
        method="GET",
        path="/metrics",
        id="readMetrics",
        summary="Counters in the text format of Prometheus",
        tag="server",
        answers=(Answer(200, "The metrics.", _NO_STORE, (Content("text/plain", TEXT),)),),
    ),
    Operation(
        method="GET",
        path="/openapi.json",
        id="readOpenApi",
        summary="This document",
        tag="server",
        parameters=(shared.IF_NONE_MATCH,),
        answers=(
            Answer(
                200,
                "OpenAPI 3.1.",
                (shared.ETAG, shared.CACHE_CONTROL, shared.VARY),
                json({"type": "object", "required": ["openapi", "paths"]}),
            ),
            Answer(304, "It has not changed.", (shared.ETAG, shared.CACHE_CONTROL, shared.VARY)),
        ),
        security=NO_SECURITY,
    ),
)


def describe() -> Description:
    """Return what the document says of these resources."""
    status = {"enum": ["ok", "unavailable"]}
    health = record({"status": status, "reason": TEXT}, optional=["reason"])
    return Description(_OPERATIONS, {"Health": health})
