"""What the OpenAPI document says of declarations and of materialised state."""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.errors import (
    Conflict,
    Damaged,
    InvalidJson,
    InvalidParameter,
    InvalidSchema,
    MirrorReadOnly,
    NotDeclared,
    NotJsonStream,
    NumberTooLong,
    SchemaNotFound,
    UnknownParameter,
)
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    WRITES,
    Answer,
    Body,
    Description,
    Link,
    Operation,
    Parameter,
    json,
    optional,
)
from penstock.http.openapi.schemas import (
    FLAG,
    NUMBER,
    TEXT,
    array,
    mapping,
    nullable,
    record,
    reference,
    struct_schemas,
)
from penstock.http.state.schema import PAGE_MAX
from penstock.http.streams.operations import FIND, OFFSETS, QUERY
from penstock.state.declaration import Declaration
from penstock.state.events import OPERATIONS

_SCHEMA: Final = "/v1/schema/{path}"
_DECLARATION: Final = {
    "version": 1,
    "mode": "reject",
    "types": {"user": {"schema": {"type": "object"}}},
    "offset": shared.EXAMPLE_OFFSET,
    "ordinal": 3,
}
_DECLARED: Final = json(reference("Declaration"), _DECLARATION)
_TAGGED: Final = (shared.ETAG, shared.CACHE_CONTROL)
_SAME: Final = Answer(304, "It has not changed.", (*_TAGGED, shared.VARY))

_PUT: Final = Operation(
    method="PUT",
    path=_SCHEMA,
    id="declareSchema",
    summary="Declare a JSON stream a state stream",
    description="Appends are checked against the schemas of their types from here on.",
    tag="state",
    parameters=(shared.STREAM,),
    body=Body(
        json(reference("DeclarationRequest"), {"types": {"user": {"schema": {"type": "object"}}}})
    ),
    answers=(
        Answer(
            201,
            "The first declaration of the stream.",
            _TAGGED,
            _DECLARED,
            (Link("state", "readState", {"path.path": "$request.path.path"}),),
        ),
        Answer(200, "A new version, or the same again.", _TAGGED, _DECLARED),
    ),
    errors=(
        InvalidJson,
        NumberTooLong,
        MirrorReadOnly,
        NotJsonStream,
        InvalidSchema,
        *FIND,
        Damaged,
        *WRITES,
    ),
)
_GET: Final = Operation(
    method="GET",
    path=_SCHEMA,
    id="readSchema",
    summary="Show the declaration of a state stream",
    tag="state",
    parameters=(shared.STREAM, shared.IF_NONE_MATCH),
    answers=(Answer(200, "The declaration.", (*_TAGGED, shared.VARY), _DECLARED), _SAME),
    errors=(SchemaNotFound, *FIND, Damaged),
)
_DELETE: Final = Operation(
    method="DELETE",
    path=_SCHEMA,
    id="dropSchema",
    summary="Make a state stream like any other again",
    tag="state",
    parameters=(shared.STREAM,),
    answers=(Answer(204, "Its messages stay as they are.", (shared.CACHE_CONTROL,)),),
    errors=(SchemaNotFound, MirrorReadOnly, Conflict, *FIND, Damaged, *WRITES),
)
_LIST: Final = Operation(
    method="GET",
    path="/v1/schema",
    id="listSchemas",
    summary="List the declared streams",
    description="Those that the principal may list. `table` if a stream is also read as a table.",
    tag="state",
    parameters=(
        shared.AFTER,
        shared.LIMIT._replace(schema={**shared.COUNT, "maximum": PAGE_MAX}),
    ),
    answers=(
        Answer(
            200,
            "A page.",
            (shared.CACHE_CONTROL,),
            json(
                record({"streams": array(reference("DeclaredStream")), "next": nullable(TEXT)}),
                {
                    "streams": [{"path": "team", "types": ["user"], "version": 1, "table": False}],
                    "next": None,
                },
            ),
        ),
    ),
    errors=(InvalidParameter, UnknownParameter, Damaged),
)
_AT: Final = (
    shared.NEXT_OFFSET,
    *_TAGGED,
    shared.VARY,
    *optional(shared.UP_TO_DATE, shared.CLOSED, shared.SUCCESSOR),
)
_STATE: Final = Operation(
    method="GET",
    path="/v1/state/{path}",
    id="readState",
    summary="Read the state that a stream folds to",
    description="At the tail, at any `offset`, or `at` a time. Further pages need the `offset` of "
    "the first. `history=true` shows every change of one entity.",
    tag="state",
    parameters=(
        shared.STREAM,
        shared.OFFSET._replace(description="The point of the stream; the tail if not there."),
        Parameter(
            "at",
            "query",
            "In place of `offset` a time: the state before the first message appended at or after "
            "it. RFC 3339 with its zone, or milliseconds since 1970.",
            TEXT,
            example="2026-11-01T10:00:00Z",
        ),
        Parameter("type", "query", "Only entities of this type.", TEXT, example="user"),
        Parameter("key", "query", "Only this entity; needs `type`.", TEXT),
        shared.PREFIX._replace(description="Only keys that begin with this; needs `type`."),
        Parameter(
            "history",
            "query",
            "The changes of one entity; needs `type` and `key`.",
            {"enum": ["true", "false"]},
        ),
        shared.AFTER,
        shared.LIMIT._replace(
            schema={**shared.COUNT, "maximum": limits.STATE_LIMIT_MAX},
        ),
        shared.IF_NONE_MATCH,
    ),
    answers=(
        Answer(
            200,
            "A page of the state, or of a history.",
            _AT,
            json(
                {"anyOf": [reference("StatePage"), reference("HistoryPage")]},
                {
                    "offset": shared.EXAMPLE_OFFSET,
                    "types": {"user": {"1": {"name": "Ada"}}},
                    "next": None,
                },
            ),
        ),
        Answer(304, "It has not changed.", _AT),
    ),
    errors=(*OFFSETS, *QUERY, NotJsonStream, NotDeclared, *FIND, Damaged),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    components = struct_schemas({"Declaration": Declaration})
    types = mapping(
        record(
            {"schema": {"type": ["object", "boolean"]}, "key_pattern": TEXT},
            optional=["key_pattern"],
        )
    )
    # What a GET adds may be sent back; it means nothing then.
    read_only = {name: {"readOnly": True} for name in ("version", "offset", "ordinal")}
    components["DeclarationRequest"] = record(
        {
            "types": types,
            "mode": {"enum": ["reject", "warn"], "default": "reject"},
            "unknown_types": {"enum": ["keep", "refuse"], "default": "keep"},
            **read_only,
        },
        optional=["mode", "unknown_types", *read_only],
    )
    page = {"offset": shared.TOKEN, "next": nullable(TEXT)}
    components["StatePage"] = record({**page, "types": mapping(mapping({}))})
    step = record(
        {
            "offset": shared.TOKEN,
            "ordinal": NUMBER,
            "operation": {"enum": sorted(OPERATIONS)},
            "control": {"const": "reset"},
            "value": {},
            "txid": TEXT,
            "timestamp": TEXT,
            "reason": {},
        },
        optional=["operation", "control", "value", "txid", "timestamp", "reason"],
    )
    components["HistoryPage"] = record({**page, "type": TEXT, "key": TEXT, "history": array(step)})
    components["DeclaredStream"] = record(
        {"path": TEXT, "types": array(TEXT), "version": NUMBER, "table": FLAG}
    )
    return Description((_LIST, _PUT, _GET, _DELETE, _STATE), components)
