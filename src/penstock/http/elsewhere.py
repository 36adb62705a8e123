"""What an App has to know if other processes serve with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from penstock.http.streams.registry import Others
    from penstock.subscriptions.streams import Streams


class Elsewhere(NamedTuple):
    """The other processes, as an App sees them."""

    streams: Streams
    owns: Callable[[str], bool]
    part: str
    """The name of this process."""
    listed: Others
