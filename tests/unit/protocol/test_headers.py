from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock import limits
from penstock.errors import (
    InvalidContentType,
    InvalidExpiresAt,
    InvalidPath,
    InvalidProducer,
    InvalidStreamSeq,
    InvalidTtl,
)
from penstock.protocol import headers
from penstock.protocol.headers import Producer

TOO_LARGE = str(limits.INTEGER_MAX + 1)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0", 0), ("1", 1), ("3600", 3600), (str(limits.INTEGER_MAX), limits.INTEGER_MAX)],
)
def test_ttl(text: str, expected: int) -> None:
    assert headers.parse_ttl(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "abc",
        "-1",
        "+60",
        "00060",
        "00",
        "60.5",
        "1e3",
        "60 ",
        " 60",
        "0x10",
        "1_000",
        "٦٠",
        "²",
    ],
)
def test_ttl_is_strict(text: str) -> None:
    with pytest.raises(InvalidTtl):
        headers.parse_ttl(text)


@pytest.mark.parametrize("text", [TOO_LARGE, "9" * 10_000])
def test_ttl_is_bounded(text: str) -> None:
    with pytest.raises(InvalidTtl):
        headers.parse_ttl(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01T00:00:01.5Z", 1_500_000),
        ("1970-01-01t00:00:00.000001z", 1),
        ("1970-01-01T00:00:00.0000019Z", 1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1969-12-31T22:30:00-01:30", 0),
        ("1970-01-01T00:00:00-00:00", 0),
        ("2024-02-29T00:00:00Z", 1_709_164_800_000_000),
        ("2016-12-31T23:59:60Z", 1_483_228_800_000_000),
        ("2017-01-01T00:59:60+01:00", 1_483_228_800_000_000),
        ("9999-12-31T23:59:59.999999Z", limits.TIME_US_MAX),
    ],
)
def test_expires_at(text: str, expected: int) -> None:
    assert headers.parse_expires_at(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not-a-timestamp",
        "2030-01-31",
        "2030-01-31T12:00:00",
        "2030-01-31 12:00:00Z",
        "2030-01-31T12:00Z",
        "2030-1-31T12:00:00Z",
        "2030-02-30T12:00:00Z",
        "2023-02-29T12:00:00Z",
        "2030-13-01T12:00:00Z",
        "2030-01-31T24:00:00Z",
        "2030-01-31T12:60:00Z",
        "2030-01-31T12:00:61Z",
        "2030-01-31T12:00:60Z",
        "2030-01-31T12:00:00.Z",
        "2030-01-31T12:00:00+24:00",
        "2030-01-31T12:00:00+02:60",
        "2030-01-31T12:00:00+0200",
        "2030-01-31T12:00:00Z\n",
        "0000-01-01T00:00:00Z",
        "1969-12-31T23:59:59Z",
        "9999-12-31T23:59:59-00:01",
        "1700000000",
        "２０３０-01-31T12:00:00Z",
        "2030-01-31T12:00:00." + "1" * 10_000 + "Z",
    ],
)
def test_expires_at_is_strict(text: str) -> None:
    with pytest.raises(InvalidExpiresAt) as caught:
        headers.parse_expires_at(text)
    assert len(caught.value.detail) < 400


ZONES = st.integers(min_value=-23 * 60 - 59, max_value=23 * 60 + 59).map(
    lambda minutes: timezone(timedelta(minutes=minutes))
)


