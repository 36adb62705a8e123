"""The requests of the STP clients as values, which may be sent any number of times."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final
from urllib.parse import urlencode, urlsplit

import msgspec

from penstock.client.requests import JSON, STREAM_PREFIX, ProducerId, Request, stream_url
from penstock.stp.content_type import MEDIA
from penstock.stp.rows import Change, Row, format_change

TABLE_PREFIX: Final = "/v1/table/"
NOTIFY_PREFIX: Final = "/v1/notify/"
ROWS: Final = "text/tab-separated-values; charset=utf-8"
RECORD: Final = "text/plain; charset=utf-8"
FORM: Final = "application/x-www-form-urlencoded"

_EVENT_TYPE = re.compile(r"[a-z][a-z0-9_]*\Z")
_encode = msgspec.json.Encoder().encode

Producer = ProducerId | tuple[str, int, int]
AnyChange = Change | Row | tuple[str, str] | tuple[str, str, str]


class Declaration(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The declaration of a table: see `Table.create`."""

    schema: str
    version: int
    record: str
    type: str | None = None
    escape: bool = False
    stream: str | None = None


def table_url(base_url: str, path_or_url: str) -> str:
    """Return the State URL of a table: a full URL unchanged, a path below the table prefix."""
    if path_or_url.startswith(("http://", "https://")):
        return path_or_url
    return stream_url(base_url, path_or_url).replace(STREAM_PREFIX, TABLE_PREFIX, 1)


def notify_url(base_url: str, name_or_url: str) -> str:
    """Return a Notify URL: a full URL unchanged, a name below the notify prefix."""
    if name_or_url.startswith(("http://", "https://")):
        return name_or_url
    return stream_url(base_url, name_or_url).replace(STREAM_PREFIX, NOTIFY_PREFIX, 1)


def accept(schema: str | None, version: int | None) -> str:
    """Return the Accept header: the media type, with the expected schema and version."""
    text = f"{MEDIA}; charset=utf-8"
    if schema is not None:
        text += f"; schema={schema}"
    if version is not None:
        text += f"; version={version}"
    return text


def read(
    url: str, since_id: int, *, accept: str, immediate: bool = False, active: bool = False
) -> Request:
    """Return the GET of the rows after `since_id`; -N is for the last N.

    `timeout=0` and `view=active` are extensions of Penstock servers; others ignore them.
    """
    params = {"since_id": str(since_id)}
    if immediate:
        params["timeout"] = "0"
    if active:
        params["view"] = "active"
    return Request("GET", url, {"Accept": accept}, params, wait="answer" if immediate else "sse")


def head(url: str, accept: str) -> Request:
    return Request("HEAD", url, {"Accept": accept}, {"timeout": "0"})


def declare(url: str, declaration: Declaration) -> Request:
    """Return the PUT of a declaration. Repeatable, because one that matches is answered 200."""
    return Request("PUT", url, {"Content-Type": JSON}, body=_encode(declaration))


def put(url: str, key: str, record: bytes, producer: Producer | None) -> Request:
    return _write("PUT", url, key, {"Content-Type": RECORD}, record, producer)


def delete(url: str, key: str, producer: Producer | None) -> Request:
    return _write("DELETE", url, key, {}, b"", producer)


def write(url: str, body: bytes, producer: Producer | None) -> Request:
    return _write("POST", url, None, {"Content-Type": ROWS}, body, producer)


def rows_body(changes: Iterable[AnyChange], *, escape: bool) -> bytes:
    """Return the lines of a POST; a change that no row can hold raises an error."""
    body = b"".join(format_change(_change(change), escape=escape) for change in changes)
    if not body:
        raise ValueError("There is no change to write.")
    return body


def _change(change: AnyChange) -> Change:
    if isinstance(change, Change):
        return change
    if isinstance(change, Row):
        return Change(change.action, change.key, change.record if change.action == "+" else "")
    action, key, *record = change
    if action not in ("+", "-") or len(record) != (action == "+"):
        raise ValueError('A change is ("+", key, record) or ("-", key).')
    return Change("+" if action == "+" else "-", key, *record)


def _write(
    method: str,
    url: str,
    key: str | None,
    headers: dict[str, str],
    body: bytes,
    producer: Producer | None,
) -> Request:
    """Return the request of a change. Without a producer it is not repeatable: the state would be
    the same, but the history would have the row twice."""
    if producer is not None:
        headers["Producer-Id"] = producer[0]
        headers["Producer-Epoch"] = str(producer[1])
        headers["Producer-Seq"] = str(producer[2])
    params = {} if key is None else {"key": key}
    return Request(method, url, headers, params, body, repeatable=producer is not None)


def notify(nurl: str, surl: str | None, callbacks: Mapping[str, str]) -> Request:
    """Return the POST of a Notify form. Repeatable: a Notify only says that there may be news."""
    check_url(nurl, "The Notify URL")
    fields: list[tuple[str, str]] = []
    if surl is not None:
        fields.append(("surl", check_url(surl, "surl")))
    for event_type, callback in callbacks.items():
        if event_type == "surl" or not _EVENT_TYPE.match(event_type):
            raise ValueError(
                f"{event_type!r} is no event type: use lower-case letters, digits and _, beginning "
                "with a letter, and not `surl`."
            )
        fields.append((event_type, check_url(callback, event_type)))
    if not fields:
        raise ValueError("A Notify needs a surl, a callback, or both.")
    return Request("POST", nurl, {"Content-Type": FORM}, body=urlencode(fields).encode("ascii"))


def check_url(url: str, name: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError(f"{name} is {url!r}: use an http or https URL.")
    return url
