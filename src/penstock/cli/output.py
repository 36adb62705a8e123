"""Messages and bytes on stdout: as they are, one a line, by a pattern, or as JSON.

For `penstock read`. Knows batches and messages; requests nothing.
"""

from __future__ import annotations

import base64
import codecs
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from penstock.cli.formats import Message
from penstock.cli.terminal import printable
from penstock.protocol.headers import is_json, is_text

if TYPE_CHECKING:
    from penstock.cli.messages import Splitter
    from penstock.client.batches import Batch


class Output:
    """Prints batches in the chosen form, and flushes stdout after each.

    `name` is the stream that they are of; if there are several, it is printed as well.
    """

    def __init__(
        self,
        *,
        write: Callable[[Message], bytes] | None,
        as_json: bool,
        count: int | None,
        by_message: bool,
        is_named: bool,
        delimiter: bytes | None = None,
    ) -> None:
        self.name = ""
        self._splitters: dict[str, Splitter] = {}
        self._is_named = is_named
        self._write = write
        self._as_json = as_json
        self._remaining = count
        self._delimiter = b"\n" if delimiter is None else delimiter
        self._by_message = (
            by_message
            or is_named
            or count is not None
            or write is not None
            or delimiter is not None
        )
        self._is_terminal = sys.stdout.isatty()
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._json_stream = False
        self._count = 0

    @property
    def is_full(self) -> bool:
        return self._remaining == 0

    def batch(self, batch: Batch) -> None:
        self._json_stream = is_json(batch.content_type)
        if self._as_json and not (self._json_stream or is_text(batch.content_type)):
            self._put(_base64(batch, self._named({})))
        elif self._by_message or self._as_json:
            self._messages(self._splitter().split(batch))
        elif self._json_stream:
            from penstock.cli.messages import json_messages

            self._put(b"".join(data + b"\n" for data in json_messages(batch.data)))
        else:
            self._put(batch.data)

    def messages(self, messages: Iterable[Message], *, is_json_stream: bool) -> None:
        self._json_stream = is_json_stream
        self._messages(iter(messages))

    def end(self, next_offset: str) -> None:
        """Print the last line if it has no end."""
        self._messages(self._splitter().rest(next_offset))

    def _splitter(self) -> Splitter:
        from penstock.cli.messages import Splitter

        splitter = self._splitters.get(self.name)
        if splitter is None:
            splitter = self._splitters[self.name] = Splitter(self.name)
        return splitter

    def _named(self, fields: dict[str, str]) -> dict[str, str]:
        return {"stream": self.name, **fields} if self._is_named else fields

    def _messages(self, messages: Iterator[Message]) -> None:
        parts = []
        for message in messages:
            # The number is that in the output; a splitter counts from where it began to read.
            parts.append(self._form(message._replace(number=self._count)))
            self._count += 1
            if self._remaining is not None:
                self._remaining -= 1
                if self._remaining == 0:
                    break
        self._put(b"".join(parts))

    def _form(self, message: Message) -> bytes:
        if self._write is not None:
            return self._write(message)
        if not self._as_json:
            name = f"{self.name}: ".encode() if self._is_named else b""
            return name + message.data + self._delimiter
        import msgspec

        fields = self._named({"offset": message.offset, "next_offset": message.next_offset})
        if self._json_stream:
            return self._line({**fields, "message": msgspec.Raw(message.data)})
        try:
            return self._line({**fields, "message": message.data.decode()})
        except UnicodeDecodeError:
            return self._line({**fields, "base64": base64.b64encode(message.data).decode()})

    def _line(self, fields: dict[str, Any]) -> bytes:
        import msgspec

        return msgspec.json.encode(fields) + self._delimiter

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._is_terminal:
            data = printable(self._text.decode(data)).encode()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _base64(batch: Batch, named: dict[str, str]) -> bytes:
    import msgspec

    if not batch.data:
        return b""
    fields = {**named, "offset": batch.offset, "next_offset": batch.next_offset}
    return msgspec.json.encode({**fields, "base64": base64.b64encode(batch.data).decode()}) + b"\n"
