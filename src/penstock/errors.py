"""Every failure Penstock reports, as one tree; each has an HTTP status, a stable code and advice.

PenstockError
├── BadRequest 400
│   ├── InvalidOffset · OffsetBeyondTail · OffsetNotAligned · InvalidForkOffset
│   ├── InvalidTtl · InvalidExpiresAt · ConflictingExpiry
│   ├── InvalidProducer · EpochStart · InvalidStreamSeq
│   ├── InvalidContentType · MissingContentType · InvalidPath
│   ├── InvalidParameter · UnknownParameter
│   ├── InvalidCursor · TooManyParameters · TooManyStreams
│   ├── InvalidJson ─ NumberTooLong · JsonTooDeep
│   ├── EmptyArray · EmptyBody
│   ├── InvalidUrl · InvalidNotify · InvalidFollow · InvalidRule · InvalidAccessRequest
│   └── InvalidStorageUrl · InvalidBackupRequest
├── SubscriptionError (each also has the protocol's own form)
│   ├── InvalidSubscription 400 · WebhookRefused 400 · PublicUrlNotSet 400 (of BadRequest)
│   ├── InvalidToken 401
│   ├── SubscriptionNotFound 404 · TooManySubscriptions 429
│   └── SubscriptionExists · Fenced · AlreadyClaimed · NoPendingWork · InvalidAck (of Conflict)
├── Unauthorized 401
│   └── KeyUnknown
├── Forbidden 403
│   └── StaleEpoch · EgressRefused · MirrorReadOnly · NotAllowed · OriginRefused
├── StreamNotFound 404 · RouteNotFound 404 · SchemaNotFound 404 · FollowNotFound 404
├── NurlNotFound 404 · TokenNotFound 404 · PipelineNotFound 404 · ClusterNotFound 404
├── TableNotFound 404 · NotAcceptable 406
├── MethodNotAllowed 405 · RequestTimeout 408
├── Conflict 409
│   ├── StreamExists · StreamClosed · ContentTypeMismatch · StreamSeqConflict · SequenceGap
│   ├── PathBlocked · ForkSourceDeleted · ForkTooDeep
│   └── NotJsonStream · NotDeclared · NotStateStream · StateTooLarge · NotCompactable
│       FollowConflict · TableExists · NotExpressible · ServerOpen · PipelineFailed
│       BackupRunning · BackupLocked · BackupMismatch · NotOnDisk
├── Gone 410
│   └── StreamRecreated · StreamTrimmed · StreamSoftDeleted · RowsTrimmed
├── TailMoved 412
├── BodyTooLarge 413 · MessageTooLarge 413 · UriTooLong 414 · HeadersTooLarge 431
├── UnsupportedType 415 · UnsupportedCoding 415 · HostRefused 421
├── Unprocessable 422
│   ├── InvalidSchema · InvalidEvent ─ ValidationFailed
│   └── InvalidRow · InvalidTable · InvalidQuery
├── RateLimited 429 · TooManyProducers 429 · TooManyPeers 429 · TooManyTokens 429
├── ByteRateLimited 429 · TooManyConnections 429 · TooManyLiveReaders 429 · QuotaExceeded 429
├── ServerError 500
│   ├── Damaged 500 · InternalError 500 · EgressFailed 502
│   ├── Overloaded 503 ─ LiveReadersFull 503
│   ├── NotOwner 503 (of a worker or a node) · ClusterUnavailable 503
│   ├── StoreReadOnly 503 · ShuttingDown 503 · KeysUnavailable 503 · ColdDataUnavailable 503
│   ├── DiskFull 507
│   └── StorageError 502 (folders and object stores of backups and the like)
│       └── ObjectNotFound · BucketNotFound · StorageDenied · StorageFull · StorageExtraMissing
│           StorageUnavailable 503 · BackupDamaged
├── StoreError (opening a data folder; never an HTTP answer)
│   └── StoreLocked · StoreTooNew · StoreDamaged · WorkersDiffer · BackupNotFound · FolderNotEmpty
│       ClusterRefused
└── ClientError (raised by the clients alone; never an HTTP answer)
    ├── ConnectionFailed · ProtocolError · ClientClosed · StateReset · StateMoved
    ├── InvalidOption · DataLost · NotWritable · JavaMissing (of the sources and sinks)
    ├── InvalidPipeline · QueryFailed · ExpectationFailed · PublishFailed
    ├── RewriteFailed (of pipelines)
    └── NoWarehouse · WarehouseMismatch · WarehouseInUse · WarehouseBroken
"""

