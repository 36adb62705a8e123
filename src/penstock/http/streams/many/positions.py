"""How far a response over several streams is, and the cursor that says so in one line of text.

The cursor is the id of every event. It holds the generation and the position of each stream, five
or six bytes a stream, and no server has to remember anything: it outlives restarts, and another
server over the same data reads it as well. Pure.
"""

from __future__ import annotations

from binascii import Error as Base64Error
from binascii import a2b_base64, b2a_base64
from collections.abc import Iterator, Mapping
from typing import Final
from zlib import crc32

from penstock.errors import InvalidCursor
from penstock.limits import OFFSET_PART_MAX

VERSION: Final = "1"
_CRC_BYTES: Final = 4
_TO_URL: Final = bytes.maketrans(b"+/", b"-_")
_FROM_URL: Final = bytes.maketrans(b"-_+/", b"+/!!")
_VALUE_MAX: Final = OFFSET_PART_MAX << 1 | 1
_SHIFT_MAX: Final = 63


class Positions:
    """Positions by generation, each with whether the reader knows that the stream is closed.

    `newest` is the highest generation that ever was among them: a stream with a higher one was
    created later, and is read from its beginning. The text of each stream is cached, so that a
    cursor costs the streams that have moved since the last one, and a join of bytes.
    """

    __slots__ = ("_heads", "_index", "_pieces", "_values", "newest")

    def __init__(self, newest: int = 0, values: Mapping[int, int] | None = None) -> None:
        self.newest = newest
        self._values: dict[int, int] = {} if values is None else dict(values)
        self._index: dict[int, int] | None = None  # None: the order of generations has changed
        self._heads: list[bytes] = []
        self._pieces: list[bytes] = []

    def __contains__(self, generation: object) -> bool:
        return generation in self._values

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def position(self, generation: int) -> int:
        return self._values[generation] >> 1

    def knows_closed(self, generation: int) -> bool:
        return bool(self._values[generation] & 1)

    def set(self, generation: int, position: int, *, closed: bool = False) -> None:
        value = position << 1 | closed
        if self._index is not None:
            index = self._index.get(generation)
            if index is None:
                self._index = None
            else:
                self._pieces[index] = self._heads[index] + _varint(value)
        self._values[generation] = value
        self.newest = max(self.newest, generation)

    def remove(self, generation: int) -> None:
        if self._values.pop(generation, None) is not None:
            self._index = None

    def copy(self) -> Positions:
        return Positions(self.newest, self._values)

    def is_level(self, other: Positions) -> bool:
        return self._values == other._values

    def behind(self, other: Positions) -> list[int]:
        """Return the generations of both that are not where `other` is."""
        values = self._values
        return [
            generation
            for generation, value in other._values.items()
            if values.get(generation, value) != value
        ]

    def cursor(self, key: bytes) -> bytes:
        """Return the cursor, which is valid for the streams that `key` names."""
        if self._index is None:
            self._arrange()
        body = b"".join((_varint(self.newest), *self._pieces))
        data = crc32(key + body).to_bytes(_CRC_BYTES, "big") + body
        text = b2a_base64(data, newline=False).rstrip(b"=").translate(_TO_URL)
        return VERSION.encode() + text

    def _arrange(self) -> None:
        self._index, self._heads, self._pieces = {}, [], []
        before = 0
        for index, generation in enumerate(sorted(self._values)):
            head = _varint(generation - before)
            self._index[generation] = index
            self._heads.append(head)
            self._pieces.append(head + _varint(self._values[generation]))
            before = generation


def parse_cursor(text: str, key: bytes) -> Positions:
    """Return the positions of a cursor; InvalidCursor if it is damaged, or of other streams."""
    if not text.startswith(VERSION) or not text.isascii():
        raise _invalid()
    raw = text[len(VERSION) :].encode().translate(_FROM_URL)
    try:
        data = a2b_base64(raw + b"=" * (-len(raw) % 4), strict_mode=True)
    except Base64Error:
        raise _invalid() from None
    checksum, body = data[:_CRC_BYTES], data[_CRC_BYTES:]
    if crc32(key + body).to_bytes(_CRC_BYTES, "big") != checksum:
        raise _invalid()
    numbers = _numbers(body)
    if len(numbers) % 2 == 0:
        raise _invalid()
    values: dict[int, int] = {}
    generation = 0
    for step, value in zip(numbers[1::2], numbers[2::2], strict=True):
        generation += step
        if step == 0 or generation > OFFSET_PART_MAX:
            raise _invalid()
        values[generation] = value
    if numbers[0] < generation or numbers[0] > OFFSET_PART_MAX:
        raise _invalid()
    return Positions(numbers[0], values)


def _numbers(body: bytes) -> list[int]:
    numbers: list[int] = []
    number = shift = 0
    for byte in body:
        number |= (byte & 0x7F) << shift
        if byte & 0x80:
            shift += 7
            if shift > _SHIFT_MAX:
                raise _invalid()
            continue
        if number > _VALUE_MAX:
            raise _invalid()
        numbers.append(number)
        number = shift = 0
    if shift:
        raise _invalid()
    return numbers


def _varint(number: int) -> bytes:
    """Return a number in groups of seven bits, the lowest first; all but the last have bit 8."""
    if number < 0x80:
        return bytes((number,))
    groups = bytearray()
    while number >= 0x80:
        groups.append(number & 0x7F | 0x80)
        number >>= 7
    groups.append(number)
    return bytes(groups)


def _invalid() -> InvalidCursor:
    return InvalidCursor(
        "The cursor is damaged, or belongs to other `stream` and `match` parameters. Send it as it "
        "was returned, with the same parameters, or begin again without it."
    )
