"""The selection of a live state: which entities it loads, applies and holds."""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import urlencode

from penstock.state.live.plan import Entity


class Selection(NamedTuple):
    """Entities of one type, and of that one key or those whose keys have a prefix; by default
    all."""

    type: str | None = None
    key: str | None = None
    prefix: str | None = None

    @classmethod
    def checked(cls, type: str | None, key: str | None, prefix: str | None) -> Self:
        """Return a selection; refuse options that do not go together."""
        if type is None and (key is not None or prefix is not None):
            raise ValueError("key and prefix select entities of one type: set type as well.")
        if key is not None and prefix is not None:
            raise ValueError("Set either key or prefix.")
        return cls(type, key, prefix)

    @property
    def is_all(self) -> bool:
        return self.type is None

    def selects(self, entity: Entity) -> bool:
        type, key = entity
        if self.type not in (None, type) or self.key not in (None, key):
            return False
        return self.prefix is None or key.startswith(self.prefix)

    @property
    def query(self) -> dict[str, str]:
        """The selection as parameters of `GET /v1/state`."""
        return {name: value for name, value in self._asdict().items() if value is not None}

    def name(self, url: str) -> str:
        """Return the name of a selected part of the state of the stream at `url`."""
        return url if self.is_all else f"{url}#{urlencode(self.query)}"
