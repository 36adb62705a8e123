"""The catalogue of settings: the default, the unit, the bounds and the help text of each.

Where values come from is in load.py. What a setting does is known only to the code that reads it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final

from penstock import limits
from penstock.config.setting import Group, Setting
from penstock.units import SECRET, SECRETS

ENV_PREFIX: Final = "PENSTOCK_"

_SERVER = Group("Server")
_READ = Group("Reading")
_HTTP = Group("Requests and connections")
_STREAM = Group("Streams")
_STORE = Group("Store")
_ACCESS = Group("Access")
_SUBSCRIPTIONS = Group("Subscriptions")
_EGRESS = Group("Connections to other servers")
_STP = Group("Notify and follow")
_LIMITS = Group("Limits of one client")
_AUDIT = Group("Audit")
_WIRE = Group("TLS and proxies")


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
        elif setting.kind is SECRETS:
            values += [text.rpartition("=")[2] for text in value]
    return values