from __future__ import annotations


class PenstockError(Exception):
    """Base of the tree. `detail` says what was wrong and what to do about it.

    The clients raise the same classes for what a server answers; `status`, `headers` and `detail`
    are then those of the answer, `method` and `url` those of the request, and `reason` is the part
    of `detail` that does not name the request.
    """

    status = 500
    code = "internal"
    title = "Internal error"
    method: str | None = None
    url: str | None = None
    reason: str | None = None

    def __init__(self, detail: str, **headers: str) -> None:
        """Header names are given with underscores: ``Stream_Closed="true"``."""
        super().__init__(detail)
        self.detail = detail
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}

    @property
    def members(self) -> dict[str, object]:
        """What a problem document says beside the usual: more for programs than for people."""
        return {}

    def _number(self, header: str) -> int | None:
        text = self.headers.get(header, "")
        return int(text) if text.isascii() and text.isdigit() else None


class BadRequest(PenstockError):
    status, code, title = 400, "bad-request", "Bad request"


class Forbidden(PenstockError):
    status, code, title = 403, "forbidden", "Forbidden"


class Conflict(PenstockError):
    status, code, title = 409, "conflict", "Conflict"


class Gone(PenstockError):
    status, code, title = 410, "gone", "Gone"


class Unprocessable(PenstockError):
    """What was sent could be read and is still not acceptable.

    `field` names the place (`headers.operation`, `value.email`), `rule` what was broken there,
    `index` which item of an array it was, `path` the place as a JSON Pointer: each where it is
    known. A client takes them from the server's problem document.
    """

    status, code, title = 422, "unprocessable", "Content was refused"
    index: int | None = None
    path: str | None = None
    field: str | None = None
    rule: str | None = None

    @property
    def members(self) -> dict[str, object]:
        return known(index=self.index, path=self.path, field=self.field, rule=self.rule)


class ServerError(PenstockError):
    """The server could not do what was asked; the same request may work later."""

    status, code, title = 500, "server-error", "Server error"


class StoreError(PenstockError):
    """A data folder that cannot be opened."""

    code, title = "store-error", "Data folder cannot be opened"


class ClientError(PenstockError):
    """A failure that no server reported."""

    code, title = "client-error", "Client error"


def known(**members: object) -> dict[str, object]:
    """Of the members of a problem document those that are known."""
    return {name: value for name, value in members.items() if value is not None}


# -- 400: the request says something wrong


class InvalidOffset(BadRequest):
    code, title = "invalid-offset", "Invalid offset"


class OffsetBeyondTail(BadRequest):
    code, title = "offset-beyond-tail", "Offset beyond the end of the stream"


class OffsetNotAligned(BadRequest):
    code, title = "offset-not-aligned", "Offset is not a message boundary"


class InvalidForkOffset(BadRequest):
    code, title = "invalid-fork-offset", "Invalid fork offset"


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


class InvalidRule(BadRequest):
    code, title = "invalid-rule", "Invalid access rule"


class InvalidParameter(BadRequest):
    code, title = "invalid-parameter", "Invalid query parameter"


class UnknownParameter(BadRequest):
    code, title = "unknown-parameter", "Query parameter is unknown and looks like a misspelling"


class InvalidCursor(BadRequest):
    code, title = "invalid-cursor", "Invalid cursor of a live response over several streams"


class TooManyParameters(BadRequest):
    code, title = "too-many-parameters", "More query parameters than the server takes"


class TooManyStreams(BadRequest):
    code, title = "too-many-streams", "More streams than one live response may have"


class InvalidJson(BadRequest):
    code, title = "invalid-json", "Invalid JSON"


class NumberTooLong(InvalidJson):
    code, title = "number-too-long", "A number has too many digits"


class JsonTooDeep(InvalidJson):
    code, title = "json-too-deep", "A message is nested too deep"


class EmptyArray(BadRequest):
    code, title = "empty-array", "Empty JSON array"


class EmptyBody(BadRequest):
    code, title = "empty-body", "Empty body"


