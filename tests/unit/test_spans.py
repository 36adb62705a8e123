"""Which messages of the log are read together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.log.spans import Span, spans


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], []),
        ([(0, 10)], [Span(0, 1, 0, 10)]),
        ([(0, 10), (10, 10)], [Span(0, 2, 0, 20)]),  # next to each other
        ([(0, 10), (15, 5)], [Span(0, 2, 0, 20)]),  # a gap of 5 is read along
        ([(0, 10), (16, 5)], [Span(0, 1, 0, 10), Span(1, 2, 16, 21)]),  # one of 6 is not
        ([(0, 60), (60, 40)], [Span(0, 2, 0, 100)]),  # as long as a span may be
        ([(0, 60), (60, 41)], [Span(0, 1, 0, 60), Span(1, 2, 60, 101)]),
        ([(0, 500), (500, 1)], [Span(0, 1, 0, 500), Span(1, 2, 500, 501)]),  # one long message
        ([(7, 3), (90, 9), (99, 9)], [Span(0, 1, 7, 10), Span(1, 3, 90, 108)]),
    ],
)
def test_neighbours_are_read_together(
    messages: list[tuple[int, int]], expected: list[Span]
) -> None:
    positions, lengths = [at for at, _ in messages], [length for _, length in messages]
    assert list(spans(positions, lengths, span_bytes_max=100, gap_bytes_max=5)) == expected


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 80)), max_size=40))
def test_spans_hold_every_message_once_within_the_bounds(steps: list[tuple[int, int]]) -> None:
    positions: list[int] = []
    lengths: list[int] = []
    at = 0
    for gap, length in steps:
        positions.append(at + gap)
        lengths.append(length)
        at += gap + length
    parts = list(spans(positions, lengths, span_bytes_max=100, gap_bytes_max=10))
    assert [index for part in parts for index in range(part.first, part.stop)] == list(
        range(len(positions))
    )
    for part in parts:
        assert part.start == positions[part.first]
        assert part.end == positions[part.stop - 1] + lengths[part.stop - 1]
        assert part.end - part.start <= 100 or part.stop - part.first == 1
        for index in range(part.first + 1, part.stop):
            assert positions[index] - positions[index - 1] - lengths[index - 1] <= 10
