"""Values on the command line: messages, whole bodies, durations, offsets."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from penstock.errors import InvalidJson
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import NOW, START

if TYPE_CHECKING:
    from penstock.client.checkpoint import FileCheckpoint

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_AGE_PART = re.compile(r"(\d{1,9})([smhdw])", re.ASCII)
_AGE = re.compile(rf"(?:{_AGE_PART.pattern})+", re.ASCII)
_MILLISECONDS_DIGITS_MIN = 11  # fewer would be a year, or a date without its dashes
_DURATION = re.compile(r"(\d{1,15})([smhd]?)", re.ASCII)
_WHITESPACE = b" \t\r\n"
NEVER = "never"


class Duration(click.ParamType[int]):
    """``90``, ``30s``, ``15m``, ``12h``, ``7d``: whole seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        if isinstance(value, int):
            return value
        match = _DURATION.fullmatch(str(value).strip())
        if match is None:
            self.fail(f"{value!r} is not a duration such as 90, 15m, 12h or 7d.", param, ctx)
        return int(match[1]) * _SECONDS[match[2] or "s"]


class Expiry(click.ParamType["int | str"]):
    """A duration, or `never`."""

    name = "expiry"

    def convert(self, value: Any, param: Any, ctx: Any) -> int | str:
        if value == NEVER:
            return NEVER
        seconds = Duration().convert(value, param, ctx)
        if seconds < 1:
            self.fail("it is at least one second, or `never`.", param, ctx)
        return seconds


class Moment(click.ParamType[int]):
    """``2h``, ``1d12h``, ``today``, ``2026-11-01``, ``2026-11-01T10:00Z``, or milliseconds since
    1970. The result is in milliseconds; a time without a zone is local time."""

    name = "time"

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        from datetime import datetime, timedelta

        if isinstance(value, int):
            return value
        text, now = str(value).strip(), datetime.now().astimezone()
        if text.isascii() and text.isdigit() and len(text) >= _MILLISECONDS_DIGITS_MIN:
            return int(text[:16])
        if _AGE.fullmatch(text):
            parts = _AGE_PART.findall(text)
            age_s = sum(int(number) * _SECONDS[unit] for number, unit in parts)
            return int((now.timestamp() - age_s) * 1000)
        midnight = now.replace(hour=0, minute=0, second=0, microsecond=0, tzinfo=None)
        days = {"today": 0, "yesterday": 1}
        try:
            if text in days:
                moment = midnight - timedelta(days=days[text])
            else:
                moment = now if text == "now" else datetime.fromisoformat(text)
            return int(moment.timestamp() * 1000)
        except (ValueError, OverflowError, OSError):
            self.fail(
                f"{value!r} is not a time such as 2h, 1d12h, today, 2026-11-01 or "
                "2026-11-01T10:00Z.",
                param,
                ctx,
            )


class Escaped(click.ParamType[bytes]):
    """Text with the escape sequences of --format, as bytes."""

    name = "text"

    def convert(self, value: Any, param: Any, ctx: Any) -> bytes:
        from penstock.cli.formats import unescape

        data = value if isinstance(value, bytes) else unescape(str(value))
        if not data:
            self.fail("it is empty.", param, ctx)
        return data


class Name(click.ParamType[str]):
    """A name that is not empty."""

    name = "name"

    def convert(self, value: Any, param: Any, ctx: Any) -> str:
        if not str(value):
            self.fail("it is empty.", param, ctx)
        return str(value)


def argument_bytes(text: str) -> bytes:
    """Return the bytes that the shell passed as an argument, even if they are not text."""
    return text.encode("utf-8", "surrogateescape")


def offset_of(text: str) -> str:
    """Return an offset of the protocol. `start`, `end` and `tail` name the ends of a stream."""
    if not text:
        raise click.UsageError("The offset is empty: use one, `start` or `end`.")
    return {"start": START, "end": NOW, "tail": NOW}.get(text, text)


def file_checkpoint(path: str) -> FileCheckpoint:
    """Return the checkpoint in a file. A file that is none is an error."""
    from penstock.client.checkpoint import FileCheckpoint

    checkpoint = FileCheckpoint(path)
    try:
        checkpoint.load("")
    except ValueError as error:
        raise click.ClickException(str(error)) from None
    return checkpoint


def checked_json(value: bytes, label: str) -> bytes:
    """Return the value if it is one JSON value, or raise InvalidJson that names it as `label`."""
    from penstock.protocol.json_mode import frame  # late: it loads msgspec

    try:
        frame(value, allow_empty=True)
    except InvalidJson as error:
        # It speaks of the body of a request.
        reason = error.detail.removeprefix("The body is not valid JSON: ")
        if reason.startswith("The body "):
            raise InvalidJson(f"{label} {reason.removeprefix('The body ')}") from None
        raise InvalidJson(f"{label} is not valid JSON: {reason}") from None
    return value.strip(_WHITESPACE)


def whole_body(body: bytes, content_type: str) -> bytes | None:
    """Return the body of a request, or None if it is empty. A JSON array is its messages."""
    if not is_json(content_type):
        return body or None
    value = checked_json(body, "The body")
    # The client adds an array around the value, so that a list stays one message.
    return (value[1:-1].strip(_WHITESPACE) or None) if value[:1] == b"[" else value