class InvalidUrl(BadRequest):
    code, title = "invalid-url", "Invalid URL"


class InvalidNotify(BadRequest):
    code, title = "invalid-notify", "Invalid Notify form"


class InvalidFollow(BadRequest):
    code, title = "invalid-follow", "Invalid description of what to follow"


class InvalidAccessRequest(BadRequest):
    code, title = "invalid-access-request", "Invalid request for a token, a link or a session"


class InvalidStorageUrl(BadRequest):
    code, title = "invalid-storage-url", "Invalid address of a folder or an object store"


class InvalidBackupRequest(BadRequest):
    code, title = "invalid-backup-request", "Invalid request for a backup"


# -- 401 to 408


class Unauthorized(PenstockError):
    status, code, title = 401, "unauthorized", "Unauthorized"


class NotAllowed(Forbidden):
    """`verb` and `path` are what the principal may not do, and where."""

    code, title = "not-allowed", "Not allowed"

    def __init__(self, detail: str, *, verb: str = "", path: str = "", **headers: str) -> None:
        super().__init__(detail, **headers)
        self.verb = verb
        self.path = path

    @property
    def members(self) -> dict[str, object]:
        return {"verb": self.verb, "path": self.path} if self.verb else {}


class KeyUnknown(Unauthorized):
    """No key of the server is the one that a token was signed with."""

    code, title = "key-unknown", "The key of the token is unknown"


class StaleEpoch(Forbidden):
    code, title = "stale-epoch", "Producer epoch is stale"

    @property
    def epoch(self) -> int | None:
        """The epoch that the server knows, which a new one has to exceed."""
        return self._number("Producer-Epoch")


class EgressRefused(Forbidden):
    """The server does not connect to there; nothing was sent."""

    code, title = "egress-refused", "The server does not connect there"


class MirrorReadOnly(Forbidden):
    code, title = "mirror-read-only", "A mirror is written by its source alone"


class OriginRefused(Forbidden):
    code, title = "origin-refused", "A page of another origin may not send this request"


class StreamNotFound(PenstockError):
    status, code, title = 404, "stream-not-found", "Stream not found"

    @classmethod
    def at(cls, path: str) -> StreamNotFound:
        return cls(f"There is no stream at {path!r}. Create it with PUT first.")


class RouteNotFound(PenstockError):
    status, code, title = 404, "route-not-found", "Nothing is served at this path"


class SchemaNotFound(PenstockError):
    status, code, title = 404, "schema-not-found", "Stream is not declared a state stream"


class FollowNotFound(PenstockError):
    status, code, title = 404, "follow-not-found", "The table follows nothing"


class NurlNotFound(PenstockError):
    status, code, title = 404, "nurl-not-found", "No such Notify URL was advertised"


class TokenNotFound(PenstockError):
    status, code, title = 404, "token-not-found", "Token not found"


class TableNotFound(PenstockError):
    status, code, title = 404, "table-not-found", "Table not found"


class ClusterNotFound(PenstockError):
    status, code, title = 404, "cluster-not-found", "Not a node of a cluster"


class PipelineNotFound(PenstockError):
    status, code, title = 404, "pipeline-not-found", "Pipeline not found"


class MethodNotAllowed(PenstockError):
    status, code, title = 405, "method-not-allowed", "Method not allowed"


class NotAcceptable(PenstockError):
    status, code, title = 406, "not-acceptable", "The table has another schema or version"


class RequestTimeout(PenstockError):
    status, code, title = 408, "request-timeout", "Request took too long to arrive"


# -- 409: the request does not fit what is there


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


class FollowConflict(Conflict):
    code, title = "follow-conflict", "The table cannot follow this source"


class TableExists(Conflict):
    code, title = "table-exists", "Table exists with another declaration"


class NotExpressible(Conflict):
    code, title = "not-expressible", "The stream has events that no row can express"


class ServerOpen(Conflict):
    code, title = "server-open", "The server has no access rules"


class PipelineFailed(Conflict):
    """The command of a pipeline that the server has run for a request ended with an error."""

    code, title = "pipeline-failed", "The command of a pipeline failed"


class BackupRunning(Conflict):
    code, title = "backup-running", "A backup is running"


class BackupLocked(Conflict):
    code, title = "backup-locked", "Another backup is being written to the same place"


