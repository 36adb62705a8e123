"""Every failure Penstock reports, as one tree; each has an HTTP status, a stable code and advice.

PenstockError
├── BadRequest 400
│   ├── InvalidOffset · OffsetBeyondTail · OffsetNotAligned · InvalidForkOffset
│   ├── InvalidTtl · InvalidExpiresAt · ConflictingExpiry
│   ├── InvalidProducer · EpochStart · InvalidStreamSeq
│   ├── InvalidContentType · MissingContentType · InvalidPath · InvalidParameter
│   ├── InvalidJson · EmptyArray · EmptyBody
│   └── InvalidUrl · InvalidNotify · InvalidFollow
├── SubscriptionError (each also has the protocol's own form)
│   ├── InvalidSubscription 400 · WebhookRefused 400 (of BadRequest) · InvalidToken 401
│   ├── SubscriptionNotFound 404 · TooManySubscriptions 429
│   └── SubscriptionExists · Fenced · AlreadyClaimed · NoPendingWork · InvalidAck (of Conflict)
├── Unauthorized 401
├── Forbidden 403
│   └── StaleEpoch · EgressRefused · MirrorReadOnly
├── StreamNotFound 404 · RouteNotFound 404 · SchemaNotFound 404 · FollowNotFound 404
├── TableNotFound 404 · NotAcceptable 406
├── MethodNotAllowed 405 · RequestTimeout 408
├── Conflict 409
│   ├── StreamExists · StreamClosed · ContentTypeMismatch · StreamSeqConflict · SequenceGap
│   ├── PathBlocked · ForkSourceDeleted · ForkTooDeep
│   └── NotJsonStream · NotDeclared · NotStateStream · StateTooLarge · NotCompactable
│       FollowConflict · TableExists · NotExpressible
├── Gone 410
│   └── StreamRecreated · StreamTrimmed · StreamSoftDeleted · RowsTrimmed
├── TailMoved 412
├── BodyTooLarge 413 · UriTooLong 414 · UnsupportedType 415 · HeadersTooLarge 431
├── Unprocessable 422
│   ├── InvalidSchema · InvalidEvent ─ ValidationFailed
│   └── InvalidRow · InvalidTable
├── RateLimited 429 · TooManyProducers 429 · TooManyPeers 429
├── ServerError 500
│   ├── Damaged 500 · InternalError 500 · EgressFailed 502
│   ├── Overloaded 503 · StoreReadOnly 503 · ShuttingDown 503
│   └── DiskFull 507
├── StoreError (opening a data folder; never an HTTP answer)
│   └── StoreLocked · StoreTooNew · StoreDamaged
└── ClientError (raised by the clients alone; never an HTTP answer)
    ├── ConnectionFailed · ProtocolError · ClientClosed · StateReset · StateMoved
    └── InvalidOption · DataLost · NotWritable · JavaMissing (of the sources and sinks)
"""

from __future__ import annotations