@given(
    st.datetimes(min_value=datetime(1971, 1, 1), max_value=datetime(9998, 1, 1), timezones=ZONES)  # noqa: DTZ001
)
def test_expires_at_agrees_with_datetime_and_round_trips(moment: datetime) -> None:
    us = headers.parse_expires_at(moment.isoformat())
    assert us == (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
    assert headers.parse_expires_at(headers.format_expires_at(us)) == us


def test_expires_at_is_printed_like_javascript_does() -> None:
    assert headers.format_expires_at(1_709_164_800_000_000) == "2024-02-29T00:00:00.000Z"
    assert headers.format_expires_at(1_709_164_800_123_000) == "2024-02-29T00:00:00.123Z"
    assert headers.format_expires_at(1_709_164_800_123_456) == "2024-02-29T00:00:00.123456Z"


@pytest.mark.parametrize("text", ["true", "TRUE", "True"])
def test_closed(text: str) -> None:
    assert headers.parse_closed(text)


@pytest.mark.parametrize("text", [None, "", "false", "yes", "1", "true ", "true, true", "truE\x00"])
def test_not_closed(text: str | None) -> None:
    assert not headers.parse_closed(text)


def test_no_producer_headers_mean_no_producer() -> None:
    assert headers.parse_producer(None, None, None) is None


@pytest.mark.parametrize(
    ("producer_id", "epoch", "seq"),
    [
        ("p", "0", "0"),
        ("order service/1", "3", "41"),
        ("x" * limits.PRODUCER_ID_BYTES_MAX, str(limits.INTEGER_MAX), str(limits.INTEGER_MAX)),
    ],
)
def test_producer(producer_id: str, epoch: str, seq: str) -> None:
    expected = Producer(producer_id, int(epoch), int(seq))
    assert headers.parse_producer(producer_id, epoch, seq) == expected


@pytest.mark.parametrize(
    ("producer_id", "epoch", "seq", "reason"),
    [
        (None, "0", "0", "Producer-Id missing"),
        ("p", None, "0", "Producer-Epoch missing"),
        ("p", "0", None, "Producer-Seq missing"),
        ("p", None, None, "Producer-Epoch and Producer-Seq missing"),
        ("", "0", "0", "Producer-Id must be"),
        ("x" * (limits.PRODUCER_ID_BYTES_MAX + 1), "0", "0", "Producer-Id must be"),
        ("a\nb", "0", "0", "Producer-Id must be"),
        ("a\x7f", "0", "0", "Producer-Id must be"),
        ("ä", "0", "0", "Producer-Id must be"),
        ("p", "", "0", "Producer-Epoch ''"),
        ("p", "-1", "0", "Producer-Epoch '-1'"),
        ("p", "1.5", "0", "Producer-Epoch '1.5'"),
        ("p", "0", "abc", "Producer-Seq 'abc'"),
        ("p", "0", "1e3", "Producer-Seq '1e3'"),
        ("p", "0", "+1", "Producer-Seq"),
        ("p", "0", " 1", "Producer-Seq"),
        ("p", "0", "٣", "Producer-Seq"),
        ("p", "0", TOO_LARGE, "Producer-Seq"),
        ("p", "9" * 10_000, "0", "Producer-Epoch"),
    ],
)
def test_producer_is_strict(
    producer_id: str | None, epoch: str | None, seq: str | None, reason: str
) -> None:
    with pytest.raises(InvalidProducer) as caught:
        headers.parse_producer(producer_id, epoch, seq)
    assert reason in caught.value.detail
    assert caught.value.detail.isprintable()


@pytest.mark.parametrize("text", ["0", "2024-01-01T00:00:00Z", "a b", "~" * 256])
def test_stream_seq_is_kept_as_it_is(text: str) -> None:
    assert headers.parse_stream_seq(text) == text


@pytest.mark.parametrize("text", ["", "a\r\nb", "a\tb", "\x00", "ä", "x" * 257])
def test_stream_seq_is_bounded_and_printable(text: str) -> None:
    with pytest.raises(InvalidStreamSeq):
        headers.parse_stream_seq(text)


@pytest.mark.parametrize(
    ("text", "normalized", "media_type"),
    [
        ("text/plain", "text/plain", "text/plain"),
        ("TEXT/PLAIN", "TEXT/PLAIN", "text/plain"),
        (" application/json ", "application/json", "application/json"),
        (
            "application/json; charset=utf-8",
            "application/json; charset=utf-8",
            "application/json",
        ),
        ("Application/JSON;charset=UTF-8", "Application/JSON;charset=UTF-8", "application/json"),
        ("text/plain ; a=b", "text/plain ; a=b", "text/plain"),
        ("text/plain;", "text/plain;", "text/plain"),
        ('a/b; c="d; e\\"f"', 'a/b; c="d; e\\"f"', "a/b"),
        ("application/vnd.x+json", "application/vnd.x+json", "application/vnd.x+json"),
    ],
)
def test_content_type(text: str, normalized: str, media_type: str) -> None:
    assert headers.normalize_content_type(text) == normalized
    assert headers.media_type(normalized) == media_type


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "text",
        "text/",
        "/plain",
        "text/plain/x",
        "text /plain",
        "text/plain, text/html",
        "text/plain; charset",
        "text/plain; =x",
        'text/plain; a="b',
        'text/plain; a="b\nc"',
        "text/plain\r\nX-Injected: 1",
        "text/plain\n",
        "text/pl\x00ain",
        "text/plain; a=\x7f",
        "text/plän",
        "text/" + "x" * 300,
        "a/b" + "; " * 120 + "\x01",
    ],
)
def test_content_type_is_strict_and_nothing_unprintable_is_echoed(text: str) -> None:
    with pytest.raises(InvalidContentType) as caught:
        headers.normalize_content_type(text)
    assert caught.value.detail.isprintable()


