"""What the OpenAPI document says of the proxy."""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    Damaged,
    EgressFailed,
    EgressRefused,
    InvalidParameter,
    InvalidTtl,
    InvalidUrl,
    PathBlocked,
    StreamExists,
    StreamSoftDeleted,
    UnknownParameter,
)
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    GROWS,
    LIVE,
    WRITES,
    Answer,
    Body,
    Content,
    Description,
    Header,
    Operation,
    Parameter,
)
from penstock.http.proxy.upstreams import METHODS

_PATH: Final = "/v1/proxy/{path}"
_STATE: Final = Header(
    "Stream-Recording",
    "What became of the recording so far.",
    {"enum": ["running", "complete", "failed", "aborted", "interrupted"]},
)
_HEADERS: Final = (
    Header("Location", "The URL of the stream.", shared.TEXT),
    _STATE,
    Header("Upstream-Status", "The status that the upstream answered with.", shared.TEXT),
    Header("Idempotency-Key", "The name of the request.", shared.TEXT),
    shared.CACHE_CONTROL,
)
_BYTES: Final = (Content("*/*"),)
_SKIP: Final = Parameter(
    "skip", "query", "How many bytes of the response to leave out.", shared.WHOLE, example=0
)
_QUERY: Final = (InvalidParameter, UnknownParameter)
_WHOLE: Final = (
    Answer(
        200,
        "The response of the upstream as it is recorded, with its status, whatever that is.",
        _HEADERS,
        _BYTES,
    ),
)

OPERATIONS: Final = (
    Operation(
        method="POST",
        path=_PATH,
        id="recordResponse",
        summary="Call an upstream, and record its response",
        description="The body is sent to the upstream. With the same `Idempotency-Key` the "
        "upstream is not called again: the answer is what is recorded, and what follows. "
        "`action=abort` ends the call, as DELETE does. Needs `create` on the path, too.",
        tag="proxy",
        parameters=(
            shared.STREAM,
            Parameter("action", "query", "`abort` ends the call.", {"const": "abort"}),
            _SKIP,
            Parameter(
                "Upstream-URL",
                "header",
                "The URL to call, below one of `proxy_upstreams`.",
                {"type": "string", "format": "uri"},
                example="https://api.example/v1/messages",
            ),
            Parameter("Upstream-Method", "header", "How to call it.", {"enum": list(METHODS)}),
            Parameter(
                "Upstream-Authorization",
                "header",
                "The `Authorization` of the call, unless the server has a key of its own.",
                shared.TEXT,
            ),
            Parameter("Idempotency-Key", "header", "The name of the request.", shared.TEXT),
            Parameter(
                "Stream-TTL",
                "header",
                "Seconds that the recording lives after it was last used.",
                shared.COUNT,
            ),
        ),
        body=Body(_BYTES, required=False),
        answers=(
            *_WHOLE,
            Answer(204, "The call was ended, or had ended before.", (_STATE, shared.CACHE_CONTROL)),
        ),
        errors=(
            *_QUERY,
            InvalidUrl,
            InvalidTtl,
            EgressRefused,
            EgressFailed,
            StreamExists,
            StreamSoftDeleted,
            PathBlocked,
            Damaged,
            *WRITES,
            *GROWS,
            *LIVE,
        ),
    ),
    Operation(
        method="GET",
        path=_PATH,
        id="readRecording",
        summary="Read a recorded response once more",
        tag="proxy",
        parameters=(shared.STREAM, _SKIP),
        answers=_WHOLE,
        errors=(*_QUERY, Damaged, *LIVE),
    ),
    Operation(
        method="HEAD",
        path=_PATH,
        id="describeRecording",
        summary="Ask what became of a recording",
        tag="proxy",
        parameters=(shared.STREAM, _SKIP),
        answers=(Answer(200, "As for GET, without the body.", _HEADERS),),
        errors=(*_QUERY, Damaged),
    ),
    Operation(
        method="DELETE",
        path=_PATH,
        id="abortRecording",
        summary="End a call, and close its stream",
        tag="proxy",
        parameters=(shared.STREAM,),
        answers=(
            Answer(204, "The call was ended, or had ended before.", (_STATE, shared.CACHE_CONTROL)),
        ),
        errors=(Damaged, *WRITES),
    ),
)


def describe() -> Description:
    return Description(OPERATIONS)