from penstock._error_base import BadRequest as BadRequest
from penstock._error_base import Conflict as Conflict
from penstock._error_base import Forbidden as Forbidden
from penstock._error_base import Gone as Gone
from penstock._error_base import PenstockError as PenstockError
from penstock._error_base import ServerError as ServerError
from penstock._error_base import Unprocessable as Unprocessable
from penstock._error_base import known
from penstock._error_request import ConflictingExpiry as ConflictingExpiry
from penstock._error_request import EmptyArray as EmptyArray
from penstock._error_request import EmptyBody as EmptyBody
from penstock._error_request import EpochStart as EpochStart
from penstock._error_request import InvalidContentType as InvalidContentType
from penstock._error_request import InvalidExpiresAt as InvalidExpiresAt
from penstock._error_request import InvalidForkOffset as InvalidForkOffset
from penstock._error_request import InvalidJson as InvalidJson
from penstock._error_request import InvalidOffset as InvalidOffset
from penstock._error_request import InvalidParameter as InvalidParameter
from penstock._error_request import InvalidPath as InvalidPath
from penstock._error_request import InvalidProducer as InvalidProducer
from penstock._error_request import InvalidStreamSeq as InvalidStreamSeq
from penstock._error_request import InvalidTtl as InvalidTtl
from penstock._error_request import MissingContentType as MissingContentType
from penstock._error_request import OffsetBeyondTail as OffsetBeyondTail
from penstock._error_request import OffsetNotAligned as OffsetNotAligned
from penstock._error_spark import ClientError as ClientError
from penstock._error_spark import DataLost as DataLost
from penstock._error_spark import InvalidOption as InvalidOption
from penstock._error_spark import JavaMissing as JavaMissing
from penstock._error_spark import NotWritable as NotWritable
from penstock._error_stp import EgressFailed as EgressFailed
from penstock._error_stp import EgressRefused as EgressRefused
from penstock._error_stp import FollowConflict as FollowConflict
from penstock._error_stp import FollowNotFound as FollowNotFound
from penstock._error_stp import InvalidFollow as InvalidFollow
from penstock._error_stp import InvalidNotify as InvalidNotify
from penstock._error_stp import InvalidUrl as InvalidUrl
from penstock._error_stp import MirrorReadOnly as MirrorReadOnly
from penstock._error_stp import TooManyPeers as TooManyPeers
from penstock._error_stp import UnsupportedType as UnsupportedType
from penstock._error_subscription import AlreadyClaimed as AlreadyClaimed
from penstock._error_subscription import Fenced as Fenced
from penstock._error_subscription import InvalidAck as InvalidAck
from penstock._error_subscription import InvalidSubscription as InvalidSubscription
from penstock._error_subscription import InvalidToken as InvalidToken
from penstock._error_subscription import NoPendingWork as NoPendingWork
from penstock._error_subscription import SubscriptionError as SubscriptionError
from penstock._error_subscription import SubscriptionExists as SubscriptionExists
from penstock._error_subscription import SubscriptionNotFound as SubscriptionNotFound
from penstock._error_subscription import TooManySubscriptions as TooManySubscriptions
from penstock._error_subscription import WebhookRefused as WebhookRefused
from penstock._error_table import InvalidRow as InvalidRow
from penstock._error_table import InvalidTable as InvalidTable
from penstock._error_table import NotAcceptable as NotAcceptable
from penstock._error_table import NotExpressible as NotExpressible
from penstock._error_table import RowsTrimmed as RowsTrimmed
from penstock._error_table import TableExists as TableExists
from penstock._error_table import TableNotFound as TableNotFound


class Unauthorized(PenstockError):
    status, code, title = 401, "unauthorized", "Unauthorized"


class StaleEpoch(Forbidden):
    code, title = "stale-epoch", "Producer epoch is stale"

    @property
    def epoch(self) -> int | None:
        """The epoch that the server knows, which a new one has to exceed."""
        return self._number("Producer-Epoch")


class StreamNotFound(PenstockError):
    status, code, title = 404, "stream-not-found", "Stream not found"


class RouteNotFound(PenstockError):
    status, code, title = 404, "route-not-found", "Nothing is served at this path"


class SchemaNotFound(PenstockError):
    status, code, title = 404, "schema-not-found", "Stream is not declared a state stream"


class MethodNotAllowed(PenstockError):
    status, code, title = 405, "method-not-allowed", "Method not allowed"


class RequestTimeout(PenstockError):
    status, code, title = 408, "request-timeout", "Request took too long to arrive"


class StreamExists(Conflict):
    code, title = "stream-exists", "Stream exists with another configuration"


class StreamClosed(Conflict):
    code, title = "stream-closed", "Stream is closed"

    @property
    def epoch(self) -> int | None:
        """The epoch that the server knows of the producer that asked, if it says one."""
        return self._number("Producer-Epoch")

    @property
    def successor(self) -> str | None:
        """The location of the stream that this one goes on in, if the server says one."""
        return self.headers.get("Stream-Successor")

    @property
    def members(self) -> dict[str, object]:
        return known(successor=self.successor)


class PathBlocked(Conflict):
    code, title = "path-blocked", "Path belongs to a deleted stream that still has forks"


class ForkSourceDeleted(Conflict):
    code, title = "fork-source-deleted", "Source is deleted and kept only for its forks"


class ForkTooDeep(Conflict):
    code, title = "fork-too-deep", "Chain of forks is too long"


class ContentTypeMismatch(Conflict):
    code, title = "content-type-mismatch", "Content-Type does not match the stream"


class StreamSeqConflict(Conflict):
    code, title = "stream-seq-conflict", "Stream-Seq is not greater than the last one"


class SequenceGap(Conflict):
    code, title = "producer-sequence-gap", "Producer sequence gap"

    @property
    def expected(self) -> int | None:
        """The sequence number that the server waits for."""
        return self._number("Producer-Expected-Seq")

    @property
    def received(self) -> int | None:
        """The sequence number that it was sent."""
        return self._number("Producer-Received-Seq")


class NotJsonStream(Conflict):
    code, title = "not-json-stream", "Only JSON streams can have state"


