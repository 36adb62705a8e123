"""Every bound Penstock enforces and every default a setting starts from, units last.

Plain constants only: nothing here reads a setting, a file or the environment.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Protocol values
INTEGER_MAX: Final = 2**53 - 1  # largest integer a JavaScript client can hold exactly
OFFSET_DIGITS: Final = 16  # digits of each half of an offset token: fixed, so that tokens sort
OFFSET_PART_MAX: Final = 10**OFFSET_DIGITS - 1  # largest generation or position a token can name
TIME_US_MAX: Final = 253_402_300_799_999_999  # last microsecond of year 9999: RFC 3339 ends there
PATH_BYTES_MAX: Final = 1024  # canonical stream path, percent-escapes included
CONTENT_TYPE_BYTES_MAX: Final = 256  # kept per stream and echoed on every answer
PRODUCER_ID_BYTES_MAX: Final = 256  # kept per producer and stream
PRODUCERS_PER_STREAM_MAX: Final = 10_000  # producers whose epoch and sequence one stream remembers
STREAM_SEQ_BYTES_MAX: Final = 256  # Stream-Seq header value
JSON_DEPTH_MAX: Final = 128  # nesting inside one message; the batch array around it is not counted
MESSAGES_PER_APPEND_MAX: Final = 2**20  # a batch costs about 70 bytes of memory a message to split
FORK_DEPTH_MAX: Final = 100  # forks of forks; reading and loading go up the chain
LIST_LIMIT_MAX: Final = 1000  # streams on one page of the listing
SPLITS_MAX: Final = 4096  # ranges one split request can ask for

# State
SCHEMA_BYTES_MAX: Final = 256 * KIB  # declaration of a state stream, kept with it
STATE_LIMIT: Final = 1000  # entities on one page of a state, unless asked for
STATE_LIMIT_MAX: Final = 20_000  # entities on one page of a state
STATE_PAGE_BYTES: Final = 4 * MIB  # events behind one page of a state, if it has more than one
STATE_FOLD_BYTES_MAX: Final = 4 * MIB  # streams up to this size have state without a declaration

# Tables
ROW_BYTES_MAX: Final = 64 * MIB  # one line of a table that is read
TABLE_SCHEMA_BYTES_MAX: Final = 128  # schema id of a table, sent with every answer
TABLE_VERSION_MAX: Final = 2**31 - 1  # version of a table's schema
TABLES_PER_STREAM_MAX: Final = 1000  # tables that show one stream, each another type
TABLE_IDLE_S: Final = 20  # a read of a table with no new row for so long ends
TABLE_TIMEOUT_S: Final = 60  # a read of a table ends after this, to be resumed
TABLE_CACHE_BYTES: Final = 128 * MIB  # encoded rows of tables kept in memory

# Bodies and chunks
BODY_BYTES_MAX: Final = 16 * MIB  # one request body; checking 16 MiB of JSON takes about 0.2 s
CHUNK_BYTES: Final = 4 * MIB  # what one catch-up answer aims to hold
COMPRESS_BYTES_MIN: Final = 1024  # smaller answers are sent as they are
RECEIVE_BYTES_MAX: Final = 256 * MIB  # all bodies being received, process-wide
APPEND_QUEUE_BYTES_MAX: Final = 256 * MIB  # accepted appends waiting for their sync
SSE_BUFFER_BYTES_MAX: Final = 256 * KIB  # unsent bytes before a slow live reader is cut off

# Live state
SUCCESSOR_HOLD_S_MAX: Final = 10  # for which appends wait while readers are led to another stream
LIVE_MOVES_MAX: Final = 16  # streams that a live state is led on to, one after the other, at once
LIVE_TXIDS_MAX: Final = 10_000  # transactions that a live state remembers having seen

# Spark
SPARK_PARTITION_BYTES: Final = 32 * MIB  # of streams that one task reads
SPARK_RANGES_PER_PARTITION_MAX: Final = 512  # of small streams that one task reads
SPARK_ATTEMPTS_MAX: Final = 12  # of a request inside a reader or a sink: about half a minute
SPARK_ROW_BYTES: Final = 64 * KIB  # of a byte stream in one row: it has no messages
SPARK_CHUNK_MESSAGES: Final = 1000  # rows that the sink appends in one request
SPARK_CHUNK_BYTES: Final = MIB  # bytes that the sink appends in one request, if more than one row

# The pipeline
PIPELINE_INTERVAL_S: Final = 1  # between two batches, while there is news
PIPELINE_POLL_MS: Final = 200  # between two looks whether a run is over
PIPELINE_DRIVER_MESSAGES: Final = 10_000  # of a batch that the driver reads by itself
PIPELINE_SMALL_BYTES: Final = 16 * MIB  # of such a batch
PIPELINE_FOLD_ROWS: Final = 10_000  # rows of a type up to which every batch folds its state
PIPELINE_FOLD_PERCENT: Final = 4  # of a larger state's rows that may be new before it is folded
PIPELINE_BUCKET_ROWS: Final = 500_000  # rows of a state table in one file
PIPELINE_BUCKETS_MAX: Final = 64
PIPELINE_TASK_ROWS: Final = 100_000  # of a relation that one task of a published query reads
PIPELINE_COMPACT_FILES: Final = 200  # small files of events that are made one
PIPELINE_KEEP_HOURS: Final = 6  # that files of old versions stay for their readers
PIPELINE_TIDY_INTERVAL_S: Final = 900  # between two looks for files that are not needed any more
PIPELINE_BATCH_BYTES: Final = 256 * MIB  # of streams that one batch reads
PIPELINE_STATUS_ATTEMPTS_MAX: Final = 2  # of a request for the lag, when it is only looked at
PIPELINE_DEAD_STREAMS_MAX: Final = 1000  # with refused events that a commit names
PIPELINE_POSITIONS_BYTES: Final = 16 * KIB  # of the source's positions that a commit has in itself
PIPELINE_POSITIONS_KEPT: Final = 100  # batches whose positions stay, where they are files
PIPELINE_DRIVER_ROWS: Final = 1_000_000  # rows of a type that the driver folds by itself
PIPELINE_SWITCH_HOLD_S: Final = 2  # that writers wait, if a stream never rests by itself
PIPELINE_SWITCH_FREE_ATTEMPTS: Final = 3  # before that
PIPELINE_SWITCH_ATTEMPTS_MAX: Final = 100  # to lead readers on while a stream is written to
PIPELINE_PUBLISH_KEYS_MAX: Final = 2_000_000  # rows that a published query may have
PIPELINE_PUBLISH_NAME_MAX: Final = 128  # characters of a [publish] section's name
PIPELINE_OUTBOX_FILES: Final = 64  # of the outbox, for each result, before they are made one
PIPELINE_OUTBOX_BYTES: Final = 64 * MIB  # by which it may grow before that

# Connections
REQUEST_LINE_BYTES_MAX: Final = 16 * KIB  # method, path, query and version
HEADER_BYTES_MAX: Final = 64 * KIB  # all header lines of a request
HEADER_COUNT_MAX: Final = 100  # header lines of a request
PIPELINE_MAX: Final = 32  # requests waiting on one connection before reading pauses
CONNECTIONS_MAX: Final = 20_000  # open connections, process-wide
HEADER_TIMEOUT_S: Final = 10  # from the first byte of a request to the end of its head
BODY_TIMEOUT_S: Final = 60  # from the end of the head to the end of the body
KEEPALIVE_TIMEOUT_S: Final = 75  # idle time between two requests on a connection
WRITE_STALL_TIMEOUT_S: Final = 30  # a reader that takes no byte for so long is cut off
LONG_POLL_TIMEOUT_S: Final = 30  # a long-poll with nothing new ends after this
SSE_TIMEOUT_S: Final = 60  # a live reader is asked to reconnect after this
SHUTDOWN_TIMEOUT_S: Final = 10  # appends in flight get so long to finish on stop
RATE_LIMIT_PER_S: Final = 0  # requests a second and peer address; 0 switches the limit off

# The log
JOURNAL_FILE_BYTES: Final = 16 * MIB  # preallocated size of one journal file
JOURNAL_BATCH_BYTES_MAX: Final = 8 * MIB  # a collecting batch is closed here
CHECKPOINT_BYTES: Final = 64 * MIB  # journal written since the last checkpoint
CHECKPOINT_INTERVAL_S: Final = 60  # longest time between two checkpoints with changes
SEGMENT_BYTES_MAX: Final = 64 * MIB  # a segment file is closed here
INLINE_BYTES_MAX: Final = 4096  # streams up to this size live in the catalog, without files
TAIL_BYTES_MAX: Final = 4 * CHECKPOINT_BYTES  # durable bytes kept in memory until in segments
ACTIVE_STREAMS_MAX: Final = 100_000  # streams held in memory
OPEN_FILES_MAX: Final = 512  # segment files kept open
DISK_RESERVE_BYTES: Final = 64 * MIB  # below this much free space appends are refused
SNAPSHOT_BYTES_MAX: Final = 16 * MIB  # a state that is compacted: one record, written at once
COMPACT_BYTES_MIN: Final = 64 * KIB  # a log that is not worth compacting by policy
RETENTION_INTERVAL_S: Final = 60  # time between two looks for data that is kept too long
REAP_INTERVAL_S: Final = 1  # time between two looks for expired streams

# Other servers
EGRESS_CONNECT_TIMEOUT_S: Final = 5  # looking up a name and connecting, TLS included
EGRESS_TIMEOUT_S: Final = 30  # a request to another server, from start to end
EGRESS_IDLE_TIMEOUT_S: Final = 90  # silence within a streamed answer; long-polls last 30 to 60 s
EGRESS_STREAM_TIMEOUT_S: Final = 3600  # one streamed answer; the reader resumes with another
EGRESS_ANSWER_BYTES_MAX: Final = MIB  # an answer that is kept in memory
EGRESS_STREAM_BYTES_MAX: Final = 4096 * MIB  # a streamed answer; the reader resumes with another
EGRESS_CONNECTIONS_MAX: Final = 128  # requests to others at a time
NOTIFY_BYTES_MAX: Final = 64 * KIB  # a Notify form
NOTIFY_URLS_MAX: Final = 32  # URLs in a Notify form
NOTIFY_LISTENERS_MAX: Final = 10_000  # NURLs that are told of changes
NOTIFY_LISTENERS_PER_PEER_MAX: Final = 2000  # of those, on one host
NOTIFY_PER_PEER_MAX: Final = 8  # Notify POSTs to one host at a time
NOTIFY_ATTEMPTS_MAX: Final = 12  # failures in a row until a NURL is given up: about 25 minutes
NOTIFY_RETRY_S: Final = 1  # before the second attempt
NOTIFY_RETRY_MAX_S: Final = 300  # between two attempts
FOLLOW_MAX: Final = 1000  # tables of others that are followed
FOLLOW_PER_PEER_MAX: Final = 100  # of those, on one host
FOLLOW_POLL_S: Final = 15  # between two requests to a server that answers at once
FOLLOW_RETRY_S: Final = 1  # after the first failure of a source
FOLLOW_RETRY_MAX_S: Final = 60  # after many
FOLLOW_ROW_BYTES_MAX: Final = MIB  # a row of another server

# Subscriptions
SUBSCRIPTIONS_MAX: Final = 100_000  # subscriptions of a server
SUBSCRIPTION_STREAMS_MAX: Final = 100_000  # streams that one has links to when it is made
SUBSCRIPTION_ID_BYTES_MAX: Final = 256  # a subscription's id
SUBSCRIPTION_BYTES_MAX: Final = MIB  # a document about a subscription: a large one lists streams
SUBSCRIPTION_TEXT_BYTES_MAX: Final = 4096  # its description; the name of a worker
SUBSCRIPTION_SNAPSHOT_MAX: Final = 1000  # streams named in one wake; the others are in the next
SUBSCRIPTION_LOG_BYTES: Final = 4 * MIB  # what is kept of subscriptions is rewritten beyond this
LEASE_MS_MIN: Final = 1000  # the protocol's bounds of a lease
LEASE_MS_MAX: Final = 600_000
LEASE_MS: Final = 30_000
GLOB_SEGMENTS_MAX: Final = 64  # segments of a pattern
GLOB_STARS_MAX: Final = 4  # `**` in a pattern: each multiplies what a match may cost
WEBHOOK_TIMEOUT_S: Final = 30  # a webhook's answer; a lease that ends before ends it too
WEBHOOK_ANSWER_BYTES_MAX: Final = 64 * KIB  # a webhook's answer
WEBHOOK_DELIVERIES_MAX: Final = 64  # webhooks called at a time
WEBHOOK_PER_HOST_MAX: Final = 16  # of those, on one host
WEBHOOK_RETRY_S: Final = 1  # after the first failure; doubles
WEBHOOK_RETRY_MAX_S: Final = 60  # after many
WEBHOOK_KEY_AGE_S: Final = 90 * 86_400  # a signing key is replaced after this
WEBHOOK_KEY_OVERLAP_S: Final = 86_400  # a replaced key stays published so long
JWKS_MAX_AGE_S: Final = 300  # how long receivers may keep the key set
