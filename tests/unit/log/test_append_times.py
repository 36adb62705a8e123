"""The times of recent appends: exact while there is room for them, never too late after that."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from penstock.log.append_times import MARKS_MAX, UNKNOWN, AppendTimes


def filled(times_ms: list[int], *, since_ms: int = 0, start: int = 0) -> AppendTimes:
    """Appends of one byte each at these times."""
    times = AppendTimes(since_ms)
    for index, time_ms in enumerate(times_ms):
        if time_ms > times.last_ms:
            times.add(time_ms, start + index)
    return times


ascending = st.lists(st.integers(1, 50), max_size=60).map(sorted)


@given(ascending, st.integers(0, 60))
def test_a_time_leads_to_the_first_append_from_it_on(times_ms: list[int], asked_ms: int) -> None:
    times = filled(times_ms)
    expected = sum(time_ms < asked_ms for time_ms in times_ms)
    if asked_ms > times.last_ms:
        assert expected == len(times_ms), "the caller takes the tail"
    elif expected:
        assert times.seek(asked_ms) == expected
    else:
        assert times.seek(asked_ms) in (None, 0)


@given(st.integers(1, 9), st.integers(MARKS_MAX, MARKS_MAX * 20))
def test_many_marks_are_thinned_out_and_never_lead_too_far(step: int, appends: int) -> None:
    times_ms = [step * (n + 1) for n in range(appends)]
    times = filled(times_ms)
    assert times._times is not None
    assert len(times._times) <= MARKS_MAX
    for index in range(0, appends, 7):
        position = times.seek(times_ms[index])
        assert position is None or position <= index
        if index >= appends - MARKS_MAX // 2:
            assert position == index, "the last ones are exact"


def test_of_a_stream_whose_last_append_is_unknown_the_first_new_one_says_nothing_earlier() -> None:
    times = filled([100, 200], since_ms=UNKNOWN, start=40)
    assert times.seek(100) is None, "what is before may be of the same millisecond"
    assert times.seek(101) == 41
    assert times.seek(200) == 41
