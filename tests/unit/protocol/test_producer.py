from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import EpochStart, PenstockError, SequenceGap, StaleEpoch
from penstock.protocol.headers import Producer
from penstock.protocol.producer import Accept, Duplicate, ProducerState, decide

S = ProducerState


@pytest.mark.parametrize(
    ("state", "epoch", "seq", "expected"),
    [
        (None, 0, 0, Accept(S(0, 0))),
        (None, 5, 0, Accept(S(5, 0))),
        (S(0, 0), 0, 1, Accept(S(0, 1))),
        (S(3, 41), 3, 42, Accept(S(3, 42))),
        (S(3, 41), 4, 0, Accept(S(4, 0))),
        (S(3, 41), 9, 0, Accept(S(9, 0))),
        (S(3, 41), 3, 41, Duplicate(S(3, 41))),
        (S(3, 41), 3, 7, Duplicate(S(3, 41))),
        (S(3, 41), 3, 0, Duplicate(S(3, 41))),
        (S(0, 0), 0, 0, Duplicate(S(0, 0))),
    ],
)
def test_accepted_and_duplicate_requests(
    state: ProducerState | None, epoch: int, seq: int, expected: Accept | Duplicate
) -> None:
    decision = decide(state, Producer("p", epoch, seq))
    assert decision == expected
    assert type(decision) is type(expected)


@pytest.mark.parametrize(
    ("state", "epoch", "seq", "error", "headers"),
    [
        (S(3, 41), 2, 42, StaleEpoch, {"Producer-Epoch": "3"}),
        (S(3, 41), 0, 0, StaleEpoch, {"Producer-Epoch": "3"}),
        (S(3, 41), 4, 1, EpochStart, {}),
        (S(3, 41), 4, 42, EpochStart, {}),
        (
            None,
            0,
            1,
            SequenceGap,
            {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "1"},
        ),
        (
            None,
            7,
            3,
            SequenceGap,
            {"Producer-Expected-Seq": "0", "Producer-Received-Seq": "3"},
        ),
        (
            S(3, 41),
            3,
            43,
            SequenceGap,
            {"Producer-Expected-Seq": "42", "Producer-Received-Seq": "43"},
        ),
    ],
)
def test_refused_requests_carry_the_headers_to_recover(
    state: ProducerState | None,
    epoch: int,
    seq: int,
    error: type[PenstockError],
    headers: dict[str, str],
) -> None:
    with pytest.raises(error) as caught:
        decide(state, Producer("p", epoch, seq))
    assert type(caught.value) is error
    assert caught.value.headers == headers


SMALL = st.integers(min_value=0, max_value=3)


@given(st.lists(st.tuples(SMALL, SMALL), max_size=30))
def test_accepted_requests_are_gapless_and_never_repeat(requests: list[tuple[int, int]]) -> None:
    state: ProducerState | None = None
    accepted: list[tuple[int, int]] = []
    for epoch, seq in requests:
        try:
            decision = decide(state, Producer("p", epoch, seq))
        except PenstockError:
            continue
        if isinstance(decision, Accept):
            accepted.append((epoch, seq))
        state = decision.state
    assert accepted == sorted(set(accepted))
    assert all(seq == 0 or (epoch, seq - 1) in accepted for epoch, seq in accepted)