class BackupMismatch(Conflict):
    code, title = "backup-mismatch", "The place has backups of another server"


class NotOnDisk(Conflict):
    code, title = "not-on-disk", "The server keeps its data in memory"


# -- 410 to 421


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


class RowsTrimmed(Gone):
    code, title = "rows-trimmed", "Rows after this SeqNo are no longer kept"

    @property
    def earliest(self) -> int | None:
        """The SeqNo of the earliest row there is."""
        return self._number("STP-Earliest-SeqNo")


class TailMoved(PenstockError):
    status, code, title = 412, "tail-moved", "The stream's tail is not where If-Match expects it"


class BodyTooLarge(PenstockError):
    status, code, title = 413, "body-too-large", "Body too large"


class MessageTooLarge(PenstockError):
    status, code, title = 413, "message-too-large", "A message is too large"


class UriTooLong(PenstockError):
    status, code, title = 414, "uri-too-long", "Request line too long"


class UnsupportedType(PenstockError):
    status, code, title = 415, "unsupported-media-type", "Unsupported media type"


class UnsupportedCoding(PenstockError):
    status, code, title = 415, "unsupported-content-encoding", "Unsupported content encoding"


class HostRefused(PenstockError):
    status, code, title = 421, "host-refused", "The server does not answer to this host name"


# -- 422: the content was read and is not acceptable


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


class InvalidRow(Unprocessable):
    """What is no row of a table, or one that it cannot hold.

    `field` names the place (`seqno`, `key`, `record`), `index` which row of a batch it is.
    """

    code, title = "invalid-row", "Invalid row of a table"

    def __init__(self, detail: str, *, field: str | None = None, index: int | None = None) -> None:
        super().__init__(detail)
        self.field = field
        self.index = index


class InvalidTable(Unprocessable):
    """A declaration of a table that cannot be used; `field` names the place."""

    code, title = "invalid-table", "Invalid declaration of a table"

    def __init__(self, detail: str, *, field: str | None = None) -> None:
        super().__init__(detail)
        self.field = field


class InvalidQuery(Unprocessable):
    """A query over the tables of a pipeline that cannot be run."""

    code, title = "invalid-query", "Query cannot be run"


# -- 429 and 431


class RateLimited(PenstockError):
    status, code, title = 429, "rate-limited", "Too many requests"


class TooManyProducers(PenstockError):
    status, code, title = 429, "too-many-producers", "Too many producers on this stream"


class TooManyPeers(PenstockError):
    status, code, title = 429, "too-many-peers", "Too many peers, or too much for one peer"


class ByteRateLimited(PenstockError):
    status, code, title = 429, "byte-rate-limited", "Too many bytes"


class TooManyConnections(PenstockError):
    status, code, title = 429, "too-many-connections", "Too many connections from one address"


class TooManyLiveReaders(PenstockError):
    status, code, title = 429, "too-many-live-readers", "Too many live readers of one principal"


class QuotaExceeded(PenstockError):
    """More streams or bytes than a rule of the setting `quotas` allows. Time alone does not help:
    the clients do not retry."""

    status, code, title = 429, "quota-exceeded", "Quota exceeded"


class TooManyTokens(PenstockError):
    status, code, title = 429, "too-many-tokens", "Too many tokens"


class HeadersTooLarge(PenstockError):
    status, code, title = 431, "headers-too-large", "Headers too large"


# -- Subscriptions: each error also carries the protocol's own form, `{"error": {"code": …}}`


class SubscriptionError(PenstockError):
    """`wire_code` is the protocol's name for it; `said` are members that go with that name."""

    code, title = "subscription-error", "Subscription error"
    wire_code = "INTERNAL"

    def __init__(self, detail: str, said: dict[str, object] | None = None, **headers: str) -> None:
        super().__init__(detail, **headers)
        self.said = said or {}

    @property
    def members(self) -> dict[str, object]:
        return {"error": {"code": self.wire_code, "message": self.detail, **self.said}}


class InvalidSubscription(SubscriptionError, BadRequest):
    status, code, title = 400, "invalid-subscription", "Invalid subscription request"
    wire_code = "INVALID_REQUEST"


class WebhookRefused(SubscriptionError, BadRequest):
    status, code, title = 400, "webhook-url-rejected", "The webhook's URL is not called"
    wire_code = "WEBHOOK_URL_REJECTED"


