"""Retention limits by age and by bytes, and their spelling in settings and headers.

Knows neither streams nor clocks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.protocol.globs import is_pattern, parse_pattern
from penstock.units import NUMBER_MAX, Kind, parse_size

_AGE = re.compile(r"(\d{1,12})([smhd])", re.ASCII)
_SIZE = re.compile(r"\d{1,16}(?:[kmgt]i?)?b", re.IGNORECASE | re.ASCII)
_RATIO = re.compile(r"(\d{1,6})x", re.ASCII)
RATIO_MIN = 2
"""The least ratio: with less, a stream would be rewritten for almost no gain."""
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Keep(NamedTuple):
    """The limits: data older than `age_s` seconds, and data before the last `bytes` bytes, may go.
    A state stream is compacted when its log is `ratio` times its live state.

    None is no limit.
    """

    age_s: int | None
    bytes: int | None
    ratio: int | None = None


FOREVER = Keep(None, None)


def parse_age(text: str) -> int:
    """Return the seconds, at least one, of ``90s``, ``15m``, ``12h`` or ``7d``."""
    match = _AGE.fullmatch(text)
    age_s = 0 if match is None else int(match[1]) * _SECONDS[match[2]]
    if not 0 < age_s <= NUMBER_MAX:
        raise ValueError(text)
    return age_s


def show_age(age_s: int) -> str:
    """Return the shortest spelling of an age."""
    for unit, seconds in reversed(_SECONDS.items()):
        if age_s % seconds == 0:
            return f"{age_s // seconds}{unit}"
    raise AssertionError(age_s)


def parse_keep(text: str) -> Keep:
    """``7d``, ``1GiB``, ``4x`` or some of them: ``7d,1GiB``. Ages end in s, m, h or d, sizes in B,
    the ratio of log to live state in x."""
    age_s = size = ratio = None
    for part in text.split(","):
        if _AGE.fullmatch(part) and age_s is None:
            age_s = parse_age(part)
        elif _SIZE.fullmatch(part) and size is None:
            size = parse_size(part)
        elif (match := _RATIO.fullmatch(part)) and ratio is None:
            ratio = int(match[1])
        else:
            raise ValueError(text)
    if size == 0:
        raise ValueError(text)
    if ratio is not None and ratio < RATIO_MIN:
        raise ValueError(text)
    return Keep(age_s, size, ratio)


def parse_rules(text: str) -> list[tuple[str, Keep]]:
    """Return the rules of ``logs/=7d,1GiB metrics/**=1d``: limits by the start of a path or by a
    pattern, in canonical form, the longest first. InvalidPath names a pattern that is wrong."""
    rules: dict[str, Keep] = {}
    for rule in text.split():
        # The last sign: a path may have one too, a limit never.
        prefix, sign, limits = rule.rpartition("=")
        if is_pattern(prefix):
            prefix = parse_pattern(prefix)
        if not sign or prefix in rules:
            raise ValueError(text)
        rules[prefix] = parse_keep(limits)
    return sorted(rules.items(), key=lambda rule: (-len(rule[0]), rule[0]))


def _parse(text: str) -> str:
    parse_rules(text)
    return " ".join(text.split())


RULES = Kind("rules such as logs/=7d,1GiB metrics/=1d users/=4x", "RULES", str, _parse)
