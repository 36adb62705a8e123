"""Requests as values: URLs, headers, bodies, and what may be sent twice."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest

from penstock.client import requests
from penstock.client.requests import (
    CreateOptions,
    Request,
    encode_message,
    join_messages,
    redirected,
    stream_url,
)
from penstock.errors import InvalidPath, ProtocolError
from penstock.state import parse

URL = "http://host/v1/stream/orders"


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("orders", "orders"),
        ("/orders", "orders"),
        ("a/b/c", "a/b/c"),
        ("with space", "with%20space"),
        ("née", "n%C3%A9e"),
        ("n%C3%A9e", "n%C3%A9e"),  # as a listing gives it: not encoded twice
        ("n%c3%a9e", "n%C3%A9e"),
        ("50%", "50%25"),
        ("100%sure", "100%25sure"),
        ("a%2Fb", "a%2Fb"),
        ("a?b#c", "a%3Fb%23c"),
        ("%41", "A"),
        ("a:b@c,d;e=f", "a:b@c,d;e=f"),
    ],
)
def test_path_is_percent_encoded_once(name: str, path: str) -> None:
    assert stream_url("http://host/", name) == "http://host/v1/stream/" + path


@pytest.mark.parametrize("name", ["", "/", "a//b", "a/", ".", "a/../b", "%2e%2e/a", "a\x00b"])
def test_path_that_could_name_another_stream_is_refused(name: str) -> None:
    with pytest.raises(InvalidPath):
        stream_url("http://host", name)


@pytest.mark.parametrize("url", ["https://other/streams/x%20y?tenant=1", "http://h:1/a/../b"])
def test_full_url_is_used_as_it_is(url: str) -> None:
    assert stream_url("http://host", url) == url


def test_create_carries_every_option_as_its_header() -> None:
    options = CreateOptions(
        ttl_s=60,
        expires_at=datetime(2030, 1, 31, 14, tzinfo=timezone(timedelta(hours=2))),
        closed=True,
    )
    request = requests.create(URL, options, content_type="text/plain", body=b"x")
    assert request.method == "PUT"
    assert request.headers == {
        "Content-Type": "text/plain",
        "Stream-TTL": "60",
        "Stream-Expires-At": "2030-01-31T12:00:00.000Z",
        "Stream-Closed": "true",
    }
    assert request.body == b"x"
    assert request.repeatable


def _create(*, expires_at: datetime) -> requests.Request:
    options = CreateOptions(expires_at=expires_at)
    return requests.create(URL, options, content_type="text/plain")


def test_expiry_without_a_time_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="time zone"):
        _create(expires_at=datetime(2030, 1, 1))  # noqa: DTZ001 - that is the mistake


def test_expiry_keeps_microseconds() -> None:
    moment = datetime(2030, 1, 1, 0, 0, 0, 123456, tzinfo=UTC)
    request = _create(expires_at=moment)
    assert request.headers["Stream-Expires-At"] == "2030-01-01T00:00:00.123456Z"


@pytest.mark.parametrize(
    ("options", "body", "headers", "repeatable"),
    [
        ({}, b"x", {"Content-Type": "a/b"}, False),
        ({"seq": "7"}, b"x", {"Content-Type": "a/b", "Stream-Seq": "7"}, False),
        ({"if_match": "1_2"}, b"x", {"Content-Type": "a/b", "If-Match": '"1_2"'}, False),
        (
            {"producer": ("p", 1, 2)},
            b"x",
            {
                "Content-Type": "a/b",
                "Producer-Id": "p",
                "Producer-Epoch": "1",
                "Producer-Seq": "2",
            },
            True,
        ),
        ({"close": True}, b"", {"Stream-Closed": "true"}, True),
        ({"close": True}, b"x", {"Content-Type": "a/b", "Stream-Closed": "true"}, False),
    ],
)
def test_append_is_repeatable_only_if_nothing_can_be_stored_twice(
    options: dict[str, Any], body: bytes, headers: dict[str, str], repeatable: bool
) -> None:
    request = requests.append(URL, body, "a/b", **options)
    assert request.method == "POST"
    assert request.headers == headers
    assert request.repeatable is repeatable


@pytest.mark.parametrize(
    ("value", "content_type", "encoded"),
    [
        ({"a": 1}, "application/json", b'{"a":1}'),
        ([1, 2], "application/json; charset=utf-8", b"[1,2]"),
        (None, "application/json", b"null"),
        ("é", "application/json", '"é"'.encode()),
        (b'{"raw":true}', "application/json", b'{"raw":true}'),
        ("é", "text/plain", "é".encode()),
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        (memoryview(b"ab"), "image/png", b"ab"),
    ],
)
def test_message_is_encoded_for_its_stream(value: Any, content_type: str, encoded: bytes) -> None:
    assert encode_message(value, content_type) == encoded


def test_a_state_event_keeps_its_own_fields_and_headers() -> None:
    text = b'{"type":"t","key":"k","value":1,"headers":{"operation":"insert","lsn":5},"x":[2]}'
    event = encode_message(parse(text), "application/json")
    assert msgspec.json.decode(event) == msgspec.json.decode(text)


@pytest.mark.parametrize(
    ("value", "content_type"),
    [(object(), "application/json"), (1, "text/plain"), ("x", "image/png"), (None, "image/png")],
)
def test_message_that_does_not_fit_its_stream_is_refused(value: Any, content_type: str) -> None:
    with pytest.raises(TypeError):
        encode_message(value, content_type)


def test_json_messages_are_wrapped_so_that_a_list_stays_one_message() -> None:
    assert join_messages([b"[1,2]"], "application/json") == b"[[1,2]]"
    assert join_messages([b"1", b"2"], "application/json") == b"[1,2]"
    assert join_messages([b"1", b"2"], "text/plain") == b"12"


def test_live_read_echoes_the_cursor_and_waits_longer() -> None:
    request = requests.live(URL, "1_2", "long-poll", cursor="77")
    assert request.params == {"offset": "1_2", "live": "long-poll", "cursor": "77"}
    assert request.wait == "long-poll"


@pytest.mark.parametrize(
    ("method", "status", "location", "url"),
    [
        ("GET", 302, "/other", "http://host/other"),
        ("GET", 308, "http://host/other?offset=1", "http://host/other?offset=1"),
        ("HEAD", 301, "sibling", "http://host/v1/stream/sibling"),
        ("POST", 307, "/other", "http://host/other"),
        ("GET", 200, "/other", None),
        ("GET", 302, None, None),
    ],
)
def test_redirect_within_the_origin_is_followed(
    method: str, status: int, location: str | None, url: str | None
) -> None:
    request = redirected(Request(method, URL, body=b"x"), status, location)
    assert (None if request is None else request.url) == url
    assert request is None or request.body == b"x"


@pytest.mark.parametrize(
    ("method", "status", "location"),
    [
        ("GET", 302, "http://elsewhere/v1/stream/orders"),
        ("GET", 302, "https://host/v1/stream/orders"),
        ("GET", 302, "http://host:81/v1/stream/orders"),
        ("POST", 302, "/other"),
        ("PUT", 303, "/other"),
    ],
)
def test_redirect_that_would_leak_or_change_the_request_is_refused(
    method: str, status: int, location: str
) -> None:
    with pytest.raises(ProtocolError):
        redirected(Request(method, URL), status, location)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://a/v1/stream/x?link=abc.def&offset=-1", "http://a/v1/stream/x?link=…&offset=-1"),
        ("http://a/v1/stream/x?offset=-1&link=abc", "http://a/v1/stream/x?offset=-1&link=…"),
        ("http://a/v1/stream/x?backlink=1", "http://a/v1/stream/x?backlink=1"),
        ("http://a/v1/stream/link=x", "http://a/v1/stream/link=x"),
    ],
)
def test_a_link_is_not_shown(url: str, shown: str) -> None:
    assert requests.shown_url(url) == shown
