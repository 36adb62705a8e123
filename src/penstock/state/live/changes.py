"""What listeners of a live state get: each change of an entity, and the changes of one commit."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from penstock.state.json import decode_value

ChangeOperation: TypeAlias = Literal["insert", "update", "upsert", "delete", "reset", "load"]


class StateChange(msgspec.Struct, frozen=True, kw_only=True):
    """One event, and the entity before and after it.

    `operation` is that of the event; `reset` if a reset has changed the entity, `load` if it was
    loaded from the server. `offset` is the stream's offset after the event. `old_raw` and `new_raw`
    are the JSON of the values as it was written, None if there was or is no entity: an event that
    deletes nothing has neither.
    """

    type: str
    key: str
    operation: ChangeOperation
    old_raw: bytes | None
    new_raw: bytes | None
    offset: str
    txid: str | None = None

    @property
    def old(self) -> Any:
        """The value before, decoded at each access; None if there was no entity."""
        return None if self.old_raw is None else decode_value(self.old_raw)

    @property
    def new(self) -> Any:
        """The value after, decoded at each access; None if there is no entity."""
        return None if self.new_raw is None else decode_value(self.new_raw)


class StateBatch(msgspec.Struct, frozen=True, kw_only=True):
    """The changes that were committed together, in the order of their events; there may be none.

    `offset` is the state's offset after them, in the stream at `url`.
    """

    changes: tuple[StateChange, ...]
    offset: str
    url: str
    up_to_date: bool
