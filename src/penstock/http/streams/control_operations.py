"""What the OpenAPI document says of the resources behind a stream's path: what is dropped of the
stream, where it goes on, and what it has to do with others."""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.errors import (
    Damaged,
    InvalidJson,
    InvalidParameter,
    MirrorReadOnly,
    NotCompactable,
    NotJsonStream,
    NotStateStream,
    StateTooLarge,
    StreamClosed,
    UnknownParameter,
)
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    WRITES,
    Answer,
    Body,
    Description,
    Errors,
    Operation,
    json,
)
from penstock.http.openapi.schemas import (
    FLAG,
    NUMBER,
    TEXT,
    array,
    nullable,
    record,
    reference,
    struct_schemas,
)
from penstock.http.streams.operations import FIND, OFFSETS
from penstock.http.streams.retention import CompactRequest, Policy, TrimRequest
from penstock.http.streams.successor import SuccessorRequest
from penstock.protocol.retention import RATIO_MIN

_RETENTION: Final = "/v1/stream/{path}/__ds/retention"
_EARLIEST: Final = (shared.EARLIEST_OFFSET, shared.CACHE_CONTROL)
_POLICY: Final = Answer(
    200,
    "The policy.",
    _EARLIEST,
    json(
        reference("RetentionStatus"),
        {
            "age": 604800,
            "bytes": None,
            "compact": None,
            "own": True,
            "earliest": shared.EXAMPLE_OFFSET,
        },
    ),
)
_RETENTION_OPERATIONS: Final = (
    Operation(
        method="POST",
        path="/v1/stream/{path}/__ds/trim",
        id="trimStream",
        summary="Delete the messages before an offset",
        tag="retention",
        parameters=(shared.STREAM,),
        body=Body(json(reference("TrimRequest"), {"before": shared.EXAMPLE_OFFSET})),
        answers=(
            Answer(
                200,
                "The messages are gone.",
                _EARLIEST,
                json(record({"earliest": shared.TOKEN}), {"earliest": shared.EXAMPLE_OFFSET}),
            ),
        ),
        errors=(InvalidJson, *OFFSETS, MirrorReadOnly, *FIND, Damaged, *WRITES),
    ),
    Operation(
        method="POST",
        path="/v1/stream/{path}/__ds/compact",
        id="compactStream",
        summary="Replace the history of a state stream by its live state",
        tag="retention",
        parameters=(shared.STREAM,),
        body=Body(json(reference("CompactRequest"), {}), required=False),
        answers=(
            Answer(
                200,
                "The history is replaced.",
                _EARLIEST,
                json(
                    record({"earliest": shared.TOKEN, "entities": NUMBER, "bytes": NUMBER}),
                    {"earliest": shared.EXAMPLE_OFFSET, "entities": 3, "bytes": 512},
                ),
            ),
        ),
        errors=(
            InvalidJson,
            MirrorReadOnly,
            NotStateStream,
            NotCompactable,
            NotJsonStream,
            StateTooLarge,
            StreamClosed,
            *FIND,
            Damaged,
            *WRITES,
        ),
    ),
    Operation(
        method="GET",
        path=_RETENTION,
        id="readRetention",
        summary="Show the retention policy of a stream",
        tag="retention",
        parameters=(shared.STREAM,),
        answers=(_POLICY,),
        errors=(*FIND, Damaged),
    ),
    Operation(
        method="PUT",
        path=_RETENTION,
        id="setRetention",
        summary="Give a stream a retention policy of its own",
        tag="retention",
        parameters=(shared.STREAM,),
        body=Body(json(reference("RetentionPolicy"), {"age": 604800})),
        answers=(_POLICY,),
        errors=(InvalidJson, MirrorReadOnly, *FIND, Damaged, *WRITES),
    ),
    Operation(
        method="DELETE",
        path=_RETENTION,
        id="dropRetention",
        summary="Give a stream the policy of the server again",
        tag="retention",
        parameters=(shared.STREAM,),
        answers=(Answer(204, "The stream has no policy of its own."),),
        errors=(MirrorReadOnly, *FIND, Damaged, *WRITES),
    ),
)

