"""What the OpenAPI document says of subscriptions, their workers, and the keys of webhooks."""

from __future__ import annotations

from typing import Final

from penstock import limits
from penstock.errors import (
    AlreadyClaimed,
    Damaged,
    Fenced,
    InvalidAck,
    InvalidParameter,
    InvalidSubscription,
    InvalidToken,
    NoPendingWork,
    PublicUrlNotSet,
    SubscriptionExists,
    SubscriptionNotFound,
    TooManySubscriptions,
    UnknownParameter,
    WebhookRefused,
)
from penstock.http.openapi import parameters as shared
from penstock.http.openapi.model import (
    NO_SECURITY,
    WRITES,
    Answer,
    Body,
    Content,
    Description,
    Link,
    Operation,
    Parameter,
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
from penstock.http.subscriptions.resource import LIST
from penstock.http.subscriptions.webhook_keys import JWKS, ROTATE
from penstock.protocol.subscription import Claim, Members, Report, SubscriptionDocument

_LIST: Final = LIST.decode()
_ONE: Final = f"{_LIST}/{{id}}"
_ID: Final = Parameter(
    "id",
    "path",
    "The id of the subscription.",
    {
        "type": "string",
        "pattern": "^[A-Za-z0-9_~-]+$",
        "maxLength": limits.SUBSCRIPTION_ID_BYTES_MAX,
    },
    required=True,
    example="mailer",
)
_NO_STORE: Final = (shared.CACHE_CONTROL,)
_FIND: Final = (InvalidSubscription, SubscriptionNotFound, Damaged)
_REQUEST: Final = {"type": "pull-wake", "pattern": "chat/*", "wake_stream": "wakes/mailer"}
_SHOWN: Final = {
    "id": "mailer",
    "subscription_id": "mailer",
    "type": "pull-wake",
    "pattern": "chat/*",
    "streams": [{"path": "chat/42", "link_type": "glob", "acked_offset": shared.EXAMPLE_OFFSET}],
    "webhook": None,
    "wake_stream": "wakes/mailer",
    "lease_ttl_ms": 30000,
    "created_at": "2026-01-31T12:00:00Z",
    "status": "active",
    "description": None,
    "generation": 0,
    "holder": None,
    "pending": 0,
    "attempts": 0,
    "next_attempt_at": None,
}
_SUBSCRIPTION: Final = json(reference("Subscription"), _SHOWN)
_HERE: Final = {"path.id": "$request.path.id"}

_OPERATIONS: Final = (
    Operation(
        method="GET",
        path=_LIST,
        id="listSubscriptions",
        summary="List subscriptions",
        tag="subscriptions",
        parameters=(shared.PREFIX, shared.AFTER, shared.LIMIT),
        answers=(
            Answer(
                200,
                "A page; `streams` are numbers here.",
                _NO_STORE,
                json(
                    record(
                        {
                            "subscriptions": array(reference("SubscriptionSummary")),
                            "next": nullable(TEXT),
                        }
                    ),
                    {"subscriptions": [], "next": None},
                ),
            ),
        ),
        errors=(InvalidParameter, UnknownParameter, Damaged),
    ),
    Operation(
        method="PUT",
        path=_ONE,
        id="putSubscription",
        summary="Create a subscription, or make sure that it exists",
        tag="subscriptions",
        parameters=(_ID,),
        body=Body(json(reference("SubscriptionRequest"), _REQUEST)),
        answers=(
            Answer(
                201,
                "The subscription is new.",
                _NO_STORE,
                _SUBSCRIPTION,
                (
                    Link("show", "readSubscription", _HERE),
                    Link("claim", "claimWake", _HERE),
                    Link("remove", "deleteSubscription", _HERE),
                ),
            ),
            Answer(200, "It was there with the same configuration.", _NO_STORE, _SUBSCRIPTION),
        ),
        errors=(
            InvalidSubscription,
            WebhookRefused,
            PublicUrlNotSet,
            SubscriptionExists,
            TooManySubscriptions,
            Damaged,
            *WRITES,
        ),
    ),
    Operation(
        method="GET",
        path=_ONE,
        id="readSubscription",
        summary="Show a subscription",
        tag="subscriptions",
        parameters=(_ID,),
        answers=(Answer(200, "The subscription.", _NO_STORE, _SUBSCRIPTION),),
        errors=_FIND,
    ),
    Operation(
        method="DELETE",
        path=_ONE,
        id="deleteSubscription",
        summary="Delete a subscription",
        tag="subscriptions",
        parameters=(_ID,),
        answers=(Answer(204, "There is no such subscription."),),
        errors=(*_FIND, *WRITES),
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/streams",
        id="addStreams",
        summary="Link streams to a subscription",
        tag="subscriptions",
        parameters=(_ID,),
        body=Body(json(reference("StreamList"), {"streams": ["chat/42"]})),
        answers=(Answer(204, "The streams are linked, from their tails on."),),
        errors=(*_FIND, TooManySubscriptions, *WRITES),
    ),
    Operation(
        method="DELETE",
        path=f"{_ONE}/streams/{{path}}",
        id="removeStream",
        summary="Unlink a stream from a subscription",
        tag="subscriptions",
        parameters=(_ID, shared.STREAM),
        answers=(Answer(204, "The stream is not linked by name."),),
        errors=(*_FIND, *WRITES),
    ),
)

_REPORT: Final = Body(
    json(
        reference("WakeReport"),
        {
            "wake_id": "w_1",
            "generation": 1,
            "acks": [{"stream": "chat/42", "offset": shared.EXAMPLE_OFFSET}],
            "done": True,
        },
    )
)
_OK: Final = Answer(
    200,
    "`next_wake` says whether another wake follows at once.",
    _NO_STORE,
    json(record({"ok": {"const": True}, "next_wake": FLAG}), {"ok": True, "next_wake": False}),
)
_WORKER: Final = (InvalidSubscription, InvalidToken, Fenced, InvalidAck, Damaged, *WRITES)
_WORKER_OPERATIONS: Final = (
    Operation(
        method="POST",
        path=f"{_ONE}/claim",
        id="claimWake",
        summary="Claim the pending work of a pull-wake subscription",
        tag="subscriptions",
        parameters=(_ID,),
        body=Body(json(reference("ClaimRequest"), {"worker": "worker-1"})),
        answers=(
            Answer(
                200,
                "The wake; its token is for acks and for the release.",
                _NO_STORE,
                json(reference("ClaimedWake")),
            ),
        ),
        errors=(*_FIND, AlreadyClaimed, NoPendingWork, *WRITES),
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/ack",
        id="ackWake",
        summary="Ack offsets, and extend or finish a claimed wake",
        tag="subscriptions",
        parameters=(_ID,),
        body=_REPORT,
        answers=(_OK,),
        errors=_WORKER,
        security=("wake",),
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/callback",
        id="callbackWake",
        summary="Ack offsets, and extend or finish the wake of a webhook",
        tag="subscriptions",
        parameters=(_ID,),
        body=_REPORT,
        answers=(_OK,),
        errors=_WORKER,
        security=("wake",),
    ),
    Operation(
        method="POST",
        path=f"{_ONE}/release",
        id="releaseWake",
        summary="Give a claimed wake back",
        tag="subscriptions",
        parameters=(_ID,),
        body=_REPORT,
        answers=(Answer(204, "Another worker can claim it."),),
        errors=_WORKER,
        security=("wake",),
    ),
)
_KEY_OPERATIONS: Final = (
    Operation(
        method="GET",
        path=JWKS.decode(),
        id="readWebhookKeys",
        summary="The public keys that check the signatures of webhooks",
        tag="subscriptions",
        answers=(
            Answer(
                200,
                "A JSON Web Key Set.",
                _NO_STORE,
                (Content("application/jwk-set+json", reference("KeySet"), {"keys": []}),),
            ),
        ),
        errors=(Damaged,),
        security=NO_SECURITY,
    ),
    Operation(
        method="POST",
        path=ROTATE.decode(),
        id="rotateWebhookKey",
        summary="Create the next key now",
        tag="subscriptions",
        answers=(
            Answer(
                200,
                "The key that signs from then on.",
                _NO_STORE,
                json(
                    record({"kid": TEXT, "signs_from": shared.TIME}),
                    {"kid": "ds_k1", "signs_from": "2026-01-31T12:00:00Z"},
                ),
            ),
        ),
        errors=(Damaged, *WRITES),
    ),
)


def describe() -> Description:
    """Return what the document says of this dialect."""
    components = struct_schemas(
        {
            "SubscriptionRequest": SubscriptionDocument,
            "StreamList": Members,
            "ClaimRequest": Claim,
            "WakeReport": Report,
        },
        {
            "SubscriptionRequest": {"type": {"enum": ["webhook", "pull-wake"]}},
            "StreamList": {"streams": {"minItems": 1}},
            "ClaimRequest": {"worker": {"minLength": 1}},
        },
    )
    signing = record({"alg": {"const": "ed25519"}, "kid": nullable(TEXT), "jwks_url": TEXT})
    shown = {
        "id": TEXT,
        "subscription_id": TEXT,
        "type": {"enum": ["webhook", "pull-wake"]},
        "pattern": nullable(TEXT),
        "webhook": nullable(record({"url": TEXT, "signing": signing})),
        "wake_stream": nullable(TEXT),
        "lease_ttl_ms": NUMBER,
        "created_at": shared.TIME,
        "status": TEXT,
        "description": nullable(TEXT),
        "generation": NUMBER,
        "holder": nullable(TEXT),
        "pending": NUMBER,
        "attempts": NUMBER,
        "next_attempt_at": nullable(shared.TIME),
    }
    link = {"path": TEXT, "link_type": {"enum": ["explicit", "glob"]}, "acked_offset": TEXT}
    components["Subscription"] = record({**shown, "streams": array(record(link))})
    components["SubscriptionSummary"] = record({**shown, "streams": NUMBER})
    components["ClaimedWake"] = record(
        {
            "wake_id": TEXT,
            "generation": NUMBER,
            "token": TEXT,
            "streams": array(record({**link, "tail_offset": TEXT, "has_pending": FLAG})),
            "lease_ttl_ms": NUMBER,
        }
    )
    names = ("kty", "crv", "kid", "use", "alg", "x")
    components["KeySet"] = record({"keys": array(record(dict.fromkeys(names, TEXT)))})
    return Description((*_OPERATIONS, *_WORKER_OPERATIONS, *_KEY_OPERATIONS), components)
