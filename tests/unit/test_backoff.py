"""The one backoff: the waits it gives, as a table and for any parameters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.backoff import Backoff

PLAIN = Backoff(base_s=1, cap_s=60)
FULL = Backoff(base_s=0.1, cap_s=10, jitter=1)
HALF = Backoff(base_s=1, cap_s=10, jitter=0.5)
FIFTH = Backoff(base_s=1, cap_s=60, jitter=0.2)
TRIPLE = Backoff(base_s=1, cap_s=100, factor=3)
CONSTANT = Backoff(base_s=2, cap_s=60, factor=1)


@pytest.mark.parametrize(
    ("backoff", "attempt", "chance", "wait_s"),
    [
        # It doubles from the base up to the cap, however many failures there are.
        (PLAIN, 1, 0.5, 1),
        (PLAIN, 2, 0.5, 2),
        (PLAIN, 6, 0.5, 32),
        (PLAIN, 7, 0.5, 60),
        (PLAIN, 10_000, 0.5, 60),
        # Without jitter chance does not matter.
        (PLAIN, 3, 0.0, 4),
        (PLAIN, 3, 1.0, 4),
        # The clients: between nothing and all of it.
        (FULL, 1, 0.0, 0),
        (FULL, 1, 1.0, 0.1),
        (FULL, 4, 0.25, 0.2),
        # Notify and following: between half and all of it.
        (HALF, 1, 0.0, 0.5),
        (HALF, 1, 1.0, 1),
        (HALF, 9, 0.0, 5),
        # Webhooks: the last fifth is random, and the cap is a cap.
        (FIFTH, 1, 0.0, 0.8),
        (FIFTH, 1, 1.0, 1),
        (FIFTH, 1000, 0.0, 48),
        (FIFTH, 1000, 1.0, 60),
        # Other factors.
        (TRIPLE, 3, 0.0, 9),
        (TRIPLE, 6, 0.0, 100),
        (CONSTANT, 1, 0.0, 2),
        (CONSTANT, 10_000, 0.0, 2),
        # A base above the cap.
        (Backoff(base_s=5, cap_s=3), 1, 0.0, 3),
    ],
)
def test_the_wait_after_an_attempt(
    backoff: Backoff, attempt: int, chance: float, wait_s: float
) -> None:
    assert backoff.wait_s(attempt, chance) == pytest.approx(wait_s)


seconds = st.floats(0.001, 1e6)


@given(
    base_s=seconds,
    cap_s=seconds,
    factor=st.floats(1, 1e12),
    jitter=st.floats(0, 1),
    attempt=st.integers(1, 10_000),
    chance=st.floats(0, 1),
)
def test_waits_grow_and_stay_within_their_bounds(
    base_s: float, cap_s: float, factor: float, jitter: float, attempt: int, chance: float
) -> None:
    backoff = Backoff(base_s=base_s, cap_s=cap_s, factor=factor, jitter=jitter)
    shortest_s, longest_s = backoff.bounds_s(attempt)
    wait_s = backoff.wait_s(attempt, chance)
    assert 0 <= shortest_s <= longest_s <= cap_s
    assert wait_s == pytest.approx(min(max(wait_s, shortest_s), longest_s))
    assert shortest_s == pytest.approx(longest_s * (1 - jitter))
    assert longest_s <= backoff.bounds_s(attempt + 1)[1]
    assert backoff.bounds_s(1)[1] == min(base_s, cap_s)
