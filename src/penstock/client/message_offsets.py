"""The offset of each message in a batch of a JSON stream, computed from the lengths of messages.

No protocol text promises this: it holds for servers that count bytes as Penstock does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.errors import BadRequest
from penstock.protocol.offsets import START, Offset, parse_offset

if TYPE_CHECKING:
    from penstock.client.batches import Batch

SEPARATOR_BYTES: Final = 2  # Penstock stores a comma and a line feed after each message

_split: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode


def message_offsets(batch: Batch, lengths: Sequence[int]) -> list[str]:
    """Return the offset of each message of a batch, and last the offset of its end.

    `lengths` are those of the messages in bytes. If the server counts otherwise, every offset but
    the last is that of the batch, from which all its messages can be read again.
    """
    end, start = _position(batch.next_offset), _position(batch.offset)
    size = sum(lengths) + SEPARATOR_BYTES * len(lengths)
    begin = 0 if batch.offset == START else start and start.position
    if end is None or end.position - size != begin:
        return [batch.offset] * len(lengths) + [batch.next_offset]
    position = end.position - size
    offsets = []
    for length in lengths:
        offsets.append(end._replace(position=position).token)
        position += length + SEPARATOR_BYTES
    return [*offsets, batch.next_offset]


def message_ends(batch: Batch) -> list[str]:
    """Return the offset after each message of a batch of a JSON stream."""
    if not batch.data:
        return []
    return message_offsets(batch, [len(raw) for raw in _split(batch.data)])[1:]


def _position(offset: str) -> Offset | None:
    try:
        parsed = parse_offset(offset)
    except BadRequest:
        return None
    return parsed if isinstance(parsed, Offset) else None
