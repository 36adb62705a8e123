"""What the OpenAPI document says of tables."""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.errors import (
    Damaged,
    EmptyBody,
    InvalidJson,
    InvalidParameter,
    InvalidPath,
    InvalidTable,
    MirrorReadOnly,
    NotAcceptable,
    NotDeclared,
    NotExpressible,
    NotJsonStream,
    NumberTooLong,
    PathBlocked,
    RowsTrimmed,
    StreamClosed,
    StreamSoftDeleted,
    TableExists,
    TableNotFound,
    UnknownParameter,
    UnsupportedType,
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
    Link,
    Operation,
    Parameter,
    json,
    optional,
    required,
)
from penstock.http.openapi.schemas import (
    TEXT,
    record,
    reference,
    struct_schemas,
)
from penstock.http.streams.operations import APPENDED
from penstock.stp.content_type import MEDIA
from penstock.stp.declaration import Table

_TABLE: Final = "/v1/table/{path}"
_FIND: Final = (TableNotFound, StreamSoftDeleted)
_LAST: Final = Header("STP-Last-SeqNo", "The SeqNo of the last row.", shared.WHOLE)
_FIRST: Final = Header("STP-First-SeqNo", "The SeqNo of the first new row.", shared.WHOLE)
_KEY: Final = Parameter(
    "key", "query", "The key of one row, without tabs and line breaks.", TEXT, example="user-1"
)
_CONDITIONS: Final = (shared.IF_MATCH, shared.STREAM_SEQ, *shared.PRODUCER)
_ROWS: Final = "1\t2026-01-31T12:00:00Z\t+\tuser-1\tAda\n"
_DECLARED: Final = {
    "table": "users",
    "stream": "users",
    "schema": "user",
    "version": 1,
    "type": "user",
    "record": "text",
    "escape": False,
}
_WRITTEN: Final = (
    shared.NEXT_OFFSET,
    _LAST,
    *optional(_FIRST, shared.PRODUCER_EPOCH, shared.PRODUCER_SEQ),
)
_ACCEPTED: Final = (
    Answer(204, "Written; or a repeat of a producer, which changes nothing.", _WRITTEN),
    Answer(200, "New rows of a producer were written.", _WRITTEN),
)
_QUERY: Final = (InvalidParameter, UnknownParameter)

_READ: Final = Operation(
    method="GET",
    path=_TABLE,
    id="readTable",
    summary="Read the rows of a table, and wait for more",
    description="A row is SeqNo, time, `+` or `-`, key and record, separated by tabs. The response "
    "stays open for new rows up to `timeout` seconds.",
    tag="tables",
    parameters=(
        shared.TABLE,
        Parameter(
            "since_id",
            "query",
            "Rows after this SeqNo; `-N` is the last N rows.",
            {"type": "integer"},
            example=0,
        ),
        Parameter(
            "timeout",
            "query",
            "Seconds to wait for new rows; 0 does not wait.",
            {"type": "number", "minimum": 0, "maximum": 999_999_999, "multipleOf": 1},
            example=0,
        ),
        Parameter("view", "query", "The live rows only.", {"enum": ["active"]}),
        Parameter(
            "Accept", "header", "The content type with the schema and version to read.", TEXT
        ),
        shared.IF_NONE_MATCH,
    ),
    answers=(
        Answer(
            200,
            "Rows.",
            (
                _LAST,
                shared.CACHE_CONTROL,
                shared.VARY,
                *optional(shared.ETAG, shared.CLOSED),
            ),
            (Content(MEDIA, TEXT, _ROWS),),
        ),
        Answer(
            304,
            "The client has these rows already.",
            (shared.ETAG, _LAST, shared.CACHE_CONTROL, shared.VARY, *optional(shared.CLOSED)),
        ),
    ),
    errors=(*_QUERY, *_FIND, *LIVE, NotAcceptable, RowsTrimmed, Damaged),
)
_PUT: Final = Operation(
    method="PUT",
    path=_TABLE,
    id="putTableOrRow",
    summary="Declare a table, or write one row",
    description="Without `key` the body is a declaration in JSON; with `key` it is the record of "
    "that row.",
    tag="tables",
    parameters=(shared.TABLE, _KEY, *_CONDITIONS),
    body=Body(
        (
            Content("application/json", reference("TableRequest"), {"schema": "user"}),
            Content("text/plain", TEXT, "Ada"),
        ),
        "A declaration, or a record.",
        required=False,
    ),
    answers=(
        Answer(
            201,
            "The table is new.",
            (shared.LOCATION, shared.CACHE_CONTROL),
            json(reference("TableDeclaration"), _DECLARED),
            (
                Link("read", "readTable", {"path.path": "$request.path.path"}),
                Link("write", "writeRows", {"path.path": "$request.path.path"}),
            ),
        ),
        Answer(
            200,
            "The table was declared like this before, and the body is as with 201; or the row of a "
            "producer was written, and there is none.",
            optional(shared.CACHE_CONTROL, *_WRITTEN),
        ),
        _ACCEPTED[0],
    ),
    errors=(
        *_QUERY,
        InvalidPath,
        InvalidJson,
        NumberTooLong,
        *GROWS,
        InvalidTable,
        *APPENDED,
        *_FIND,
        TableExists,
        NotJsonStream,
        NotDeclared,
        NotExpressible,
        PathBlocked,
        StreamClosed,
        Damaged,
        *WRITES,
    ),
)
_POST: Final = Operation(
    method="POST",
    path=_TABLE,
    id="writeRows",
    summary="Write rows",
    description=f"At most {limits.TABLE_ROWS_PER_POST_MAX} lines of `+`, key and record, or `-` "
    "and key, separated by tabs. All of them are written, or none.",
    tag="tables",
    parameters=(shared.TABLE, *_CONDITIONS),
    body=Body(
        tuple(
            Content(media, {"type": "string", "pattern": "^[+-]\t"}, "+\tuser-1\tAda\n-\tuser-2\n")
            for media in ("text/tab-separated-values", "text/plain", MEDIA)
        )
    ),
    answers=_ACCEPTED,
    errors=(EmptyBody, *GROWS, *APPENDED, *_FIND, UnsupportedType, Damaged, *WRITES),
)
_DELETE: Final = Operation(
    method="DELETE",
    path=_TABLE,
    id="deleteRow",
    summary="Delete one row",
    tag="tables",
    parameters=(shared.TABLE, *required(_KEY), *_CONDITIONS),
    answers=_ACCEPTED,
    errors=(*_QUERY, *APPENDED, *_FIND, MirrorReadOnly, Damaged, *WRITES),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    components = struct_schemas({"TableOptions": Table})
    members = components.pop("TableOptions")["properties"]
    components["TableDeclaration"] = record({"table": TEXT, "stream": TEXT, **members})
    schema = {
        "type": "string",
        "pattern": "^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?$",
        "maxLength": limits.TABLE_SCHEMA_BYTES_MAX,
    }
    bounds = {
        "schema": schema,
        "version": {
            "type": "integer",
            "minimum": 0,
            "maximum": limits.TABLE_VERSION_MAX,
            "default": 1,
        },
        "type": {"type": "string", "minLength": 1},
        "stream": {**shared.PATH_TEXT, "description": "The stream; that of the path by default."},
        "table": {"readOnly": True},
        "ordinal": {"readOnly": True},
    }
    components["TableRequest"] = record(
        {**members, **bounds}, optional=[name for name in {**members, **bounds} if name != "schema"]
    )
    return Description((_READ, _PUT, _POST, _DELETE), components)
