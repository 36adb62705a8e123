"""`penstock read`: prints streams, and new messages as they are appended."""

from __future__ import annotations

import base64
import codecs
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.connection import Server, outage_notes, server_options, stream_argument
from penstock.cli.formats import Message, compile_format
from penstock.cli.system import broken_pipe_noticed
from penstock.cli.terminal import note, printable
from penstock.cli.values import file_checkpoint, offset_of
from penstock.protocol.globs import is_pattern
from penstock.protocol.headers import is_json, is_text
from penstock.protocol.offsets import NOW, START

if TYPE_CHECKING:
    from penstock.cli.messages import Splitter
    from penstock.client.batches import Batch
    from penstock.client.sync.client import Client
    from penstock.client.sync.stream import Stream


@click.command("read")
@stream_argument("streams", nargs=-1, required=True)
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
    help="Print one JSON object with offset and message per message, and the stream if there are "
    "several; bytes that are not text are in base64.",
)
@server_options
def command(
    server: Server,
    streams: tuple[str, ...],
    follow: bool,
    until_closed: bool,
    offset: str,
    tail: int | None,
    count: int | None,
    pattern: str | None,
    checkpoint: str | None,
    as_json: bool,
) -> None:
    """Read STREAMS to their end, or follow them.

    A JSON stream is printed one message per line, other streams byte for byte (on a terminal,
    without control characters). --tail, --count and --format apply to the messages of JSON streams
    and to the lines of others. Each batch is printed as it arrives. If the connection fails, the
    read resumes where it stopped, so no message is lost or repeated. --follow waits for a server
    that is gone, and says so on stderr.

    Several streams of one server are read over one connection. A name with `*` is a pattern: `*`
    matches any text between two slashes, `**` any number of segments, and --follow also reads
    streams that are created later. Each line then begins with the name of its stream, and
    --checkpoint stores the position of all.

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
      penstock read -f 'chat/*' logs
    """
    is_many = len(streams) > 1 or _is_pattern(streams[0])
    if pattern is not None and as_json:
        raise click.UsageError("--format and --json cannot be used together.")
    _check_options(is_many, offset, tail, count, checkpoint)
    write = compile_format(pattern) if pattern is not None else None
    output = _Output(
        write=write, as_json=as_json, count=count, by_message=tail is not None, is_named=is_many
    )
    start: str | None = offset_of(offset)
    if is_many:
        with _streams_of(server, streams) as (client, names), broken_pipe_noticed():
            _show_many(client, names, offset_of(offset), output, follow or until_closed, checkpoint)
        return
    with server.stream(streams[0]) as remote, broken_pipe_noticed():
        if tail is not None:
            start = _show_tail(remote, streams[0], tail, output)
        if start is not None and not output.is_full:
            output.name = streams[0]
            _show(remote, start, output, follow=follow or until_closed, checkpoint=checkpoint)


def _check_options(
    is_many: bool, offset: str, tail: int | None, count: int | None, checkpoint: str | None
) -> None:
    if tail is not None and is_many:
        raise click.UsageError("--tail is for one stream: it cannot be used with several.")
    if tail is not None and (offset != "start" or checkpoint):
        raise click.UsageError("--tail cannot be used with --offset or --checkpoint.")
    if checkpoint and count is not None:
        raise click.UsageError(
            "--checkpoint stores the offsets of whole batches: it cannot be used with --count."
        )
    if is_many and offset_of(offset) not in (START, NOW):
        raise click.UsageError("An offset is one of one stream: use `start` or `end` for several.")


def _is_pattern(name: str) -> bool:
    return is_pattern(name) and not name.startswith(("http://", "https://"))


@contextmanager
def _streams_of(server: Server, names: Sequence[str]) -> Iterator[tuple[Client, list[str]]]:
    """Open the one server of some streams and patterns, with what they are called there."""
    targets = [server.target(name) for name in names]
    with server.stream(names[0]) as first:
        for name, target in zip(names, targets, strict=True):
            if target.server.url != targets[0].server.url:
                raise click.UsageError(
                    f"{names[0]} and {name} are on different servers: read them one by one."
                )
        yield first.client, [target.path for target in targets]


def _show_many(
    client: Client,
    names: Sequence[str],
    offset: str,
    output: _Output,
    follow: bool,
    checkpoint: str | None,
) -> None:
    from penstock.client.requests import stream_url
    from penstock.errors import StreamNotFound

    patterns = [name for name in names if _is_pattern(name)]
    with client.follow_many(
        {name: offset for name in names if name not in patterns},
        match=dict.fromkeys(patterns, offset),
        decode=False,
        stop_when_up_to_date=not follow,
        checkpoint=file_checkpoint(checkpoint) if checkpoint else None,
        retry=None if follow else client.retry,
        on_outage=outage_notes(note) if follow else None,
    ) as batches:
        for batch in batches:
            output.name = batch.stream
            if batch.data:
                output.batch(batch)
            elif batch.state == "not-found" and not follow:
                error = StreamNotFound.at(batch.stream)
                error.method, error.url = "GET", stream_url(client.url, batch.stream)
                raise error
            elif batch.state in _NOTES:
                note(f"{batch.stream} {_NOTES[batch.state]}")
            if batch.closed:
                output.end(batch.next_offset)
            if output.is_full:
                return
    for name, next_offset in batches.offsets.items():
        output.name = name
        output.end(next_offset)


_NOTES: Final = {
    "deleted": "was deleted.",
    "not-found": "does not exist yet; it is read when it does.",
    "trimmed": "was trimmed: messages that were not read yet are gone.",
}


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
    ) -> None:
        self.name = ""
        self._splitters: dict[str, Splitter] = {}
        self._is_named = is_named
        self._write = write
        self._as_json = as_json
        self._remaining = count
        self._by_message = by_message or is_named or count is not None or write is not None
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
            return name + message.data + b"\n"
        import msgspec

        fields = self._named({"offset": message.offset, "next_offset": message.next_offset})
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


def _base64(batch: Batch, named: dict[str, str]) -> bytes:
    import msgspec

    if not batch.data:
        return b""
    fields = {**named, "offset": batch.offset, "next_offset": batch.next_offset}
    return msgspec.json.encode({**fields, "base64": base64.b64encode(batch.data).decode()}) + b"\n"
