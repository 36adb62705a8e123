"""What the OpenAPI document says of Notify, of mirrors, and of advertised NURLs."""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    Damaged,
    EgressRefused,
    FollowConflict,
    FollowNotFound,
    InvalidFollow,
    InvalidJson,
    InvalidNotify,
    InvalidParameter,
    InvalidUrl,
    MirrorReadOnly,
    NumberTooLong,
    NurlNotFound,
    PathBlocked,
    StreamExists,
    StreamSoftDeleted,
    TooManyPeers,
    UnknownParameter,
    UnsupportedType,
)
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    WRITES,
    Answer,
    Body,
    Content,
    Description,
    Operation,
    Parameter,
    json,
)
from penstock.http.openapi.schemas import (
    NUMBER,
    TEXT,
    array,
    mapping,
    nullable,
    record,
    reference,
    struct_schemas,
)
from penstock.http.peers.follow import FollowRequest
from penstock.http.peers.nurls import PAGE_MAX, SendRequest
from penstock.stp.notify import FORM
from penstock.stp.server.follower import Status

_NO_STORE: Final = (shared.CACHE_CONTROL,)
_SURL: Final = "https://peer.example/v1/table/users"
_NURL: Final = "https://peer.example/v1/notify/users"
_QUERY: Final = (InvalidParameter, UnknownParameter)

_NOTIFY: Final = Operation(
    method="POST",
    path="/v1/notify/{path}",
    id="notify",
    summary="Say that a table may have new rows, or where to notify of ours",
    description="`surl` is the table; every other field is an event and the NURL to notify of it. "
    "The form is a hint: what follows from it is decided here.",
    tag="peers",
    parameters=(shared.STREAM._replace(description="The name that the NURL has."),),
    body=Body((Content(FORM, mapping({"type": "string", "format": "uri"}), {"surl": _SURL}),)),
    answers=(
        Answer(
            202,
            "What was done with each field.",
            _NO_STORE,
            json(reference("NotifyOutcome"), {"ignored": {}, "followed_by": ["users"]}),
        ),
    ),
    errors=(
        InvalidNotify,
        InvalidUrl,
        EgressRefused,
        UnsupportedType,
        TooManyPeers,
        FollowConflict,
        Damaged,
        *WRITES,
    ),
    security=("bearer", "signature"),
)

_FOLLOW: Final = "/v1/follow/{path}"
_STATUS: Final = json(
    reference("FollowStatus"),
    {
        "table": "users",
        "surl": _SURL,
        "nurl": None,
        "state": "following",
        "seqno": 12,
        "appended": 12,
        "unchanged": 0,
        "conflicts": 0,
        "last_conflict": "",
        "failures": 0,
        "reason": "",
        "requests": 3,
    },
)
_FOLLOW_OPERATIONS: Final = (
    Operation(
        method="PUT",
        path=_FOLLOW,
        id="followTable",
        summary="Make a table a mirror of another server's",
        tag="peers",
        parameters=(shared.TABLE,),
        body=Body(json(reference("FollowRequest"), {"surl": _SURL})),
        answers=(
            Answer(201, "The mirror is new.", _NO_STORE, _STATUS),
            Answer(200, "The table followed this source before.", _NO_STORE, _STATUS),
        ),
        errors=(
            InvalidFollow,
            InvalidJson,
            NumberTooLong,
            InvalidNotify,
            InvalidUrl,
            EgressRefused,
            MirrorReadOnly,
            FollowConflict,
            FollowNotFound,
            StreamExists,
            PathBlocked,
            StreamSoftDeleted,
            TooManyPeers,
            Damaged,
            *WRITES,
        ),
    ),
    Operation(
        method="GET",
        path=_FOLLOW,
        id="readFollow",
        summary="Show the progress of a mirror",
        tag="peers",
        parameters=(shared.TABLE,),
        answers=(Answer(200, "The mirror.", _NO_STORE, _STATUS),),
        errors=(FollowNotFound, Damaged),
    ),
    Operation(
        method="DELETE",
        path=_FOLLOW,
        id="unfollowTable",
        summary="End a mirror; its rows stay",
        tag="peers",
        parameters=(shared.TABLE,),
        answers=(Answer(204, "The table follows nothing."),),
        errors=(FollowNotFound, Damaged, *WRITES),
    ),
)

