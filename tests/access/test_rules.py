"""Rules of access: what a text means, what a set of rules allows, and what covers what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.access.principal import ROOT, Principal
from penstock.access.rules import EVERYTHING, NOTHING, Rules, Verb, parse_rule, parse_rules
from penstock.errors import InvalidRule
from penstock.protocol.globs import covers, matches


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("read:chat/42/**", "read:chat/42/**"),
        (" append:chat/42/in ", "append:chat/42/in"),
        ("*:team/**", "*:team/**"),
        ("read:caf%c3%a9", "read:caf%C3%A9"),
        ("read:/a/", "read:a"),
        ("list:__ds/metrics", "list:__ds/metrics"),
    ],
)
def test_a_rule_is_a_verb_and_a_pattern(text: str, shown: str) -> None:
    assert str(parse_rule(text)) == shown


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "is no rule"),
        ("read", "is no rule"),
        ("read:", "is no rule"),
        ("reed:a", "is no verb"),
        ("READ:a", "is no verb"),
        (":a", "is no verb"),
        ("read:a**", "is a whole segment"),
        ("read:a?", "is no wildcard"),
        ("read:../a", "is no pattern"),
    ],
)
def test_another_text_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(InvalidRule, match=reason):
        parse_rule(text)


@pytest.mark.parametrize(
    ("rule", "verb", "path", "allowed"),
    [
        ("read:chat/42/**", Verb.READ, "chat/42", True),
        ("read:chat/42/**", Verb.READ, "chat/42/in/x", True),
        ("read:chat/42/**", Verb.READ, "chat/421", False),
        ("read:chat/42/**", Verb.APPEND, "chat/42", False),
        ("read:chat/*", Verb.READ, "chat/a", True),
        ("read:chat/*", Verb.READ, "chat/a/b", False),
        ("*:a", Verb.DELETE, "a", True),
        ("read:**", Verb.READ, "a/b", True),
        ("read:**", Verb.READ, "__ds/metrics", False),
        ("*:**", Verb.READ, "__ds/metrics", False),
        ("read:__ds/metrics", Verb.READ, "__ds/metrics", True),
        ("*:__ds/**", Verb.ADMIN, "__ds/tokens", True),
        ("read:*/metrics", Verb.READ, "__ds/metrics", False),
    ],
)
def test_a_rule_allows_what_it_says_and_nothing_else(
    rule: str, verb: Verb, path: str, allowed: bool
) -> None:
    rules = parse_rules([rule])
    assert rules.may(verb, path) is allowed
    assert rules.may(verb, path) is allowed  # as remembered


def test_without_a_rule_nothing_is_allowed() -> None:
    assert not any(NOTHING.may(verb, "a") or NOTHING.may_somewhere(verb) for verb in Verb)
    assert all(EVERYTHING.may(verb, path) for verb in Verb for path in ("a/b", "__ds/tokens"))
    assert ROOT.may(Verb.ADMIN, "__ds/tokens")


def test_decisions_that_are_remembered_are_bounded() -> None:
    rules = parse_rules(["read:a/*"])
    assert all(rules.may(Verb.READ, f"a/{number}") for number in range(10_000))
    assert len(rules._decided) <= 256


def test_the_number_of_rules_is_bounded() -> None:
    with pytest.raises(InvalidRule, match="at most 256"):
        parse_rules(f"read:a{number}" for number in range(257))


@pytest.mark.parametrize(
    ("pattern", "other", "covered"),
    [
        ("a/**", "a/b/*", True),
        ("a/**", "a", True),
        ("a/**", "a/**", True),
        ("a/*", "a/**", False),
        ("a/*", "a/b*", True),
        ("a/b*", "a/*", False),
        ("**", "**/a", True),
        ("*/a", "**/a", False),
        ("a/**/z", "a/b/**/z", True),
        ("a/**/z", "a/b/**", False),
        ("a*c", "ab*c", True),
        ("a*c", "a*", False),
    ],
)
def test_a_pattern_covers_another(pattern: str, other: str, covered: bool) -> None:
    assert covers(pattern, other) is covered


segments = st.sampled_from(["a", "b", "ab", "*", "a*", "*b", "a*b", "**"])
patterns = st.lists(segments, min_size=1, max_size=4).map("/".join)
paths = st.lists(st.sampled_from(["a", "b", "ab", "aab", "axb"]), min_size=1, max_size=5).map(
    "/".join
)


@given(pattern=patterns, other=patterns, path=paths)
def test_what_is_covered_is_matched(pattern: str, other: str, path: str) -> None:
    if covers(pattern, other) and matches(other, path):
        assert matches(pattern, path)


def test_a_principal_passes_on_no_more_than_it_has() -> None:
    principal = Principal("a", parse_rules(["*:team/**", "read:shared/*"]))
    assert principal.covers_rules(parse_rules(["read:team/x/**", "append:team/in"]))
    assert principal.covers_rules(parse_rules(["read:shared/x", "*:team/a"]))
    assert not principal.covers_rules(parse_rules(["read:**"]))
    assert not principal.covers_rules(parse_rules(["*:shared/x"]))
    assert not principal.covers_rules(parse_rules(["read:__ds/metrics"]))
    assert principal.covers_rules(Rules())
