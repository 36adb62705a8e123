"""The options of the sources and the sink, which Spark passes as strings: checked once, with errors
that say which option is wrong and what it takes. Opens no connection.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock import limits
from penstock.errors import InvalidOption, InvalidPath
from penstock.protocol import globs
from penstock.protocol.timestamps import unix_us
from penstock.spark.kafka_names import instead_of
from penstock.spark.offsets import SourceOffsets, from_spark

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Mode = Literal["raw", "state"]
Offsets = str | dict[str, str]
Starting = Offsets | SourceOffsets
TimeStrategy = Literal["latest", "error"]
T = TypeVar("T", bound=str)

SOURCE_NAMES: Final = frozenset(
    {
        "url",
        "token",
        "streams",
        "mode",
        "types",
        "startingOffsets",
        "startingTimestamp",
        "startingOffsetsByTimestamp",
        "startingOffsetsByTimestampStrategy",
        "endingOffsets",
        "endingTimestamp",
        "endingOffsetsByTimestamp",
        "maxMessagesPerTrigger",
        "maxOffsetsPerTrigger",
        "maxBytesPerTrigger",
        "minMessagesPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "partitionBytes",
        "failOnDataLoss",
        "includeHeaders",
        "maxAttempts",
        "retryInterval",
        "requestTimeout",
    }
)
# Options that Spark itself adds or reads.
_SPARK_NAMES: Final = frozenset({"path", "checkpointlocation", "queryname", "__truncate"})


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Points in time that stand for offsets, as the server takes them: of all streams, or by
    stream."""

    all: str | None = None
    streams: dict[str, str] = {}

    def of(self, stream: str) -> str | None:
        return self.streams.get(stream, self.all)


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `format("durable_streams")` as a source."""

    url: str
    streams: tuple[str, ...]
    token: str | None = None
    mode: Mode = "state"
    types: tuple[str, ...] | None = None
    include_headers: bool = False
    starting: Starting = EARLIEST
    ending: Offsets = LATEST
    starting_times: Times = Times()
    ending_times: Times = Times()
    time_strategy: TimeStrategy = "latest"
    messages_max: int | None = None
    bytes_max: int | None = None
    messages_min: int | None = None
    delay_max_s: float = limits.SPARK_TRIGGER_DELAY_S
    partitions_min: int = 1
    partition_messages: int | None = None
    partition_bytes: int = limits.SPARK_PARTITION_BYTES
    fail_on_data_loss: bool = True
    attempts_max: int = limits.SPARK_ATTEMPTS_MAX
    retry_interval_s: float = limits.SPARK_RETRY_INTERVAL_S
    timeout_s: float = limits.SPARK_TIMEOUT_S

    @property
    def has_end(self) -> bool:
        """Whether an option says where a batch read ends."""
        return self.ending != LATEST or self.ending_times != Times()


def source_options(values: Mapping[str, str]) -> SourceOptions:
    """Return the checked options of the source."""
    options = RawOptions(values, SOURCE_NAMES)
    streams = options.names("streams")
    if not streams:
        raise InvalidOption(
            "Option streams is missing: name a stream, several with commas, or a pattern such as "
            "shop/**."
        )
    for name in streams:
        check_name(name)
    mode: Mode = options.one_of("mode", ("state", "raw"))
    include_headers = options.flag("includeHeaders", default=False)
    if include_headers and mode == "raw":
        raise InvalidOption("Option includeHeaders is for mode state: a raw payload has them.")
    return SourceOptions(
        url=options.url(),
        token=options.text("token"),
        streams=streams,
        mode=mode,
        types=options.names("types") or None,
        include_headers=include_headers,
        starting=_source_offsets(options) or _offsets(options, "startingOffsets", EARLIEST),
        ending=_offsets(options, "endingOffsets", LATEST),
        starting_times=_times(options, "starting"),
        ending_times=_times(options, "ending"),
        time_strategy=options.one_of("startingOffsetsByTimestampStrategy", ("latest", "error")),
        messages_max=options.number("maxMessagesPerTrigger", "maxOffsetsPerTrigger"),
        bytes_max=options.size("maxBytesPerTrigger"),
        messages_min=options.number("minMessagesPerTrigger", "minOffsetsPerTrigger"),
        delay_max_s=options.seconds("maxTriggerDelay") or limits.SPARK_TRIGGER_DELAY_S,
        partitions_min=options.number("minPartitions") or 1,
        partition_messages=options.number("maxRecordsPerPartition"),
        partition_bytes=options.size("partitionBytes") or limits.SPARK_PARTITION_BYTES,
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        attempts_max=options.number("maxAttempts") or limits.SPARK_ATTEMPTS_MAX,
        retry_interval_s=options.seconds("retryInterval") or limits.SPARK_RETRY_INTERVAL_S,
        timeout_s=options.seconds("requestTimeout") or limits.SPARK_TIMEOUT_S,
    )


def is_url(name: str) -> bool:
    return name.startswith(("http://", "https://"))


def is_pattern(name: str) -> bool:
    """Whether a name in `streams` is a pattern."""
    return globs.is_pattern(name) and not is_url(name)


def pattern_of(name: str) -> str:
    """Return a pattern of `streams` in canonical form."""
    try:
        return globs.parse_pattern(name)
    except InvalidPath as error:
        raise InvalidOption(f"Option streams: {error.detail}") from None


def check_name(name: str) -> None:
    """Raise InvalidOption for an invalid pattern, and for `?`, which looks like one."""
    if not is_url(name) and (globs.is_pattern(name) or "?" in name):
        pattern_of(name)


class RawOptions:
    """Options as Spark passes them: texts by names in any case. An unknown name is an error."""

    def __init__(self, values: Mapping[str, str], names: frozenset[str]) -> None:
        self._values = {name.lower(): value for name, value in values.items()}
        unknown = sorted(set(self._values) - {name.lower() for name in names} - _SPARK_NAMES)
        if unknown:
            instead = instead_of(unknown[0])
            if instead is not None:
                raise InvalidOption(f"Option {unknown[0]} is of Spark's Kafka source: {instead}.")
            raise InvalidOption(
                f"Option {unknown[0]} is unknown. The options are: {', '.join(sorted(names))}."
            )

    def text(self, name: str) -> str | None:
        return self._values.get(name.lower()) or None

    def url(self) -> str:
        url = self.text("url")
        if url is None:
            raise InvalidOption(
                "Option url is missing: the URL of the server, such as http://127.0.0.1:4437."
            )
        if not url.startswith(("http://", "https://")):
            raise InvalidOption(f"Option url is {url!r}: it has to begin with http:// or https://.")
        return url.rstrip("/")

    def names(self, name: str) -> tuple[str, ...]:
        """Return names that are separated by commas or in a JSON array."""
        text = self.text(name)
        if text is None:
            return ()
        if text.lstrip().startswith("["):
            names = self._json(name, text, list[str])
        else:
            names = text.split(",")
        return tuple(dict.fromkeys(each.strip().strip("/") for each in names if each.strip()))

    def number(self, name: str, other_name: str | None = None) -> int | None:
        """Return a whole number, which may have another name in Spark's Kafka source."""
        text = self.text(name)
        if other_name is not None and self.text(other_name) is not None:
            if text is not None:
                raise InvalidOption(f"Options {name} and {other_name} are the same: set one.")
            name, text = other_name, self.text(other_name)
        if text is None:
            return None
        if not (text.isascii() and text.isdigit()) or int(text) < 1:
            raise InvalidOption(f"Option {name} is {text!r}: it takes a whole number above 0.")
        return int(text)

    def size(self, name: str) -> int | None:
        """Return a number of bytes, with or without a unit: 64m, 1g."""
        text = self.text(name)
        if text is None:
            return None
        digits, factor = text.lower().removesuffix("b").removesuffix("i"), 1
        if digits[-1:] in _UNITS:
            digits, factor = digits[:-1], _UNITS[digits[-1]]
        if not (digits.isascii() and digits.isdigit()) or int(digits) < 1:
            raise InvalidOption(
                f"Option {name} is {text!r}: it takes bytes, or a size such as 64m."
            )
        return int(digits) * factor

    def seconds(self, name: str) -> float | None:
        """Return a duration, with or without a unit: 30, 500ms, 30s, 15m."""
        text = self.text(name)
        if text is None:
            return None
        match = _DURATION.fullmatch(text.strip().lower())
        seconds = 0.0 if match is None else float(match[1]) * _SECONDS[match[2]]
        if not seconds > 0:
            raise InvalidOption(
                f"Option {name} is {text!r}: it takes a duration above 0, such as 500ms, 30s or "
                "15m."
            )
        return seconds

    def flag(self, name: str, *, default: bool) -> bool:
        text = self.text(name)
        if text is None:
            return default
        if text.lower() not in ("true", "false"):
            raise InvalidOption(f"Option {name} is {text!r}: it is true or false.")
        return text.lower() == "true"

    def one_of(self, name: str, allowed: tuple[T, ...]) -> T:
        """Return one of the allowed words; the first is the default."""
        text = (self.text(name) or allowed[0]).lower()
        if text not in allowed:
            raise InvalidOption(f"Option {name} is {text!r}: it is {' or '.join(allowed)}.")
        return next(word for word in allowed if word == text)

    def _json(self, name: str, text: str, kind: Any) -> Any:
        try:
            return msgspec.json.decode(text, type=kind)
        except msgspec.DecodeError as error:
            raise InvalidOption(f"Option {name} is not the JSON it should be: {error}.") from None

    def json(self, name: str, kind: Any) -> Any:
        text = self.text(name)
        return None if text is None else self._json(name, text, kind)


