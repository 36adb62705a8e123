"""`penstock read`: prints streams, and new messages as they are appended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from penstock.cli.connection import Server, outage_notes, server_options, stream_argument
from penstock.cli.formats import compile_format
from penstock.cli.output import Output
from penstock.cli.system import broken_pipe_noticed
from penstock.cli.terminal import note
from penstock.cli.values import Escaped, Moment, file_checkpoint, offset_of
from penstock.protocol.globs import is_pattern, literal_prefix, matches
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import NOW, START

if TYPE_CHECKING:
    from penstock.client.sync.client import Client
    from penstock.client.sync.stream import Stream


class Selection(NamedTuple):
    """What of a stream is read. Times are in milliseconds since 1970."""

    offset: str = START
    since: int | None = None
    until: int | None = None
    tail: int | None = None
    types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def filter(self) -> dict[str, Any]:
        """The filter as options of the client."""
        return {"types": self.types, "keys": self.keys} if self.types or self.keys else {}

    @property
    def is_offset_alone(self) -> bool:
        return self == Selection(self.offset)


HELP: Final = """\
Read STREAMS to their end, or follow them.

A JSON stream is printed one message per line, other streams byte for byte (on a terminal,
without control characters). --tail, --count and --format apply to the messages of JSON streams
and to the lines of others. Each batch is printed as it arrives. If the connection fails, the
read resumes where it stopped, so no message is lost or repeated. --follow waits for a server
that is gone, and says so on stderr.

TIME is an age (`90s`, `2h`, `1d12h`), `today`, `yesterday`, a date or a time
(`2026-11-01T10:00Z`; local time without a zone), or milliseconds since 1970. For old messages
the server knows times only roughly: --since may start a little earlier, and --until ends there
too, so that the periods before and after a time have each message once.

--type and --key, each of which may come more than once, let the server select the change events
of a state stream; control events are always printed.

Several streams of one server are read over one connection. A name with `*` is a pattern: `*`
matches any text between two slashes, `**` any number of segments, and --follow also reads
streams that are created later. Each line then begins with the name of its stream, and
--checkpoint stores the position of all.

\b
The fields of --format are those of kcat, and those of state events:
  %s message   %S its size   %o its offset   %O the offset after it
  %i number    %t stream     %n line end     %% percent   and \\n \\r \\t \\0 \\xNN
  %k key       %y type       %T timestamp

\b
Examples:
  penstock read orders | jq .id
  penstock read -f logs --tail 10
  penstock read logs --since 2h
  penstock read orders --since yesterday --until today
  penstock read -f team --type user --key 7 --format '%T %k %s\\n'
  penstock read orders --count 1 --offset 0000000000000001_0000000000000042
  penstock read orders --checkpoint orders.offset >> orders.jsonl
  penstock read -f 'chat/*' logs
