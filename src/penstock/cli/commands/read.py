"""`penstock read`: prints a stream, and new messages as they are appended."""

from __future__ import annotations

import base64
import codecs
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import click

from penstock.cli.connection import Server, outage_notes, server_options, stream_argument
from penstock.cli.formats import Message, compile_format
from penstock.cli.system import broken_pipe_noticed
from penstock.cli.terminal import note, printable
from penstock.cli.values import file_checkpoint, offset_of
from penstock.protocol.headers import is_json, is_text

if TYPE_CHECKING:
    from penstock.client.batches import Batch
    from penstock.client.sync.stream import Stream


@click.command("read")
@stream_argument()
@click.option(
    "-f", "--follow", is_flag=True, help="Continue with new messages until the stream is closed."
)
@click.option("--until-closed", is_flag=True, help="The same as --follow.")
@click.option(
    "-o",
    "--offset",
    default="start",
    show_default=True,
    metavar="OFFSET",
    help="Where to start: an offset, `start` or `end`.",
)
@click.option(
    "-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N messages."
)
@click.option(
    "-c", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages."
)
@click.option(
    "--format", "pattern", metavar="PATTERN", help="Pattern to print each message by; see above."
)
@click.option(
    "--checkpoint",
    metavar="FILE",
    help="Store the offset in FILE after each batch, and start there the next time.",
)
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Print one JSON object with offset and message per message; bytes that are not text are "
    "in base64.",
)
@server_options
def command(
    server: Server,
    stream: str,
    follow: bool,
    until_closed: bool,
    offset: str,
    tail: int | None,
    count: int | None,
    pattern: str | None,
    checkpoint: str | None,
    as_json: bool,
) -> None:
    """Read STREAM to its end, or follow it.

    A JSON stream is printed one message per line, other streams byte for byte (on a terminal,
    without control characters). --tail, --count and --format apply to the messages of JSON streams
    and to the lines of others. Each batch is printed as it arrives. If the connection fails, the
    read resumes where it stopped, so no message is lost or repeated. --follow waits for a server
    that is gone, and says so on stderr.

    \b
    The fields of --format are those of kcat:
      %s message   %S its size   %o its offset   %O the offset after it
      %i number    %t stream     %n line end     %% percent   and \\n \\r \\t \\0 \\xNN

    \b
    Examples:
      penstock read orders | jq .id
      penstock read -f logs --tail 10
      penstock read orders --count 1 --offset 0000000000000001_0000000000000042
      penstock read -f orders --format '%o %s\\n'
      penstock read orders --checkpoint orders.offset >> orders.jsonl
    """
    if tail is not None and (offset != "start" or checkpoint):
        raise click.UsageError("--tail cannot be used with --offset or --checkpoint.")
    if checkpoint and count is not None:
        raise click.UsageError(
            "--checkpoint stores the offsets of whole batches: it cannot be used with --count."
        )
    if pattern is not None and as_json:
        raise click.UsageError("--format and --json cannot be used together.")
    write = compile_format(pattern) if pattern is not None else None
    output = _Output(stream, write=write, as_json=as_json, count=count, by_message=tail is not None)
    with server.stream(stream) as remote, broken_pipe_noticed():
        start: str | None = offset_of(offset)
        if tail is not None:
            start = _show_tail(remote, stream, tail, output)
        if start is not None and not output.is_full:
            _show(remote, start, output, follow=follow or until_closed, checkpoint=checkpoint)


def _show_tail(stream: Stream, name: str, count: int, output: _Output) -> str | None:
    """Print the last messages. Return the offset after them, or None if the stream is closed."""
    from penstock.cli.messages import Tail

    if count == 0:
        head = stream.head()
        return None if head.closed else head.offset
    stream.head()  # a stream that does not exist is an error, also on servers without splits
    tail = Tail(stream, name, count)
    output.messages(tail.messages, is_json_stream=is_json(stream.content_type or ""))
    return None if tail.closed else tail.next_offset


def _show(
    stream: Stream, offset: str, output: _Output, *, follow: bool, checkpoint: str | None
) -> None:
    with stream.follow(
        offset,
        decode=False,
        stop_when_up_to_date=not follow,
        checkpoint=file_checkpoint(checkpoint) if checkpoint else None,
        # A follower waits for the server; a read to the end reports a failure.
        retry=None if follow else stream.client.retry,
        on_outage=outage_notes(note) if follow else None,
    ) as batches:
        for batch in batches:
            output.batch(batch)
            if output.is_full:
                return
    output.end(batches.offset)


class _Output:
    """Prints batches in the chosen form, and flushes stdout after each."""

    def __init__(
        self,
        stream: str,
        *,
        write: Callable[[Message], bytes] | None,
        as_json: bool,
        count: int | None,
        by_message: bool,
    ) -> None:
        from penstock.cli.messages import Splitter

        self._splitter = Splitter(stream)
        self._write = write
        self._as_json = as_json
        self._remaining = count
        self._by_message = by_message or count is not None or write is not None
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
            self._put(_base64(batch))
        elif self._by_message or self._as_json:
            self._messages(self._splitter.split(batch))
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
        self._messages(self._splitter.rest(next_offset))

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
            return message.data + b"\n"
        import msgspec

        fields = {"offset": message.offset, "next_offset": message.next_offset}
        if self._json_stream:
            return msgspec.json.encode({**fields, "message": msgspec.Raw(message.data)}) + b"\n"
        try:
            line = {"message": message.data.decode()}
        except UnicodeDecodeError:
            line = {"base64": base64.b64encode(message.data).decode()}
        return msgspec.json.encode({**fields, **line}) + b"\n"

    def _put(self, data: bytes) -> None:
        if not data:
            return
        if self._is_terminal:
            data = printable(self._text.decode(data)).encode()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def _base64(batch: Batch) -> bytes:
    import msgspec

    if not batch.data:
        return b""
    fields = {"offset": batch.offset, "next_offset": batch.next_offset}
    return msgspec.json.encode({**fields, "base64": base64.b64encode(batch.data).decode()}) + b"\n"
