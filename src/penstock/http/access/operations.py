"""What the OpenAPI document says of tokens, links and sessions."""

from __future__ import annotations

from typing import Final

from penstock.errors import (
    Damaged,
    InvalidAccessRequest,
    InvalidJson,
    InvalidParameter,
    InvalidRule,
    NumberTooLong,
    RouteNotFound,
    ServerOpen,
    TokenNotFound,
    TooManyTokens,
    UnknownParameter,
)
from penstock.http.access.links import LinkRequest
from penstock.http.access.tokens import PAGE_MAX, TokenRequest
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    NO_SECURITY,
    WRITES,
    Answer,
    Body,
    Description,
    Header,
    Operation,
    json,
)
from penstock.http.openapi.schemas import (
    FLAG,
    TEXT,
    array,
    nullable,
    record,
    reference,
    struct_schemas,
)

_NO_STORE: Final = (shared.CACHE_CONTROL,)
_BODY: Final = (InvalidJson, NumberTooLong, InvalidAccessRequest)
_COOKIE: Final = Header("Set-Cookie", "The cookie, or its removal.", TEXT)
_ID: Final = "7xk2m9qwer"
_MEMBERS: Final = {
    "id": TEXT,
    "name": TEXT,
    "allow": array(TEXT),
    "created_at": shared.TIME,
    "created_by": TEXT,
    "expires_at": nullable(shared.TIME),
    "expired": FLAG,
}
_EXAMPLE: Final = {
    "id": _ID,
    "name": "guest",
    "allow": ["read:chat/42/**"],
    "created_at": "2027-01-15T08:00:00.000Z",
    "created_by": "root",
    "expires_at": None,
    "expired": False,
}

_TOKENS: Final = (
    Operation(
        method="POST",
        path="/v1/tokens",
        id="createToken",
        summary="Create a token; only this answer has its text",
        description="`expires_in` is in seconds; null is a token that does not expire, and without "
        "it a token expires after 90 days. Nobody can allow more than they may do themselves.",
        tag="access",
        body=Body(json(reference("TokenRequest"), {"allow": ["read:chat/42/**"]})),
        answers=(
            Answer(
                201,
                "The token, once.",
                _NO_STORE,
                json(
                    record({"token": TEXT, **_MEMBERS}),
                    {"token": f"pst_{_ID}_…", **_EXAMPLE},
                ),
            ),
        ),
        errors=(*_BODY, InvalidRule, ServerOpen, TooManyTokens, Damaged, *WRITES),
    ),
    Operation(
        method="GET",
        path="/v1/tokens",
        id="listTokens",
        summary="List the tokens, without their secrets",
        tag="access",
        parameters=(
            shared.AFTER,
            shared.LIMIT._replace(schema={**shared.COUNT, "maximum": PAGE_MAX}),
        ),
        answers=(
            Answer(
                200,
                "A page, by id.",
                _NO_STORE,
                json(
                    record({"tokens": array(reference("Token")), "next": nullable(TEXT)}),
                    {"tokens": [_EXAMPLE], "next": None},
                ),
            ),
        ),
        errors=(InvalidParameter, UnknownParameter),
    ),
    Operation(
        method="DELETE",
        path="/v1/tokens/{path}",
        id="revokeToken",
        summary="Revoke a token: its requests are refused, and its live responses end",
        tag="access",
        parameters=(shared.STREAM._replace(description="The id of the token.", example=_ID),),
        answers=(
            Answer(
                200, "The token that was revoked.", _NO_STORE, json(reference("Token"), _EXAMPLE)
            ),
        ),
        errors=(TokenNotFound, Damaged, *WRITES),
    ),
)

_LINKS: Final = (
    Operation(
        method="POST",
        path="/v1/link",
        id="signLink",
        summary="Sign a URL that needs no token",
        description="It is for one verb, a path or a pattern, and at most `link_lifetime_max_s` "
        "seconds. It ends with the token that signs it.",
        tag="access",
        body=Body(
            json(reference("LinkRequest"), {"verb": "read", "path": "chat/42", "expires_in": 3600})
        ),
        answers=(
            Answer(
                201,
                "The URL, and the value of its parameter `link` for other URLs of the path.",
                _NO_STORE,
                json(
                    record({"url": TEXT, "link": TEXT, "expires_at": shared.TIME}),
                    {
                        "url": "https://streams.example.com/v1/stream/chat/42?link=…",
                        "link": "…",
                        "expires_at": "2027-01-15T09:00:00.000Z",
                    },
                ),
            ),
        ),
        errors=(*_BODY, ServerOpen, Damaged, *WRITES),
    ),
    Operation(
        method="POST",
        path="/v1/links/rotate",
        id="rotateLinkKey",
        summary="End all links and sessions",
        tag="access",
        answers=(Answer(204, "There is a new key."),),
        errors=(ServerOpen, Damaged, *WRITES),
    ),
)

_SESSIONS: Final = (
    Operation(
        method="GET",
        path="/v1/session",
        id="readSession",
        summary="Who the client is, and what it may do",
        description="For whoever has credentials, or rules without any. `open` is a server without "
        "access rules, `cookies` one that takes cookies.",
        tag="access",
        answers=(
            Answer(
                200,
                "The principal of the request.",
                _NO_STORE,
                json(
                    record(
                        {
                            "principal": TEXT,
                            "rules": array(TEXT),
                            "expires_at": nullable(shared.TIME),
                            "open": FLAG,
                            "anonymous": FLAG,
                            "cookies": FLAG,
                        }
                    ),
                    {
                        "principal": "guest",
                        "rules": ["read:chat/42/**"],
                        "expires_at": "2027-01-15T20:00:00.000Z",
                        "open": False,
                        "anonymous": False,
                        "cookies": False,
                    },
                ),
            ),
        ),
    ),
    Operation(
        method="POST",
        path="/v1/session",
        id="beginSession",
        summary="Turn the token of this request into a cookie",
        description="Only with the setting `cookies`. What changes something by the cookie has to "
        "come from a page of the same origin.",
        tag="access",
        answers=(
            Answer(
                201,
                "The cookie.",
                (*_NO_STORE, _COOKIE),
                json(
                    record({"expires_at": shared.TIME}),
                    {"expires_at": "2027-01-15T20:00:00.000Z"},
                ),
            ),
        ),
        errors=(RouteNotFound, ServerOpen, Damaged, *WRITES),
        security=("bearer",),
    ),
    Operation(
        method="DELETE",
        path="/v1/session",
        id="endSession",
        summary="Remove the cookie",
        tag="access",
        answers=(Answer(204, "There is no cookie any more.", (*_NO_STORE, _COOKIE)),),
        errors=(RouteNotFound,),
        security=NO_SECURITY,
    ),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    components = struct_schemas(
        {"TokenRequest": TokenRequest, "LinkRequest": LinkRequest},
        {"TokenRequest": {"allow": {"minItems": 1}}, "LinkRequest": {"expires_in": {"minimum": 1}}},
    )
    components["Token"] = record(_MEMBERS)
    return Description((*_TOKENS, *_LINKS, *_SESSIONS), components)
