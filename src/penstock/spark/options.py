"""The options of the sources and the sink, which Spark passes as strings: checked once, with errors
that say which option is wrong and what it takes. Opens no connection.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeVar

import msgspec

from penstock import limits
from penstock.errors import InvalidOption, InvalidPath
from penstock.protocol import globs
from penstock.spark.offsets import SourceOffsets, from_spark

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

Mode = Literal["raw", "state"]
Offsets = str | dict[str, str]
Starting = Offsets | SourceOffsets
T = TypeVar("T", bound=str)

SOURCE_NAMES: Final = frozenset(
    {
        "url",
        "token",
        "streams",
        "mode",
        "types",
        "startingOffsets",
        "endingOffsets",
        "maxMessagesPerTrigger",
        "maxBytesPerTrigger",
        "minPartitions",
        "partitionBytes",
        "failOnDataLoss",
        "maxAttempts",
    }
)
# Options that Spark itself adds or reads.
_SPARK_NAMES: Final = frozenset({"path", "checkpointlocation", "queryname", "__truncate"})


class SourceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `format("durable_streams")` as a source."""

    url: str
    streams: tuple[str, ...]
    token: str | None = None
    mode: Mode = "state"
    types: tuple[str, ...] | None = None
    starting: Starting = EARLIEST
    ending: Offsets = LATEST
    messages_max: int | None = None
    bytes_max: int | None = None
    partitions_min: int = 1
    partition_bytes: int = limits.SPARK_PARTITION_BYTES
    fail_on_data_loss: bool = True
    attempts_max: int = limits.SPARK_ATTEMPTS_MAX


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
    return SourceOptions(
        url=options.url(),
        token=options.text("token"),
        streams=streams,
        mode=options.one_of("mode", ("state", "raw")),
        types=options.names("types") or None,
        starting=_source_offsets(options) or _offsets(options, "startingOffsets", EARLIEST),
        ending=_offsets(options, "endingOffsets", LATEST),
        messages_max=options.number("maxMessagesPerTrigger"),
        bytes_max=options.size("maxBytesPerTrigger"),
        partitions_min=options.number("minPartitions") or 1,
        partition_bytes=options.size("partitionBytes") or limits.SPARK_PARTITION_BYTES,
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        attempts_max=options.number("maxAttempts") or limits.SPARK_ATTEMPTS_MAX,
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

    def number(self, name: str) -> int | None:
        text = self.text(name)
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


_UNITS: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
