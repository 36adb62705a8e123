"""Every setting of a server, with its default and help, and where its value comes from.

A flag wins over an environment variable, that over the TOML file, that over the default. What a
setting does is known only to the code that reads it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

from penstock import limits
from penstock.config.peers import PeerSettings
from penstock.config.setting import Group, InvalidSetting, Setting

TOML_NAME = "penstock.toml"
ENV_PREFIX = "PENSTOCK_"
ENV_CONFIG = "PENSTOCK_CONFIG"

# Kubernetes sets these for a service called "penstock": they are not meant for us.
_KUBERNETES = re.compile(r"PENSTOCK_(SERVICE_(HOST|PORT\w*)|PORT_\d+_(TCP|UDP)\w*)", re.ASCII)

_SERVER = Group("Server")
_READ = Group("Reading")
_HTTP = Group("Requests and connections")
_STREAM = Group("Streams")
_STORE = Group("Store")
_ACCESS = Group("Access")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(PeerSettings):
    """All settings of one server. Sizes are in bytes, durations in seconds."""

    host: str = _SERVER.text("127.0.0.1", "Address to listen on.")
    port: int = _SERVER.count(4437, "Port to listen on; 0 picks a free one.", least=0, most=65535)
    data_dir: Path = _SERVER.folder("data", "Folder that holds the streams.")
    memory: bool = _SERVER.switch(False, "Keep streams in memory only; nothing survives a stop.")
    durability: str = _SERVER.choice(
        "fsync",
        "Acknowledge after a sync to disk, or once the operating system has the bytes.",
        among=("fsync", "buffered"),
    )
    log_level: str = _SERVER.choice(
        "info",
        "Least severe message that is logged.",
        among=("debug", "info", "warning", "error"),
    )
    shutdown_timeout_s: float = _SERVER.seconds(
        limits.SHUTDOWN_TIMEOUT_S, "Longest wait for requests in flight when stopping.", least=0
    )

    long_poll_timeout_s: float = _READ.seconds(
        limits.LONG_POLL_TIMEOUT_S, "How long a long-poll read waits for new data."
    )
    sse_timeout_s: float = _READ.seconds(
        limits.SSE_TIMEOUT_S, "How long an SSE response lasts before the client reconnects."
    )
    sse_buffer_bytes_max: int = _READ.size(
        limits.SSE_BUFFER_BYTES_MAX, "Unsent bytes at which a slow SSE reader is disconnected."
    )
    table_timeout_s: float = _READ.seconds(
        limits.TABLE_TIMEOUT_S, "How long a read of a table lasts before the client reconnects."
    )
    table_idle_s: float = _READ.seconds(
        limits.TABLE_IDLE_S, "How long a read of a table waits for the next row."
    )
    table_cache_bytes: int = _READ.size(
        limits.TABLE_CACHE_BYTES, "Most bytes of encoded rows kept for the next readers.", least=0
    )
    chunk_bytes: int = _READ.size(
        limits.CHUNK_BYTES,
        "Most bytes that one read returns, unless a single message is larger.",
        flag="--chunk-size",
    )
    compress_bytes_min: int = _READ.size(
        limits.COMPRESS_BYTES_MIN, "Smallest response that is compressed on request.", least=0
    )
    list_limit_max: int = _READ.count(
        limits.LIST_LIMIT_MAX, "Most streams on one page of the listing."
    )
    splits_max: int = _READ.count(
        limits.SPLITS_MAX, "Most ranges that a stream is split into for parallel readers."
    )

    body_bytes_max: int = _HTTP.size(
        limits.BODY_BYTES_MAX, "Largest request body.", flag="--max-body"
    )
    receive_bytes_max: int = _HTTP.size(
        limits.RECEIVE_BYTES_MAX, "Most bytes of bodies being received, over all connections."
    )
    append_queue_bytes_max: int = _HTTP.size(
        limits.APPEND_QUEUE_BYTES_MAX, "Most bytes of appends that wait for the disk."
    )
    request_line_bytes_max: int = _HTTP.size(limits.REQUEST_LINE_BYTES_MAX, "Longest request line.")
    header_bytes_max: int = _HTTP.size(limits.HEADER_BYTES_MAX, "Most bytes of request headers.")
    header_count_max: int = _HTTP.count(limits.HEADER_COUNT_MAX, "Most request headers.")
    header_timeout_s: float = _HTTP.seconds(
        limits.HEADER_TIMEOUT_S, "Longest time for request headers to arrive."
    )
    body_timeout_s: float = _HTTP.seconds(
        limits.BODY_TIMEOUT_S, "Longest time for a request body to arrive."
    )
    keepalive_timeout_s: float = _HTTP.seconds(
        limits.KEEPALIVE_TIMEOUT_S, "How long an idle connection is kept open."
    )
    write_stall_timeout_s: float = _HTTP.seconds(
        limits.WRITE_STALL_TIMEOUT_S, "How long a client may take no bytes of its response."
    )
    pipeline_max: int = _HTTP.count(
        limits.PIPELINE_MAX, "Requests queued on one connection before reading from it pauses."
    )
    connections_max: int = _HTTP.count(limits.CONNECTIONS_MAX, "Most open connections.")

    path_bytes_max: int = _STREAM.size(limits.PATH_BYTES_MAX, "Longest stream path.")
    producer_id_bytes_max: int = _STREAM.size(limits.PRODUCER_ID_BYTES_MAX, "Longest producer id.")
    producers_per_stream_max: int = _STREAM.count(
        limits.PRODUCERS_PER_STREAM_MAX, "Most producers that one stream remembers."
    )
    stream_seq_bytes_max: int = _STREAM.size(
        limits.STREAM_SEQ_BYTES_MAX, "Longest Stream-Seq value."
    )
    json_depth_max: int = _STREAM.count(
        limits.JSON_DEPTH_MAX, "Deepest nesting of a JSON message.", most=512
    )
    fork_depth_max: int = _STREAM.count(
        limits.FORK_DEPTH_MAX, "Longest chain of forks of forks.", most=200
    )
    active_streams_max: int = _STREAM.count(
        limits.ACTIVE_STREAMS_MAX, "Most idle streams that are kept in memory."
    )
    retention: str = _STREAM.rules(
        "",
        "What is kept of streams without a policy of their own, by start of path or by pattern.",
    )
    retention_interval_s: float = _STREAM.seconds(
        limits.RETENTION_INTERVAL_S, "How often data that is kept too long is looked for."
    )
    snapshot_bytes_max: int = _STREAM.size(
        limits.SNAPSHOT_BYTES_MAX, "Largest state that a stream is compacted to."
    )
    compact_bytes_min: int = _STREAM.size(
        limits.COMPACT_BYTES_MIN, "Smallest log that a policy has compacted.", least=0
    )
    reap_interval_s: float = _STREAM.seconds(
        limits.REAP_INTERVAL_S, "How often expired streams are looked for."
    )

    journal_file_bytes: int = _STORE.size(
        limits.JOURNAL_FILE_BYTES, "Size of one journal file.", least=4096
    )
    journal_batch_bytes_max: int = _STORE.size(
        limits.JOURNAL_BATCH_BYTES_MAX, "Size at which a batch of appends is closed."
    )
    checkpoint_bytes: int = _STORE.size(
        limits.CHECKPOINT_BYTES, "Journal bytes after which a checkpoint is made."
    )
    checkpoint_interval_s: float = _STORE.seconds(
        limits.CHECKPOINT_INTERVAL_S, "Longest time between checkpoints."
    )
    segment_bytes_max: int = _STORE.size(
        limits.SEGMENT_BYTES_MAX, "Size at which a segment file is closed."
    )
    inline_bytes_max: int = _STORE.size(
        limits.INLINE_BYTES_MAX, "Streams up to this size need no files of their own.", least=0
    )
    tail_bytes_max: int = _STORE.size(
        limits.TAIL_BYTES_MAX, "Most bytes in memory that no segment file holds yet."
    )
    open_files_max: int = _STORE.count(
        limits.OPEN_FILES_MAX, "Most segment files that are open at a time."
    )
    disk_reserve_bytes: int = _STORE.size(
        limits.DISK_RESERVE_BYTES, "Free disk space below which appends are refused.", least=0
    )

    auth_token: str | None = _ACCESS.secret(
        "Bearer token that requests must carry; a flag shows in the process list, so prefer "
        "the environment.",
        flag="--token",
        env="PENSTOCK_TOKEN",
    )
    rate_limit_per_s: float = _ACCESS.rate(
        limits.RATE_LIMIT_PER_S,
        "Most requests a second from one address; 0 is no limit.",
        flag="--rate-limit",
    )
    cors_origin: str = _ACCESS.text("*", "Origin that browsers may call from.")

    def __post_init__(self) -> None:
        for setting in SETTINGS:
            setting.check(getattr(self, setting.name), "Settings")


def _describe() -> Iterable[Setting]:
    shared = {each.name for each in fields(PeerSettings)}
    for each in sorted(fields(Settings), key=lambda each: each.name in shared):
        details = dict(each.metadata)
        dashed = each.name.removesuffix("_s").replace("_", "-")
        details["flag"] = details["flag"] or f"--{dashed}"
        details["env"] = details["env"] or ENV_PREFIX + each.name.upper()
        yield Setting(name=each.name, **details)


SETTINGS: tuple[Setting, ...] = tuple(_describe())
_BY_NAME = {setting.name: setting for setting in SETTINGS}
_BY_ENV = {setting.env: setting for setting in SETTINGS}


class Resolved(NamedTuple):
    """Settings, and for each by name where its value came from ("default" if nobody set it)."""

    settings: Settings
    origins: dict[str, str]


def load(
    flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None
) -> Settings:
    """The settings in effect. `flags` maps setting names to what was typed; None is not given."""
    return resolve(flags, environ, toml_path).settings


def resolve(
    flags: Mapping[str, object], environ: Mapping[str, str], toml_path: Path | None = None
) -> Resolved:
    """Like `load`, and says where each value came from."""
    values: dict[str, Any] = {}
    origins = {setting.name: "default" for setting in SETTINGS}
    for setting, raw, origin in (
        *_from_toml(environ, toml_path),
        *_from_environ(environ),
        *_from_flags(flags),
    ):
        if raw is not None:
            values[setting.name] = setting.parse(raw, origin)
            origins[setting.name] = origin
    settings = Settings(**values)
    _check_together(settings)
    return Resolved(settings, origins)


def _from_flags(flags: Mapping[str, object]) -> Iterable[tuple[Setting, object, str]]:
    for name, raw in flags.items():
        if name not in _BY_NAME:
            raise InvalidSetting(f"unknown setting {name!r}{_closest(name, _BY_NAME)}")
        yield _BY_NAME[name], raw, _BY_NAME[name].flag


def _from_toml(
    environ: Mapping[str, str], toml_path: Path | None
) -> Iterable[tuple[Setting, object, str]]:
    import tomllib  # here, so that `penstock --help` does not pay for it

    if toml_path is None and environ.get(ENV_CONFIG):
        toml_path = Path(environ[ENV_CONFIG])
    path = toml_path or Path(TOML_NAME)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        if toml_path is None:
            return
        raise InvalidSetting(f"{path}: there is no such settings file") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InvalidSetting(f"{path}: cannot be read: {reason}") from None
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise InvalidSetting(f"{path}: {error}") from None
    for key, raw in table.items():
        if key not in _BY_NAME:
            raise InvalidSetting(f"{path}: unknown setting {key!r}{_closest(key, _BY_NAME)}")
        yield _BY_NAME[key], raw, str(path)


def _from_environ(environ: Mapping[str, str]) -> Iterable[tuple[Setting, object, str]]:
    for name, raw in environ.items():
        if not name.startswith(ENV_PREFIX) or name == ENV_CONFIG or _KUBERNETES.fullmatch(name):
            continue
        if name == "PENSTOCK_PORT" and raw.startswith(("tcp://", "udp://")):
            continue  # Kubernetes again
        if name in _BY_ENV:
            yield _BY_ENV[name], raw, name
        elif hint := _closest(name, _BY_ENV):
            raise InvalidSetting(f"{name}: there is no such setting{hint}")


def _closest(name: str, known: Iterable[str]) -> str:
    from difflib import get_close_matches

    # Without the prefix: it would make every variable look like every other.
    bare = {each.removeprefix(ENV_PREFIX).lower(): each for each in known}
    matches = get_close_matches(name.removeprefix(ENV_PREFIX).lower(), bare, n=1)
    return f"; did you mean {bare[matches[0]]}?" if matches else ""


def _check_together(settings: Settings) -> None:
    """Refuse values that are fine alone but would refuse every large append."""
    for name in ("receive_bytes_max", "append_queue_bytes_max"):
        if getattr(settings, name) < settings.body_bytes_max:
            raise InvalidSetting(
                f"{name} must be at least body_bytes_max "
                f"({_BY_NAME['body_bytes_max'].show(settings.body_bytes_max)})"
            )
