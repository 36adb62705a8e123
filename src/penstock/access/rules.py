"""What somebody may do where: rules of a verb and a pattern of paths, and sets of rules.

Pure. Whatever no rule allows is denied. Resources of the server that belong to no stream have
paths below `__ds/`, such as `__ds/metrics`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Final, NamedTuple

from penstock import limits
from penstock.errors import InvalidPath, InvalidRule
from penstock.protocol.globs import ANY, covers, literal_prefix, matches, parse_pattern

EVERY: Final = "*"
"""Stands for every verb in the text of a rule."""
SERVER: Final = "__ds"
_SERVER_PREFIX: Final = f"{SERVER}/"

_DECIDED_MAX: Final = 256
"""Decisions that a set of rules remembers."""


class Verb(StrEnum):
    CREATE = "create"
    APPEND = "append"
    READ = "read"
    LIST = "list"
    DELETE = "delete"
    ADMIN = "admin"
    SUBSCRIBE = "subscribe"
    FOLLOW = "follow"


VERBS: Final = tuple(Verb)


class Rule(NamedTuple):
    """Allows a verb, or every one, on the paths that a pattern in canonical form matches."""

    verb: Verb | None
    pattern: str

    def __str__(self) -> str:
        return f"{self.verb or EVERY}:{self.pattern}"


def parse_rule(text: str) -> Rule:
    """Return the rule of a text such as `read:chat/42/**`; InvalidRule says what is wrong."""
    name, colon, pattern = text.strip().partition(":")
    if not colon or not pattern:
        raise InvalidRule(
            f"{text[:100]!r} is no rule. Write a verb and a pattern of paths, such as "
            "read:chat/42/** or append:logs/*."
        )
    if name != EVERY and name not in Verb.__members__.values():
        raise InvalidRule(
            f"{name[:100]!r} is no verb. Use one of {', '.join(VERBS)}, or {EVERY} for all of them."
        )
    try:
        return Rule(None if name == EVERY else Verb(name), parse_pattern(pattern))
    except InvalidPath as error:
        raise InvalidRule(error.detail) from None


def parse_rules(texts: Iterable[str]) -> Rules:
    """Return the set of rules of some texts."""
    return Rules(parse_rule(text) for text in texts)


class Rules:
    """An immutable set of rules that remembers its decisions."""

    __slots__ = ("_by_verb", "_decided", "all")

    def __init__(self, rules: Iterable[Rule] = ()) -> None:
        self.all: Final = tuple(dict.fromkeys(rules))
        if len(self.all) > limits.RULES_MAX:
            raise InvalidRule(
                f"There are {len(self.all)} rules, and at most {limits.RULES_MAX} may be together. "
                "Use patterns that match more."
            )
        self._by_verb: dict[Verb, tuple[str, ...]] = {
            verb: tuple(rule.pattern for rule in self.all if rule.verb in (None, verb))
            for verb in VERBS
        }
        self._decided: dict[tuple[Verb, str], bool] = {}

    def __bool__(self) -> bool:
        return bool(self.all)

    def may(self, verb: Verb, path: str) -> bool:
        """Whether the verb is allowed on the path."""
        decided = self._decided.get((verb, path))
        if decided is None:
            decided = any(_allows(pattern, path) for pattern in self._by_verb[verb])
            if len(self._decided) >= _DECIDED_MAX:
                self._decided.clear()
            self._decided[verb, path] = decided
        return decided

    def may_somewhere(self, verb: Verb) -> bool:
        """Whether there is a path on which the verb is allowed."""
        return bool(self._by_verb[verb])

    def may_any(self, path: str) -> bool:
        """Whether some verb is allowed on the path."""
        return any(self.may(verb, path) for verb in VERBS)

    def covers(self, verb: Verb, pattern: str) -> bool:
        """Whether one rule allows the verb on every path that the pattern can match.

        Several rules that do so only together do not count.
        """
        return any(
            covers(allowed, pattern) and _allows_server(allowed, pattern)
            for allowed in self._by_verb[verb]
        )

    def prefixes(self, verb: Verb) -> list[str]:
        """Return what the paths begin with on which the verb is allowed."""
        return sorted({literal_prefix(pattern) for pattern in self._by_verb[verb]})


def _allows(pattern: str, path: str) -> bool:
    return matches(pattern, path) and _allows_server(pattern, path)


def _allows_server(pattern: str, path: str) -> bool:
    """Whether a pattern means resources of the server where `path` is one.

    `read:**` is a right to all streams. Only a pattern that names `__ds` is one to the server.
    """
    if path != SERVER and not path.startswith(_SERVER_PREFIX):
        return True
    return pattern == SERVER or pattern.startswith(_SERVER_PREFIX)


EVERYTHING: Final = Rules([Rule(None, ANY), Rule(None, f"{SERVER}/{ANY}")])
NOTHING: Final = Rules()
