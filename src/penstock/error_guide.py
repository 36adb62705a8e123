"""The guide to the errors: for each code what it means and what to do about it, for people.

Read by the pages at `/problems` and by `docs/errors.md`; nothing that answers requests needs it.
Every code of `errors.py` has an entry, which a test checks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

from penstock import errors
from penstock.errors import ClientError, PenstockError, StoreError


class Advice(NamedTuple):
    """What an error means, and what to do about it."""

    cause: str
    remedy: str


FIELDS: Final = {
    "type": "The URL of the page about this code.",
    "title": "The same for every error of this code.",
    "status": "The status of the response.",
    "detail": "What went wrong in this request, for people. Do not parse it.",
    "code": "The stable name of the error, for programs.",
}
"""The members of every problem document."""

MORE_FIELDS: Final[dict[type[PenstockError], dict[str, str]]] = {
    errors.Unprocessable: {
        "field": "The place that was refused, such as `value.email`.",
        "rule": "The rule that was broken there.",
        "index": "Which item of an array it was, from 0.",
        "path": "The place as a JSON Pointer.",
    },
    errors.NotAllowed: {
        "verb": "What the principal may not do.",
        "path": "Where it may not do it.",
    },
    errors.NotOwner: {"owner": "The URL of the node that owns the stream, if it is known."},
    errors.StreamClosed: {"successor": "The URL of the stream in which this one goes on."},
    errors.StreamTrimmed: {"earliest": "The earliest offset that can be read."},
    errors.SubscriptionError: {
        "error": "The protocol's own form of the error: its `code` and `message`."
    },
}
"""Members that errors of a class may have beside those."""

HEADERS: Final[dict[type[PenstockError], dict[str, str]]] = {
    errors.Unauthorized: {"WWW-Authenticate": "How to authenticate."},
    errors.MethodNotAllowed: {"Allow": "The methods that are served."},
    errors.StaleEpoch: {"Producer-Epoch": "The epoch that a new one has to exceed."},
    errors.SequenceGap: {
        "Producer-Expected-Seq": "The sequence number that the server waits for.",
        "Producer-Received-Seq": "The one that it was sent.",
    },
    errors.StreamClosed: {
        "Stream-Closed": "`true`.",
        "Stream-Next-Offset": "The final offset of the stream.",
    },
    errors.StreamTrimmed: {"Stream-Earliest-Offset": "The earliest offset that can be read."},
    errors.RowsTrimmed: {"STP-Earliest-SeqNo": "The SeqNo of the earliest row."},
    errors.RateLimited: {"Retry-After": "Seconds to wait."},
    errors.ByteRateLimited: {"Retry-After": "Seconds to wait."},
    errors.Overloaded: {"Retry-After": "Seconds to wait."},
    errors.NotOwner: {"Retry-After": "Seconds to wait."},
    errors.ClusterUnavailable: {"Retry-After": "Seconds to wait."},
}
"""Headers that responses with an error of a class may have."""

GUIDE: Final[dict[str, Advice]] = {
    # -- 400
    "bad-request": Advice(
        "The request is not valid HTTP, or a header in it cannot be read.",
        "Read `detail`, and send the request again without the mistake.",
    ),
    "invalid-offset": Advice(
        "The offset is not one that this server makes: offsets are opaque.",
        "Send a `Stream-Next-Offset` exactly as it was returned, `-1` for the start or `now` for "
        "the tail.",
    ),
    "offset-beyond-tail": Advice(
        "The offset is after the end of the stream. The stream was restored from an older copy, or "
        "the offset belongs to another server.",
        "Ask for the tail with HEAD, and read from an offset up to there.",
    ),
    "offset-not-aligned": Advice(
        "The offset is inside a message of a JSON stream.",
        "Send only offsets that the server has returned; do not compute them.",
    ),
    "invalid-fork-offset": Advice(
        "The offset at which a fork should begin is not one of its source.",
        "Fork at an offset that a read of the source has returned.",
    ),
    "invalid-ttl": Advice(
        "`Stream-TTL` is not a whole number of seconds in range.",
        "Send seconds without a sign, fraction or leading zeros.",
    ),
    "invalid-expires-at": Advice(
        "`Stream-Expires-At` is not a time, or not one in the future.",
        "Send an RFC 3339 time with its zone, such as `2030-01-01T00:00:00Z`.",
    ),
    "conflicting-expiry": Advice(
        "The request has both `Stream-TTL` and `Stream-Expires-At`.",
        "Send one of them.",
    ),
    "invalid-producer": Advice(
        "The headers of an idempotent producer are incomplete or out of range.",
        "Send `Producer-Id`, `Producer-Epoch` and `Producer-Seq` together, the numbers from 0.",
    ),
    "epoch-must-start-at-zero": Advice(
        "The first request of a new producer epoch does not have sequence number 0.",
        "Begin each epoch with `Producer-Seq: 0`.",
    ),
    "invalid-stream-seq": Advice(
        "`Stream-Seq` is empty, too long, or has characters that a header must not have.",
        "Send visible ASCII characters only, without spaces.",
    ),
    "invalid-content-type": Advice(
        "`Content-Type` cannot be read as a media type.",
        "Send one such as `application/json`.",
    ),
    "missing-content-type": Advice(
        "A body was sent without saying what it is.",
        "Add `Content-Type`; for appends it is that of the stream.",
    ),
    "invalid-path": Advice(
        "The path of a stream has an empty segment, `.` or `..`, a control character, or is too "
        "long.",
        "Choose other segments, and percent-encode what is not plain ASCII.",
    ),
    "invalid-rule": Advice(
        "An access rule cannot be read.",
        "Write `verb:pattern`, such as `read:chat/**`. The page about access lists the verbs.",
    ),
    "invalid-parameter": Advice(
        "A query parameter has a value that it cannot have, is repeated, or does not go with "
        "another one.",
        "Read `detail`: it names the parameter and what it takes.",
    ),
    "unknown-parameter": Advice(
        "A query parameter is not known, and looks like a misspelling of one that is.",
        "Use the name in `detail`. Parameters that resemble nothing are ignored.",
    ),
    "invalid-cursor": Advice(
        "The cursor of a live response over several streams was not made by this server.",
        "Send the cursor of the last event as it came, or begin again without one.",
    ),
    "too-many-parameters": Advice(
        "A request for a live response has more parameters than `live_parameters_max`.",
        "Use patterns (`match=`) in place of single streams, or raise the setting.",
    ),
    "too-many-streams": Advice(
        "A live response would have more streams than `live_streams_max`.",
        "Ask for fewer streams in each request, or raise the setting.",
    ),
    "invalid-json": Advice(
        "A body that should be JSON is not, or not of the expected form.",
        "Read `detail` for the place of the mistake. JSON has to be UTF-8.",
    ),
    "number-too-long": Advice(
        "A number in the JSON has more digits than the server takes.",
        "Send it as a string.",
    ),
    "json-too-deep": Advice(
        "Arrays and objects of a message are nested deeper than the server takes.",
        "Flatten the message, or send the inner part as a string.",
    ),
    "empty-array": Advice(
        "An append to a JSON stream is an empty array: there is no message in it.",
        "Send at least one message, or no request.",
    ),
    "empty-body": Advice(
        "An append has no body.",
        "Send at least one byte. To close a stream, add `Stream-Closed: true`.",
    ),
    "invalid-url": Advice(
        "A URL cannot be used: its scheme, host, port or length is wrong, or it has credentials.",
        "Send an absolute `http` or `https` URL.",
    ),
    "invalid-notify": Advice(
        "A Notify form has no `surl`, too many fields, or one that cannot be read.",
        "Send `application/x-www-form-urlencoded` with `surl`, and a URL for each event.",
    ),
    "invalid-follow": Advice(
        "The description of what a table should follow cannot be used.",
        'Send JSON such as `{"surl": "https://peer.example/v1/table/users"}`.',
    ),
    "invalid-access-request": Advice(
        "A request for a token, a link or a session has a member that it cannot have.",
        "Read `detail`: it names the member and what it takes.",
    ),
    "invalid-storage-url": Advice(
        "The address of a folder or an object store cannot be used.",
        "Write the path of a folder, or a URL such as `s3://bucket/prefix`.",
    ),
    "invalid-backup-request": Advice(
        "The body of the request for a backup is not what the server expects.",
        'Send JSON such as `{"destination": "s3://bucket/prefix"}`.',
    ),
    # -- 401 to 408
    "unauthorized": Advice(
        "The request has no credentials, or some that are wrong, expired or revoked.",
        "Send `Authorization: Bearer …` with a current token.",
    ),
    "key-unknown": Advice(
        "The token is a JWT whose key the server does not have.",
        "Use a token of the configured issuer; after a change of keys get a new token.",
    ),
    "forbidden": Advice("The request is understood and not allowed.", "Read `detail`."),
    "not-allowed": Advice(
        "The principal has no rule that allows this here.",
        "Use a token that has a rule for `verb` on `path`, or have one created.",
    ),
    "stale-epoch": Advice(
        "A newer instance of this producer has taken over: the epoch is fenced.",
        "Stop this instance. A restart takes an epoch above `Producer-Epoch`.",
    ),
    "egress-refused": Advice(
        "The server does not connect to that address: it is internal, or not allowed.",
        "Use a public URL, or have the operator allow the network.",
    ),
    "mirror-read-only": Advice(
        "The stream is written by the server itself: a mirror, or a record of the server.",
        "Write to its source, or to a stream of your own.",
    ),
    "origin-refused": Advice(
        "A page of an origin that is not allowed has sent a request that changes something.",
        "Add the origin of the page to the setting `cors_origins`.",
    ),
    "stream-not-found": Advice(
        "There is no stream at this path, or nothing that these credentials may see.",
        "Check the path; create the stream with PUT.",
    ),
    "route-not-found": Advice(
        "Nothing is served at this path.",
        "`GET /` names everything that is served.",
    ),
    "schema-not-found": Advice(
        "The stream is not declared a state stream.",
        "Declare it with `PUT /v1/schema/{path}`.",
    ),
    "follow-not-found": Advice(
        "The table follows no other table.",
        "Check the name; `PUT /v1/follow/{path}` begins to follow one.",
    ),
    "nurl-not-found": Advice(
        "No peer has advertised such a Notify URL, or it has expired.",
        "List what there is with `GET /v1/nurls`.",
    ),
    "token-not-found": Advice(
        "There is no stored token with this name; it may have been revoked already.",
        "List the tokens with `GET /v1/tokens`.",
    ),
    "table-not-found": Advice(
        "There is no table at this path: no stream, or one that is not declared a table.",
        "Declare it with `PUT /v1/table/{path}`.",
    ),
    "cluster-not-found": Advice(
        "The server keeps its streams in a folder; it is not a node of a cluster.",
        "Ask a server that was started with `--cluster`; `GET /v1/activity` says what this one "
        "does.",
    ),
    "pipeline-not-found": Advice(
        "The server has no pipeline of this name.",
        "List them with `GET /v1/pipelines`; the setting `pipelines` names their files.",
    ),
    "method-not-allowed": Advice(
        "The path is served, but not with this method.",
        "Use one of the methods in `Allow`.",
    ),
    "not-acceptable": Advice(
        "The table has another schema or version than `Accept` asks for.",
        "Ask for the type that the declaration of the table names, or for any.",
    ),
    "request-timeout": Advice(
        "The request did not arrive completely in time.",
        "Send it again over a faster connection, or in smaller parts.",
    ),
    # -- 409
    "conflict": Advice(
        "The request does not fit the state of what it is about.",
        "Read `detail`, look at the current state, and decide anew.",
    ),
    "stream-exists": Advice(
        "There is a stream at this path with another content type, lifetime or source.",
        "Use it as it is, choose another path, or delete it first.",
    ),
    "stream-closed": Advice(
        "The stream takes no more appends.",
        "Append to its successor if there is one, or to a new stream.",
    ),
    "path-blocked": Advice(
        "A deleted stream still holds this path, because forks of it exist.",
        "Delete the forks first, or choose another path.",
    ),
    "fork-source-deleted": Advice(
        "The source of the fork is deleted; its data stays only for older forks.",
        "Fork one of those forks instead.",
    ),
    "fork-too-deep": Advice(
        "The chain of forks of forks is as long as it may be.",
        "Fork from a stream nearer to the root, or copy the data into a new stream.",
    ),
    "content-type-mismatch": Advice(
        "The content type of the append is not that of the stream.",
        "Send the content type that HEAD of the stream shows.",
    ),
    "stream-seq-conflict": Advice(
        "`Stream-Seq` is not greater than that of the last append: another writer came first, or "
        "it is a repeat.",
        "Read what was appended, then send a greater value or nothing.",
    ),
    "producer-sequence-gap": Advice(
        "A request of this producer before this one has not arrived.",
        "Send the requests from `Producer-Expected-Seq` on, in order.",
    ),
    "not-json-stream": Advice(
        "The stream holds bytes of another type; only JSON streams have state or tables.",
        "Create the stream with `Content-Type: application/json`.",
    ),
    "not-declared": Advice(
        "The stream has no declaration, so its state is folded for each request, and it has too "
        "many bytes for that.",
        "Declare it with `PUT /v1/schema/{path}`: the server then keeps an index of its state.",
    ),
    "not-state-stream": Advice(
        "The operation needs a declared state stream.",
        "Declare it with `PUT /v1/schema/{path}`.",
    ),
    "state-too-large": Advice(
        "The live state is larger than `snapshot_bytes_max`, which a compaction writes in one "
        "step.",
        "Raise the setting, or rewrite the stream with `penstock pipeline rewrite`.",
    ),
    "not-compactable": Advice(
        "A reset names an offset ahead of the tail, so the state is not decided yet.",
        "Compact when the tail is past that offset.",
    ),
    "follow-conflict": Advice(
        "The table has rows of another source, follows another one, or would follow itself.",
        "End the other mirror first, use another table, or send `adopt` if the rows are the same.",
    ),
    "table-exists": Advice(
        "There is a table at this path with another declaration.",
        "Use it as it is, or choose another path.",
    ),
    "not-expressible": Advice(
        "The stream has events that no row of a table can express.",
        "Read it as a stream or as state; or begin a new stream for the table.",
    ),
    "server-open": Advice(
        "The server has no access rules, so tokens and links would mean nothing.",
        "Set `auth_token` (or JWTs) first, and restart.",
    ),
    "pipeline-failed": Advice(
        "The server has run a command of the pipeline, and it has failed: there are no tables yet, "
        "the pipeline is running, or a package is missing.",
        "Read `detail`: it is the message of the command.",
    ),
    "backup-running": Advice(
        "The server writes one backup at a time, and does so now.",
        "Wait for it (`GET /v1/backup`), or stop it (`penstock backup cancel`).",
    ),
    "backup-locked": Advice(
        "Another process writes a backup to the same place.",
        "Wait for it. The lock of a process that was killed ends after ten minutes.",
    ),
    "backup-mismatch": Advice(
        "The place has backups of another data folder.",
        "Use a folder or a prefix of its own for every server.",
    ),
    "not-on-disk": Advice(
        "The server runs with `--memory`: there is no data folder.",
        "Start the server with a data folder.",
    ),
    # -- 410 to 431
    "gone": Advice("What was asked for is not there any more.", "Begin again without it."),
    "stream-recreated": Advice(
        "The stream was deleted and created again, and the offset belongs to the former one. Or "
        "the server was restored from a backup, and the offset belongs to data that was lost.",
        "Discard what was derived from the former data, and read from `-1`.",
    ),
    "stream-trimmed": Advice(
        "The messages at this offset were deleted by retention, a trim or a compaction.",
        "Read from `earliest`, and treat what was between as lost or replaced by a snapshot.",
    ),
    "stream-soft-deleted": Advice(
        "The stream is deleted; its data stays only for its forks.",
        "Read one of its forks.",
    ),
    "rows-trimmed": Advice(
        "Rows after this SeqNo are no longer there.",
        "Read the table from the start.",
    ),
    "tail-moved": Advice(
        "Somebody has appended since: the tail is not at the offset of `If-Match`.",
        "Read what is new, decide again, and send the new tail.",
    ),
    "body-too-large": Advice(
        "The body has more bytes than `body_bytes_max`.",
        "Send several smaller requests, or raise the setting.",
    ),
    "message-too-large": Advice(
        "A single message has more bytes than the server takes.",
        "Store large content elsewhere and append its URL, or split it.",
    ),
    "uri-too-long": Advice(
        "The request line is too long.",
        "Use shorter paths and fewer parameters.",
    ),
    "unsupported-media-type": Advice(
        "The body is of a type that is not taken here.",
        "Read `detail` for the type, and send it as `Content-Type`.",
    ),
    "unsupported-content-encoding": Advice(
        "The body is compressed in a way that the server does not read.",
        "Send it without `Content-Encoding`.",
    ),
    "host-refused": Advice(
        "The server does not answer to the host name of the request, which protects it from pages "
        "that rebind names.",
        "Use a name in `allowed_hosts`, or add it there.",
    ),
    "headers-too-large": Advice(
        "The headers of the request are too large or too many.",
        "Remove headers, cookies above all.",
    ),
    # -- 422
    "unprocessable": Advice(
        "The content was read and is not acceptable.",
        "Read `detail`, `field` and `rule`.",
    ),
    "invalid-event": Advice(
        "A message is no event of the State Protocol, and the stream takes nothing else.",
        "Send events with `type`, `key`, `value` and `headers.operation`; `field` names what is "
        "wrong.",
    ),
    "validation-failed": Advice(
        "The value, key or type of an event does not match the declared schema.",
        "Correct the event, or declare a new version of the schema.",
    ),
    "invalid-schema": Advice(
        "The declaration of a state stream cannot be used.",
        "Correct the JSON Schema at `field`.",
    ),
    "invalid-row": Advice(
        "A row of a table cannot be read or stored.",
        "Correct the row; `field` and `index` name the place.",
    ),
    "invalid-table": Advice(
        "The declaration of a table cannot be used.",
        "Correct it at `field`.",
    ),
    "invalid-query": Advice(
        "The SQL cannot be run: it is no single SELECT, names something that is not there, or took "
        "too long or too much memory.",
        "Correct the query by `detail`. `GET /v1/pipelines/{name}` lists tables and columns.",
    ),
    # -- 429
    "rate-limited": Advice(
        "The client sends more requests than `rate_limit_per_s` allows.",
        "Wait for `Retry-After` seconds, and put several messages into one append.",
    ),
    "byte-rate-limited": Advice(
        "The client sends or reads more bytes than it may.",
        "Wait for `Retry-After` seconds, then go on more slowly.",
    ),
    "too-many-producers": Advice(
        "The stream has as many producers as it may have.",
        "Use fewer, stable producer ids: one for each writer, not for each request.",
    ),
    "too-many-peers": Advice(
        "The server has as many peers, mirrors or Notify URLs as it may, or one has too many.",
        "Remove those that are not used, or raise the limit.",
    ),
    "too-many-connections": Advice(
        "One address has as many connections as it may have.",
        "Close connections, share one client, or use HTTP keep-alive.",
    ),
    "too-many-live-readers": Advice(
        "One principal has as many live readers as it may have.",
        "End some, or read several streams on one response (`/v1/streams/live`).",
    ),
    "quota-exceeded": Advice(
        "The streams below a path have as many streams or bytes as a quota allows. Waiting does "
        "not help.",
        "Delete or trim streams, or have the quota raised.",
    ),
    "too-many-tokens": Advice(
        "The server has as many stored tokens as it may have.",
        "Revoke tokens that are not used.",
    ),
    # -- Subscriptions
    "subscription-error": Advice("A subscription cannot do this.", "Read `detail`."),
    "invalid-subscription": Advice(
        "The request about a subscription has a member that it cannot have.",
        "Read `detail`: it names the member and what it takes.",
    ),
    "webhook-url-rejected": Advice(
        "The server does not call this webhook: the address is internal or not allowed.",
        "Use a public `https` URL.",
    ),
    "public-url-not-set": Advice(
        "A webhook gets the URL of this server, which the server does not know.",
        "Set `public_url`.",
    ),
    "invalid-token": Advice(
        "The token is not that of the current wake of this subscription.",
        "Claim the wake again, and use its token.",
    ),
    "subscription-not-found": Advice(
        "There is no subscription with this id.",
        "Check the id; create it with PUT.",
    ),
    "subscription-exists": Advice(
        "There is a subscription with this id and other settings.",
        "Use it as it is, delete it first, or choose another id.",
    ),
    "fenced": Advice(
        "The lease of the wake has run out, or its work was given to another worker.",
        "Stop this work: another worker does it. Take longer leases or extend them in time.",
    ),
    "already-claimed": Advice(
        "Another worker holds the lease.",
        "Wait for the next wake.",
    ),
    "no-pending-work": Advice(
        "All streams of the subscription are acknowledged up to their tails.",
        "Wait for the next wake.",
    ),
    "invalid-ack": Advice(
        "An acknowledgement names an offset that is no position of the stream, or goes backwards.",
        "Acknowledge the `Stream-Next-Offset` of what was processed.",
    ),
    "too-many-subscriptions": Advice(
        "There are as many subscriptions, or streams of one, as there may be.",
        "Delete some, or use a pattern in place of single streams.",
    ),
    # -- 5xx
    "server-error": Advice(
        "The server could not do what was asked.",
        "Try again later.",
    ),
    "internal": Advice(
        "The server has a bug; its log has the details.",
        "Try again. If it goes on, report it with the lines of the log.",
    ),
    "stored-data-damaged": Advice(
        "Stored bytes do not match their checksum; they are never served.",
        "Check the disk, run `penstock verify` and restore the stream from a copy.",
    ),
    "egress-failed": Advice(
        "Another server did not answer, or not in a way that can be used.",
        "Check that server; the request is tried again by itself where that makes sense.",
    ),
    "overloaded": Advice(
        "The server has more to do than it can do now, or something is still catching up.",
        "Wait for `Retry-After` seconds and try again.",
    ),
    "live-readers-full": Advice(
        "The server as a whole has as many live readers as it may have.",
        "Try again later, or raise the limit.",
    ),
    "not-owner": Advice(
        "One worker, or one node of a cluster, owns a stream, and it is not this one, or has ended "
        "and is being replaced. An append that it was working on may have happened.",
        "Send the request to the node that `owner` names, or repeat it after `Retry-After` "
        "seconds; with producer headers no append happens twice.",
    ),
    "cluster-unavailable": Advice(
        "PostgreSQL, which holds the cluster, does not answer this node. What it has in memory "
        "can be read; nothing can be written.",
        "Try again after `Retry-After`. If it stays so, look whether the primary of PostgreSQL is "
        "up and has its synchronous standbys.",
    ),
    "store-read-only": Advice(
        "A write to the disk has failed, so that the store takes no more; reads go on.",
        "Repair the disk, then restart the server.",
    ),
    "shutting-down": Advice(
        "The server is being stopped.",
        "Try again: another instance answers, or this one when it is back.",
    ),
    "keys-unavailable": Advice(
        "The keys with which tokens are checked cannot be loaded.",
        "Try again; if it goes on, check that the server reaches what `jwt_keys` names.",
    ),
    "cold-data-unavailable": Advice(
        "The part of the stream that was asked for is in the object store (`tier_url`), which does "
        "not answer, or too slowly. All other data is served.",
        "Try again after `Retry-After`; if it goes on, look at the server's log and at the store.",
    ),
    "disk-full": Advice(
        "The disk has less free space than the server keeps in reserve; reads go on.",
        "Free space, trim or delete streams, or set a retention policy.",
    ),
    "storage-failed": Advice(
        "A folder or an object store beside the data folder did not do what it was asked for.",
        "Read `detail`, and check the storage. Data in the data folder is not affected.",
    ),
    "bucket-not-found": Advice(
        "The bucket of the object store does not exist.",
        "Create it, or correct the name and the region.",
    ),
    "object-not-found": Advice(
        "The storage does not have an object that should be there.",
        "Check whether somebody or a lifecycle rule deletes objects; restore it from a copy.",
    ),
    "storage-denied": Advice(
        "The storage does not accept the credentials, or they do not allow this.",
        "Check the credentials and the policy of the bucket.",
    ),
    "storage-extra-missing": Advice(
        "Object stores need a package that is not installed.",
        "Install the extra that `detail` names.",
    ),
    "storage-full": Advice(
        "The storage has no space left, or a quota is reached.",
        "Free space there, or raise the quota.",
    ),
    "storage-unavailable": Advice(
        "The storage cannot be reached, or asks to slow down.",
        "Wait: what can be tried again is. If it goes on, check the network and the storage.",
    ),
    "backup-damaged": Advice(
        "A backup is not as it was written, or is of a newer Penstock.",
        "Use another backup. `penstock backup verify` says which are whole.",
    ),
    # -- Opening a data folder
    "store-error": Advice("The data folder cannot be opened.", "Read the message."),
    "store-locked": Advice(
        "Another process has the data folder open.",
        "Stop that server first, or use another folder.",
    ),
    "store-too-new": Advice(
        "A newer version of Penstock has written the data folder.",
        "Start that version, or restore a copy from before the upgrade.",
    ),
    "workers-differ": Advice(
        "The data folder is laid out for another number of workers.",
        "Start with that number (`--workers`), or run `penstock reshard` while no server runs.",
    ),
    "store-damaged": Advice(
        "The data folder cannot be recovered by itself.",
        "Run `penstock verify` for what is wrong; restore from a copy.",
    ),
    "backup-not-found": Advice(
        "The place has no backup with that id, or of that time.",
        "See `penstock backup list`.",
    ),
    "folder-not-empty": Advice(
        "A restore writes into an empty folder only.",
        "Name a new folder; move the old one away rather than remove it.",
    ),
    "cluster-refused": Advice(
        "The database that `--cluster` names cannot be reached, or is not fit for a cluster: no "
        "synchronous standbys, too old a server, missing rights, or tables of something else.",
        "Read `detail`; docs/cluster.md says what the database needs.",
    ),
    # -- Clients
    "client-error": Advice("The client failed; no server reported it.", "Read the message."),
    "connection-failed": Advice(
        "No answer came, or only a part of one.",
        "Check the URL and the network, and that the server runs.",
    ),
    "protocol-error": Advice(
        "The answer is not what the protocol says.",
        "Check that the URL is that of a Durable Streams server, not of a proxy's error page.",
    ),
    "client-closed": Advice(
        "A method was called after the client was closed.",
        "Keep the client open for as long as it is used.",
    ),
    "state-reset": Advice(
        "The stream declared the state before this point invalid, and the policy is to raise.",
        "Discard the state and read on, or choose another policy.",
    ),
    "state-moved": Advice(
        "The state goes on in another stream, to which this client may not or cannot go.",
        "Open the stream at `location`.",
    ),
    # -- Spark and pipelines
    "invalid-option": Advice(
        "An option of a Spark source or sink is missing, unknown or out of range.",
        "Read the message: it names the option and what it takes.",
    ),
    "data-lost": Advice(
        "What a query still had to read is gone: deleted, recreated or trimmed.",
        "Begin again from the earliest offset, or set `failOnDataLoss` to `false`.",
    ),
    "not-writable": Advice(
        "Rows cannot be sent as what the sink is set to send.",
        "Correct the columns or the options of the sink.",
    ),
    "java-missing": Advice(
        "Spark needs Java, and none that fits was found.",
        "Install Java 17 or 21, or set `JAVA_HOME`.",
    ),
    "invalid-pipeline": Advice(
        "The settings of a pipeline cannot be used, or do not fit its tables.",
        "Check them with `penstock pipeline validate FILE`.",
    ),
    "query-failed": Advice(
        "A query cannot be run.",
        "Correct the SQL; the message has the place and the names of the tables.",
    ),
    "expectation-failed": Advice(
        "Rows do not meet an expectation of the pipeline whose action is `fail`.",
        "Correct the producer, the condition or its action; the next run reads the batch again.",
    ),
    "publish-failed": Advice(
        "The result of a query cannot be sent to where it should go.",
        "Read the message; correct `[publish]` or the stream.",
    ),
    "rewrite-failed": Advice(
        "The state of a stream cannot be put into a new one as things stand.",
        "Read the message, then run the rewrite again: it goes on where it was.",
    ),
    "no-warehouse": Advice(
        "The pipeline has no tables yet.",
        "Run it once with `penstock pipeline run FILE`.",
    ),
    "warehouse-mismatch": Advice(
        "The tables of a pipeline are not where its checkpoint is.",
        "Run with `--resume-from-warehouse`, or restore the checkpoint that belongs to them.",
    ),
    "warehouse-in-use": Advice(
        "Another run writes the same tables, or has taken them over.",
        "Stop the other run first.",
    ),
    "warehouse-broken": Advice(
        "Tables cannot be read or written: damaged, not allowed, or out of reach.",
        "Check the storage and its credentials; restore missing files.",
    ),
}


def every_error() -> dict[str, type[PenstockError]]:
    """Return every class of the tree by its code, those that servers send first, by status."""
    classes: dict[str, type[PenstockError]] = {}
    for error in sorted(_below(PenstockError), key=_order):
        classes.setdefault(error.code, error)
    return classes


def is_sent(error: type[PenstockError]) -> bool:
    """Whether a server may send the error; the others are raised where they happen."""
    return not issubclass(error, ClientError | StoreError)


def fields_of(error: type[PenstockError]) -> dict[str, str]:
    """Return the members that a problem document of this error has beside the usual."""
    return _collected(MORE_FIELDS, error)


def headers_of(error: type[PenstockError]) -> dict[str, str]:
    """Return the headers that a response with this error may have."""
    return _collected(HEADERS, error)


def _collected(
    texts: dict[type[PenstockError], dict[str, str]], error: type[PenstockError]
) -> dict[str, str]:
    return {
        name: text
        for base, members in texts.items()
        if issubclass(error, base)
        for name, text in members.items()
    }


def _below(error: type[PenstockError]) -> Iterator[type[PenstockError]]:
    for each in error.__subclasses__():
        if each.__module__ == errors.__name__:
            yield each
            yield from _below(each)


def _order(error: type[PenstockError]) -> tuple[bool, int, str]:
    return not is_sent(error), error.status if is_sent(error) else 0, error.code