_MIRRORS: Final = Operation(
    method="GET",
    path="/v1/follow",
    id="listFollows",
    summary="List the mirrors of other servers' tables",
    description="Those that the principal may follow.",
    tag="peers",
    parameters=(
        shared.AFTER,
        shared.LIMIT._replace(schema={**shared.COUNT, "maximum": PAGE_MAX}),
    ),
    answers=(
        Answer(
            200,
            "A page.",
            _NO_STORE,
            json(
                record({"mirrors": array(reference("FollowStatus")), "next": nullable(TEXT)}),
                {"mirrors": [], "next": None},
            ),
        ),
    ),
    errors=(*_QUERY, Damaged),
)

_SELECTION: Final = (
    Parameter("nurl", "query", "Only this NURL.", TEXT),
    Parameter("event", "query", "Only NURLs of this event.", TEXT),
    Parameter("table", "query", "Only NURLs of this table.", TEXT),
    Parameter("source", "query", "Only NURLs that came with this SURL.", TEXT),
)
_NURLS: Final = "/v1/nurls"
_NURL_OPERATIONS: Final = (
    Operation(
        method="GET",
        path=_NURLS,
        id="listNurls",
        summary="List the NURLs that peers have advertised",
        tag="peers",
        parameters=(
            *_SELECTION,
            shared.AFTER,
            shared.LIMIT._replace(schema={**shared.COUNT, "maximum": PAGE_MAX}),
        ),
        answers=(
            Answer(
                200,
                "A page.",
                _NO_STORE,
                json(
                    record({"nurls": array(reference("Nurl")), "next": nullable(TEXT)}),
                    {"nurls": [], "next": None},
                ),
            ),
        ),
        errors=(*_QUERY, Damaged),
    ),
    Operation(
        method="POST",
        path=_NURLS,
        id="sendNotify",
        summary="Send a Notify to advertised NURLs",
        tag="peers",
        body=Body(json(reference("SendRequest"), {"surl": _SURL, "event": "match"})),
        answers=(
            Answer(
                200,
                "Which NURLs have accepted it, and why others have not.",
                _NO_STORE,
                json(
                    record({"sent": array(TEXT), "failed": mapping(TEXT)}),
                    {"sent": [_NURL], "failed": {}},
                ),
            ),
        ),
        errors=(InvalidJson, NumberTooLong, InvalidNotify, InvalidUrl, NurlNotFound, Damaged),
    ),
    Operation(
        method="DELETE",
        path=_NURLS,
        id="removeNurls",
        summary="Forget advertised NURLs",
        tag="peers",
        parameters=_SELECTION,
        answers=(
            Answer(
                200,
                "How many were removed.",
                _NO_STORE,
                json(record({"removed": NUMBER}), {"removed": 1}),
            ),
        ),
        errors=(*_QUERY, NurlNotFound, Damaged, *WRITES),
    ),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    components = struct_schemas(
        {"FollowRequest": FollowRequest, "SendRequest": SendRequest, "FollowProgress": Status},
        {
            "FollowRequest": {"surl": {"format": "uri"}, "links": {"minimum": 0}},
            "SendRequest": {"surl": {"format": "uri"}},
        },
    )
    progress = components.pop("FollowProgress")["properties"]
    links = record({"depth": NUMBER, "followed": array(TEXT), "refused": mapping(TEXT)})
    components["FollowStatus"] = record(
        {
            "table": TEXT,
            "surl": TEXT,
            "nurl": nullable(TEXT),
            **progress,
            "links": links,
            "root": TEXT,
        },
        optional=["links", "root"],
    )
    components["NotifyOutcome"] = record(
        {
            "ignored": mapping(TEXT),
            "followed_by": array(TEXT),
            "told_of": mapping(TEXT),
            "waiting": mapping({"anyOf": [TEXT, array(TEXT)]}),
        },
        optional=["followed_by", "told_of", "waiting"],
    )
    components["Nurl"] = record(
        {
            "nurl": TEXT,
            "event": TEXT,
            "state": {"enum": ["active", "given-up", "waiting", "followed"]},
            "tables": array(TEXT),
            "source": TEXT,
            "reason": TEXT,
            "expires_at": nullable(shared.TIME),
        }
    )
    operations = (_NOTIFY, *_FOLLOW_OPERATIONS, _MIRRORS, *_NURL_OPERATIONS)
    return Description(operations, components)
