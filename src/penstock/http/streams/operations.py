"""What the OpenAPI document says of streams and their listing."""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    ConflictingExpiry,
    ContentTypeMismatch,
    Damaged,
    EmptyArray,
    EmptyBody,
    EpochStart,
    ForkSourceDeleted,
    ForkTooDeep,
    InvalidContentType,
    InvalidCursor,
    InvalidEvent,
    InvalidExpiresAt,
    InvalidForkOffset,
    InvalidJson,
    InvalidOffset,
    InvalidParameter,
    InvalidProducer,
    InvalidRow,
    InvalidStreamSeq,
    InvalidTtl,
    MirrorReadOnly,
    MissingContentType,
    NumberTooLong,
    OffsetBeyondTail,
    OffsetNotAligned,
    PathBlocked,
    SequenceGap,
    StaleEpoch,
    StreamClosed,
    StreamExists,
    StreamNotFound,
    StreamRecreated,
    StreamSeqConflict,
    StreamSoftDeleted,
    StreamTrimmed,
    TailMoved,
    TooManyParameters,
    TooManyProducers,
    TooManyStreams,
    UnknownParameter,
    ValidationFailed,
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
    Errors,
    Header,
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
    nullable,
    record,
    reference,
)

FIND: Final[Errors] = (StreamNotFound, StreamSoftDeleted)
OFFSETS: Final[Errors] = (
    InvalidOffset,
    OffsetBeyondTail,
    OffsetNotAligned,
    StreamRecreated,
    StreamTrimmed,
)
QUERY: Final[Errors] = (InvalidParameter, UnknownParameter)
APPENDED: Final[Errors] = (
    StreamClosed,
    InvalidProducer,
    EpochStart,
    StaleEpoch,
    SequenceGap,
    TooManyProducers,
    InvalidStreamSeq,
    StreamSeqConflict,
    InvalidOffset,
    TailMoved,
    MirrorReadOnly,
    InvalidEvent,
    ValidationFailed,
    InvalidRow,
)
"""Errors of everything that appends to a stream."""

_STREAM: Final = "/v1/stream/{path}"
_ANY: Final = (
    Content("application/json", {}, [{"text": "hello"}]),
    Content("text/plain", TEXT, "hello"),
    Content("application/octet-stream"),
)
_CLOSE: Final = Parameter(
    "Stream-Closed", "header", "`true` closes the stream.", {"enum": ["true", "false"]}
)
_HERE: Final = {"path.path": "$request.path.path"}
_NEXT: Final = (
    Link("append", "appendToStream", _HERE),
    Link("read", "readStream", _HERE),
    Link("describe", "describeStream", _HERE),
    Link("declare", "declareSchema", _HERE),
    Link("trim", "trimStream", _HERE),
    Link("remove", "deleteStream", _HERE),
)
_LIFETIME: Final = (
    Header("Stream-TTL", "Seconds that the stream lives after it was last used.", NUMBER),
    Header("Stream-Expires-At", "When the stream ends.", shared.TIME),
)
# Empty, and still with the content type of the stream.
_EMPTY: Final = (Content("*/*"),)

_CREATE: Final = Operation(
    method="PUT",
    path=_STREAM,
    id="createStream",
    summary="Create a stream, or make sure that it exists",
    description="`Content-Type` becomes that of the stream; JSON streams hold messages, all others "
    "bytes. With `Stream-Forked-From` the stream shares the bytes of another one.",
    tag="streams",
    parameters=(
        shared.STREAM,
        Parameter(
            "Stream-TTL",
            "header",
            "Seconds that the stream lives after it was last used.",
            shared.WHOLE,
            example=3600,
        ),
        Parameter(
            "Stream-Expires-At", "header", "When the stream ends; not with a TTL.", shared.TIME
        ),
        _CLOSE,
        Parameter(
            "Stream-Forked-From",
            "header",
            "The source of a fork: `/v1/stream/<path>`.",
            {"type": "string", "pattern": "^/v1/stream/[A-Za-z0-9_/-]+$"},
        ),
        Parameter(
            "Stream-Fork-Offset",
            "header",
            "Where the fork leaves its source; the tail if it is not there.",
            shared.OFFSET_TEXT,
        ),
        Parameter(
            "Stream-Fork-Sub-Offset",
            "header",
            "Messages or bytes behind `Stream-Fork-Offset`.",
            shared.WHOLE,
        ),
    ),
    body=Body(_ANY, "The first messages or bytes.", required=False),
    answers=(
        Answer(
            201,
            "The stream was created.",
            (shared.NEXT_OFFSET, shared.LOCATION, *optional(shared.CLOSED)),
            _EMPTY,
            _NEXT,
        ),
        Answer(
            200,
            "It was there with the same configuration.",
            (shared.NEXT_OFFSET, *optional(shared.CLOSED)),
            _EMPTY,
        ),
    ),
    errors=(
        InvalidContentType,
        InvalidTtl,
        InvalidExpiresAt,
        ConflictingExpiry,
        InvalidForkOffset,
        InvalidJson,
        NumberTooLong,
        *GROWS,
        *OFFSETS,
        MirrorReadOnly,
        StreamNotFound,
        StreamExists,
        PathBlocked,
        ForkSourceDeleted,
        ForkTooDeep,
        ContentTypeMismatch,
        Damaged,
        *WRITES,
    ),
)

