"""RFC 3339: which texts are times, and which moment each is."""

from __future__ import annotations

import pytest

from penstock.protocol.timestamps import is_rfc3339, unix_us

DAY_US = 86_400 * 1_000_000
DAYS_TO_YEAR_1 = 719_162  # from 0001-01-01 to 1970-01-01


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1970-01-01T00:00:00Z", 0),
        ("1970-01-01t00:00:00.000001z", 1),
        ("1969-12-31T23:59:59.9999999Z", -1),
        ("1970-01-01T02:00:00+02:00", 0),
        ("1970-01-01T00:00:00-23:59", DAY_US - 60_000_000),
        ("2016-12-31T23:59:60Z", 17167 * DAY_US),
        ("2017-01-01T01:59:60+02:00", 17167 * DAY_US),
        ("0001-01-01T00:00:00Z", -DAYS_TO_YEAR_1 * DAY_US),
        ("0000-12-31T00:00:00Z", -(DAYS_TO_YEAR_1 + 1) * DAY_US),
        ("0000-02-29T00:00:00Z", -(DAYS_TO_YEAR_1 + 307) * DAY_US),
    ],
)
def test_a_time_is_a_moment(text: str, us: int) -> None:
    assert is_rfc3339(text)
    assert unix_us(text) == us


@pytest.mark.parametrize(
    "text",
    ["", "1970-01-01", "1970-01-01T00:00:00", "1970-02-29T00:00:00Z", "1900-02-29T00:00:00Z",
     "1970-04-31T00:00:00Z", "1970-00-01T00:00:00Z", "1970-01-01T24:00:00Z",
     "1970-01-01T12:00:60Z", "1970-01-01T23:59:60+02:00", "1970-01-01T00:00:00.Z",
     "1970-01-01T00:00:00+24:00", "1970-01-01T00:00:00Z "],
)  # fmt: skip
def test_anything_else_is_none(text: str) -> None:
    assert not is_rfc3339(text)
    assert unix_us(text) is None