@pytest.mark.parametrize(
    ("content_type", "json", "text"),
    [
        ("application/json", True, False),
        ("APPLICATION/JSON; charset=utf-8", True, False),
        ("application/json-seq", False, False),
        ("application/ndjson", False, False),
        ("text/plain", False, True),
        ("Text/Html; charset=utf-8", False, True),
        ("application/octet-stream", False, False),
        ("texture/x", False, False),
    ],
)
def test_kinds_of_streams(content_type: str, json: bool, text: bool) -> None:
    assert headers.is_json(content_type) is json
    assert headers.is_text(content_type) is text


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a", "a"),
        (b"a/b", "a/b"),
        (b"a%2Fb", "a%2Fb"),
        (b"a%2fb", "a%2Fb"),
        (b"%41", "A"),
        (b"%7e%2D%2e%5F", "~-._"),
        (b"%e4", "%E4"),
        (b"%25", "%25"),
        (b"%2541", "%2541"),
        (b"a%20b", "a%20b"),
        (b"%3A:", "%3A:"),
        (b"!$&'()*+,;=:@", "!$&'()*+,;=:@"),
        (b".../..a/.a/a.", ".../..a/.a/a."),
        (b"%2E%2E%2E", "..."),
        (b"x" * 1024, "x" * 1024),
        (b"%41" * 1024, "A" * 1024),
    ],
)
def test_path(raw: bytes, expected: str) -> None:
    assert headers.parse_stream_path(raw) == expected


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"", "empty"),
        (b"/", "empty segment"),
        (b"/a", "empty segment"),
        (b"a/", "empty segment"),
        (b"a//b", "empty segment"),
        (b".", '"." or ".."'),
        (b"..", '"." or ".."'),
        (b"a/../b", '"." or ".."'),
        (b"a/.", '"." or ".."'),
        (b"./a", '"." or ".."'),
        (b"%2e%2E/a", '"." or ".."'),
        (b"a/.%2e", '"." or ".."'),
        (b"a%00", "control character 0x00"),
        (b"a\x00", "control character 0x00"),
        (b"a%0d%0aX", "control character 0x0D"),
        (b"a\n", "control character 0x0A"),
        (b"%7F", "control character 0x7F"),
        (b"a b", "a space"),
        (b'a"b', 'character "'),
        (b"<", "character <"),
        (b"a>", "character >"),
        (b"a\\b", "character \\"),
        (b"a?b", "character ?"),
        (b"a#b", "character #"),
        (b"a{b}", "character {"),
        (b"a[b]", "character ["),
        (b"a^b", "character ^"),
        ("ä".encode(), "non-ASCII byte 0xC3"),
        (b"%", "'%'"),
        (b"a%4", "'%4'"),
        (b"a%zz", "'%zz'"),
        (b"%%41", "'%%4'"),
        (b"x" * 1025, "1025 bytes"),
        (b"%E4" * 342, "1026 bytes"),
    ],
)
def test_path_is_strict(raw: bytes, reason: str) -> None:
    with pytest.raises(InvalidPath) as caught:
        headers.parse_stream_path(raw)
    assert reason in caught.value.detail
    assert caught.value.detail.isprintable()


PIECES = st.sampled_from([b"a", b"Z", b"/", b".", b"%2e", b"%2F", b"%c3", b"%A4", b"%41", b"%25"])
PATHS = st.lists(PIECES | st.binary(max_size=2), max_size=10).map(b"".join)


@given(PATHS)
def test_canonical_path_is_stable_and_safe(raw: bytes) -> None:
    try:
        path = headers.parse_stream_path(raw)
    except InvalidPath:
        return
    assert headers.parse_stream_path(path.encode()) == path
    assert path.isascii()
    assert path.isprintable()
    assert not {"", ".", ".."} & set(path.split("/"))
    assert path.count("/") == raw.count(b"/")
