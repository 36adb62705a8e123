"""Patterns: a table of what matches, a naive definition, and rules and an index that agree."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import InvalidPath
from penstock.protocol.globs import (
    PatternIndex,
    is_pattern,
    listing,
    literal_prefix,
    matches,
    parse_pattern,
)
from tests.helpers.patterns import BAD, PATHS, PATTERNS, TABLE


def naive(pattern: list[str], path: list[str]) -> bool:
    """The definition, written down without a thought of cost."""
    if not pattern:
        return not path
    if pattern[0] == "**":
        return naive(pattern[1:], path) or (bool(path) and naive(pattern, path[1:]))
    return bool(path) and naive_text(pattern[0], path[0]) and naive(pattern[1:], path[1:])


def naive_text(pattern: str, text: str) -> bool:
    if not pattern:
        return not text
    if pattern[0] == "*":
        return naive_text(pattern[1:], text) or (bool(text) and naive_text(pattern, text[1:]))
    return bool(text) and pattern[0] == text[0] and naive_text(pattern[1:], text[1:])


SEGMENTS = st.text("ab*", min_size=1, max_size=6)
PATHS_DRAWN = st.lists(SEGMENTS, min_size=1, max_size=6).map("/".join)
PATTERNS_DRAWN = (
    st.lists(
        st.one_of(
            SEGMENTS.filter(lambda segment: "**" not in segment), st.sampled_from(["*", "**"])
        ),
        min_size=1,
        max_size=6,
    )
    .filter(lambda segments: segments.count("**") <= 4)
    .map("/".join)
)


@pytest.mark.parametrize(("pattern", "path", "is_match"), TABLE)
def test_what_a_pattern_matches(pattern: str, path: str, is_match: bool) -> None:
    assert matches(parse_pattern(pattern), path) is is_match


def test_the_table_has_canonical_paths_and_both_answers_for_most_patterns() -> None:
    assert all("*" in path or parse_pattern(path) == path for path in PATHS)
    answers = {pattern: {each[2] for each in TABLE if each[0] == pattern} for pattern in PATTERNS}
    assert sum(len(each) == 2 for each in answers.values()) > len(PATTERNS) / 2


@given(pattern=PATTERNS_DRAWN, path=PATHS_DRAWN)
def test_the_rule_agrees_with_the_definition(pattern: str, path: str) -> None:
    assert parse_pattern(pattern) == pattern
    is_match = naive(pattern.split("/"), path.split("/"))
    assert matches(pattern, path) is is_match
    if is_match:
        prefix, exact = listing(pattern)
        assert path.startswith(prefix) or path == exact
        assert path.startswith(literal_prefix(pattern))


@given(
    patterns=st.lists(PATTERNS_DRAWN, max_size=12),
    removed=st.sets(st.integers(0, 11)),
    paths=st.lists(PATHS_DRAWN, max_size=6),
)
def test_the_index_agrees_with_the_rule_while_patterns_come_and_go(
    patterns: list[str], removed: set[int], paths: list[str]
) -> None:
    index: PatternIndex[int] = PatternIndex()
    for number, pattern in enumerate(patterns):
        index.add(pattern, number)
    for number in removed & set(range(len(patterns))):
        index.remove(patterns[number], number)
    left = {number: each for number, each in enumerate(patterns) if number not in removed}
    for path in [*paths, *left.values()]:
        assert sorted(index.find(path)) == [n for n, each in left.items() if matches(each, path)]
    for number, pattern in left.items():
        index.remove(pattern, number)
    assert index._root.children == {}
    assert index._root.partial is None


def test_the_index_agrees_with_the_table() -> None:
    index: PatternIndex[str] = PatternIndex()
    for pattern in PATTERNS:
        index.add(parse_pattern(pattern), pattern)
    for pattern, path, is_match in TABLE:
        assert (pattern in index.find(path)) is is_match, (pattern, path)


def test_a_value_with_several_patterns_is_found_once() -> None:
    index: PatternIndex[int] = PatternIndex()
    for pattern in ("**", "a", "a*", "*a"):
        index.add(pattern, 1)
    assert list(index.find("a")) == [1]


@pytest.mark.parametrize(("text", "reason"), BAD)
def test_a_bad_pattern_is_named_with_what_is_wrong(text: str, reason: str) -> None:
    with pytest.raises(InvalidPath) as error:
        parse_pattern(text)
    assert error.value.detail.startswith(f"{text[:100]!r} is no pattern: ")
    assert reason in error.value.detail


def test_what_is_no_text_at_all_is_refused_as_well() -> None:
    for bad in ("", "/", "\ud800/*"):
        with pytest.raises(InvalidPath, match="is no pattern"):
            parse_pattern(bad)


@pytest.mark.parametrize(
    ("pattern", "prefix", "exact"),
    [
        ("a/b", "a/b", None),
        ("a/*", "a/", None),
        ("shop/or*/x", "shop/or", None),
        ("shop/**", "shop/", "shop"),
        ("shop/**/**", "shop/", "shop"),
        ("shop/**/x", "shop/", None),
        ("**", "", None),
        ("*-eu", "", None),
    ],
)
def test_only_what_can_match_is_listed(pattern: str, prefix: str, exact: str | None) -> None:
    assert listing(pattern) == (prefix, exact)
    assert literal_prefix(pattern) == (prefix if exact is None else exact)
    assert is_pattern(pattern) is ("*" in pattern)


@pytest.mark.parametrize(
    "shape",
    ["tenant-{}-*/x", "*-tenant-{}/x", "t*-{}-eu/x", "tenant-{}/*/x", "tenant-{}/or*/x", "t/{}*"],
)
def test_a_lookup_looks_at_few_of_many_patterns(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counted, not timed: how often a segment of a pattern is compared with one of the path."""
    from penstock.protocol import globs

    index: PatternIndex[int] = PatternIndex()
    for number in range(10_000):
        index.add(shape.format(number), number)
    compared: list[str] = []
    fits = globs._Part.fits

    def counted(part: globs._Part, segment: str) -> bool:
        compared.append(part.text)
        return fits(part, segment)

    monkeypatch.setattr(globs._Part, "fits", counted)
    assert 4321 in index.find(shape.format(4321).replace("*", "yy"))
    assert len(compared) < 20


def test_patterns_made_to_be_slow_are_not() -> None:
    path = "/".join(["a" * 60] * 16)
    started = time.process_time()
    for pattern in ("**/a/**/a/**/a/**/b", "/".join(["*a" * 29 + "b"] * 16), "*a" * 500 + "b"):
        assert not matches(parse_pattern(pattern), path)
    assert time.process_time() - started < 1
