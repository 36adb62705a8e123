"""Quotas of streams and bytes by path, and their spelling in settings.

Knows neither streams nor clocks.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from penstock.protocol.globs import is_pattern, parse_pattern
from penstock.units import NUMBER_MAX, Kind, parse_size

_STREAMS = re.compile(r"(\d{1,16})streams?", re.ASCII)
_SIZE = re.compile(r"\d{1,16}(?:[kmgt]i?)?b", re.IGNORECASE | re.ASCII)


class Quota(NamedTuple):
    """How many streams, and how many bytes of data, all paths of a rule may have together.

    None is no limit.
    """

    streams: int | None
    bytes: int | None


def parse_quota(text: str) -> Quota:
    """``1000streams``, ``10GiB`` or both: ``1000streams,10GiB``."""
    streams = size = None
    for part in text.split(","):
        if (match := _STREAMS.fullmatch(part)) and streams is None:
            streams = int(match[1])
        elif _SIZE.fullmatch(part) and size is None:
            size = parse_size(part)
        else:
            raise ValueError(text)
    if streams is not None and streams > NUMBER_MAX:
        raise ValueError(text)
    return Quota(streams, size)


def parse_quotas(text: str) -> list[tuple[str, Quota]]:
    """Return the rules of ``chat/=1000streams,10GiB logs/**=1TiB``: quotas by the start of a path
    or by a pattern, in canonical form. InvalidPath names a pattern that is wrong."""
    quotas: dict[str, Quota] = {}
    for rule in text.split():
        # The last sign: a path may have one too, a quota never.
        place, sign, quota = rule.rpartition("=")
        if is_pattern(place):
            place = parse_pattern(place)
        if not sign or place in quotas:
            raise ValueError(text)
        quotas[place] = parse_quota(quota)
    return list(quotas.items())


def _parse(text: str) -> str:
    parse_quotas(text)
    return " ".join(text.split())


QUOTAS = Kind("quotas such as chat/=1000streams,10GiB logs/**=1TiB", "QUOTAS", str, _parse)
