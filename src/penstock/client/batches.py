"""Batches of decoded messages, and the decoding of bytes into them."""

from __future__ import annotations

import codecs
from typing import Any, Final

import msgspec

from penstock.errors import ProtocolError
from penstock.protocol.headers import is_json, is_text
from penstock.protocol.json_values import decode_json


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """A part of a stream that has arrived whole. Save `next_offset` when it is processed.

    `messages` has the messages of a JSON stream, `text` the text of a text stream, and `data` the
    bytes of any stream (a JSON array for JSON streams). A character that is divided between two
    batches is in the `text` of the second.
    """

    offset: str
    next_offset: str
    up_to_date: bool
    closed: bool
    content_type: str
    messages: list[Any] = []
    data: bytes = b""
    text: str = ""


class Read(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a whole read; the fields are those of a batch."""

    offset: str
    next_offset: str
    up_to_date: bool
    closed: bool
    content_type: str
    messages: list[Any] = []
    data: bytes = b""
    text: str = ""


class Decoder:
    """Decodes the parts of one stream in order; holds an incomplete character for the next part."""

    __slots__ = ("_decode", "_json", "_text")

    def __init__(self, *, decode: bool, message_type: Any = None) -> None:
        self._decode = decode
        self._json: msgspec.json.Decoder[list[Any]] = (
            _ANY if message_type is None else msgspec.json.Decoder(list[message_type])
        )
        self._text = _new_text_decoder()

    def restart(self) -> None:
        """Drop an incomplete character: the next part does not continue the last one."""
        self._text = _new_text_decoder()

    def batch(
        self,
        data: bytes,
        *,
        content_type: str,
        offset: str,
        next_offset: str,
        up_to_date: bool,
        closed: bool,
    ) -> Batch:
        messages: list[Any] = []
        text = ""
        if is_json(content_type):
            if data in _EMPTY:
                data = b""
            elif self._decode:
                messages = self._messages(data)
        elif self._decode and is_text(content_type):
            text = self._text.decode(data, closed)
        return Batch(
            offset=offset,
            next_offset=next_offset,
            up_to_date=up_to_date,
            closed=closed,
            content_type=content_type,
            messages=messages,
            data=data,
            text=text,
        )

    def _messages(self, data: bytes) -> list[Any]:
        try:
            return self._json.decode(data)
        except (msgspec.DecodeError, RecursionError) as error:
            if self._json is not _ANY:
                if isinstance(error, msgspec.ValidationError):
                    raise  # the messages are not of the user's type: a retry cannot help
                raise _broken(error) from error
        # Valid JSON that the fast decoder refuses: numbers like 1e999, integers of thousands of
        # digits, lone surrogate escapes.
        try:
            messages = decode_json(data)
        except RecursionError as error:
            raise ProtocolError(
                "A message is nested too deep to be decoded: read the stream with decode=False."
            ) from error
        except ValueError as error:
            raise _broken(error) from error
        if not isinstance(messages, list):
            raise ProtocolError("The answer of a JSON stream is not a JSON array.")
        return messages


def joined(batches: list[Batch]) -> Read:
    """Return one read from its batches, of which there is at least one."""
    last = batches[-1]
    messages: list[Any] = []
    for batch in batches:
        messages.extend(batch.messages)
    if is_json(last.content_type):
        arrays = [batch.data.strip()[1:-1] for batch in batches if batch.data]
        data = b"[" + b",".join(arrays) + b"]"
    else:
        data = b"".join(batch.data for batch in batches)
    return Read(
        offset=batches[0].offset,
        next_offset=last.next_offset,
        up_to_date=last.up_to_date,
        closed=last.closed,
        content_type=last.content_type,
        messages=messages,
        data=data,
        text="".join(batch.text for batch in batches),
    )


def _broken(error: Exception) -> ProtocolError:
    return ProtocolError(f"The answer of a JSON stream cannot be decoded: {error}.")


def _new_text_decoder() -> codecs.IncrementalDecoder:
    return codecs.getincrementaldecoder("utf-8")("replace")


_ANY: Final = msgspec.json.Decoder(list[Any])
_EMPTY: Final = (b"", b"[]")
