"""Every failure Penstock reports, as one tree; each has an HTTP status, a stable code and advice.

PenstockError
├── BadRequest 400
│   ├── InvalidOffset · OffsetBeyondTail · OffsetNotAligned
│   ├── InvalidTtl · InvalidExpiresAt · ConflictingExpiry
│   ├── InvalidProducer · EpochStart · InvalidStreamSeq
│   ├── InvalidContentType · MissingContentType · InvalidPath · InvalidParameter
│   └── InvalidJson · EmptyArray · EmptyBody
├── Unauthorized 401
├── Forbidden 403
│   └── StaleEpoch
├── StreamNotFound 404 · RouteNotFound 404 · SchemaNotFound 404
├── MethodNotAllowed 405
├── RequestTimeout 408
├── Conflict 409
│   ├── StreamExists · StreamClosed · ContentTypeMismatch · StreamSeqConflict · SequenceGap
│   └── NotJsonStream · NotDeclared
├── Gone 410
│   └── StreamRecreated · StreamTrimmed · StreamSoftDeleted
├── TailMoved 412
├── BodyTooLarge 413 · UriTooLong 414 · HeadersTooLarge 431
├── InvalidEvent 422
│   └── ValidationFailed
├── InvalidSchema 422
├── RateLimited 429 · TooManyProducers 429
├── ServerError 500
│   ├── Damaged 500 · InternalError 500
│   ├── Overloaded 503 · StoreReadOnly 503 · ShuttingDown 503
│   └── DiskFull 507
├── StoreError (opening a data folder; never an HTTP answer)
│   └── StoreLocked · StoreTooNew · StoreDamaged
└── ClientError (raised by the clients alone; never an HTTP answer)
    ├── ConnectionFailed · ProtocolError · ClientClosed · StateReset
    └── InvalidOption · DataLost · NotWritable · JavaMissing (of the sources and sinks)
"""

from __future__ import annotations

from penstock._error_base import BadRequest as BadRequest
from penstock._error_base import Conflict as Conflict
from penstock._error_base import Forbidden as Forbidden
from penstock._error_base import Gone as Gone
from penstock._error_base import PenstockError as PenstockError
from penstock._error_base import ServerError as ServerError
from penstock._error_spark import ClientError as ClientError
from penstock._error_spark import DataLost as DataLost
from penstock._error_spark import InvalidOption as InvalidOption
from penstock._error_spark import JavaMissing as JavaMissing
from penstock._error_spark import NotWritable as NotWritable


class InvalidOffset(BadRequest):
    code, title = "invalid-offset", "Invalid offset"


class OffsetBeyondTail(BadRequest):
    code, title = "offset-beyond-tail", "Offset beyond the end of the stream"


class OffsetNotAligned(BadRequest):
    code, title = "offset-not-aligned", "Offset is not a message boundary"


class InvalidTtl(BadRequest):
    code, title = "invalid-ttl", "Invalid Stream-TTL"


class InvalidExpiresAt(BadRequest):
    code, title = "invalid-expires-at", "Invalid Stream-Expires-At"


class ConflictingExpiry(BadRequest):
    code, title = "conflicting-expiry", "Both Stream-TTL and Stream-Expires-At"


class InvalidProducer(BadRequest):
    code, title = "invalid-producer", "Invalid producer headers"


class EpochStart(BadRequest):
    code, title = "epoch-must-start-at-zero", "A new producer epoch starts at sequence 0"


class InvalidStreamSeq(BadRequest):
    code, title = "invalid-stream-seq", "Invalid Stream-Seq"


class InvalidContentType(BadRequest):
    code, title = "invalid-content-type", "Invalid Content-Type"


class MissingContentType(BadRequest):
    code, title = "missing-content-type", "Content-Type is required"


class InvalidPath(BadRequest):
    code, title = "invalid-path", "Invalid stream path"


class InvalidParameter(BadRequest):
    code, title = "invalid-parameter", "Invalid query parameter"


class InvalidJson(BadRequest):
    code, title = "invalid-json", "Invalid JSON"


class EmptyArray(BadRequest):
    code, title = "empty-array", "Empty JSON array"


class EmptyBody(BadRequest):
    code, title = "empty-body", "Empty body"


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


class StreamRecreated(Gone):
    code, title = "stream-recreated", "Offset belongs to an earlier stream at this path"


class StreamTrimmed(Gone):
    code, title = "stream-trimmed", "Offset is before the earliest retained one"


class StreamSoftDeleted(Gone):
    code, title = "stream-soft-deleted", "Stream is deleted and kept only for its forks"


class TailMoved(PenstockError):
    status, code, title = 412, "tail-moved", "The stream's tail is not where If-Match expects it"


class BodyTooLarge(PenstockError):
    status, code, title = 413, "body-too-large", "Body too large"


class UriTooLong(PenstockError):
    status, code, title = 414, "uri-too-long", "Request line too long"


class InvalidEvent(PenstockError):
    """What is no event of the State Protocol, or one that its schema refuses.

    `field` names the place (`headers.operation`, `value.email`), `rule` what was broken there,
    `index` the event's place in its array, `path` the place as a JSON Pointer, `raw` is the event
    itself: each where it is known.
    """

    status, code, title = 422, "invalid-event", "Invalid state event"
    path: str | None = None

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

    @property
    def members(self) -> dict[str, object]:
        return _known(index=self.index, path=self.path, field=self.field, rule=self.rule)


class ValidationFailed(InvalidEvent):
    """A well-formed event whose type, key or value its schema refuses; `__cause__` has more."""

    code, title = "validation-failed", "Event does not match its schema"


class InvalidSchema(PenstockError):
    """A declaration that cannot be used; `field` names the place."""

    status, code, title = 422, "invalid-schema", "Invalid declaration of a state stream"

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field

    @property
    def members(self) -> dict[str, object]:
        return _known(field=self.field)


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


def _known(**members: object) -> dict[str, object]:
    return {name: value for name, value in members.items() if value is not None}
