from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.cursor import EPOCH, INTERVAL_S, next_cursor

START_S = EPOCH.timestamp()


def most(low: int, high: int) -> int:
    assert (low, high) == (1, 3600)
    return high


def least(low: int, high: int) -> int:
    return low


def test_epoch_is_the_protocols() -> None:
    assert EPOCH.isoformat() == "2024-10-09T00:00:00+00:00"
    assert INTERVAL_S == 20


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [(0, "0"), (19.999, "0"), (20, "1"), (39.9, "1"), (20_000, "1000"), (-500, "0")],
)
def test_cursor_is_the_number_of_the_interval(seconds: float, expected: str) -> None:
    assert next_cursor(START_S + seconds, None, least) == expected


@pytest.mark.parametrize(
    ("client", "least_expected", "most_expected"),
    [
        ("0", "1000", "1000"),
        ("999", "1000", "1000"),
        ("1000", "1001", "1180"),
        ("1001", "1002", "1181"),
        ("5000", "5001", "5180"),
        ("0001000", "1001", "1180"),
    ],
)
def test_cursor_moves_past_the_clients(
    client: str, least_expected: str, most_expected: str
) -> None:
    now_s = START_S + 20_000
    assert next_cursor(now_s, client, least) == least_expected
    assert next_cursor(now_s, client, most) == most_expected


@pytest.mark.parametrize(
    "client",
    ["", "abc", "-5", "+5000", "5000.0", "5e3", " 5000", "٥٠٠٠", str(2**53), "9" * 400, "\r\n"],
)
def test_junk_and_absurd_cursors_are_ignored(client: str) -> None:
    assert next_cursor(START_S + 20_000, client, most) == "1000"


@given(
    st.floats(min_value=0, max_value=4e9),
    st.integers(min_value=0, max_value=2**53 - 1),
    st.integers(min_value=1, max_value=3600),
)
def test_cursor_is_always_greater_than_the_one_sent(now_s: float, sent: int, jitter: int) -> None:
    assert int(next_cursor(now_s, str(sent), lambda low, high: jitter)) > sent