class PublicUrlNotSet(SubscriptionError, BadRequest):
    """A webhook's receiver has to be told this server's own URL, which a Host cannot vouch for."""

    status, code, title = 400, "public-url-not-set", "This server does not know its own URL"
    wire_code = "INVALID_REQUEST"


class InvalidToken(SubscriptionError):
    status, code, title = 401, "invalid-token", "Not a token of this subscription"
    wire_code = "TOKEN_INVALID"


class SubscriptionNotFound(SubscriptionError):
    status, code, title = 404, "subscription-not-found", "Subscription not found"
    wire_code = "SUBSCRIPTION_NOT_FOUND"


class SubscriptionExists(SubscriptionError, Conflict):
    status, code, title = 409, "subscription-exists", "Subscription exists and differs"
    wire_code = "SUBSCRIPTION_ALREADY_EXISTS"


class Fenced(SubscriptionError, Conflict):
    """The wake is over: the lease ran out, or the work was given to another."""

    status, code, title = 409, "fenced", "The wake is not the current one"
    wire_code = "FENCED"


class AlreadyClaimed(SubscriptionError, Conflict):
    status, code, title = 409, "already-claimed", "Another worker holds the lease"
    wire_code = "ALREADY_CLAIMED"


class NoPendingWork(SubscriptionError, Conflict):
    status, code, title = 409, "no-pending-work", "Nothing is waiting to be done"
    wire_code = "NO_PENDING_WORK"


class InvalidAck(SubscriptionError, Conflict):
    status, code, title = 409, "invalid-ack", "An ack names no position that can be acked"
    wire_code = "INVALID_OFFSET"


class TooManySubscriptions(SubscriptionError):
    status, code, title = 429, "too-many-subscriptions", "Too many subscriptions or streams"
    wire_code = "LIMIT_EXCEEDED"


# -- 5xx: the server cannot do it now


class InternalError(ServerError):
    """A bug on our side; the log has the details, the answer does not."""

    code, title = "internal", "Internal error"


class Damaged(ServerError):
    """Stored bytes do not match their checksum; they are never served."""

    status, code, title = 500, "stored-data-damaged", "Stored data is damaged"


class EgressFailed(ServerError):
    """Another server did not answer, or not in a way that can be used.

    `status_seen` is what it answered with, if it was not a success.
    """

    status, code, title = 502, "egress-failed", "Another server did not answer properly"
    status_seen: int | None = None


class Overloaded(ServerError):
    status, code, title = 503, "overloaded", "Server is overloaded"


class LiveReadersFull(Overloaded):
    code, title = "live-readers-full", "The server has no room for another live reader"


class NotOwner(ServerError):
    """Another process owns the stream, a worker or a node of a cluster, or none does at the moment.

    `owner` is the URL of the node that does, where it is known. `is_unsent` says that the request
    has reached nobody, so that it can be sent again.
    """

    status, code, title = 503, "not-owner", "Another process owns the stream"
    owner: str | None = None
    is_unsent = False

    @property
    def members(self) -> dict[str, object]:
        return known(owner=self.owner)


class ClusterUnavailable(ServerError):
    """PostgreSQL does not answer a node of a cluster."""

    status, code, title = 503, "cluster-unavailable", "The database of the cluster does not answer"


class StoreReadOnly(ServerError):
    status, code, title = 503, "store-read-only", "Store is read-only after a disk failure"


class ShuttingDown(ServerError):
    status, code, title = 503, "shutting-down", "Server is shutting down"


class KeysUnavailable(ServerError):
    """The keys that a token could be checked with are being loaded, or cannot be."""

    status, code, title = 503, "keys-unavailable", "The keys of tokens are being loaded"


class ColdDataUnavailable(ServerError):
    """The part of a stream that was asked for is in an object store that does not answer."""

    status, code, title = 503, "cold-data-unavailable", "The object store does not answer"


class DiskFull(ServerError):
    status, code, title = 507, "disk-full", "Not enough disk space"


class StorageError(ServerError):
    """A folder or an object store beside the data folder did not do what it was asked for."""

    status, code, title = 502, "storage-failed", "The storage failed"


