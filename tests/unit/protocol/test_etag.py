from __future__ import annotations

import pytest

from penstock.protocol import etag

TAG = etag.make(7, 0, 120, False)


def test_tag_names_stream_and_range() -> None:
    assert TAG == '"7:0:120"'


def test_closing_changes_the_tag() -> None:
    assert etag.make(7, 0, 120, True) == '"7:0:120:c"'


@pytest.mark.parametrize(
    "if_none_match",
    [
        '"7:0:120"',
        'W/"7:0:120"',
        "*",
        " * ",
        '"x", "7:0:120"',
        '"x","7:0:120","y"',
        '"x" , W/"7:0:120"',
        '"a, b", "7:0:120"',
        ', "7:0:120",',
    ],
)
def test_tag_is_found(if_none_match: str) -> None:
    assert etag.matches(if_none_match, TAG)


@pytest.mark.parametrize(
    "if_none_match",
    [
        "",
        '"x"',
        "7:0:120",
        '"7:0:120:c"',
        '"7:0:1200"',
        '"17:0:120"',
        'w/"7:0:120"',
        '"*"',
        '"7:0,:120"',
        'W/W/"7:0:120"',
    ],
)
def test_other_tags_do_not_match(if_none_match: str) -> None:
    assert not etag.matches(if_none_match, TAG)