_APPEND_HEADERS: Final = (
    shared.NEXT_OFFSET,
    *optional(shared.CLOSED, shared.PRODUCER_EPOCH, shared.PRODUCER_SEQ),
)
_APPEND: Final = Operation(
    method="POST",
    path=_STREAM,
    id="appendToStream",
    summary="Append to a stream, or close it",
    description="An answer means that the data is durable. A JSON array is appended as its "
    "messages. An empty body is allowed with `Stream-Closed: true` alone.",
    tag="streams",
    parameters=(
        shared.STREAM,
        _CLOSE,
        shared.IF_MATCH,
        shared.STREAM_SEQ,
        *shared.PRODUCER,
    ),
    body=Body(_ANY, "Messages or bytes, with the content type of the stream.", required=False),
    answers=(
        Answer(
            204,
            "Appended; or a repeat of a producer, which changes nothing.",
            _APPEND_HEADERS,
            links=(Link("read", "readStream", _HERE),),
        ),
        Answer(200, "New data of a producer was appended.", _APPEND_HEADERS),
    ),
    errors=(
        InvalidContentType,
        MissingContentType,
        ContentTypeMismatch,
        EmptyBody,
        EmptyArray,
        InvalidJson,
        NumberTooLong,
        *GROWS,
        *APPENDED,
        *FIND,
        Damaged,
        *WRITES,
    ),
)

_STARTS: Final = (
    Parameter(
        "at",
        "query",
        "Instead of `offset`: read from the first message appended at or after this time, RFC 3339 "
        "or milliseconds since 1970.",
        {"type": "string"},
        example="2026-11-01T10:00:00Z",
    ),
    Parameter(
        "tail",
        "query",
        "Instead of `offset`: read the last so many messages of a JSON stream, or lines of text.",
        shared.WHOLE,
        example=10,
    ),
)
_FILTERS: Final = tuple(
    Parameter(
        name,
        "query",
        f"Only change events with this {name}, or one of several, and all control events.",
        {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 100},
    )
    for name in ("type", "key")
)
_SPLITS: Final = record(
    {"offsets": array(shared.TOKEN), "ordinals": array(NUMBER)}, optional=["ordinals"]
)
_LOCATED: Final = record(
    {"positions": array(NUMBER), "ordinals": array(NUMBER), "messages": array({})}
)
READ: Final = Operation(
    method="GET",
    path=_STREAM,
    id="readStream",
    summary="Read a stream, and follow it",
    description="Without `live` the response is what there is from `offset` on, up to a chunk. "
    "`live=long-poll` waits for more at the tail, `live=sse` sends events as they come. `splits` "
    "returns offsets that cut a range into parts for parallel readers.",
    tag="streams",
    parameters=(
        shared.STREAM,
        shared.OFFSET,
        *_STARTS,
        Parameter(
            "live",
            "query",
            "How to follow the stream; `false` is a catch-up read.",
            {"enum": ["false", "long-poll", "sse"]},
        ),
        Parameter("cursor", "query", "The last `Stream-Cursor`, in live reads.", TEXT),
        Parameter(
            "sse",
            "query",
            "The form of events: bytes in base64, or without event names.",
            {"enum": ["base64", "message", "base64,message"]},
        ),
        Parameter("until", "query", "The offset where the read ends at the latest.", shared.TOKEN),
        Parameter("count", "query", "The most messages; JSON streams only.", shared.COUNT),
        *_FILTERS,
        Parameter(
            "positions",
            "query",
            "With a filter: answer with the position and the ordinal of each message too.",
            {"const": "true"},
        ),
        Parameter("splits", "query", "How many parts.", {**shared.COUNT, "maximum": 1000}),
        Parameter("bytes", "query", "The most bytes that are split.", shared.COUNT),
        Parameter(
            "Last-Event-ID", "header", "Where a reconnecting EventSource goes on.", shared.TOKEN
        ),
        shared.IF_NONE_MATCH,
    ),
    answers=(
        Answer(
            200,
            "A part of the stream, its events, or the offsets of parts.",
            (
                shared.CACHE_CONTROL,
                *optional(
                    shared.NEXT_OFFSET,
                    shared.START_OFFSET,
                    shared.FILTERED,
                    shared.ETAG,
                    shared.UP_TO_DATE,
                    shared.CLOSED,
                    shared.CURSOR,
                    shared.VARY,
                    Header(
                        "Stream-SSE-Data-Encoding",
                        "How data events are encoded.",
                        {"const": "base64"},
                    ),
                ),
            ),
            (
                Content(
                    "application/json",
                    {"anyOf": [array({}), _SPLITS, _LOCATED]},
                    [{"text": "hello"}],
                ),
                Content("text/event-stream"),
                Content("*/*"),
            ),
            (
                Link(
                    "continue",
                    "readStream",
                    {**_HERE, "query.offset": "$response.header.Stream-Next-Offset"},
                ),
            ),
        ),
        Answer(
            204,
            "Nothing came while a long-poll waited, or the stream has ended.",
            (
                shared.NEXT_OFFSET,
                shared.UP_TO_DATE,
                shared.CACHE_CONTROL,
                *optional(shared.CLOSED, shared.CURSOR, shared.START_OFFSET, shared.FILTERED),
            ),
        ),
        Answer(
            304,
            "The client has this part already.",
            (
                shared.ETAG,
                shared.NEXT_OFFSET,
                shared.CACHE_CONTROL,
                *optional(
                    shared.UP_TO_DATE,
                    shared.CLOSED,
                    shared.CURSOR,
                    shared.VARY,
                    shared.START_OFFSET,
                    shared.FILTERED,
                ),
            ),
        ),
    ),
    errors=(*OFFSETS, *QUERY, *FIND, *LIVE, Damaged),
)