class ObjectNotFound(StorageError):
    code, title = "object-not-found", "The storage does not have the object"


class BucketNotFound(StorageError):
    code, title = "bucket-not-found", "The bucket does not exist"


class StorageDenied(StorageError):
    code, title = "storage-denied", "The storage does not let the server in"


class StorageFull(StorageError):
    code, title = "storage-full", "The storage is full"


class StorageExtraMissing(StorageError):
    code, title = "storage-extra-missing", "Object stores need an extra package"


class StorageUnavailable(StorageError):
    """The storage cannot be reached, or is throttled; the same call may work later."""

    status, code, title = 503, "storage-unavailable", "The storage cannot be reached"


class BackupDamaged(StorageError):
    """A backup is not as it was written, or cannot be read by this Penstock."""

    code, title = "backup-damaged", "The backup is damaged"


# -- Opening a data folder


class StoreLocked(StoreError):
    code, title = "store-locked", "Data folder is in use"


class StoreTooNew(StoreError):
    code, title = "store-too-new", "Data folder has a newer format"


class WorkersDiffer(StoreError):
    """A data folder is laid out for another number of workers."""

    code, title = "workers-differ", "Data folder has another number of workers"


class StoreDamaged(StoreError):
    code, title = "store-damaged", "Data folder is damaged"


class BackupNotFound(StoreError):
    code, title = "backup-not-found", "There is no such backup"


class FolderNotEmpty(StoreError):
    code, title = "folder-not-empty", "A restore needs an empty folder"


class ClusterRefused(StoreError):
    code, title = "cluster-refused", "The database cannot hold a cluster"


# -- Clients: never an HTTP answer


class ConnectionFailed(ClientError):
    """No answer, or only a part of one; `__cause__` is what the network said.

    `sent` is false if the request certainly did not reach the server; `passing` is false if the
    same request will fail again, because a certificate is not trusted or TLS is not spoken there.
    """

    status, code, title = 503, "connection-failed", "Connection failed"
    sent = True
    passing = True


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


# -- Spark sources, sinks and pipelines


class InvalidOption(ClientError):
    """An option of a Spark source or sink that is missing, unknown or out of range."""

    status, code, title = 400, "invalid-option", "Invalid option of a Spark source or sink"


class DataLost(ClientError):
    """What a query still had to read is gone: deleted, made anew, or trimmed."""

    status, code, title = 410, "data-lost", "Data that was not read yet is gone"


class NotWritable(ClientError):
    """Rows that cannot be sent as what the sink was told to send."""

    status, code, title = 422, "not-writable", "Rows cannot be written"


class JavaMissing(ClientError):
    """Spark runs on Java, and none was found that will do."""

    code, title = "java-missing", "No Java that Spark can use"


class InvalidPipeline(ClientError):
    """A pipeline's settings that cannot be used, or that do not fit its tables."""

    status, code, title = 400, "invalid-pipeline", "Invalid pipeline"


class QueryFailed(ClientError):
    """A query of the user's own that cannot be run."""

    status, code, title = 422, "query-failed", "Query failed"


class ExpectationFailed(ClientError):
    """Rows that do not meet an expectation whose action is to stop the pipeline."""

    status, code, title = 422, "expectation-failed", "Expectation not met"


class PublishFailed(ClientError):
    """The result of a query that cannot be sent where it should go."""

    status, code, title = 409, "publish-failed", "Result cannot be published"


class RewriteFailed(ClientError):
    """A stream whose state cannot be put into a new one as things stand."""

    status, code, title = 409, "rewrite-failed", "Stream cannot be rewritten"


class NoWarehouse(ClientError):
    """There are no tables yet where the pipeline keeps them."""

    status, code, title = 404, "no-warehouse", "No warehouse"


class WarehouseMismatch(ClientError):
    """The tables of a pipeline do not stand where its checkpoint does."""

    status, code, title = 409, "warehouse-mismatch", "Checkpoint and warehouse do not match"


class WarehouseInUse(ClientError):
    """Another run writes the same tables, or has taken them over."""

    status, code, title = 409, "warehouse-in-use", "Warehouse is in use"


class WarehouseBroken(ClientError):
    """Tables that cannot be read or written: damaged, not allowed, or out of reach."""

    status, code, title = 502, "warehouse-broken", "Warehouse cannot be used"
