"""How far a batch goes: everything, or a fair share of every stream. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Mapping


def shares(pending: Mapping[str, int], limit: int, *, turn: int) -> dict[str, int]:
    """What each stream may give of what it has, `limit` in all.

    Streams with little give all of it, the others the same each (max-min fairness), so that one
    that is flooded holds up no other. If not even one is left for each, `turn` says where in the
    circle of streams to begin, and has to differ from batch to batch.
    """
    names = sorted(name for name, count in pending.items() if count > 0)
    if len(names) > limit:
        first = turn % len(names)
        return dict.fromkeys((names[first:] + names[:first])[:limit], 1)
    given: dict[str, int] = {}
    left = limit
    names.sort(key=lambda name: (pending[name], name))
    for index, name in enumerate(names):
        given[name] = min(pending[name], left // (len(names) - index))
        left -= given[name]
    return given
