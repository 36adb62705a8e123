"""Every default of a setting and every protocol bound, units last in the names.

Plain constants only: nothing here reads a setting, a file or the environment. Constants that tune
one module are defined beside its code.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# -- Protocol values
INTEGER_MAX: Final = 2**53 - 1  # Largest integer that a JavaScript client can hold exactly.
# Digits of each half of an offset token. The width is fixed so that tokens sort.
OFFSET_DIGITS: Final = 16
OFFSET_PART_MAX: Final = 10**OFFSET_DIGITS - 1  # Largest generation or position in an offset token.
# Last microsecond of the year 9999, where RFC 3339 ends.
TIME_US_MAX: Final = 253_402_300_799_999_999
PATH_BYTES_MAX: Final = 1024  # Length of a canonical stream path, with its percent escapes.
# Length of a content type. Each stream stores one and every response repeats it.
CONTENT_TYPE_BYTES_MAX: Final = 256
# Length of a producer id. Each stream stores the ids of its producers.
PRODUCER_ID_BYTES_MAX: Final = 256
PRODUCERS_PER_STREAM_MAX: Final = 10_000  # Producers whose epoch and sequence one stream remembers.
STREAM_SEQ_BYTES_MAX: Final = 256  # Length of a Stream-Seq header value.
# Nesting depth within one message. The array of a batch is not counted.
JSON_DEPTH_MAX: Final = 128
# Digits in a row of a number in a message. Parsers have such limits, too: Jackson stops at 1000
# characters, Python at 4300 digits. A longer number can be sent as a string.
JSON_NUMBER_DIGITS_MAX: Final = 1000
# Messages in one append. Splitting takes about 70 bytes of memory each.
MESSAGES_PER_APPEND_MAX: Final = 2**20
# Length of a chain of forks. Reading and loading follow the chain upwards.
FORK_DEPTH_MAX: Final = 100
LIST_LIMIT_MAX: Final = 1000  # Streams on one page of the listing.
REGISTRY_LOG_BYTES: Final = MIB  # History of `__registry__` at which it is rewritten.
# Streams of one live response over several. Its cursor has about 7 characters of each, and proxies
# take headers of 8 KiB.
LIVE_STREAMS_MAX: Final = 1000
LIVE_PARAMETERS_MAX: Final = 256  # Parameters of a request for such a response.
SPLITS_MAX: Final = 4096  # Ranges in the response to one split request.

# -- State
# Size of the declaration of a state stream, which is stored with the stream.
SCHEMA_BYTES_MAX: Final = 256 * KIB
STATE_TTL_S_MAX: Final = 315_360_000  # Largest `ttl` of an event: ten years, in seconds.
# Steps of checking one place of a value against a schema, with every reference expanded. A step is
# about 25 ns, and 300 ns where alternatives fail.
SCHEMA_STEPS_MAX: Final = 1_000_000
SCHEMA_DEPTH_MAX: Final = 128  # Levels of subschemas and references in a schema.
SCHEMA_ENUM_MAX: Final = 10_000  # Values of one enum.
SCHEMA_PATTERNS_MAX: Final = 256  # Regular expressions in a schema.
SCHEMA_PATTERN_BYTES: Final = 8 * MIB  # Compiled size of all regular expressions of a schema.
# Compiled size that each regular expression may have, however many there are.
SCHEMA_PATTERN_BYTES_MIN: Final = 64 * KIB
SCHEMA_CHECK_TIMEOUT_S: Final = 5  # Time to check one value against the schema of its type.
STATE_LIMIT: Final = 1000  # Entities on one page of a state, unless the request names a limit.
STATE_LIMIT_MAX: Final = 20_000  # Largest limit that a request for a page of a state can name.
# Bytes of events on one page of a state with more than one entity.
STATE_PAGE_BYTES: Final = 4 * MIB
# Largest stream whose state is computed without a declaration.
STATE_FOLD_BYTES_MAX: Final = 4 * MIB

# -- Tables
ROW_BYTES_MAX: Final = 64 * MIB  # Length of one row that a table client reads.
# Length of the schema id of a table, which every response repeats.
TABLE_SCHEMA_BYTES_MAX: Final = 128
TABLE_VERSION_MAX: Final = 2**31 - 1  # Largest version of a table's schema.
TABLES_PER_STREAM_MAX: Final = 1000  # Tables on one stream. Each shows another type.
TABLE_ROWS_PER_POST_MAX: Final = 2**15  # Rows in one request. Each becomes an event of the log.
# Bytes of the events that the rows of one request become, as a multiple of body_bytes_max.
TABLE_GROWTH_MAX: Final = 2
TABLE_IDLE_S: Final = 20  # Time without a new row after which a table read ends.
TABLE_TIMEOUT_S: Final = 60  # Duration of a table read. The client resumes with another.
# Keys of tables in memory, of about 200 bytes each, to tell an insert from an update.
TABLE_KEYS_MAX: Final = 200_000
TABLE_CACHE_BYTES: Final = 128 * MIB  # Size of the cache of encoded table rows.

# -- Bodies and chunks
# Size of one request body. Checking 16 MiB of JSON takes about 0.2 s.
BODY_BYTES_MAX: Final = 16 * MIB
CHUNK_BYTES: Final = 4 * MIB  # Target size of the response to one catch-up read.
TAIL_LINES_BYTES_MAX: Final = 16 * MIB  # Bytes of text that are searched for its last lines.
# Bytes that one read with a filter searches, at some 100 MB a second.
FILTER_SCAN_BYTES_MAX: Final = 16 * MIB
FILTER_VALUES_MAX: Final = 100  # Types, and keys, that one filter names.
COMPRESS_BYTES_MIN: Final = 1024  # Smaller responses are not compressed.
RECEIVE_BYTES_MAX: Final = 256 * MIB  # Bytes of all request bodies that are being received.
APPEND_QUEUE_BYTES_MAX: Final = 256 * MIB  # Bytes of accepted appends that wait for their sync.
SSE_BUFFER_BYTES_MAX: Final = 256 * KIB  # Unsent bytes at which a slow live reader is disconnected.

# -- Live state
# Time that appends wait while readers are redirected to another stream.
SUCCESSOR_HOLD_S_MAX: Final = 10
LIVE_MOVES_MAX: Final = 16  # Consecutive redirects that a live state follows.
LIVE_TXIDS_MAX: Final = 10_000  # Transaction ids that a live state remembers.

# -- Spark
SPARK_PARTITION_BYTES: Final = 32 * MIB  # Bytes of stream data per Spark task.
SPARK_RANGES_PER_PARTITION_MAX: Final = 512  # Small streams per Spark task.
SPARK_ATTEMPTS_MAX: Final = 12  # Attempts of a request in a reader or a sink: about half a minute.
SPARK_RETRY_INTERVAL_S: Final = 0.1  # Longest pause after the first failed attempt; it doubles.
SPARK_TIMEOUT_S: Final = 30.0  # Silence of a server after which a request has failed.
SPARK_TRIGGER_DELAY_S: Final = 900.0  # Time that a batch may wait for `minMessagesPerTrigger`.
SPARK_METRIC_STREAMS_MAX: Final = 1000  # Streams of one query with metrics of their own.
SPARK_CLASS_ARCHIVES_MAX: Final = 3  # Archives of Java classes in the user's cache: 100 MB each.
SPARK_ROW_BYTES: Final = 64 * KIB  # Bytes per row of a byte stream, which has no messages.
SPARK_CHUNK_MESSAGES: Final = 1000  # Rows that the sink appends in one request.
SPARK_CHUNK_BYTES: Final = MIB  # Bytes that the sink appends in one request of more than one row.

# -- The pipeline
PIPELINE_INTERVAL_S: Final = 1  # Time between two micro-batches while new data arrives.
PIPELINE_POLL_MS: Final = 200  # Time between two checks whether a run has ended.
# Messages of a micro-batch that the driver reads without tasks.
PIPELINE_DRIVER_MESSAGES: Final = 10_000
# Bytes of a micro-batch that the driver reads without tasks.
PIPELINE_SMALL_BYTES: Final = 16 * MIB
PIPELINE_FOLD_ROWS: Final = 10_000  # Rows of a type up to which every micro-batch folds its state.
PIPELINE_FOLD_PERCENT: Final = 4  # Percentage of new rows at which a larger state is folded.
PIPELINE_BUCKET_ROWS: Final = 500_000  # Rows of a state table per file.
PIPELINE_BUCKETS_MAX: Final = 64  # Files of one state table.
PIPELINE_TASK_ROWS: Final = 100_000  # Rows of a relation per task of a published query.
PIPELINE_COMPACT_FILES: Final = 200  # Small files of events at which a compaction merges them.
PIPELINE_KEEP_HOURS: Final = 6  # Time that files of old versions stay for their readers.
PIPELINE_TIDY_INTERVAL_S: Final = 900  # Time between two vacuums of unreferenced files.
PIPELINE_BATCH_BYTES: Final = 256 * MIB  # Bytes of stream data per micro-batch.
PIPELINE_STATUS_ATTEMPTS_MAX: Final = 2  # Attempts of a request for the lag by the status command.
PIPELINE_DRIFT_INTERVAL_S: Final = 60  # Time between two looks at the server's declarations.
PIPELINE_DEAD_STREAMS_MAX: Final = 1000  # Streams with dead letters that one commit names.
# Largest source offsets that a commit holds itself, without a file.
PIPELINE_POSITIONS_BYTES: Final = 16 * KIB
PIPELINE_POSITIONS_KEPT: Final = 100  # Micro-batches whose files of source offsets are retained.
PIPELINE_DRIVER_ROWS: Final = 1_000_000  # Rows of a type that the driver folds without tasks.
# Time that writers wait for a redirect of a stream that never rests.
PIPELINE_SWITCH_HOLD_S: Final = 2
# Attempts to redirect readers before writers have to wait.
PIPELINE_SWITCH_FREE_ATTEMPTS: Final = 3
# Attempts to redirect readers while a stream is written to.
PIPELINE_SWITCH_ATTEMPTS_MAX: Final = 100
PIPELINE_PUBLISH_KEYS_MAX: Final = 2_000_000  # Rows of a published query.
PIPELINE_PUBLISH_NAME_MAX: Final = 128  # Characters of the name of a [publish] section.
# Files of the outbox, per result, at which a compaction merges them.
PIPELINE_OUTBOX_FILES: Final = 64
# Growth of the outbox at which a compaction merges its files.
PIPELINE_OUTBOX_BYTES: Final = 64 * MIB
PIPELINE_QUERY_ROWS_MAX: Final = 1000  # Rows of the result of a sandboxed query.
PIPELINE_QUERY_BYTES_MAX: Final = 4 * MIB  # JSON of the result of a sandboxed query.
PIPELINE_QUERY_TIMEOUT_S: Final = 30  # Duration of a sandboxed query.

# -- Connections
REQUEST_LINE_BYTES_MAX: Final = 16 * KIB  # Length of method, path, query and version.
HEADER_BYTES_MAX: Final = 64 * KIB  # Bytes of all header lines of a request.
HEADER_COUNT_MAX: Final = 100  # Header lines of a request.
PIPELINE_MAX: Final = 32  # Requests that wait on one connection before reading from it pauses.
CONNECTIONS_MAX: Final = 20_000  # Open connections of the process.
HEADER_TIMEOUT_S: Final = 10  # Time from the first byte of a request to the end of its headers.
BODY_TIMEOUT_S: Final = 60  # Time from the end of the headers to the end of the body.
TLS_HANDSHAKE_TIMEOUT_S: Final = 10  # Time from the accept of a connection to the end of TLS's own.
KEEPALIVE_TIMEOUT_S: Final = 75  # Idle time between two requests on a connection.
WRITE_STALL_TIMEOUT_S: Final = 30  # A reader that takes no byte for this long is disconnected.
LONG_POLL_TIMEOUT_S: Final = 30  # A long-poll without new data ends after this time.
SSE_TIMEOUT_S: Final = 60  # A live reader has to reconnect after this time.
SSE_KEEPALIVE_S: Final = 15  # Time between two comment lines; nginx cuts idle responses at 60 s.
SSE_RETRY_MS: Final = 1000  # Time after which browsers reconnect; by default they wait 3 to 5 s.
SHUTDOWN_TIMEOUT_S: Final = 10  # Time for appends in flight to finish when the server stops.
WORKERS: Final = 1  # Processes of one server. More of them need a folder that is laid out for it.
WORKERS_MAX: Final = 256  # More than the cores of one machine.
LOOP_STALL_MS: Final = 100  # Lag of the event loop above which a log line says what held it up.
RATE_LIMIT_PER_S: Final = 0  # Requests per second and peer address. 0 switches the limit off.

# -- The log
JOURNAL_FILE_BYTES: Final = 16 * MIB  # Preallocated size of one journal file.
JOURNAL_BATCH_BYTES_MAX: Final = 8 * MIB  # Size of one batch in the journal.
IN_PLACE_COMMIT_US: Final = 300  # Time that the event loop may wait for the disk, if it is quick.
CHECKPOINT_BYTES: Final = 64 * MIB  # Journal bytes since the last checkpoint that start the next.
CHECKPOINT_INTERVAL_S: Final = 60  # Time between two checkpoints, if anything has changed.
# Time of the check of the catalog after an unclean stop: about 4 s for a million streams.
CATALOG_CHECK_TIMEOUT_S: Final = 60
SEGMENT_BYTES_MAX: Final = 64 * MIB  # Size of a segment file.
INLINE_BYTES_MAX: Final = 4096  # Streams up to this size are stored in the catalog, without files.
# Durable bytes in memory that are not in segments yet.
TAIL_BYTES_MAX: Final = 4 * CHECKPOINT_BYTES
ACTIVE_STREAMS_MAX: Final = 100_000  # Streams in memory.
OPEN_FILES_MAX: Final = 512  # Open segment files.
DISK_RESERVE_BYTES: Final = 64 * MIB  # Appends are refused when less disk space than this is free.
# Size of a compacted state, which is one record and one write.
SNAPSHOT_BYTES_MAX: Final = 16 * MIB
COMPACT_BYTES_MIN: Final = 64 * KIB  # Policies do not compact smaller streams.
RETENTION_INTERVAL_S: Final = 60  # Time between two applications of the retention policies.
BACKUP_BYTES_PER_S: Final = 16 * MIB  # Pace of a backup: one that leaves the disk to appends.
SCRUB_BYTES_PER_S: Final = 8 * MIB  # Pace of a scrub: a few percent of what a disk can read.
SCRUB_INTERVAL_S: Final = 7 * 86_400  # Time between two scrubs.
REAP_INTERVAL_S: Final = 1  # Time between two searches for expired streams.

# -- Other servers
EGRESS_CONNECT_TIMEOUT_S: Final = 5  # Time to resolve a name and connect, with TLS.
EGRESS_TIMEOUT_S: Final = 30  # Duration of a request to another server.
EGRESS_IDLE_TIMEOUT_S: Final = 90  # Silence within a streamed response. Long-polls last 30 to 60 s.
# Duration of a streamed response. The reader resumes with another.
EGRESS_STREAM_TIMEOUT_S: Final = 3600
EGRESS_ANSWER_BYTES_MAX: Final = MIB  # Size of a response that is held in memory.
# Size of a streamed response. The reader resumes with another.
EGRESS_STREAM_BYTES_MAX: Final = 4096 * MIB
EGRESS_CONNECTIONS_MAX: Final = 128  # Requests to other servers at a time.
PROXY_CALLS_MAX: Final = 256  # Calls of upstreams that are recorded at a time.
PROXY_BYTES_MAX: Final = 64 * MIB  # Size of a recorded response.
PROXY_TIMEOUT_S: Final = 3600  # Duration of a recorded response.
# Silence of an upstream, before and within its response: models think for minutes.
PROXY_IDLE_TIMEOUT_S: Final = 300
PROXY_TTL_S: Final = 86400  # Time that a recorded response stays after its last use.
NOTIFY_BYTES_MAX: Final = 64 * KIB  # Size of a Notify form.
NOTIFY_URLS_MAX: Final = 32  # URLs in a Notify form.
NOTIFY_LISTENERS_MAX: Final = 10_000  # NURLs that are notified of changes.
NOTIFY_LISTENERS_PER_PEER_MAX: Final = 2000  # NURLs on one host that are notified of changes.
NOTIFY_WAITING_MAX: Final = 1000  # NURLs that wait for a table.
NOTIFY_WAITING_PER_PEER_MAX: Final = 100  # NURLs on one host that wait for a table.
NOTIFY_WAITING_S: Final = 7 * 24 * 3600  # Time that a NURL waits for a table.
NOTIFY_SEND_MAX: Final = 100  # NURLs that one request sends a Notify to.
NOTIFY_PER_PEER_MAX: Final = 8  # Notify requests to one host at a time.
NOTIFY_ATTEMPTS_MAX: Final = 12  # Consecutive failures that remove a NURL: about 25 minutes.
NOTIFY_RETRY_S: Final = 1  # Wait before the second attempt. It doubles.
NOTIFY_RETRY_MAX_S: Final = 300  # Wait between two attempts.
FOLLOW_MAX: Final = 1000  # Tables of other servers that are followed.
FOLLOW_PER_PEER_MAX: Final = 100  # Tables of one host that are followed.
FOLLOW_LINKS_DEPTH_MAX: Final = 3  # Steps from a mirror to tables that records name.
FOLLOW_LINKS_MAX: Final = 100  # Tables that the records of a mirror lead to, at any depth.
FOLLOW_LINK_BYTES_MAX: Final = 64 * MIB  # Size of a mirror that a record led to.
FOLLOW_POLL_S: Final = 15  # Time between two requests to a server that does not stream.
FOLLOW_RETRY_S: Final = 1  # Wait after the first failure of a source. It doubles.
FOLLOW_RETRY_MAX_S: Final = 60  # Wait between two attempts to read a source.
FOLLOW_ROW_BYTES_MAX: Final = MIB  # Length of a row of another server.

# -- Subscriptions
SUBSCRIPTIONS_MAX: Final = 100_000  # Subscriptions of a server.
SUBSCRIPTION_STREAMS_MAX: Final = 100_000  # Streams that a subscription is linked to.
# Streams that one request names: they are written in one step. A pattern may match more.
SUBSCRIPTION_NAMES_MAX: Final = 1000
SUBSCRIPTION_ID_BYTES_MAX: Final = 256  # Length of a subscription id.
SUBSCRIPTION_BYTES_MAX: Final = MIB  # Size of a subscription document. A large one lists streams.
SUBSCRIPTION_TEXT_BYTES_MAX: Final = 4096  # Length of a description or of the name of a worker.
# Streams named in one wake. The next wake names the others.
SUBSCRIPTION_SNAPSHOT_MAX: Final = 1000
# Size at which the stream of the subscriptions is compacted.
SUBSCRIPTION_LOG_BYTES: Final = 4 * MIB
LEASE_MS_MIN: Final = 1000  # Shortest lease that the protocol allows.
LEASE_MS_MAX: Final = 600_000  # Longest lease that the protocol allows.
LEASE_MS: Final = 30_000  # Lease of a subscription that names none.
RULES_MAX: Final = 256  # Access rules of one principal.
GLOB_SEGMENTS_MAX: Final = 64  # Segments of a pattern.
GLOB_STARS_MAX: Final = 4  # `**` in a pattern. Each multiplies the cost of a match.
WEBHOOK_TIMEOUT_S: Final = 30  # Time for a webhook to respond. The end of the lease ends it, too.
WEBHOOK_ANSWER_BYTES_MAX: Final = 64 * KIB  # Size of a webhook's response.
WEBHOOK_DELIVERIES_MAX: Final = 64  # Webhook requests at a time.
WEBHOOK_PER_HOST_MAX: Final = 16  # Webhook requests to one host at a time.
WEBHOOK_RETRY_S: Final = 1  # Wait after the first failure. It doubles.
WEBHOOK_RETRY_MAX_S: Final = 60  # Wait between two attempts to call a webhook.
WEBHOOK_KEY_AGE_S: Final = 90 * 86_400  # Age at which a signing key is replaced.
WEBHOOK_KEY_OVERLAP_S: Final = 86_400  # Time that a replaced key stays published.
JWKS_MAX_AGE_S: Final = 300  # Time that receivers may cache the key set.

# -- JWT
# Length of a token. Most have less than 2 KiB; what is longer is refused before it is parsed.
JWT_BYTES_MAX: Final = 8 * KIB
JWT_CACHE_MAX: Final = 4096  # Verified tokens in memory.
JWT_LEEWAY_S: Final = 30  # Difference of clocks between the issuer and this server.
JWT_LEEWAY_S_MAX: Final = 300  # Largest difference of clocks that can be set.
JWT_KEYS_AGE_S: Final = 600  # Time between two fetches of a key set from a URL.
JWT_KEYS_BYTES_MAX: Final = 256 * KIB  # Size of a key set. Those of large issuers have 20 KiB.
JWT_KEYS_MAX: Final = 100  # Keys of a key set.

# -- What one client may use. 0 switches a limit off.
PRINCIPAL_RATE_PER_S: Final = 0  # Requests per second and principal.
ADDRESS_BYTES_PER_S: Final = 0  # Bytes of request bodies per second and address.
PRINCIPAL_BYTES_PER_S: Final = 0  # Bytes of request bodies per second and principal.
CONNECTIONS_PER_ADDRESS_MAX: Final = 0  # Open connections from one address.
LIVE_READERS_MAX: Final = 0  # Live reads at a time: SSE responses, table reads, long-polls.
LIVE_READERS_PER_PRINCIPAL_MAX: Final = 0  # The same, of one principal.
MESSAGE_BYTES_MAX: Final = 0  # Size of one JSON message.
AUDIT_BYTES_MAX: Final = 64 * MIB  # Size at which the oldest audit events are deleted.
AUDIT_AGE_S: Final = 365 * 86_400  # Age at which audit events are deleted.
# -- Observability
ACCESS_LOG_SLOW_MS: Final = 500  # Duration from which the access log has a request as slow.
OTEL_METRICS_INTERVAL_S: Final = 60  # Time between two exports of the metrics by OTLP.
OTEL_QUEUE_MAX: Final = 4096  # Requests whose spans wait to be sent.
ACTIVITY_INTERVAL_S: Final = 10  # Time between two samples of the activity.
ACTIVITY_SAMPLES_MAX: Final = 360  # Samples of the activity in memory: those of one hour.
ACTIVITY_STREAMS_MAX: Final = 1000  # Streams in one answer about the activity.
# -- Access
TOKENS_MAX: Final = 10_000  # Stored tokens of a server.
TOKEN_LIFETIME_S: Final = 90 * 86_400  # Lifetime of a token whose request names none.
TOKEN_NAME_CHARACTERS_MAX: Final = 128  # Length of the name of a token.
# Time that an expired token stays in the list, for whoever wonders why it no longer works.
TOKEN_EXPIRED_S: Final = 7 * 86_400
LINK_LIFETIME_S_MAX: Final = 30 * 86_400  # Lifetime of a signed link.
SESSION_LIFETIME_S: Final = 12 * 3600  # Lifetime of the session that a cookie stands for.
PIPELINES_TIMEOUT_S: Final = 60  # A command that the server runs for a request.
PIPELINES_COMMANDS_MAX: Final = 2
PIPELINES_ROWS_MAX: Final = 1000

# -- Tiered storage
TIER_AFTER_S: Final = 86_400  # Age at which a segment moves to the object store.
TIER_LOCAL_BYTES_MAX: Final = (
    0  # Bytes of segments on the disk above which the oldest move. 0: any.
)
TIER_CACHE_BYTES_MAX: Final = 1024 * MIB  # Bytes on the disk of what was read from the store.
TIER_CONCURRENCY: Final = 4  # Reads from the object store at a time, and segments written to it.
TIER_INTERVAL_S: Final = 60  # Time between two searches for segments to move.
TIER_TIMEOUT_S: Final = 20  # Time that a read waits for the object store.

# -- Cluster
CLUSTER_LEASE_S: Final = 2.0  # Time after a beat for which readers are told that they are current.
CLUSTER_BEAT_S: Final = 0.5  # Time between two beats of a node.
CLUSTER_TAKEOVER_S: Final = 3.0  # Age of an owner's last beat at which another node takes over.
CLUSTER_SHARDS: Final = 16  # Shards of a new cluster.
CLUSTER_SHARDS_MAX: Final = 1024  # At most: a node may have to open all of them.
CLUSTER_HOLD_S: Final = 2.0  # Time for which a request waits for an owner of its shard.
CLUSTER_RELAY_LINGER_S: Final = 3.0  # Time without readers after which a relay ends.
CLUSTER_CACHE_BYTES: Final = 64 * MIB  # Old payload in the memory of a node.
CLUSTER_GARBAGE_S: Final = 7 * 86_400  # Age at which an object that nobody needs is deleted.
