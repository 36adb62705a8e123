"""The journal record of an append, and the heads that all records share.

Apart from `records`, because it is made for every append and compiled: msgspec cannot have its
types in a compiled module.
"""

from __future__ import annotations

import struct
from typing import Final

from penstock.protocol.headers import Producer

APPEND: Final = 2
CLOSES: Final = 1
HAS_PRODUCER: Final = 2
HAS_SEQ: Final = 4

RECORD_HEAD = struct.Struct("<IBBHQ")
APPEND_HEAD = struct.Struct("<QIQ")
PRODUCER_HEAD = struct.Struct("<HQQ")
SHORT = struct.Struct("<H")
_HEADS = struct.Struct("<IBBHQQIQ")  # RECORD_HEAD and APPEND_HEAD in one
_HEADS_BYTES: Final = 36
_pack = _HEADS.pack


def encode_append(
    stream_id: int,
    start: int,
    count: int,
    time_us: int,
    payload: bytes,
    *,
    closes: bool,
    producer: Producer | None,
    stream_seq: str | None,
) -> bytes:
    """Return the record of an append."""
    flags = CLOSES if closes else 0
    extra = b""
    if producer is not None:
        flags |= HAS_PRODUCER
        name = producer.id.encode()
        extra = PRODUCER_HEAD.pack(len(name), producer.epoch, producer.seq) + name
    if stream_seq is not None:
        flags |= HAS_SEQ
        text = stream_seq.encode()
        extra += SHORT.pack(len(text)) + text
    length = _HEADS_BYTES + len(extra) + len(payload)
    heads = _pack(length, APPEND, flags, 0, stream_id, start, count, time_us)
    return heads + extra + payload if extra else heads + payload
