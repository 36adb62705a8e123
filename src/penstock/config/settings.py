"""The catalogue of settings: the default, the unit, the bounds and the help text of each.

Where values come from is in load.py. What a setting does is known only to the code that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from penstock import limits
from penstock.config.setting import Group, Setting
from penstock.units import SECRET, SECRETS

ENV_PREFIX: Final = "PENSTOCK_"

_SERVER = Group("Server")
_READ = Group("Reading")
_HTTP = Group("Requests and connections")
_STREAM = Group("Streams")
_STORE = Group("Store")
_TIER = Group("Tiered storage")
_CLUSTER = Group("Cluster")
_ACCESS = Group("Access")
_SUBSCRIPTIONS = Group("Subscriptions")
_EGRESS = Group("Connections to other servers")
_STP = Group("Notify and follow")
_LIMITS = Group("Limits of one client")
_AUDIT = Group("Audit")
_WIRE = Group("TLS and proxies")
_WATCH = Group("Observability")
_PIPELINES = Group("Pipelines")
_PROXY = Group("Proxy")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one server. Sizes are in bytes, durations in seconds.

    `common=True` marks the settings that an operator is likely to need; the others are advanced.
    """

    host: str = _SERVER.text("127.0.0.1", "Address to listen on.", common=True)
    port: int = _SERVER.count(
        4437, "Port to listen on. 0 picks a free port.", minimum=0, maximum=65535, common=True
    )
    public_url: str = _SERVER.text(
        "",
        "URL under which clients and other servers reach this one, such as "
        "https://streams.example.com. Webhook subscriptions need it. By default it is the URL of a "
        "request, as its Host says.",
        common=True,
    )
    data_dir: Path = _SERVER.folder("data", "Folder that holds the streams.", common=True)
    memory: bool = _SERVER.switch(
        False, "Keep streams in memory only. A stop deletes them.", common=True
    )
    durability: str = _SERVER.choice(
        "fsync",
        "When an append is acknowledged: after a sync to disk (fsync), or as soon as the operating "
        "system has the bytes (buffered).",
        choices=("fsync", "buffered"),
        common=True,
    )
    workers: int = _SERVER.workers(
        limits.WORKERS,
        "Processes that serve together, each the owner of its share of the streams; auto is one "
        "for each core. A data folder keeps the number that it was made with: `penstock reshard` "
        "changes it.",
        maximum=limits.WORKERS_MAX,
    )
    log_level: str = _SERVER.choice(
        "info",
        "Lowest severity of log messages.",
        choices=("debug", "info", "warning", "error"),
        common=True,
    )
    shutdown_timeout_s: float = _SERVER.seconds(
        limits.SHUTDOWN_TIMEOUT_S,
        "Maximum duration of a stop: requests in flight, then the last checkpoint.",
        minimum=0,
        common=True,
    )
    loop_stall_ms: int = _SERVER.count(
        limits.LOOP_STALL_MS,
        "Lag of the event loop, in milliseconds, above which a log line names the request that "
        "caused it. 0 logs none.",
        minimum=0,
    )
    console: bool = _SERVER.switch(
        True, "Serve the console: pages for people at `/` (to browsers) and at `/console`."
    )

    long_poll_timeout_s: float = _READ.seconds(
        limits.LONG_POLL_TIMEOUT_S, "Time that a long-poll read waits for new data.", common=True
    )
    sse_timeout_s: float = _READ.seconds(
        limits.SSE_TIMEOUT_S,
        "Duration of an SSE response. The client reconnects afterwards.",
        common=True,
    )
    sse_keepalive_s: float = _READ.seconds(
        limits.SSE_KEEPALIVE_S,
        "Time between two comment lines of an SSE response, which keep proxies from ending it. "
        "0 sends none.",
        minimum=0,
    )
    sse_buffer_bytes_max: int = _READ.size(
        limits.SSE_BUFFER_BYTES_MAX, "Unsent bytes at which a slow SSE reader is disconnected."
    )
    table_timeout_s: float = _READ.seconds(
        limits.TABLE_TIMEOUT_S, "Duration of a table read. The client reconnects afterwards."
    )
    table_idle_s: float = _READ.seconds(
        limits.TABLE_IDLE_S, "Time that a table read waits for the next row."
    )
    table_cache_bytes: int = _READ.size(
        limits.TABLE_CACHE_BYTES, "Size of the cache of encoded table rows.", minimum=0
    )
    table_keys_max: int = _READ.count(
        limits.TABLE_KEYS_MAX,
        "Keys of tables in memory, to tell inserts from updates. The index has the others.",
    )
    chunk_bytes: int = _READ.size(
        limits.CHUNK_BYTES,
        "Maximum bytes in the response to one read, unless a single message is larger.",
        flag="--chunk-size",
    )
    compress_bytes_min: int = _READ.size(
        limits.COMPRESS_BYTES_MIN,
        "Minimum size of a response that is compressed for clients that accept it.",
        minimum=0,
    )
    list_limit_max: int = _READ.count(
        limits.LIST_LIMIT_MAX, "Maximum streams on one page of the listing."
    )
    registry: bool = _READ.switch(
        False, "Write the stream `__registry__`, from which the protocol's Test UI lists streams."
    )
    registry_log_bytes: int = _READ.size(
        limits.REGISTRY_LOG_BYTES,
        "History of `__registry__` at which it is rewritten as its current entries.",
    )
    state_fold_bytes_max: int = _READ.size(
        limits.STATE_FOLD_BYTES_MAX,
        "Maximum bytes of a stream without a declaration that are folded for one request of its "
        "state.",
    )
    live_streams_max: int = _READ.count(
        limits.LIVE_STREAMS_MAX, "Maximum streams of one live response over several streams."
    )
    live_parameters_max: int = _READ.count(
        limits.LIVE_PARAMETERS_MAX,
        "Maximum parameters of a request for a live response over several streams.",
    )
    splits_max: int = _READ.count(
        limits.SPLITS_MAX, "Maximum ranges that a stream is split into for parallel readers."
    )
    filter_scan_bytes_max: int = _READ.size(
        limits.FILTER_SCAN_BYTES_MAX,
        "Maximum bytes that one read with `type` or `key` searches; the client goes on from there.",
    )

    body_bytes_max: int = _HTTP.size(
        limits.BODY_BYTES_MAX, "Maximum size of a request body.", flag="--max-body", common=True
    )
    receive_bytes_max: int = _HTTP.size(
        limits.RECEIVE_BYTES_MAX,
        "Maximum bytes of request bodies in memory while they are received, over all connections.",
    )
    append_queue_bytes_max: int = _HTTP.size(
        limits.APPEND_QUEUE_BYTES_MAX, "Maximum bytes of appends that wait for the disk."
    )
    request_line_bytes_max: int = _HTTP.size(
        limits.REQUEST_LINE_BYTES_MAX, "Maximum length of a request line."
    )
    header_bytes_max: int = _HTTP.size(
        limits.HEADER_BYTES_MAX, "Maximum bytes of the headers of a request."
    )
    header_count_max: int = _HTTP.count(
        limits.HEADER_COUNT_MAX, "Maximum number of headers of a request."
    )
    header_timeout_s: float = _HTTP.seconds(
        limits.HEADER_TIMEOUT_S, "Maximum time for the headers of a request to arrive."
    )
    body_timeout_s: float = _HTTP.seconds(
        limits.BODY_TIMEOUT_S, "Maximum time for the body of a request to arrive."
    )
    keepalive_timeout_s: float = _HTTP.seconds(
        limits.KEEPALIVE_TIMEOUT_S, "Time that an idle connection stays open."
    )
    write_stall_timeout_s: float = _HTTP.seconds(
        limits.WRITE_STALL_TIMEOUT_S,
        "Time without progress after which a client that does not read its response is "
        "disconnected.",
    )
    pipeline_max: int = _HTTP.count(
        limits.PIPELINE_MAX,
        "Number of queued requests at which the server stops reading from a connection.",
    )
    connections_max: int = _HTTP.count(
        limits.CONNECTIONS_MAX, "Maximum number of open connections.", common=True
    )

    path_bytes_max: int = _STREAM.size(limits.PATH_BYTES_MAX, "Maximum length of a stream path.")
    producer_id_bytes_max: int = _STREAM.size(
        limits.PRODUCER_ID_BYTES_MAX, "Maximum length of a producer id."
    )
    producers_per_stream_max: int = _STREAM.count(
        limits.PRODUCERS_PER_STREAM_MAX, "Maximum number of producers that one stream remembers."
    )
    stream_seq_bytes_max: int = _STREAM.size(
        limits.STREAM_SEQ_BYTES_MAX, "Maximum length of a Stream-Seq value."
    )
    json_depth_max: int = _STREAM.count(
        limits.JSON_DEPTH_MAX, "Maximum nesting depth of a JSON message.", maximum=512
    )
    schema_check_timeout_s: float = _STREAM.seconds(
        limits.SCHEMA_CHECK_TIMEOUT_S,
        "Maximum time to check one value against the schema of its type.",
    )
    fork_depth_max: int = _STREAM.count(
        limits.FORK_DEPTH_MAX, "Maximum length of a chain of forks.", maximum=200
    )
    active_streams_max: int = _STREAM.count(
        limits.ACTIVE_STREAMS_MAX, "Maximum number of idle streams in memory."
    )
    retention: str = _STREAM.rules(
        "",
        "Retention of streams that have no policy of their own, by path prefix or pattern.",
        common=True,
    )
    retention_interval_s: float = _STREAM.seconds(
        limits.RETENTION_INTERVAL_S, "Time between two applications of the retention policies."
    )
    snapshot_bytes_max: int = _STREAM.size(
        limits.SNAPSHOT_BYTES_MAX, "Maximum size of a state that a stream is compacted to."
    )
    compact_bytes_min: int = _STREAM.size(
        limits.COMPACT_BYTES_MIN,
        "Minimum size of a stream that a retention policy compacts.",
        minimum=0,
    )
    reap_interval_s: float = _STREAM.seconds(
        limits.REAP_INTERVAL_S, "Time between two searches for expired streams."
    )

    journal_file_bytes: int = _STORE.size(
        limits.JOURNAL_FILE_BYTES, "Size of one journal file.", minimum=4096
    )
    journal_batch_bytes_max: int = _STORE.size(
        limits.JOURNAL_BATCH_BYTES_MAX, "Maximum size of one batch of appends in the journal."
    )
    in_place_commit_us: int = _STORE.count(
        limits.IN_PLACE_COMMIT_US,
        "Write and sync appends without a change of threads, if that holds up the event loop for "
        "no longer than so many microseconds: a lone append at once, several by the kernel's queue "
        "of writes (Linux). 0 always uses the thread.",
        minimum=0,
    )
    journal_damage: str = _STORE.choice(
        "refuse",
        "What a start does if the journal is damaged and records are lost: not start (refuse), or "
        "start with the records before the damage and set the rest aside (cut).",
        choices=("refuse", "cut"),
    )
    checkpoint_bytes: int = _STORE.size(
        limits.CHECKPOINT_BYTES, "Bytes written to the journal that start a checkpoint."
    )
    checkpoint_interval_s: float = _STORE.seconds(
        limits.CHECKPOINT_INTERVAL_S, "Maximum time between two checkpoints."
    )
    catalog_check_timeout_s: float = _STORE.seconds(
        limits.CATALOG_CHECK_TIMEOUT_S,
        "Maximum time of the check of the catalog that a start makes after an unclean stop. "
        "0 means no check.",
        minimum=0,
    )
    backup_bytes_per_s: int = _STORE.size(
        limits.BACKUP_BYTES_PER_S,
        "Maximum bytes per second that a backup reads, if it does not say otherwise. 0 means no "
        "limit.",
        minimum=0,
        flag="--backup-rate",
    )
    scrub_interval_s: float = _STORE.seconds(
        limits.SCRUB_INTERVAL_S,
        "Time between two scrubs, which check all stored data in the background. 0 means none.",
        minimum=0,
    )
    scrub_bytes_per_s: int = _STORE.size(
        limits.SCRUB_BYTES_PER_S,
        "Maximum bytes per second that a scrub reads. 0 means no scrub on its own, and no limit "
        "for one that is asked for.",
        minimum=0,
        flag="--scrub-rate",
    )
    segment_bytes_max: int = _STORE.size(
        limits.SEGMENT_BYTES_MAX, "Maximum size of a segment file."
    )
    inline_bytes_max: int = _STORE.size(
        limits.INLINE_BYTES_MAX,
        "Maximum size of a stream that is stored in the catalog, without files of its own.",
        minimum=0,
    )
    tail_bytes_max: int = _STORE.size(
        limits.TAIL_BYTES_MAX,
        "Maximum bytes of stream data in memory that are not in segment files yet.",
    )
    open_files_max: int = _STORE.count(
        limits.OPEN_FILES_MAX, "Maximum number of open segment files."
    )
    disk_reserve_bytes: int = _STORE.size(
        limits.DISK_RESERVE_BYTES,
        "Free disk space below which appends are refused.",
        minimum=0,
        common=True,
    )

    tier_url: str = _TIER.text(
        "",
        "Object store for segments that are no longer written to: s3://BUCKET/PREFIX, gs://, az:// "
        "or file:///FOLDER. Empty keeps all segments on the disk.",
    )
    tier_after_s: float = _TIER.seconds(
        limits.TIER_AFTER_S, "Age at which a segment moves to the object store.", minimum=0
    )
    tier_local_bytes_max: int = _TIER.size(
        limits.TIER_LOCAL_BYTES_MAX,
        "Bytes of segments on the disk above which the oldest move to the object store, whatever "
        "their age. 0 means no limit.",
        minimum=0,
    )
    tier_patterns: tuple[str, ...] = _TIER.texts(
        "Patterns of the streams whose segments may move to the object store, such as logs/**. "
        "Empty means all.",
    )
    tier_cache_bytes_max: int = _TIER.size(
        limits.TIER_CACHE_BYTES_MAX,
        "Maximum bytes on the disk of what was read from the object store.",
        minimum=0,
    )
    tier_concurrency: int = _TIER.count(
        limits.TIER_CONCURRENCY,
        "Number of reads from the object store at a time, and of segments that are written to it.",
        maximum=64,
    )
    tier_interval_s: float = _TIER.seconds(
        limits.TIER_INTERVAL_S, "Time between two searches for segments to move."
    )
    tier_timeout_s: float = _TIER.seconds(
        limits.TIER_TIMEOUT_S, "Maximum time that a read waits for the object store."
    )

    cluster: str | None = _CLUSTER.secret(
        "Be a node of the cluster in this PostgreSQL database, such as "
        "postgresql://penstock@db.example.com/streams. Streams are kept there, not in data_dir. "
        "Prefer the environment variable if the URL has a password.",
        flag="--cluster",
        common=True,
    )
    cluster_name: str = _CLUSTER.text(
        "penstock", "Name of the cluster: one database holds one cluster."
    )
    cluster_node: str = _CLUSTER.text(
        "", "Name of this node, unique in the cluster. By default the host's name and the port."
    )
    cluster_node_url: str = _CLUSTER.text(
        "",
        "URL under which clients reach this node; other nodes name it when they are not the owner. "
        "By default the address that it listens on.",
    )
    cluster_shards: int = _CLUSTER.count(
        limits.CLUSTER_SHARDS,
        "Shards of a cluster that this node makes: parts of the streams that nodes own singly. A "
        "cluster keeps the number that it was made with.",
        maximum=limits.CLUSTER_SHARDS_MAX,
    )
    cluster_peer_port: int = _CLUSTER.count(
        0,
        "Port on which this node takes requests that other nodes forward to it, at the host of "
        "cluster_node_url. 0 is any free one. It is for nodes only: keep it from clients.",
        minimum=0,
        maximum=65535,
    )
    cluster_durability: str = _CLUSTER.choice(
        "replicated",
        "What PostgreSQL promises of a commit: that a synchronous standby has it, which is checked "
        "(replicated); that a managed service replicates below PostgreSQL (managed); or nothing "
        "beyond one disk (single).",
        choices=("replicated", "managed", "single"),
    )
    cluster_lease_s: float = _CLUSTER.seconds(
        limits.CLUSTER_LEASE_S,
        "Time after a beat for which a node says that readers are up to date.",
    )
    cluster_beat_s: float = _CLUSTER.seconds(
        limits.CLUSTER_BEAT_S,
        "Time between two beats of a node: others see that it lives.",
    )
    cluster_takeover_s: float = _CLUSTER.seconds(
        limits.CLUSTER_TAKEOVER_S,
        "Age of an owner's last beat at which another node takes over. More than cluster_lease_s.",
    )
    cluster_hold_s: float = _CLUSTER.seconds(
        limits.CLUSTER_HOLD_S,
        "Time for which a node keeps a request whose shard is changing hands, before it answers "
        "that nobody owns the stream.",
    )
    cluster_relay_linger_s: float = _CLUSTER.seconds(
        limits.CLUSTER_RELAY_LINGER_S,
        "Time for which a node goes on to follow a stream of another node after its last live "
        "reader: that of long-polls comes again. Streams with a TTL are not followed then.",
        minimum=0,
    )
    cluster_cache_bytes: int = _CLUSTER.size(
        limits.CLUSTER_CACHE_BYTES,
        "Payload that a node keeps in memory of what it has read: old messages, and fresh ones of "
        "streams that other nodes own.",
    )
    cluster_extents: str = _CLUSTER.text(
        "",
        "Object store for old messages of a cluster: s3://BUCKET/PREFIX, gs://, az:// or "
        "file:///FOLDER, the same for all nodes. Empty keeps them in PostgreSQL.",
    )
    cluster_garbage_s: float = _CLUSTER.seconds(
        limits.CLUSTER_GARBAGE_S,
        "Time after which an object that is no longer needed is deleted. Longer than the age of "
        "the oldest backup of the database that may be restored.",
        minimum=0,
    )

    auth_token: str | None = _ACCESS.secret(
        "Bearer token that requests must carry. A flag is visible in the process list: prefer "
        "the environment variable.",
        flag="--token",
        env="PENSTOCK_TOKEN",
        common=True,
    )
    anonymous_allow: tuple[str, ...] = _ACCESS.texts(
        "Access rules for requests without credentials, such as read:public/**.",
    )
    rate_limit_per_s: float = _ACCESS.rate(
        limits.RATE_LIMIT_PER_S,
        "Maximum requests per second from one address. 0 means no limit.",
        flag="--rate-limit",
        common=True,
    )
    cors_origins: tuple[str, ...] = _ACCESS.origins(
        "Origins whose pages may call the server from a browser, such as https://app.example.com. "
        "`*` allows every page.",
        flag="--cors-origin",
        common=True,
    )
    cors_credentials: bool = _ACCESS.switch(
        False, "Let the pages of cors_origins send cookies. Not with `*`."
    )
    allowed_hosts: tuple[str, ...] = _ACCESS.hosts(
        "Host names that the server answers to: names, *.suffixes, or *. The names of loopback and "
        "the host of public_url always count. By default a server on loopback answers to those "
        "alone, any other to every name."
    )
    insecure: bool = _ACCESS.switch(
        False, "Start without access rules on an address that other machines can reach."
    )
    jwt_algorithms: tuple[str, ...] = _ACCESS.texts(
        "Algorithms of the JWTs that are accepted as bearer tokens, such as RS256,ES256. Empty "
        "accepts none."
    )
    jwt_keys: str = _ACCESS.text(
        "", "JWKS with the keys that JWTs are verified with: the path of a file, or an https URL."
    )
    jwt_keys_age_s: float = _ACCESS.seconds(
        limits.JWT_KEYS_AGE_S,
        "Time between two fetches of the URL jwt_keys. A shorter max-age of its response wins.",
    )
    jwt_secret: str | None = _ACCESS.secret(
        "Secret that JWTs are verified with, instead of jwt_keys, for HS256, HS384 and HS512. "
        "Prefer the environment variable."
    )
    jwt_issuer: tuple[str, ...] = _ACCESS.texts(
        "Values of which the claim `iss` of a JWT must be one. * allows any, and none."
    )
    jwt_audience: tuple[str, ...] = _ACCESS.texts(
        "Values of which the claim `aud` of a JWT must have one. * allows any, and none."
    )
    jwt_leeway_s: float = _ACCESS.seconds(
        limits.JWT_LEEWAY_S,
        "Difference of clocks that is allowed when the times in a JWT are checked.",
        minimum=0,
    )
    jwt_scope_claim: str = _ACCESS.text(
        "scope", "Claim of a JWT that lists its rules, as a list or separated by spaces."
    )
    jwt_scope_prefix: str = _ACCESS.text(
        "",
        "Text that a scope begins with if it is a rule, such as penstock: in "
        "penstock:read:chat/**. Other scopes are ignored.",
    )
    jwt_bytes_max: int = _ACCESS.size(limits.JWT_BYTES_MAX, "Maximum length of a JWT.")
    tokens_max: int = _ACCESS.count(limits.TOKENS_MAX, "Maximum number of stored tokens.")
    link_lifetime_max_s: float = _ACCESS.seconds(
        limits.LINK_LIFETIME_S_MAX, "Maximum lifetime of a signed link."
    )
    cookies: bool = _ACCESS.switch(
        False,
        "Accept cookies that stand for a token, for pages of the same origin: see POST "
        "/v1/session.",
    )
    session_lifetime_s: float = _ACCESS.seconds(
        limits.SESSION_LIFETIME_S, "Lifetime of a session, which a cookie stands for.", minimum=1
    )

    subscriptions_max: int = _SUBSCRIPTIONS.count(
        limits.SUBSCRIPTIONS_MAX, "Maximum number of subscriptions."
    )
    subscription_streams_max: int = _SUBSCRIPTIONS.count(
        limits.SUBSCRIPTION_STREAMS_MAX,
        "Maximum number of streams of a subscription: those that its pattern matches when it is "
        "created, and those that are named.",
    )
    subscription_names_max: int = _SUBSCRIPTIONS.count(
        limits.SUBSCRIPTION_NAMES_MAX,
        "Maximum number of streams that one request names. Further ones are added by further "
        "requests.",
    )
    subscription_bytes_max: int = _SUBSCRIPTIONS.size(
        limits.SUBSCRIPTION_BYTES_MAX, "Maximum size of a subscription document."
    )
    subscription_snapshot_max: int = _SUBSCRIPTIONS.count(
        limits.SUBSCRIPTION_SNAPSHOT_MAX,
        "Maximum number of streams named in one wake. The next wake names the others.",
    )
    subscription_log_bytes: int = _SUBSCRIPTIONS.size(
        limits.SUBSCRIPTION_LOG_BYTES,
        "Size at which the server compacts the stream that stores the subscriptions.",
    )
    webhook_timeout_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_TIMEOUT_S, "Maximum time that a webhook may take to respond."
    )
    webhook_answer_bytes_max: int = _SUBSCRIPTIONS.size(
        limits.WEBHOOK_ANSWER_BYTES_MAX, "Maximum size of a webhook's response."
    )
    webhook_deliveries_max: int = _SUBSCRIPTIONS.count(
        limits.WEBHOOK_DELIVERIES_MAX, "Maximum number of webhook requests at a time."
    )
    webhook_per_host_max: int = _SUBSCRIPTIONS.count(
        limits.WEBHOOK_PER_HOST_MAX, "Maximum number of webhook requests to one host at a time."
    )
    webhook_retry_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_RETRY_S,
        "Wait after the first failure of a webhook. It doubles with each failure.",
    )
    webhook_retry_max_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_RETRY_MAX_S, "Maximum wait between two attempts to call a webhook."
    )
    webhook_key_age_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_KEY_AGE_S, "Age at which the key that signs webhooks is replaced."
    )
    webhook_key_overlap_s: float = _SUBSCRIPTIONS.seconds(
        limits.WEBHOOK_KEY_OVERLAP_S, "Time that a replaced key stays published.", minimum=300
    )

    development: bool = _EGRESS.switch(
        False,
        "Allow connections to servers on loopback, also over plain http, and trust them as peers.",
        common=True,
    )
    egress_networks: tuple[str, ...] = _EGRESS.networks(
        "Private networks that the server may connect to.", common=True
    )
    egress_http: bool = _EGRESS.switch(
        False,
        "Allow plain http to the private networks of egress_networks. Tokens are readable there.",
        common=True,
    )
    egress_connect_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_CONNECT_TIMEOUT_S, "Maximum time to resolve a host name and connect to it."
    )
    egress_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_TIMEOUT_S, "Maximum duration of a request to another server."
    )
    egress_idle_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_IDLE_TIMEOUT_S,
        "Maximum time without a byte within a streamed response of another server.",
    )
    egress_stream_timeout_s: float = _EGRESS.seconds(
        limits.EGRESS_STREAM_TIMEOUT_S,
        "Maximum duration of a streamed response of another server.",
    )
    egress_answer_bytes_max: int = _EGRESS.size(
        limits.EGRESS_ANSWER_BYTES_MAX, "Maximum size of a response of another server."
    )
    egress_stream_bytes_max: int = _EGRESS.size(
        limits.EGRESS_STREAM_BYTES_MAX, "Maximum size of a streamed response of another server."
    )
    egress_connections_max: int = _EGRESS.count(
        limits.EGRESS_CONNECTIONS_MAX,
        "Maximum number of connections to other servers, not counting streamed responses.",
    )

    stp_peers: tuple[str, ...] = _STP.texts(
        "Hosts that a Notify may make this server follow or notify: names, *.suffixes, or *.",
        common=True,
    )
    stp_peer_tokens: tuple[str, ...] = _STP.secrets(
        "Bearer tokens for other servers, each as https://host=token. Prefer the environment "
        "variable.",
        common=True,
    )
    notify_token: str | None = _STP.secret(
        "Bearer token that allows POST /v1/notify and nothing else. Prefer the environment "
        "variable.",
        common=True,
    )
    notify_secret: str | None = _STP.secret(
        "Secret that signs Notify bodies, sent and received. Prefer the environment variable.",
        common=True,
    )
    notify_bytes_max: int = _STP.size(limits.NOTIFY_BYTES_MAX, "Maximum size of a Notify form.")
    notify_urls_max: int = _STP.count(
        limits.NOTIFY_URLS_MAX, "Maximum number of URLs in one Notify form."
    )
    notify_listeners_max: int = _STP.count(
        limits.NOTIFY_LISTENERS_MAX, "Maximum number of NURLs that are notified of changes."
    )
    notify_listeners_per_peer_max: int = _STP.count(
        limits.NOTIFY_LISTENERS_PER_PEER_MAX,
        "Maximum number of NURLs on one host that are notified of changes.",
    )
    notify_follow: bool = _STP.switch(
        True,
        "Follow a table of a peer as soon as a Notify names it. Otherwise operators decide.",
    )
    notify_waiting_s: float = _STP.seconds(
        limits.NOTIFY_WAITING_S,
        "Time that a NURL waits for a table that is not there yet. A repeated Notify renews it.",
    )
    notify_waiting_max: int = _STP.count(
        limits.NOTIFY_WAITING_MAX, "Maximum number of NURLs that wait for a table."
    )
    notify_waiting_per_peer_max: int = _STP.count(
        limits.NOTIFY_WAITING_PER_PEER_MAX,
        "Maximum number of NURLs on one host that wait for a table.",
    )
    notify_per_peer_max: int = _STP.count(
        limits.NOTIFY_PER_PEER_MAX, "Maximum number of Notify requests to one host at a time."
    )
    notify_attempts_max: int = _STP.count(
        limits.NOTIFY_ATTEMPTS_MAX,
        "Number of consecutive failed requests after which a NURL is removed.",
    )
    notify_retry_s: float = _STP.seconds(
        limits.NOTIFY_RETRY_S,
        "Wait after the first failure of a Notify. It doubles with each failure.",
    )
    notify_retry_max_s: float = _STP.seconds(
        limits.NOTIFY_RETRY_MAX_S, "Maximum wait between two attempts of a Notify."
    )
    follow_max: int = _STP.count(
        limits.FOLLOW_MAX, "Maximum number of tables of other servers that are followed."
    )
    follow_per_peer_max: int = _STP.count(
        limits.FOLLOW_PER_PEER_MAX, "Maximum number of tables of one host that are followed."
    )
    follow_links_depth_max: int = _STP.count(
        limits.FOLLOW_LINKS_DEPTH_MAX,
        "Maximum depth to which a mirror follows the tables that records name. 0 allows none.",
        minimum=0,
    )
    follow_links_max: int = _STP.count(
        limits.FOLLOW_LINKS_MAX, "Maximum number of tables that the records of a mirror lead to."
    )
    follow_link_bytes_max: int = _STP.size(
        limits.FOLLOW_LINK_BYTES_MAX,
        "Size of a mirror that a record led to, at which its following ends.",
    )
    follow_poll_s: float = _STP.seconds(
        limits.FOLLOW_POLL_S, "Time between two requests to a server that does not stream."
    )
    follow_retry_s: float = _STP.seconds(
        limits.FOLLOW_RETRY_S,
        "Wait after the first failure of a followed table. It doubles with each failure.",
    )
    follow_retry_max_s: float = _STP.seconds(
        limits.FOLLOW_RETRY_MAX_S, "Maximum wait between two attempts to read a followed table."
    )
    follow_row_bytes_max: int = _STP.size(
        limits.FOLLOW_ROW_BYTES_MAX, "Maximum length of a row of a followed table."
    )

    principal_rate_per_s: float = _LIMITS.rate(
        limits.PRINCIPAL_RATE_PER_S,
        "Maximum requests per second of one principal, such as a token. 0 means no limit.",
        flag="--principal-rate",
    )
    address_bytes_per_s: int = _LIMITS.size(
        limits.ADDRESS_BYTES_PER_S,
        "Maximum bytes of request bodies per second from one address. 0 means no limit.",
        minimum=0,
        flag="--address-byte-rate",
    )
    principal_bytes_per_s: int = _LIMITS.size(
        limits.PRINCIPAL_BYTES_PER_S,
        "Maximum bytes of request bodies per second of one principal. 0 means no limit.",
        minimum=0,
        flag="--principal-byte-rate",
    )
    connections_per_address_max: int = _LIMITS.count(
        limits.CONNECTIONS_PER_ADDRESS_MAX,
        "Maximum number of open connections from one address. 0 means no limit.",
        minimum=0,
    )
    live_readers_max: int = _LIMITS.count(
        limits.LIVE_READERS_MAX,
        "Maximum number of live reads at a time: SSE responses, table reads and long-polls. "
        "0 means no limit.",
        minimum=0,
    )
    live_readers_per_principal_max: int = _LIMITS.count(
        limits.LIVE_READERS_PER_PRINCIPAL_MAX,
        "Maximum number of live reads of one principal at a time. 0 means no limit.",
        minimum=0,
    )
    message_bytes_max: int = _LIMITS.size(
        limits.MESSAGE_BYTES_MAX,
        "Maximum size of one message of a JSON stream. 0 means that of a request body.",
        minimum=0,
    )
    quotas: str = _LIMITS.quotas(
        "",
        "Maximum number of streams and bytes by path prefix or pattern, such as "
        "chat/=1000streams,10GiB.",
    )

    audit: str = _AUDIT.choice(
        "auto",
        "Write admin actions to the audit stream: always (on), never (off), or on a server with "
        "access rules (auto).",
        choices=("auto", "on", "off"),
    )
    audit_bytes_max: int = _AUDIT.size(
        limits.AUDIT_BYTES_MAX, "Size of the audit stream above which its oldest events go."
    )
    audit_age_s: float = _AUDIT.seconds(
        limits.AUDIT_AGE_S, "Age at which events of the audit stream go.", minimum=1
    )

    tls_cert: Path | None = _WIRE.file(
        "PEM file with the certificate of this server and those between it and its root. With it "
        "the server speaks HTTPS. It is read again when it changes."
    )
    tls_key: Path | None = _WIRE.file(
        "PEM file with the key of the certificate, not encrypted. By default it is in tls_cert."
    )
    tls_self_signed: bool = _WIRE.switch(
        False,
        "Speak HTTPS with a certificate that the server makes itself, for a first try. Clients "
        "have to be told to trust it.",
    )
    tls_client_ca: Path | None = _WIRE.file(
        "PEM file with the roots of client certificates. With it clients are asked for one."
    )
    tls_client_required: bool = _WIRE.switch(
        False, "Refuse clients without a certificate. It needs tls_client_ca."
    )
    tls_principals: tuple[str, ...] = _WIRE.texts(
        "Access rules of client certificates: a name of the certificate (its common name, or an "
        "alternative name), `=`, and rules with spaces between them, such as "
        "worker=append:jobs/** read:jobs/**."
    )
    tls_handshake_timeout_s: float = _WIRE.seconds(
        limits.TLS_HANDSHAKE_TIMEOUT_S, "Maximum duration of a TLS handshake."
    )
    trusted_proxies: tuple[str, ...] = _WIRE.networks(
        "Networks of the proxies in front whose X-Forwarded-For, X-Forwarded-Proto and Forwarded "
        "headers are believed. Those of others are ignored."
    )
    proxy_protocol: bool = _WIRE.switch(
        False,
        "Require the PROXY protocol, version 1 or 2, of connections from trusted_proxies. Others "
        "must not use it.",
    )

    log_format: str = _WATCH.choice(
        "auto",
        "Form of log lines: coloured text (text), one JSON object per line (json), or text on a "
        "terminal and JSON elsewhere (auto).",
        choices=("auto", "text", "json"),
    )
    access_log: str = _WATCH.choice(
        "off",
        "Log requests: none (off), those that fail or take longer than access_log_slow_ms (slow), "
        "or all of them (all).",
        choices=("off", "slow", "all"),
    )
    access_log_slow_ms: int = _WATCH.count(
        limits.ACCESS_LOG_SLOW_MS,
        "Duration in milliseconds from which a request is slow. Live reads never are.",
        minimum=0,
    )
    otel: bool = _WATCH.switch(
        False,
        "Send traces and metrics by OpenTelemetry, as the OTEL_* variables say. It needs the extra "
        "penstock-streams[otel].",
    )
    otel_endpoint: str = _WATCH.text(
        "",
        "Base URL of the collector that takes OTLP over HTTP, such as http://localhost:4318. It "
        "implies otel, and wins over OTEL_EXPORTER_OTLP_ENDPOINT.",
    )
    otel_sample_percent: int = _WATCH.count(
        100,
        "Share of traces that are sent, unless the client decides it (traceparent).",
        minimum=0,
        maximum=100,
    )
    otel_metrics_interval_s: float = _WATCH.seconds(
        limits.OTEL_METRICS_INTERVAL_S, "Time between two exports of the metrics."
    )
    otel_queue_max: int = _WATCH.count(
        limits.OTEL_QUEUE_MAX, "Spans that wait to be sent. Those above are dropped and counted."
    )
    activity_interval_s: float = _WATCH.seconds(
        limits.ACTIVITY_INTERVAL_S, "Time between two samples of /v1/activity."
    )
    activity_samples_max: int = _WATCH.count(
        limits.ACTIVITY_SAMPLES_MAX, "Samples of /v1/activity that are kept in memory."
    )

    pipelines: tuple[str, ...] = _PIPELINES.texts(
        "Files of pipelines whose warehouses this server reaches, each as PATH or NAME=PATH, such "
        "as shop=/srv/shop/pipeline.toml. The console shows them."
    )
    pipelines_timeout_s: float = _PIPELINES.seconds(
        limits.PIPELINES_TIMEOUT_S,
        "Maximum duration of a command of a pipeline that the server runs for a request.",
        minimum=1,
    )
    pipelines_commands_max: int = _PIPELINES.count(
        limits.PIPELINES_COMMANDS_MAX,
        "Maximum commands of pipelines that run at the same time. Other requests wait.",
    )
    pipelines_rows_max: int = _PIPELINES.count(
        limits.PIPELINES_ROWS_MAX, "Maximum rows of a query over the tables of a pipeline."
    )

    proxy_upstreams: tuple[str, ...] = _PROXY.texts(
        "Servers whose responses /v1/proxy may record: URLs that every called URL begins with, "
        "each followed by the headers that are added to its requests, with the environment "
        "variable of the value, such as https://api.openai.com/v1 authorization=OPENAI_API_KEY. "
        "Without any the proxy is off."
    )
    proxy_headers: tuple[str, ...] = _PROXY.texts(
        "Names of more request headers that are sent to upstreams."
    )
    proxy_calls_max: int = _PROXY.count(
        limits.PROXY_CALLS_MAX, "Maximum number of responses that are being recorded."
    )
    proxy_bytes_max: int = _PROXY.size(
        limits.PROXY_BYTES_MAX, "Maximum size of a recorded response."
    )
    proxy_timeout_s: float = _PROXY.seconds(
        limits.PROXY_TIMEOUT_S, "Maximum duration of a recorded response."
    )
    proxy_idle_timeout_s: float = _PROXY.seconds(
        limits.PROXY_IDLE_TIMEOUT_S,
        "Maximum time without a byte of an upstream, before and within its response.",
    )
    proxy_ttl_s: float = _PROXY.seconds(
        limits.PROXY_TTL_S,
        "Time that a recorded response stays after its last use. Stream-TTL of a request wins.",
        minimum=1,
    )

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            setting.check(getattr(self, setting.name), "Settings")


def _describe() -> Iterator[Setting]:
    for field in fields(Settings):
        details = dict(field.metadata)
        dashed = field.name.removesuffix("_s").replace("_", "-")
        details["flag"] = details["flag"] or f"--{dashed}"
        details["env"] = details["env"] or ENV_PREFIX + field.name.upper()
        yield Setting(name=field.name, **details)


SETTINGS: Final[tuple[Setting, ...]] = tuple(_describe())


def secrets_of(settings: Settings) -> list[str]:
    """Return the secrets that the settings hold, without what they are for."""
    values: list[str] = []
    for setting in SETTINGS:
        value = getattr(settings, setting.name)
        if setting.kind is SECRET and value:
            values.append(value)
            password = urlsplit(value).password if "://" in value else None
            if password:
                values += [password, unquote(password)]
        elif setting.kind is SECRETS:
            values += [text.rpartition("=")[2] for text in value]
    return values
