"""The text of a token: made at random, read back, and told from a mistyped one."""

from __future__ import annotations

import hashlib
import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.token_text import (
    SECRET_CHARACTERS,
    TokenText,
    is_token_id,
    new_token,
    parse_token,
)


def test_a_token_is_read_back() -> None:
    token = new_token()
    assert token.text.startswith(f"pst_{token.id}_{token.secret}")
    assert parse_token(token.text) == token
    assert token.digest == hashlib.sha256(token.secret.encode()).hexdigest()


def test_a_secret_has_at_least_192_bits_and_comes_once() -> None:
    assert SECRET_CHARACTERS * math.log2(62) >= 192
    assert len({new_token().secret for _ in range(1000)}) == 1000
    assert set("".join(new_token().secret for _ in range(500))) == set(
        string.digits + string.ascii_letters
    )


def test_a_token_needs_no_escaping_anywhere() -> None:
    assert all(c.isascii() and (c.isalnum() or c == "_") for c in new_token().text)


@given(st.integers(0), st.sampled_from(string.printable + "é\0"))
def test_a_mistyped_token_is_none(at: int, character: str) -> None:
    text = TokenText("abcdefghjk", "s" * SECRET_CHARACTERS).text
    at %= len(text)
    changed = text[:at] + character + text[at + 1 :]
    assert (parse_token(changed) is not None) is (changed == text)


@pytest.mark.parametrize("cut", [0, 3, 4, 14, 15, 55, 60])
def test_a_token_that_is_cut_off_or_too_long_is_none(cut: int) -> None:
    text = new_token().text
    assert parse_token(text[:cut]) is None
    assert parse_token(text + "a") is None
    assert parse_token(text + "\n") is None


def test_ids_are_told_from_other_texts() -> None:
    assert is_token_id(new_token().id)
    assert not is_token_id("../../etc")
    assert not is_token_id("")
