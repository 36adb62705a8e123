"""The Notify form: the fields of a POST to a NURL, and how such a body is signed. Pure.

A Notify is a hint and never state: it names URLs, and the state is read from them.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable
from typing import Final, NamedTuple
from urllib.parse import quote_plus, unquote_to_bytes

from penstock.errors import InvalidNotify, InvalidUrl, Unauthorized, UnsupportedType
from penstock.protocol.outbound import Target

FORM: Final = "application/x-www-form-urlencoded"
SURL: Final = "surl"
SIGNATURE: Final = "stp-signature"
SIGNATURE_AGE_S_MAX: Final = 300
"""Seconds that the clocks of two servers may differ, and that a signed body can be sent again."""

_EVENT = re.compile(r"[a-z][a-z0-9_]*", re.ASCII)
_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2})")
_OWN_PARAMETERS: Final = frozenset({"since_id", "view", "timeout"})
_SIGNATURE = re.compile(r"t=(\d{1,12}),v1=([0-9a-f]{64})", re.ASCII)


class Callback(NamedTuple):
    """The NURL that is notified of an event."""

    event: str
    nurl: Target


class Notice(NamedTuple):
    """A parsed form. `ignored` has the names that mean nothing here."""

    surl: Target | None
    callbacks: tuple[Callback, ...]
    ignored: tuple[str, ...]


def is_event(name: str) -> bool:
    """Whether a parameter of a Notify can be an event type."""
    return name != SURL and _EVENT.fullmatch(name) is not None


def check_form_type(content_type: str | None) -> None:
    """Refuse everything but forms in UTF-8."""
    media, _, parameters = (content_type or "").partition(";")
    charset = parameters.strip().lower().replace(" ", "").replace('"', "")
    if media.strip().lower() != FORM or charset not in ("", "charset=utf-8", "charset=utf8"):
        raise UnsupportedType(f"A Notify is sent as {FORM}, in UTF-8.")


def parse_form(body: bytes, check: Callable[[str], Target], *, urls_max: int) -> Notice:
    """Parse a Notify body; `check` returns the parts of a URL that may be used, or raises.

    `surl` is allowed once. A name that no event can have is ignored with its value; every other
    value has to be a URL.
    """
    surl: Target | None = None
    callbacks: dict[Callback, None] = {}
    ignored: dict[str, None] = {}
    fields = [part for part in body.split(b"&") if part]
    if not fields:
        raise InvalidNotify("A Notify names a surl, or at least one event and its NURL, or both.")
    for field in fields:
        raw_name, _, raw_value = field.partition(b"=")
        name = _text(raw_name, "a name")
        if name == SURL:
            if surl is not None:
                raise InvalidNotify("`surl` is in the form more than once; send a Notify for each.")
            surl = check_surl(_text(raw_value, SURL), check)
        elif _EVENT.fullmatch(name):
            callbacks[Callback(name, _url(name, _text(raw_value, name), check))] = None
        else:
            ignored[name[:64]] = None
    if len(callbacks) + (surl is not None) > urls_max:
        raise InvalidNotify(f"A Notify has at most {urls_max} URLs here; send several.")
    return Notice(surl, tuple(callbacks), tuple(ignored))


def check_surl(text: str, check: Callable[[str], Target]) -> Target:
    """Return a State URL; refuse one with parameters that a reader adds to it."""
    target = _url(SURL, text, check)
    query = target.path.partition("?")[2]
    for part in query.split("&"):
        if part.partition("=")[0] in _OWN_PARAMETERS:
            raise InvalidNotify(
                f"`surl` is the URL of the table alone; leave {part.partition('=')[0]} out."
            )
    return target


def form(surl: str, callbacks: tuple[tuple[str, str], ...] = ()) -> bytes:
    """Return the body that notifies a NURL of a table."""
    fields = [(SURL, surl), *callbacks]
    return "&".join(f"{name}={quote_plus(value)}" for name, value in fields).encode("ascii")


def sign(secret: str, body: bytes, now_s: int) -> str:
    """Return the STP-Signature header of a body: `t=<unix time>,v1=<HMAC-SHA256 in hex>`."""
    return f"t={now_s},v1={_digest(secret, body, now_s)}"


def check_signature(secret: str, body: bytes, header: str | None, now_s: int) -> None:
    """Raise Unauthorized unless the header is a fresh signature of the body."""
    match = _SIGNATURE.fullmatch((header or "").replace(" ", ""))
    signed_s, signature = (int(match[1]), match[2]) if match else (now_s, "")
    # Compared even without a signature, so that the time does not depend on the header.
    same = hmac.compare_digest(_digest(secret, body, signed_s), signature)
    if not same or abs(now_s - signed_s) > SIGNATURE_AGE_S_MAX:
        raise Unauthorized(
            "Sign the body: `STP-Signature: t=<unix time>,v1=<hex>`, the HMAC-SHA256 of "
            "`<unix time>.<body>` under the secret, not older than "
            f"{SIGNATURE_AGE_S_MAX} s; or send a bearer token.",
            WWW_Authenticate='Bearer realm="penstock"',
        )


def _digest(secret: str, body: bytes, now_s: int) -> str:
    return hmac.digest(secret.encode(), b"%d." % now_s + body, "sha256").hex()


def _url(name: str, text: str, check: Callable[[str], Target]) -> Target:
    try:
        return check(text)
    except InvalidUrl as error:
        raise InvalidNotify(
            f"`{name[:64]}` is not a URL that can be used: {error.detail}"
        ) from None


def _text(raw: bytes, what: str) -> str:
    if _BAD_ESCAPE.search(raw):
        raise InvalidNotify(f"{what[:64]} has a % that is not followed by two hex digits.")
    try:
        return unquote_to_bytes(raw.replace(b"+", b" ")).decode()
    except UnicodeDecodeError:
        raise InvalidNotify(f"{what[:64]} is not UTF-8.") from None
