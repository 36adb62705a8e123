"""Batches split into units that a person counts: messages of JSON streams, lines of others."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

import msgspec

from penstock.cli.formats import Message
from penstock.client.message_offsets import message_offsets
from penstock.errors import ProtocolError
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import START

if TYPE_CHECKING:
    from penstock.client.batches import Batch
    from penstock.client.sync.stream import Stream

SPLITS: Final = 1024

_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_split = msgspec.json.Decoder(list[msgspec.Raw]).decode


def json_messages(data: bytes) -> list[bytes]:
    """Return the messages of a JSON array, byte for byte, each on one line."""
    if not data:
        return []
    try:
        messages = [bytes(raw) for raw in _split(data)]
    except (msgspec.DecodeError, RecursionError):
        # Other servers accept more, such as lone surrogates.
        try:
            messages = list(_split_leniently(data.decode()))
        except (ValueError, RecursionError) as error:
            raise ProtocolError(f"The JSON stream holds data that is not JSON: {error}.") from None
    if b"\n" in data or b"\r" in data:
        # Line ends in valid JSON are between tokens, where a space means the same.
        return [message.translate(_ONE_LINE) for message in messages]
    return messages


def _split_leniently(text: str) -> Iterator[bytes]:
    """Yield the items of an array as they are written, by a slower and more lenient parser."""
    # The values are not used, and Python refuses integers of more than 4,300 digits.
    parse = json.JSONDecoder(parse_int=float).raw_decode
    position, separator = 0, "["
    while True:
        if text[position : position + 1] != separator:
            raise ValueError(f"expected {separator!r} at character {position}")
        position = _after_space(text, position + 1)
        _, end = parse(text, position)
        yield text[position:end].encode()
        position, separator = _after_space(text, end), ","
        if text[position : position + 1] == "]":
            return


def _after_space(text: str, position: int) -> int:
    while text[position : position + 1] in (" ", "\t", "\r", "\n"):
        position += 1
    return position


class Splitter:
    """Splits the batches of one stream, in order. It holds a line until its end arrives."""

    def __init__(self, stream: str) -> None:
        self._stream = stream
        self._number = 0
        self._rest = b""
        self._rest_offset = START

    def split(self, batch: Batch) -> Iterator[Message]:
        if is_json(batch.content_type):
            yield from self._messages(batch)
        else:
            yield from self._lines(batch)

    def rest(self, next_offset: str) -> Iterator[Message]:
        """Yield the last line if it has no end."""
        if self._rest:
            yield self._message(self._rest, self._rest_offset, next_offset)
            self._rest = b""

    def _messages(self, batch: Batch) -> Iterator[Message]:
        messages = json_messages(batch.data)
        offsets = message_offsets(batch, [len(data) for data in messages])
        for number, data in enumerate(messages):
            yield self._message(data, offsets[number], offsets[number + 1])

    def _lines(self, batch: Batch) -> Iterator[Message]:
        *lines, rest = batch.data.split(b"\n")
        for number, line in enumerate(lines):
            is_last = number == len(lines) - 1 and not rest
            after = batch.next_offset if is_last else batch.offset
            if self._rest:
                yield self._message(self._rest + line, self._rest_offset, after)
                self._rest = b""
            else:
                yield self._message(line, batch.offset, after)
        if rest:
            if not self._rest:
                self._rest_offset = batch.offset
            self._rest += rest

    def _message(self, data: bytes, offset: str, next_offset: str) -> Message:
        self._number += 1
        return Message(self._stream, data, offset, next_offset, self._number - 1)


class Tail:
    """The last messages of a stream, or those of some types and keys, and the offset after them."""

    def __init__(
        self,
        stream: Stream,
        name: str,
        count: int,
        *,
        types: Iterable[str] = (),
        keys: Iterable[str] = (),
    ) -> None:
        self._types, self._keys = types, keys
        self.messages: deque[Message] = deque(maxlen=count)
        self.next_offset = START
        self.closed = False
        starts = _starts(stream)
        for start in starts:
            self.messages.clear()
            seen = self._read(stream, name, start)
            # A range may begin within a line, so one message more than `count` is needed.
            if seen > count or start == starts[-1]:
                break

    def _read(self, stream: Stream, name: str, start: str) -> int:
        splitter = Splitter(name)
        seen = 0
        for batch in stream.iter_batches(start, types=self._types, keys=self._keys, decode=False):
            seen += self._add(splitter.split(batch))
            self.next_offset, self.closed = batch.next_offset, batch.closed
        return seen + self._add(splitter.rest(self.next_offset))

    def _add(self, messages: Iterable[Message]) -> int:
        seen = 0
        for message in messages:
            self.messages.append(message)
            seen += 1
        return seen


def _starts(stream: Stream) -> list[str]:
    """Return offsets to start from, nearest to the end first. The last is the start of the stream.

    It is the only one on a server that cannot split its streams.
    """
    from penstock.client.requests import Request

    answer = stream.client.request(
        Request("GET", stream.url, params={"offset": START, "splits": str(SPLITS)})
    )
    offsets: list[str] = []
    if is_json(answer.content_type):
        try:
            document = msgspec.json.decode(answer.body)
            # A server without splits returns the messages, which are an array.
            offsets = document["offsets"] if isinstance(document, dict) else []
        except (msgspec.DecodeError, KeyError, RecursionError):
            offsets = []
    starts = []
    ranges = 1
    while ranges < len(offsets) - 1:
        starts.append(offsets[-1 - ranges])
        ranges *= 4
    return [*starts, START]
