"""The expiry of an entity: the headers of the event that sets it, and the delete that ends it.

Pure rules. A writer sends `ttl`, in seconds, or `expires_at`, an RFC 3339 time. The server stores
the time only: it means the same after a restart, in a compacted stream and in a copy.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from msgspec import UNSET

from penstock import limits
from penstock.errors import InvalidEvent
from penstock.protocol.headers import format_expires_at
from penstock.protocol.timestamps import unix_us
from penstock.state.event import ChangeEvent
from penstock.state.parsing import parse

EXPIRED: Final = "expired"
"""The `reason` of a delete that the server appends."""

_split: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode: Final = msgspec.json.Encoder().encode


def deadline_us(event: Any) -> int | None:
    """Return when the entity of a stored change event expires; None if it does not."""
    raw = event.headers.expires_at
    if raw is UNSET or event.headers.operation == "delete":
        return None
    text = _value(raw)
    return unix_us(text) if isinstance(text, str) else None


def check(event: ChangeEvent) -> None:
    """Refuse an event whose expiry cannot be understood."""
    headers = event.headers
    if headers.operation == "delete":
        return
    if headers.ttl is not UNSET:
        if headers.expires_at is not UNSET:
            raise _broken("ttl", "exclusive", "and headers.expires_at are both set: send one")
        ttl = _value(headers.ttl)
        if not _is_number(ttl) or not 0 < ttl <= limits.STATE_TTL_S_MAX:
            raise _broken(
                "ttl",
                "ttl",
                f"must be a number of seconds, more than 0 and at most {limits.STATE_TTL_S_MAX}",
            )
    if headers.expires_at is not UNSET:
        text = _value(headers.expires_at)
        if not isinstance(text, str) or unix_us(text) is None:
            raise _broken(
                "expires_at",
                "rfc3339",
                "must be an RFC 3339 time with a time zone, such as 2025-01-15T10:30:00Z",
            )


def with_deadlines(wire: bytes, now_us: int) -> bytes | None:
    """Return messages with every `ttl` replaced by the time it means; None if there is none.

    Messages that are no events, or whose ttl is not valid, stay as they are.
    """
    if b'"ttl"' not in wire:
        return None
    lines = wire.split(b",\n")[:-1]  # messages contain no line feed
    changed = [_with_deadline(line, now_us) if b'"ttl"' in line else line for line in lines]
    return None if changed == lines else b"".join([line + b",\n" for line in changed])


def expired_event(type: str, key: str, now_us: int) -> bytes:
    """Return the delete of an entity that has expired."""
    headers = {"operation": "delete", "timestamp": format_expires_at(now_us), "reason": EXPIRED}
    return _encode({"type": type, "key": key, "headers": headers})


def _with_deadline(line: bytes, now_us: int) -> bytes:
    try:
        event = parse(line, strict_timestamp=False)
        if not isinstance(event, ChangeEvent) or event.headers.ttl is UNSET:
            return line
        check(event)
    except InvalidEvent:
        return line
    if event.operation == "delete":
        return line
    fields = _split(line)
    headers = _split(fields["headers"])
    ttl = _value(headers.pop("ttl"))
    time = format_expires_at(now_us + max(1, round(ttl * 1_000_000)))
    headers["expires_at"] = msgspec.Raw(_encode(time))
    fields["headers"] = msgspec.Raw(_encode(headers))
    return _encode(fields)


def _value(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _broken(name: str, rule: str, problem: str) -> InvalidEvent:
    field = f"headers.{name}"
    return InvalidEvent(f"{field} {problem}.", field=field, rule=rule)
