"""What patterns match, as one table: for the rules, and for everything that takes patterns."""

from __future__ import annotations

TABLE = [
    # pattern, path, matches
    ("a", "a", True),
    ("a", "a/b", False),
    ("a/b", "a/b", True),
    ("*", "a", True),
    ("*", "orders-eu", True),
    ("*", "a/b", False),
    ("a/*", "a/b", True),
    ("a/*", "a", False),
    ("a/*", "a/b/c", False),
    ("a/*", "b/a", False),
    ("a/*/c", "a/b/c", True),
    ("a/*/c", "a/c", False),
    # text around a star
    ("orders-*", "orders-eu", True),
    ("orders-*", "orders-", True),
    ("orders-*", "orders", False),
    ("orders-*", "orders-eu/x", False),
    ("orders-*", "my/orders-eu", False),
    ("*-eu", "orders-eu", True),
    ("*-eu", "orders-eu2", False),
    ("*-eu", "-eu", True),
    ("a*b*c", "abc", True),
    ("a*b*c", "axxbxxc", True),
    ("a*b*c", "abcbc", True),
    ("a*b*c", "acb", False),
    ("a*b*c", "ab", False),
    ("aa*aa", "aaa", False),
    ("aa*aa", "aaaa", True),
    ("shop/orders-*/x", "shop/orders-eu/x", True),
    ("shop/orders-*/x", "shop/orders-eu", False),
    ("shop/or*/**", "shop/orders-eu/x", True),
    ("shop/or*/**", "shop/orders-eu", True),
    ("shop/or*/**", "shop", False),
    # any depth, also none
    ("**", "a", True),
    ("**", "a/b/c", True),
    ("shop/**", "shop", True),
    ("shop/**", "shop/a", True),
    ("shop/**", "shop/a/b/c", True),
    ("shop/**", "shopping", False),
    ("shop/**", "my/shop", False),
    ("**/c", "c", True),
    ("**/c", "a/b/c", True),
    ("**/c", "a/bc", False),
    ("**/c", "c/a", False),
    ("a/**/c", "a/c", True),
    ("a/**/c", "a/b/c", True),
    ("a/**/c", "a/b/b/c", True),
    ("a/**/c", "a", False),
    ("a/**/c", "a/c/a", False),
    ("*/**", "a", True),
    ("*/**", "a/b", True),
    ("**/*-eu", "shop/a/orders-eu", True),
    ("**/*-eu", "orders-eu/x", False),
    ("**/a/**", "a", True),
    ("**/a/**", "shop/a/b/c", True),
    ("**/a/**", "shop", False),
    # characters that mean something elsewhere
    ("a.c", "abc", False),
    ("a+*", "a+b", True),
    ("a+*", "aab", False),
    ("a%3F*", "a%3Fb", True),
    ("a%3F*", "axb", False),
    ("a%2A*", "a%2Ab", True),
    ("a%2A*", "axb", False),
    ("%61/*", "a/b", True),
    ("/a/*/", "a/b", True),
]

PATTERNS = list(dict.fromkeys(pattern for pattern, _, _ in TABLE))
PATHS = sorted({path for _, path, _ in TABLE})

BAD = [
    # text, what the error says of it
    ("a/b**", "whole segment"),
    ("***", "whole segment"),
    ("a/**b/*", "whole segment"),
    ("orders-?/*", "no wildcard"),
    ("orders-[ab]*", "no wildcard"),
    ("{a,b}/*", "no wildcard"),
    ("a b/*", "a space"),
    ("größe/*", "percent-encoded"),
    ("a%zz/*", "two hex digits"),
    ("a//*", "empty segment"),
    ("a/../*", '".."'),
    ("/".join(["*"] * 65), "at most 64 segments"),
    ("**/a/**/a/**/a/**/a/**", "at most 4 times"),
]


def expected(pattern: str) -> dict[str, bool]:
    """What the table says of a pattern, by path."""
    return {path: is_match for each, path, is_match in TABLE if each == pattern}
