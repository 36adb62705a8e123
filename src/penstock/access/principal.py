"""Who sends a request, and what they may do."""

from __future__ import annotations

from math import inf
from typing import Final

from penstock.access.rules import EVERYTHING, NOTHING, Rule, Rules, Verb


class Principal:
    """One user of the server; requests with the same credentials share one.

    `until_s` is the time of the event loop at which it ends: a token that is revoked ends at once,
    and live responses with it. `id` is what limits are counted by. `is_link` says that the
    credential is part of the URL.
    """

    __slots__ = (
        "__weakref__",
        "id",
        "is_anonymous",
        "is_link",
        "is_root",
        "name",
        "rules",
        "until_s",
    )

    def __init__(
        self,
        name: str,
        rules: Rules,
        *,
        id: str = "",
        until_s: float = inf,
        is_root: bool = False,
        is_anonymous: bool = False,
    ) -> None:
        self.name = name
        self.id = id or name
        self.rules = rules
        self.until_s = until_s
        self.is_root = is_root
        self.is_anonymous = is_anonymous
        self.is_link = False

    def __repr__(self) -> str:
        return f"Principal({self.name!r}, {[str(rule) for rule in self.rules.all]})"

    def may(self, verb: Verb, path: str) -> bool:
        return self.is_root or self.rules.may(verb, path)

    def may_somewhere(self, verb: Verb) -> bool:
        return self.is_root or self.rules.may_somewhere(verb)

    def may_any(self, path: str) -> bool:
        return self.is_root or self.rules.may_any(path)

    def covers(self, verb: Verb, pattern: str) -> bool:
        return self.is_root or self.rules.covers(verb, pattern)

    def covers_rules(self, rules: Rules) -> bool:
        """Whether it may do all that some rules allow: what it can pass on to others."""
        return all(self._covers_rule(rule) for rule in rules.all)

    def _covers_rule(self, rule: Rule) -> bool:
        verbs = tuple(Verb) if rule.verb is None else (rule.verb,)
        return all(self.covers(verb, rule.pattern) for verb in verbs)

    def end(self) -> None:
        """Revoke: no request is let in any more, and live responses end."""
        self.until_s = 0.0


ROOT: Final = Principal("root", EVERYTHING, is_root=True)
"""Whoever has the root token, and everybody at a server without access rules."""


def anonymous(rules: Rules = NOTHING) -> Principal:
    """Return the principal of requests without credentials."""
    return Principal("anonymous", rules, is_anonymous=True)