"""


@click.command("read", help=HELP)
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
    "--since", type=Moment(), metavar="TIME", help="Start with what was appended from TIME on."
)
@click.option(
    "--until", type=Moment(), metavar="TIME", help="End where a read --since TIME would start."
)
@click.option(
    "-n", "--tail", type=click.IntRange(min=0), metavar="N", help="Only the last N messages."
)
@click.option(
    "-c", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N messages."
)
@click.option(
    "--type", "types", multiple=True, metavar="TYPE", help="Only state events of this type."
)
@click.option("--key", "keys", multiple=True, metavar="KEY", help="Only state events of this key.")
@click.option(
    "--format", "pattern", metavar="PATTERN", help="Pattern to print each message by; see above."
)
@click.option(
    "-D",
    "--delimiter",
    type=Escaped(),
    metavar="TEXT",
    help="What to print after each message.  [default: \\n]",
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
    since: int | None,
    until: int | None,
    tail: int | None,
    count: int | None,
    types: tuple[str, ...],
    keys: tuple[str, ...],
    pattern: str | None,
    delimiter: bytes | None,
    checkpoint: str | None,
    as_json: bool,
) -> None:
    is_many = len(streams) > 1 or _is_pattern(streams[0])
    follow = follow or until_closed
    selection = Selection(offset_of(offset), since, until, tail, types, keys)
    if pattern is not None and (as_json or delimiter is not None):
        raise click.UsageError("--format cannot be used with --json or --delimiter.")
    _check_options(selection, is_many, follow, checkpoint)
    if checkpoint and count is not None:
        raise click.UsageError(
            "--checkpoint stores the offsets of whole batches: it cannot be used with --count."
        )
    output = Output(
        write=None if pattern is None else compile_format(pattern),
        as_json=as_json,
        count=count,
        by_message=tail is not None,
        is_named=is_many,
        delimiter=delimiter,
    )
    if not is_many:
        with server.stream(streams[0]) as remote, broken_pipe_noticed():
            _show(remote, streams[0], selection, output, follow=follow, checkpoint=checkpoint)
        return
    with _streams_of(server, streams) as (client, names), broken_pipe_noticed():
        if follow or selection.is_offset_alone:
            _show_many(client, names, selection, output, follow, checkpoint)
            return
        for name in _expanded(client, names):
            if not output.is_full:
                _show(client.stream(name), name, selection, output, follow=False, checkpoint=None)


def _check_options(
    selection: Selection, is_many: bool, follow: bool, checkpoint: str | None
) -> None:
    starts = [
        name
        for name, is_set in (
            ("--offset", selection.offset != START),
            ("--since", selection.since is not None),
            ("--tail", selection.tail is not None),
        )
        if is_set
    ]
    if len(starts) > 1:
        raise click.UsageError(f"{starts[0]} and {starts[1]} each say where to start: use one.")
    if selection.tail is not None and checkpoint:
        raise click.UsageError("--tail cannot be used with --checkpoint.")
    if selection.until is not None:
        if follow or checkpoint or selection.tail is not None:
            raise click.UsageError(
                "--until ends a read: it cannot be used with --follow, --tail or --checkpoint."
            )
        if selection.since is not None and selection.until < selection.since:
            raise click.UsageError("--until is before --since.")
    if not is_many:
        return
    if selection.offset not in (START, NOW):
        raise click.UsageError("An offset is one of one stream: use `start` or `end` for several.")
    if selection.filter and follow:
        raise click.UsageError("--type and --key follow one stream: they cannot be used with more.")
    if checkpoint and not selection.is_offset_alone:
        raise click.UsageError("--checkpoint of several streams is used with --offset alone.")


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


def _expanded(client: Client, names: Sequence[str]) -> Iterator[str]:
    """Yield the names, and the streams that match a pattern, each once."""
    seen = set()
    for name in names:
        paths = iter([name])
        if _is_pattern(name):
            infos = client.list(literal_prefix(name))
            paths = (info.path for info in infos if matches(name, info.path))
        for path in paths:
            if path not in seen:
                seen.add(path)
                yield path


def _starts(client: Client, names: Sequence[str], selection: Selection) -> dict[str, str]:
    """Return where each stream starts; one that does not exist yet, at its beginning."""
    from penstock.errors import StreamNotFound

    plain = [name for name in names if not _is_pattern(name)]
    if selection.since is None and selection.tail is None:
        return dict.fromkeys(plain, selection.offset)
    offsets = {}
    for name in _expanded(client, names):
        try:
            stream = client.stream(name)
            offsets[name] = stream.start_offset(at=selection.since, tail=selection.tail)
        except StreamNotFound:
            offsets[name] = START
    return offsets


def _show_many(
    client: Client,
    names: Sequence[str],
    selection: Selection,
    output: Output,
    follow: bool,
    checkpoint: str | None,
) -> None:
    from penstock.client.requests import stream_url
    from penstock.errors import StreamNotFound

    with client.follow_many(
        _starts(client, names, selection),
        match=dict.fromkeys(filter(_is_pattern, names), selection.offset),
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


def _show(
    stream: Stream,
    name: str,
    selection: Selection,
    output: Output,
    *,
    follow: bool,
    checkpoint: str | None,
) -> None:
    output.name = name
    if selection.until is not None:
        _show_until(stream, selection, output)
        return
    if selection.tail is not None:
        offset = _show_tail(stream, selection, output)
        if offset is None or output.is_full:
            return
        selection = selection._replace(offset=offset)
    with stream.follow(
        selection.offset,
        at=selection.since,
        **selection.filter,
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


def _show_until(stream: Stream, selection: Selection, output: Output) -> None:
    end = stream.start_offset(at=selection.until)
    next_offset = end
    for batch in stream.iter_batches(
        selection.offset, at=selection.since, until=end, **selection.filter, decode=False
    ):
        output.batch(batch)
        next_offset = batch.next_offset
        if output.is_full:
            return
    output.end(next_offset)


def _show_tail(stream: Stream, selection: Selection, output: Output) -> str | None:
    """Return the offset from which the last messages follow. Where the server cannot tell it, print
    them and return the offset after them, or None if the stream is closed."""
    from penstock.cli.messages import Tail
    from penstock.errors import BadRequest, ProtocolError

    count = selection.tail or 0
    if count == 0:
        head = stream.head()
        return None if head.closed else head.offset
    if not selection.filter:
        try:
            return stream.start_offset(tail=count)
        except (BadRequest, ProtocolError):
            pass  # Bytes, whose lines are counted here; or another server.
    stream.head()  # a stream that does not exist is an error, also on servers without splits
    tail = Tail(stream, output.name, count, **selection.filter)
    output.messages(tail.messages, is_json_stream=is_json(stream.content_type or ""))
    return None if tail.closed else tail.next_offset
