"""Patterns of stream names."""

from __future__ import annotations

import pytest

from penstock.spark.patterns import is_pattern, literal_prefix, matches


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("a/*", "a/b", True),
        ("a/*", "a/b/c", False),
        ("a/**", "a/b/c", True),
        ("a/**", "a", False),
        ("**", "a/b", True),
        ("**/c", "c", True),
        ("**/c", "a/b/c", True),
        ("**/c", "a/bc", False),
        ("a/**/c", "a/c", True),
        ("a/**/c", "a/x/y/c", True),
        ("a?c", "abc", True),
        ("a?c", "a/c", False),
        ("a.c", "abc", False),
        ("a+*", "a+b", True),
    ],
)
def test_a_pattern_fits(pattern: str, path: str, fits: bool) -> None:
    assert matches(pattern, path) is fits


def test_only_what_can_match_is_listed() -> None:
    assert literal_prefix("shop/or*/x") == "shop/or"
    assert literal_prefix("**") == ""
    assert is_pattern("a/?")
    assert not is_pattern("a/b")
    assert not is_pattern("http://h/a?b=c")