_SUCCESSOR: Final = "/v1/stream/{path}/__ds/successor"
_LOCATION: Final = Answer(
    200,
    "The successor.",
    (shared.CACHE_CONTROL,),
    json(record({"location": nullable(TEXT)}), {"location": "/v1/stream/chat/43"}),
)
_SUCCESSOR_OPERATIONS: Final = (
    Operation(
        method="GET",
        path=_SUCCESSOR,
        id="readSuccessor",
        summary="Show the stream in which this one goes on",
        tag="retention",
        parameters=(shared.STREAM,),
        answers=(_LOCATION,),
        errors=(*FIND, Damaged),
    ),
    Operation(
        method="PUT",
        path=_SUCCESSOR,
        id="setSuccessor",
        summary="Name the stream in which this one goes on",
        tag="retention",
        parameters=(shared.STREAM,),
        body=Body(json(reference("SuccessorRequest"), {"location": "/v1/stream/chat/43"})),
        answers=(_LOCATION,),
        errors=(InvalidJson, MirrorReadOnly, *FIND, Damaged, *WRITES),
    ),
    Operation(
        method="DELETE",
        path=_SUCCESSOR,
        id="dropSuccessor",
        summary="Remove the successor, and end a hold",
        tag="retention",
        parameters=(shared.STREAM,),
        answers=(Answer(204, "The stream has no successor."),),
        errors=(MirrorReadOnly, *FIND, Damaged, *WRITES),
    ),
)

_PRODUCER: Final = record({"id": TEXT, "epoch": NUMBER, "seq": NUMBER})
_PAGE: Final = (shared.STREAM, shared.AFTER, shared.LIMIT)
_PAGE_ERRORS: Final[Errors] = (InvalidParameter, UnknownParameter, *FIND, Damaged)
_RELATION_OPERATIONS: Final = (
    Operation(
        method="GET",
        path="/v1/stream/{path}/__ds/producers",
        id="listProducers",
        summary="List the producers that a stream remembers",
        tag="streams",
        parameters=_PAGE,
        answers=(
            Answer(
                200,
                "A page, by id.",
                (shared.CACHE_CONTROL,),
                json(
                    record(
                        {
                            "producers": array(_PRODUCER),
                            "total": NUMBER,
                            "next": nullable(TEXT),
                        }
                    ),
                    {
                        "producers": [{"id": "sensor", "epoch": 2, "seq": 41}],
                        "total": 1,
                        "next": None,
                    },
                ),
            ),
        ),
        errors=_PAGE_ERRORS,
    ),
    Operation(
        method="GET",
        path="/v1/stream/{path}/__ds/forks",
        id="listForks",
        summary="Show what a stream was forked from, and list its forks",
        description="`sources` begins with the nearest one; `path` is null for a source that the "
        "client may not read. Forks that it may not read are left out.",
        tag="streams",
        parameters=_PAGE,
        answers=(
            Answer(
                200,
                "A page, by path.",
                (shared.CACHE_CONTROL,),
                json(
                    record(
                        {
                            "sources": array(
                                record(
                                    {
                                        "path": nullable(TEXT),
                                        "offset": shared.TOKEN,
                                        "deleted": FLAG,
                                    }
                                )
                            ),
                            "forks": array(
                                record(
                                    {
                                        "path": TEXT,
                                        "messages": NUMBER,
                                        "bytes": NUMBER,
                                        "closed": FLAG,
                                        "created_at": shared.TIME,
                                    }
                                )
                            ),
                            "next": nullable(TEXT),
                        }
                    ),
                    {
                        "sources": [
                            {
                                "path": "chat/42",
                                "offset": shared.EXAMPLE_OFFSET,
                                "deleted": False,
                            }
                        ],
                        "forks": [],
                        "next": None,
                    },
                ),
            ),
        ),
        errors=_PAGE_ERRORS,
    ),
)


def describe() -> Description:
    """Return what the document says of these resources."""
    at_least_1 = {"minimum": 1, "maximum": limits.INTEGER_MAX}
    components = struct_schemas(
        {
            "TrimRequest": TrimRequest,
            "CompactRequest": CompactRequest,
            "RetentionPolicy": Policy,
            "SuccessorRequest": SuccessorRequest,
        },
        {
            "TrimRequest": {"before": shared.OFFSET_TEXT},
            "RetentionPolicy": {
                "age": at_least_1,
                "bytes": at_least_1,
                "compact": {**at_least_1, "minimum": RATIO_MIN},
            },
            "SuccessorRequest": {
                "location": {"pattern": "^/v1/stream/[A-Za-z0-9_/-]+$"},
                "hold": {"minimum": 0, "maximum": limits.SUCCESSOR_HOLD_S_MAX},
            },
        },
    )
    components["RetentionStatus"] = record(
        {
            "age": nullable(NUMBER),
            "bytes": nullable(NUMBER),
            "compact": nullable(NUMBER),
            "own": {**FLAG, "description": "Whether the policy is the stream's own."},
            "earliest": shared.TOKEN,
        }
    )
    operations = (*_RETENTION_OPERATIONS, *_SUCCESSOR_OPERATIONS, *_RELATION_OPERATIONS)
    return Description(operations, components)
