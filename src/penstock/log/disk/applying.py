"""A durable batch, applied to its streams and answered: what happens once for every change.

Apart from `store`, because it is compiled.
"""

from __future__ import annotations

from collections.abc import Callable

from penstock.log.mutations import Entry, Mutation
from penstock.log.stream import Stream


def apply_batch(
    mutations: list[Mutation],
    lsn: int,
    changed: Callable[[Stream], None],
    ended: Callable[[Stream], None],
) -> int:
    """Apply mutations, the first of them at `lsn`; return the LSN of the last.

    `changed` is called for every living stream whose row in the catalog falls behind, `ended` for
    every one that is gone.
    """
    for mutation in mutations:
        mutation.apply(lsn)
        lsn += 1
        if mutation.ended:
            for each in mutation.ended:
                if each.deleted:
                    ended(each)
        if mutation.related:
            for each in mutation.related:
                changed(each)
        stream = mutation.stream
        if not stream.is_dirty and not stream.deleted:
            changed(stream)
    return lsn - 1


def answer_batch(entries: list[Entry]) -> None:
    """Give every entry its result."""
    for entry in entries:
        entry.resolve()
