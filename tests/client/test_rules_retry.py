"""When a request is sent again, and after how long."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock import Retry
from penstock.client.retry import retry_after_s
from penstock.errors import (
    ClientClosed,
    ConnectionFailed,
    PenstockError,
    QuotaExceeded,
    ServerError,
    StreamNotFound,
    TooManyTokens,
)


def _failed(*, sent: bool, passing: bool = True) -> ConnectionFailed:
    error = ConnectionFailed("no answer")
    error.sent = sent
    error.passing = passing
    return error


def _status(status: int) -> PenstockError:
    error = ServerError("no")
    error.status = status
    return error


@pytest.mark.parametrize(
    ("error", "repeatable", "plain_append", "told_to"),
    [
        (_failed(sent=False), True, True, True),
        (_failed(sent=True), True, False, True),
        (_failed(sent=False, passing=False), False, False, False),
        (_status(429), True, True, True),
        (ClientClosed("no more"), False, False, False),
        (QuotaExceeded("full"), False, False, False),
        (TooManyTokens("full"), False, False, False),
        (_status(503), True, True, True),
        (_status(408), True, True, True),
        (_status(500), True, False, True),
        (_status(502), True, False, True),
        (_status(504), True, False, True),
        (_status(501), False, False, False),
        (StreamNotFound("no"), False, False, False),
    ],
)
def test_plain_append_is_repeated_only_if_it_was_certainly_not_done(
    error: PenstockError, repeatable: bool, plain_append: bool, told_to: bool
) -> None:
    assert Retry().applies(error, repeatable=True) is repeatable
    assert Retry().applies(error, repeatable=False) is plain_append
    assert Retry(resend_appends=True).applies(error, repeatable=False) is told_to


def test_pause_doubles_up_to_the_longest_with_full_jitter() -> None:
    drawn: list[tuple[float, float]] = []

    def jitter(low: float, high: float) -> float:
        drawn.append((low, high))
        return high

    retry = Retry(first_s=0.1, factor=2, max_s=1)
    pauses = [retry.pause_s(attempt, jitter=jitter) for attempt in (1, 2, 3, 4, 5, 5000)]
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1, 1])
    assert {low for low, _ in drawn} == {0.0}


@pytest.mark.parametrize(("asked", "waited"), [("3", 3.0), ("0", 0.0), ("3600", 10.0)])
def test_retry_after_is_waited_for_up_to_the_longest_pause(asked: str, waited: float) -> None:
    error = ServerError("later", Retry_After=asked)
    assert Retry(max_s=10).pause_s(1, error) == waited


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        ("1.5", 1.5),
        ("Thu, 01 Jan 2026 00:00:30 GMT", 30.0),
        ("Wed, 31 Dec 2025 23:59:00 GMT", 0.0),
        ("soon", None),
        ("-3", None),
        (None, None),
    ],
)
def test_retry_after_is_a_number_or_a_date(text: str | None, seconds: float | None) -> None:
    assert retry_after_s(text, datetime(2026, 1, 1, tzinfo=UTC)) == seconds


def test_attempts_are_limited_unless_told_otherwise() -> None:
    assert [Retry(attempts_max=3).exhausted(n) for n in (1, 2, 3)] == [False, False, True]
    assert not Retry(attempts_max=None).exhausted(10**6)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("attempts_max", {"attempts_max": 0}),
        ("first_s", {"first_s": 0}),
        ("first_s", {"first_s": -1}),
        ("max_s", {"max_s": -1}),
        ("max_s", {"first_s": 1, "max_s": 0.5}),
        ("factor", {"factor": 0.5}),
        ("first_s", {"first_s": float("nan")}),
    ],
)
def test_senseless_values_are_refused_by_name(name: str, options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=f"^{name} "):
        Retry(**options)  # type: ignore[arg-type]
