"""The options of a producer, and the encoding of its messages. Both are checked before sending."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal

import msgspec

from penstock import limits
from penstock.client.requests import encode_message
from penstock.client.retry import Retry
from penstock.protocol.headers import is_json

# A producer survives a restart of its server: it gives up after one to two minutes.
PRODUCER_RETRY: Final = Retry(attempts_max=20)

_BYTES: Final = (bytes, bytearray, memoryview)
_encode: Final = msgspec.json.Encoder().encode
_check: Final = msgspec.json.Decoder(msgspec.Raw).decode

AutoClaim = bool | Literal["start"]


class ProducerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a producer; invalid values raise ValueError."""

    id: str
    epoch: int = 0
    auto_claim: AutoClaim = False
    batch_bytes_max: int = limits.MIB
    batch_items_max: int | None = None
    linger_ms: float = 5.0
    in_flight_max: int = 5
    queue_bytes_max: int = 16 * limits.MIB
    retry: Retry = PRODUCER_RETRY

    def __post_init__(self) -> None:
        id = self.id
        _need(id != "" and id.isascii() and id.isprintable() and id.strip() == id,
              "The id must be printable ASCII text without spaces around it.")  # fmt: skip
        _need(len(id) <= limits.PRODUCER_ID_BYTES_MAX,
              f"The id must be at most {limits.PRODUCER_ID_BYTES_MAX} bytes long.")  # fmt: skip
        _need(0 <= self.epoch <= limits.INTEGER_MAX, "The epoch must be 0 or more.")
        _need(self.batch_bytes_max >= 1, "batch_bytes_max must be at least 1.")
        _need(self.batch_items_max is None or self.batch_items_max >= 1,
              "batch_items_max must be at least 1, or None.")  # fmt: skip
        _need(self.linger_ms >= 0, "linger_ms must not be negative.")
        _need(self.in_flight_max >= 1, "in_flight_max must be at least 1.")
        _need(self.queue_bytes_max >= 1, "queue_bytes_max must be at least 1.")


def encoder_of(content_type: str) -> Callable[[Any], bytes]:
    """Return the function that encodes a value as one message of a stream of that type.

    It raises TypeError or ValueError for an invalid message: the server would refuse the whole
    batch of it.
    """
    if is_json(content_type):
        return _encode_json

    def encode(value: Any) -> bytes:
        data = encode_message(value, content_type)
        if not data:
            raise ValueError("An empty message cannot be appended.")
        return data

    return encode


def _encode_json(value: Any) -> bytes:
    if isinstance(value, _BYTES):
        data = bytes(value)
        try:
            _check(data)
        except msgspec.DecodeError as error:
            raise ValueError(f"Bytes for a JSON stream must be one JSON value: {error}.") from None
        return data
    try:
        return _encode(value)
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"The value cannot be encoded as JSON: {error}.") from error


def _need(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)
