"""The Notify form: every rule of the text, and every corner."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidNotify, PenstockError, Unauthorized, UnsupportedType
from penstock.protocol.outbound import parse_url
from penstock.stp.notify import check_form_type, check_signature, form, parse_form, sign


def parsed(body: str, urls_max: int = 32) -> tuple[str | None, list[tuple[str, str]], list[str]]:
    notice = parse_form(body.encode("latin-1"), parse_url, urls_max=urls_max)
    return (
        None if notice.surl is None else notice.surl.url,
        [(callback.event, callback.nurl.url) for callback in notice.callbacks],
        list(notice.ignored),
    )


A, B = "https://a.example/t", "https://b.example/n"


@pytest.mark.parametrize(
    ("body", "surl", "callbacks", "ignored"),
    [
        # The two examples of the text.
        ("surl=https://example.com/state&match=https://example.com/match_nurl",
         "https://example.com/state", [("match", "https://example.com/match_nurl")], []),
        ("manifest_nurl=https://example.com/manifest_nurl",
         None, [("manifest_nurl", "https://example.com/manifest_nurl")], []),
        (f"surl={A}", A, [], []),
        (f"x={B}&surl={A}", A, [("x", B)], []),
        ("surl=https%3A%2F%2Fa.example%2Ft", A, [], []),
        ("%73url=https://a.example/t", A, [], []),
        ("surl=https://a.example/t?x%3D1%26y%3D2", "https://a.example/t?x=1&y=2", [], []),
        (f"&&surl={A}&", A, [], []),
        # Several NURLs for one event are all told; the same one twice is one.
        (f"x={A}&x={B}", None, [("x", A), ("x", B)], []),
        (f"x={A}&x={A}", None, [("x", A)], []),
        # Names that no event has are ignored, and so is what they say.
        (f"surl={A}&Match={B}&_x=1&x-y=junk&9=z&=q&SURL=no", A, [],
         ["Match", "_x", "x-y", "9", "", "SURL"]),
        ("Unknown=1", None, [], ["Unknown"]),
        (f"surl={A}&a%20b=1", A, [], ["a b"]),
        # `;` does not separate.
        (f"surl={A};x={B}", f"{A};x={B}", [], []),
    ],
)  # fmt: skip
def test_forms_that_say_something(
    body: str, surl: str | None, callbacks: list[tuple[str, str]], ignored: list[str]
) -> None:
    assert parsed(body) == (surl, callbacks, ignored)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "names a surl"),
        ("&&", "names a surl"),
        (f"surl={A}&surl={B}", "more than once"),
        (f"surl={A}&surl={A}", "more than once"),
        (f"surl={A}&x={B}&%73url={B}", "more than once"),
        ("surl", "not a URL"),
        ("surl=", "not a URL"),
        ("surl=here", "not a URL"),
        ("surl=/v1/table/x", "not a URL"),
        ("surl=ftp://a.example/t", "not a URL"),
        ("surl=https://user:pw@a.example/t", "user or password"),
        ("surl=https://a.example/t%23x", "characters"),
        ("surl=https://a.example/a+b", "characters"),
        ("surl=https://a.example/t?since_id%3D3", "leave since_id out"),
        ("surl=https://a.example/t?a%3Db%26view%3Dactive", "leave view out"),
        ("x=junk", "`x` is not a URL"),
        ("x", "`x` is not a URL"),
        (f"surl={A}&version=2", "`version` is not a URL"),
        ("x=https://a.example/%zz", "two hex digits"),
        ("x=%ff", "not UTF-8"),
        ("%ff=1", "not UTF-8"),
    ],
)
def test_forms_that_are_refused_with_the_reason(body: str, reason: str) -> None:
    with pytest.raises(InvalidNotify, match=reason) as refused:
        parsed(body)
    assert refused.value.status == 400


def test_a_form_has_a_bounded_number_of_urls() -> None:
    body = "&".join(f"x{number}={A}" for number in range(3))
    assert len(parsed(body, urls_max=3)[1]) == 3
    with pytest.raises(InvalidNotify, match="at most 2"):
        parsed(body, urls_max=2)
    with pytest.raises(InvalidNotify, match="at most 3"):
        parsed(f"{body}&surl={A}", urls_max=3)


@pytest.mark.parametrize(
    "text",
    [
        "application/x-www-form-urlencoded",
        "Application/X-WWW-Form-URLEncoded",
        "application/x-www-form-urlencoded; charset=UTF-8",
        'application/x-www-form-urlencoded;charset="utf-8"',
    ],
)
def test_forms_are_taken(text: str) -> None:
    check_form_type(text)


@pytest.mark.parametrize(
    "text",
    [None, "", "application/json", "multipart/form-data; boundary=x", "text/plain",
     "application/x-www-form-urlencoded; charset=latin-1"],
)  # fmt: skip
def test_anything_else_is_unsupported(text: str | None) -> None:
    with pytest.raises(UnsupportedType) as refused:
        check_form_type(text)
    assert refused.value.status == 415


def test_what_is_written_is_what_is_read() -> None:
    surl = "https://a.example/t?x=1&y=%20"
    assert parsed(form(surl, (("changed", B),)).decode()) == (surl, [("changed", B)], [])


BODY, NOW = b"surl=https://a.example/t", 1_800_000_000


def test_a_signature_is_the_hmac_of_time_and_body() -> None:
    import hashlib
    import hmac

    digest = hmac.new(b"secret", b"1800000000." + BODY, hashlib.sha256).hexdigest()
    assert sign("secret", BODY, NOW) == f"t=1800000000,v1={digest}"
    check_signature("secret", BODY, sign("secret", BODY, NOW), NOW)
    check_signature("secret", BODY, sign("secret", BODY, NOW), NOW + 300)
    check_signature("secret", BODY, sign("secret", BODY, NOW), NOW - 300)


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "junk",
        "t=1800000000,v1=" + "0" * 64,
        sign("other", BODY, NOW),
        sign("secret", BODY + b"&x=y", NOW),
        sign("secret", BODY, NOW - 301),
        sign("secret", BODY, NOW + 301),
        sign("secret", BODY, NOW).replace("t=1800000000", "t=1800000001"),
        sign("secret", BODY, NOW).upper(),
    ],
)
def test_other_signatures_are_refused(header: str | None) -> None:
    with pytest.raises(PenstockError) as refused:
        check_signature("secret", BODY, header, NOW)
    assert isinstance(refused.value, Unauthorized)
