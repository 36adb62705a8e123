"""Patterns: one table of what matches, and an index that agrees with it."""

from __future__ import annotations

import itertools

import pytest

from penstock.errors import InvalidPath
from penstock.protocol.globs import PatternIndex, literal_prefix, matches, parse_pattern

TABLE = [
    # pattern, paths it stands for, paths it does not stand for
    ("a", ["a"], ["b", "a/a"]),
    ("a/*", ["a/b", "a/a"], ["a", "a/b/c", "b/a"]),
    ("*", ["a", "b"], ["a/b"]),
    ("**", ["a", "a/b", "a/b/c"], []),
    ("a/**", ["a", "a/b", "a/b/c"], ["b", "b/a"]),
    ("**/b", ["b", "a/b", "a/a/b"], ["a", "b/a"]),
    ("a/**/b", ["a/b", "a/c/b", "a/c/c/b"], ["a", "b", "a/b/c"]),
    ("a/*/b", ["a/c/b"], ["a/b", "a/c/c/b"]),
    ("*/**", ["a", "a/b"], []),
    ("**/*", ["a", "a/b"], []),
    ("**/a/**", ["a", "b/a", "a/b", "b/a/b"], ["b", "b/b"]),
    ("a*", ["a*"], ["ab", "a"]),  # within a segment a star is a character
]
PATHS = ["/".join(path) for size in range(1, 5) for path in itertools.product("abc", repeat=size)]


def _by_definition(pattern: list[str], path: list[str]) -> bool:
    if not pattern:
        return not path
    if pattern[0] == "**":
        return _by_definition(pattern[1:], path) or (
            bool(path) and _by_definition(pattern, path[1:])
        )
    return bool(path) and pattern[0] in ("*", path[0]) and _by_definition(pattern[1:], path[1:])


@pytest.mark.parametrize(("pattern", "inside", "outside"), TABLE)
def test_what_a_pattern_stands_for(pattern: str, inside: list[str], outside: list[str]) -> None:
    assert [path for path in inside + outside if matches(pattern, path)] == inside


@pytest.mark.parametrize("pattern", ["a*", "a/*b", "a/**b/c", "***", "a/b-*-c"])
def test_a_star_within_a_segment_is_refused(pattern: str) -> None:
    with pytest.raises(InvalidPath, match="whole segments"):
        parse_pattern(pattern)


def test_rule_and_index_agree_with_the_definition() -> None:
    patterns = [pattern for pattern, _, _ in TABLE]
    index: PatternIndex[str] = PatternIndex()
    for pattern in patterns:
        index.add(pattern, pattern)
    for path in PATHS:
        wanted = {each for each in patterns if _by_definition(each.split("/"), path.split("/"))}
        assert {each for each in patterns if matches(each, path)} == wanted, path
        assert set(index.find(path)) == wanted, path
        assert all(path.startswith(literal_prefix(each)) for each in wanted), path


def test_what_is_removed_is_found_no_more_and_leaves_nothing_behind() -> None:
    index: PatternIndex[int] = PatternIndex()
    index.add("a/*", 1)
    index.add("a/*", 2)
    index.add("a/**", 1)
    index.remove("a/*", 1)
    assert set(index.find("a/b")) == {1, 2}
    index.remove("a/**", 1)
    assert set(index.find("a/b")) == {2}
    index.remove("a/*", 2)
    index.remove("no/such", 2)
    assert index._root.children == {}


def test_a_value_with_several_patterns_is_found_once() -> None:
    index: PatternIndex[int] = PatternIndex()
    index.add("**", 1)
    index.add("a", 1)
    assert list(index.find("a")) == [1]


def test_patterns_are_spelled_like_paths() -> None:
    assert parse_pattern("/events/%61/*/") == "events/a/*"
    for bad in ("", "a//b", "a/../b", "a b", "/".join(["a"] * 65), "**/a/**/a/**/a/**/a/**"):
        with pytest.raises(InvalidPath):
            parse_pattern(bad)
