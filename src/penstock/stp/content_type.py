"""The content type of a table, `text/sequence` with schema and version, and whether a reader's
`Accept` header allows it. Pure.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from penstock import limits
from penstock.errors import InvalidContentType

MEDIA: Final = "text/sequence"
BACKSLASH: Final = "backslash"

SCHEMA: Final = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]*[A-Za-z0-9_])?")
"""Schema ids that need no quotes anywhere: in a header, in a URL, in a shell."""

_PARAMETER: Final = re.compile(r';\s*([^\s=;,"]+)\s*=\s*("(?:[^"\\]|\\.)*"|[^\s;,"]*)\s*')
_QUOTED: Final = re.compile(r"\\(.)")
_RANGE: Final = re.compile(r'(?:[^,"]|"(?:[^"\\]|\\.)*")+')


class SequenceType(NamedTuple):
    """The parameters of a content type; None for those that are missing."""

    schema: str | None
    version: int | None
    escape: bool = False


def format_content_type(schema: str, version: int, *, escape: bool = False) -> str:
    text = f"{MEDIA}; charset=utf-8; schema={schema}; version={version}"
    return f"{text}; escape={BACKSLASH}" if escape else text


def parse_content_type(text: str) -> SequenceType:
    """Parse the content type of an answer; raise InvalidContentType if it is not rows in UTF-8."""
    media, parameters = _parse(text)
    if media != MEDIA:
        raise InvalidContentType(f"Rows are {MEDIA}, not {media[:64] or 'nothing'!r}.")
    charset = parameters.get("charset", "utf-8").lower()
    if charset not in ("utf-8", "utf8"):
        raise InvalidContentType(f"Rows are UTF-8, not {charset[:64]!r}.")
    version = parameters.get("version")
    if version is not None and not (version.isascii() and version.isdigit() and len(version) < 16):
        raise InvalidContentType(f"The version is a whole number, not {version[:64]!r}.")
    escape = parameters.get("escape", "").lower()
    if escape not in ("", BACKSLASH):
        raise InvalidContentType(f"The escaping {escape[:64]!r} is unknown; use {BACKSLASH}.")
    return SequenceType(
        parameters.get("schema"), None if version is None else int(version), bool(escape)
    )


def accepts(accept: str | None, schema: str, version: int) -> bool:
    """Whether an Accept header allows rows of this schema and version.

    The most specific range that matches decides. No header allows everything.
    """
    if accept is None or not accept.strip():
        return True
    best, weight = -1, 0.0
    for part in _RANGE.findall(accept):
        media, parameters = _parse(part.strip())
        fit = _fit(media, parameters, schema, version)
        if fit > best:
            best, weight = fit, _weight(parameters.get("q", "1"))
        elif fit == best >= 0:
            weight = max(weight, _weight(parameters.get("q", "1")))
    return best >= 0 and weight > 0


def _fit(media: str, parameters: dict[str, str], schema: str, version: int) -> int:
    """Return how specifically a media range matches the type; -1 if it does not."""
    if media in ("*/*", "text/*"):
        return 0 if media == "*/*" else 1
    if media != MEDIA:
        return -1
    own = {"schema": schema, "version": str(version), "charset": "utf-8"}
    fit = 2
    for name, value in own.items():
        parameter = parameters.get(name)
        if parameter is None:
            continue
        if name == "version":
            parameter = parameter.lstrip("0") or "0"
        if name == "charset":
            parameter = parameter.lower().replace("utf8", "utf-8")
        if parameter != value:
            return -1
        fit += 1
    return fit


def _parse(text: str) -> tuple[str, dict[str, str]]:
    media, separator, rest = text.partition(";")
    parameters: dict[str, str] = {}
    for name, value in _PARAMETER.findall(separator + rest):
        if value.startswith('"'):
            value = _QUOTED.sub(r"\1", value[1:-1])
        parameters.setdefault(name.lower(), value)
    return media.strip().lower(), parameters


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        return 0.0
    return weight if 0 <= weight <= 1 else 0.0


def is_schema_id(text: str) -> bool:
    return len(text) <= limits.TABLE_SCHEMA_BYTES_MAX and SCHEMA.fullmatch(text) is not None
