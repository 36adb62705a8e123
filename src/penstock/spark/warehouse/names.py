"""Names of types in SQL: what stands for a type in `state_…`, `history_…` and the like. Who comes
first keeps its name, so that a query never comes to mean something else.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping


def view_names(entities: Iterable[str], known: Mapping[str, str] | None = None) -> dict[str, str]:
    """A name for each type, of letters, digits and _ alone; those that have one keep it."""
    found = dict(known or {})
    taken = set(found.values())
    for entity in entities:
        if entity in found:
            continue
        name = plain = re.sub(r"\W", "_", entity.lower(), flags=re.ASCII)
        number = 2
        while name in taken:
            name, number = f"{plain}_{number}", number + 1
        taken.add(name)
        found[entity] = name
    return found
