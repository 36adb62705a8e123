"""The streams that a request asks for: paths and patterns, each with the offset to start from."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final, NamedTuple

from penstock.errors import InvalidParameter, PenstockError, TooManyParameters
from penstock.http.query import parse_pairs
from penstock.http.router import RESERVED
from penstock.protocol.globs import is_pattern, matches, parse_pattern
from penstock.protocol.headers import parse_stream_path
from penstock.protocol.offsets import NOW, START, parse_offset

PARAMETERS: Final = frozenset({"stream", "match", "cursor"})
REPEATED: Final = frozenset({"stream", "match"})
_BAD_ESCAPE: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


class Selection(NamedTuple):
    """The offsets at which reading starts, by path and by pattern, and the cursor if there is one.

    Two requests with the same `key` read the same streams, wherever they start.
    """

    streams: Mapping[str, str]
    patterns: Mapping[str, str]
    cursor: str | None

    @property
    def key(self) -> bytes:
        return "\n".join((*sorted(self.streams), "", *sorted(self.patterns))).encode()

    def covers(self, path: str) -> bool:
        return path in self.streams or any(matches(pattern, path) for pattern in self.patterns)

    def start(self, path: str) -> str:
        """Return the offset to start from: that of the path itself, or of the first pattern."""
        offset = self.streams.get(path)
        if offset is not None:
            return offset
        return next(offset for pattern, offset in self.patterns.items() if matches(pattern, path))


def parse_selection(query: bytes, *, parameters_max: int, path_bytes_max: int) -> Selection:
    if _BAD_ESCAPE.search(query):
        raise InvalidParameter("A percent sign in the query must be followed by two hex digits.")
    streams: dict[str, str] = {}
    patterns: dict[str, str] = {}
    cursor = None
    pairs = parse_pairs(query, PARAMETERS, repeated=REPEATED)
    if len(pairs) > parameters_max:
        raise TooManyParameters(
            f"The request has {len(pairs)} `stream` and `match` parameters; this server takes "
            f"{parameters_max}. Use a pattern, or several requests."
        )
    for name, text in pairs:
        if name == "cursor":
            cursor = text
        elif name == "stream":
            path, offset = _stream(text, path_bytes_max)
            if path in streams:
                raise InvalidParameter(f"`stream` names {path!a} more than once; name it once.")
            streams[path] = offset
        else:
            pattern, offset = _match(text, path_bytes_max)
            if pattern in patterns:
                raise InvalidParameter(f"`match` has {pattern!a} more than once; send it once.")
            patterns[pattern] = offset
    if not streams and not patterns:
        raise InvalidParameter(
            "Name the streams: `stream=<path>@<offset>` or `match=<pattern>@<offset>`, as often as "
            "needed."
        )
    return Selection(streams, patterns, cursor or None)


def _stream(text: str, bytes_max: int) -> tuple[str, str]:
    raw, offset = _split("stream", text)
    parse_offset(offset)
    try:
        path = parse_stream_path(raw.encode(), bytes_max=bytes_max)
    except PenstockError as error:
        raise InvalidParameter(f"`stream`: {error.detail}") from None
    if RESERVED in path.split("/"):
        raise InvalidParameter(f"`stream`: `{RESERVED}` is reserved for control APIs.")
    return path, offset


def _match(text: str, bytes_max: int) -> tuple[str, str]:
    raw, offset = _split("match", text)
    if offset not in (NOW, START):
        raise InvalidParameter(
            f"`match` starts at {NOW} or {START}: an offset belongs to one stream, and a pattern "
            "stands for many."
        )
    try:
        pattern = parse_pattern(raw, bytes_max=bytes_max)
    except PenstockError as error:
        raise InvalidParameter(f"`match`: {error.detail}") from None
    if not is_pattern(pattern):
        raise InvalidParameter(f"`match` has no `*`: use `stream={pattern}@{offset}`.")
    return pattern, offset


def _split(name: str, text: str) -> tuple[str, str]:
    """Return what is before the last `@`, and the offset after it."""
    path, mark, offset = text.rpartition("@")
    if not mark or not path or not offset:
        raise InvalidParameter(
            f"`{name}` is {text[:100]!a}: write it as <path>@<offset>, where the offset is {NOW}, "
            f"{START} or one that the server returned."
        )
    return path, offset