class NotDeclared(Conflict):
    code, title = "not-declared", "Stream is too large for state without a declaration"


class NotStateStream(Conflict):
    code, title = "not-state-stream", "Stream is not declared a state stream"


class StateTooLarge(Conflict):
    code, title = "state-too-large", "State is too large to be compacted in one step"


class NotCompactable(Conflict):
    code, title = "not-compactable", "Stream cannot be compacted as it stands"


class StreamRecreated(Gone):
    code, title = "stream-recreated", "Offset belongs to an earlier stream at this path"


class StreamTrimmed(Gone):
    code, title = "stream-trimmed", "Offset is before the earliest retained one"

    @property
    def earliest(self) -> str | None:
        """The earliest offset that can be read."""
        return self.headers.get("Stream-Earliest-Offset")

    @property
    def members(self) -> dict[str, object]:
        return known(earliest=self.earliest)


class StreamSoftDeleted(Gone):
    code, title = "stream-soft-deleted", "Stream is deleted and kept only for its forks"


class TailMoved(PenstockError):
    status, code, title = 412, "tail-moved", "The stream's tail is not where If-Match expects it"


class BodyTooLarge(PenstockError):
    status, code, title = 413, "body-too-large", "Body too large"


class UriTooLong(PenstockError):
    status, code, title = 414, "uri-too-long", "Request line too long"


class InvalidEvent(Unprocessable):
    """What is no event of the State Protocol, or one that its schema refuses.

    `raw` is the event itself, where it is known.
    """

    code, title = "invalid-event", "Invalid state event"

    def __init__(
        self,
        detail: str,
        *,
        field: str | None = None,
        rule: str | None = None,
        index: int | None = None,
        raw: bytes | None = None,
    ) -> None:
        super().__init__(detail)
        self.field = field
        self.rule = rule
        self.index = index
        self.raw = raw


class ValidationFailed(InvalidEvent):
    """A well-formed event whose type, key or value its schema refuses; `__cause__` has more."""

    code, title = "validation-failed", "Event does not match its schema"


class InvalidSchema(Unprocessable):
    """A declaration that cannot be used; `field` names the place."""

    code, title = "invalid-schema", "Invalid declaration of a state stream"

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class RateLimited(PenstockError):
    status, code, title = 429, "rate-limited", "Too many requests"


class TooManyProducers(PenstockError):
    status, code, title = 429, "too-many-producers", "Too many producers on this stream"


class HeadersTooLarge(PenstockError):
    status, code, title = 431, "headers-too-large", "Headers too large"


class InternalError(ServerError):
    """A bug on our side; the log has the details, the answer does not."""

    code, title = "internal", "Internal error"


class Damaged(ServerError):
    """Stored bytes do not match their checksum; they are never served."""

    status, code, title = 500, "stored-data-damaged", "Stored data is damaged"


class Overloaded(ServerError):
    status, code, title = 503, "overloaded", "Server is overloaded"


class StoreReadOnly(ServerError):
    status, code, title = 503, "store-read-only", "Store is read-only after a disk failure"


class ShuttingDown(ServerError):
    status, code, title = 503, "shutting-down", "Server is shutting down"


class DiskFull(ServerError):
    status, code, title = 507, "disk-full", "Not enough disk space"


class StoreError(PenstockError):
    """A data folder that cannot be opened."""

    code, title = "store-error", "Data folder cannot be opened"


class StoreLocked(StoreError):
    code, title = "store-locked", "Data folder is in use"


class StoreTooNew(StoreError):
    code, title = "store-too-new", "Data folder has a newer format"


class StoreDamaged(StoreError):
    code, title = "store-damaged", "Data folder is damaged"


class ConnectionFailed(ClientError):
    """No answer, or only a part of one; `__cause__` is what the network said.

    `sent` is false if the request certainly did not reach the server.
    """

    status, code, title = 503, "connection-failed", "Connection failed"
    sent = True


class ProtocolError(ClientError):
    status, code, title = 502, "protocol-error", "The server's answer breaks the protocol"


class ClientClosed(ClientError):
    code, title = "client-closed", "The client is closed"


class StateReset(ClientError):
    """The stream declared the state before this point invalid, and the policy is to raise."""

    code, title = "state-reset", "The stream was reset"


class StateMoved(ClientError):
    """A reset names another stream that this client may not, or cannot, go on with."""

    code, title = "state-moved", "The state goes on in another stream"

    def __init__(self, detail: str, *, location: str) -> None:
        super().__init__(detail)
        self.location = location
