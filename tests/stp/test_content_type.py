"""`text/sequence` with schema and version, and which Accept headers take it."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidContentType
from penstock.stp.content_type import (
    SequenceType,
    accepts,
    format_content_type,
    is_schema_id,
    parse_content_type,
)


def test_the_content_type_is_spelled_as_in_the_text() -> None:
    spelled = "text/sequence; charset=utf-8; schema=endpoint_manifest; version=1"
    assert format_content_type("endpoint_manifest", 1) == spelled
    assert format_content_type("e", 2, escape=True).endswith("; version=2; escape=backslash")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("text/sequence; charset=utf-8; schema=a.b-c; version=3", SequenceType("a.b-c", 3)),
        ('Text/Sequence;VERSION=3 ; Schema="a\\"b";charset=UTF-8', SequenceType('a"b', 3)),
        ("text/sequence", SequenceType(None, None)),
        ("text/sequence; escape=backslash", SequenceType(None, None, escape=True)),
    ],
)
def test_a_content_type_is_read(text: str, found: SequenceType) -> None:
    assert parse_content_type(text) == found


@pytest.mark.parametrize(
    "text",
    [
        "", "text/plain", "application/json", "text/sequence; charset=latin-1",
        "text/sequence; version=x", "text/sequence; escape=percent",
    ],
)  # fmt: skip
def test_what_is_not_rows_is_refused(text: str) -> None:
    with pytest.raises(InvalidContentType):
        parse_content_type(text)


@pytest.mark.parametrize(
    ("accept", "taken"),
    [
        (None, True),
        ("", True),
        ("*/*", True),
        ("text/*", True),
        ("text/sequence", True),
        ("text/sequence; charset=utf-8; schema=s; version=1", True),
        ("TEXT/SEQUENCE; schema=s", True),
        ('text/sequence; schema="s"; version="01"', True),
        ("application/json, text/sequence;q=0.5", True),
        ("text/html, */*;q=0.1", True),
        ("text/sequence; schema=other, text/sequence; schema=s", True),
        ("text/sequence; schema=other", False),
        ("text/sequence; version=2", False),
        ("text/sequence; schema=s; version=2", False),
        ("text/sequence; charset=latin-1", False),
        ("application/json", False),
        ("image/*", False),
        ("text/sequence; q=0", False),
        ("*/*, text/sequence; q=0", False),
        ("text/*;q=0, text/sequence;q=0.1", True),
        ("text/sequence; q=junk", False),
        ("*/*;q=0", False),
    ],
)
def test_accept_takes_the_table_or_not(accept: str | None, taken: bool) -> None:
    assert accepts(accept, "s", 1) is taken


@pytest.mark.parametrize(
    ("text", "good"),
    [("endpoint_manifest", True), ("a", True), ("a.b-c_1", True), ("", False), ("-a", False),
     ("a.", False), ("a b", False), ("a;b", False), ("é", False), ("x" * 129, False)],
)  # fmt: skip
def test_schema_ids_need_no_quotes(text: str, good: bool) -> None:
    assert is_schema_id(text) is good