def _source_offsets(options: RawOptions) -> SourceOffsets | None:
    """The offsets of another query as its progress shows them, if the option has these."""
    text = options.text("startingOffsets")
    if text is None or not text.lstrip().startswith("{"):
        return None
    document = options.json("startingOffsets", dict[str, Any])
    if not isinstance(document.get("streams"), dict):
        return None
    try:
        return from_spark(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InvalidOption(
            "Option startingOffsets looks like the offsets of another query, and is not: it takes "
            "the endOffset of that query's progress, unchanged."
        ) from None


def _offsets(options: RawOptions, name: str, default: str) -> Offsets:
    text = options.text(name)
    if text is None or text.lower() in (EARLIEST, LATEST):
        chosen = default if text is None else text.lower()
        if name == "endingOffsets" and chosen == EARLIEST:
            raise InvalidOption("Option endingOffsets is earliest: then there is nothing to read.")
        return chosen
    if not text.lstrip().startswith("{"):
        raise InvalidOption(
            f"Option {name} is {text!r}: it is earliest, latest, or JSON with an offset for each "
            'stream, such as {"orders": "earliest"}.'
        )
    offsets: dict[str, str] = options.json(name, dict[str, str])
    return {stream.strip("/"): offset for stream, offset in offsets.items()}


def _times(options: RawOptions, which: str) -> Times:
    """The points in time that one option has for all streams, and another one by stream."""
    all_name, name = f"{which}Timestamp", f"{which}OffsetsByTimestamp"
    text = options.text(all_name)
    times: dict[str, str | int] = options.json(name, dict[str, str | int]) or {}
    return Times(
        all=None if text is None else _time(all_name, text),
        streams={stream.strip("/"): _time(name, str(time)) for stream, time in times.items()},
    )


def _time(name: str, text: str) -> str:
    if (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX) or unix_us(text):
        return text
    raise InvalidOption(
        f"Option {name} has the time {text!r}: it takes a time with its zone, such as "
        "2026-11-01T10:00:00Z, or milliseconds since 1970."
    )


_DIGITS_MAX: Final = 15
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)")
_SECONDS: Final = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}
_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