_DESCRIBED: Final = (
    shared.NEXT_OFFSET,
    shared.EARLIEST_OFFSET,
    shared.ETAG,
    shared.CACHE_CONTROL,
    *optional(*_LIFETIME, shared.CLOSED, shared.SUCCESSOR, shared.START_OFFSET),
)
DESCRIBE: Final = Operation(
    method="HEAD",
    path=_STREAM,
    id="describeStream",
    summary="Describe a stream by headers",
    tag="streams",
    parameters=(shared.STREAM, *_STARTS, shared.IF_NONE_MATCH),
    answers=(
        Answer(200, "The stream exists; `Content-Type` is its own.", _DESCRIBED),
        Answer(304, "The stream has not changed.", _DESCRIBED),
    ),
    errors=(*QUERY, *FIND, Damaged),
)
_DELETE: Final = Operation(
    method="DELETE",
    path=_STREAM,
    id="deleteStream",
    summary="Delete a stream",
    description="While it has forks their shared bytes stay, and its path cannot be used again.",
    tag="streams",
    parameters=(shared.STREAM,),
    answers=(Answer(204, "The stream is deleted."),),
    errors=(*FIND, MirrorReadOnly, Damaged, *WRITES),
)
_LIST: Final = Operation(
    method="GET",
    path="/v1/streams",
    id="listStreams",
    summary="List streams in the order of their paths",
    tag="streams",
    parameters=(shared.PREFIX, shared.AFTER, shared.LIMIT),
    answers=(
        Answer(
            200,
            "A page.",
            (shared.CACHE_CONTROL,),
            json(
                record({"streams": array(reference("StreamEntry")), "next": nullable(TEXT)}),
                {"streams": [], "next": None},
            ),
        ),
    ),
    errors=(*QUERY, Damaged),
)
_FOLLOW: Final = Operation(
    method="GET",
    path="/v1/streams/live",
    id="followStreams",
    summary="Follow several streams on one response",
    description="Each event is an array of entries; an entry names its stream and offset. The id "
    "of an event is the position of all streams after it. New streams that match join by "
    "themselves.",
    tag="streams",
    parameters=(
        Parameter(
            "stream",
            "query",
            "A stream and where to begin: `<path>@<offset>`. May come more than once.",
            array({"type": "string", "pattern": "^[A-Za-z0-9_/-]+@(-1|now)$"}),
            example=["chat/42@-1"],
        ),
        Parameter(
            "match",
            "query",
            "A pattern and where to begin: `<pattern>@now` or `<pattern>@-1`. May come more than "
            "once.",
            array({"type": "string", "pattern": r"^[A-Za-z0-9_/-]*\*@(-1|now)$"}),
            example=["chat/*@now"],
        ),
        Parameter(
            "cursor", "query", "The id of the last event, for clients that use `fetch`.", TEXT
        ),
        Parameter("Last-Event-ID", "header", "Where a reconnecting EventSource goes on.", TEXT),
    ),
    answers=(
        Answer(
            200,
            "Events, until the time of a response is over.",
            (shared.CACHE_CONTROL,),
            (Content("text/event-stream"),),
        ),
        Answer(204, "All streams are closed, and none can join.", (shared.CACHE_CONTROL,)),
    ),
    errors=(
        *LIVE,
        *QUERY,
        InvalidCursor,
        TooManyParameters,
        TooManyStreams,
        InvalidOffset,
        OffsetBeyondTail,
        OffsetNotAligned,
        Damaged,
    ),
)


def describe() -> Description:
    """Return what the document says of streams and their listing."""
    operations = (_CREATE, _APPEND, READ, DESCRIBE, _DELETE, _LIST, _FOLLOW)
    components = {
        "StreamEntry": record(
            {
                "path": TEXT,
                "offset": shared.TOKEN,
                "content_type": TEXT,
                "messages": NUMBER,
                "bytes": NUMBER,
                "trimmed": NUMBER,
                "closed": FLAG,
                "created_at": shared.TIME,
                "touched_at": shared.TIME,
                "ttl": nullable(NUMBER),
                "expires_at": nullable(shared.TIME),
                "forked_from": nullable(TEXT),
            }
        )
    }
    return Description(operations, components)
