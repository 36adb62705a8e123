from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.protocol.json_values import decode_json, exact_integer


@pytest.fixture(params=[640, 4300])
def digits_max(request: pytest.FixtureRequest) -> Iterator[int]:
    """Python's own limit, at its strictest and at its default."""
    before = sys.get_int_max_str_digits()
    sys.set_int_max_str_digits(request.param)
    yield request.param
    sys.set_int_max_str_digits(before)


@pytest.mark.parametrize("length", [1, 511, 512, 513, 1024, 1025, 4300, 4301, 5000, 100_000])
def test_integers_of_any_length_are_exact(length: int, digits_max: int) -> None:
    nines = 10**length - 1
    assert exact_integer("9" * length) == nines
    assert exact_integer("-" + "9" * length) == -nines
    assert exact_integer("1" + "0" * (length - 1)) == 10 ** (length - 1)
    assert sys.get_int_max_str_digits() == digits_max


@given(st.integers(-(10**2500), 10**2500))
def test_integers_are_those_of_python(number: int) -> None:
    assert exact_integer(str(number)) == number


def test_values_that_decoders_disagree_on() -> None:
    value = decode_json('{"a": [1e400, -1e400, 0.%s], "a": "\\ud800"}' % ("1" * 5000))
    assert value == {"a": "\ud800"}, "the last of duplicate keys counts"
    assert decode_json("[1e400, -1e400, 0]") == [math.inf, -math.inf, 0]
    assert decode_json(f"[{'7' * 5000}, 1.5]") == [
        int("7" * 500) * (10**5000 - 1) // (10**500 - 1),
        1.5,
    ]
