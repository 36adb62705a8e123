"""`penstock ls`: lists the streams of a server, once or continuously."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from penstock.cli.connection import Server, server_options
from penstock.cli.system import broken_pipe_noticed, columns
from penstock.cli.terminal import printable, styled
from penstock.cli.text import aligned, amount, size
from penstock.errors import MethodNotAllowed, RouteNotFound, StreamNotFound

if TYPE_CHECKING:
    from penstock.client.answers import StreamInfo
    from penstock.client.sync.client import Client

Show = Callable[[Iterator["StreamInfo"]], Iterator[str]]

LONG_COLUMNS = ("MESSAGES", "SIZE", "STATE", "CREATED", "CONTENT TYPE", "PATH")
OMITTED_FIRST = ("CREATED", "CONTENT TYPE", "STATE")

_HOME_AND_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


@click.command("ls")
@click.argument("prefix", default="")
@click.option(
    "-l",
    "--long",
    "is_long",
    is_flag=True,
    help="Also show size, messages, content type and state.",
)
@click.option(
    "-n", "--limit", type=click.IntRange(min=1), metavar="N", help="List at most N streams."
)
@click.option(
    "-w",
    "--watch",
    is_flag=True,
    help="Keep listing: redraw on a terminal, print changes in a pipe.",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="Time between two listings of --watch.",
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object per stream, or per change."
)
@server_options
def command(
    server: Server,
    prefix: str,
    is_long: bool,
    limit: int | None,
    watch: bool,
    interval: float,
    as_json: bool,
) -> None:
    """List the streams of a server whose paths start with PREFIX.

    In a pipe, --watch first prints all streams and then the changes: `+ path` is a new stream,
    `~ path` a stream with new data or a new state, `- path` a deleted stream.

    \b
    Examples:
      penstock ls
      penstock ls -l logs/
      penstock ls --watch --json | jq 'select(.change == "+")'
    """
    show: Show = _as_json if as_json else _long if is_long else _short
    with server.client() as client:
        if not watch:
            # Lines are printed as they arrive; only the long form needs all streams at once.
            for line in show(_listing(client, prefix, limit)):
                click.echo(line)
            return
        with broken_pipe_noticed():
            _watch(client, prefix, limit, interval, is_long=is_long, as_json=as_json)


def _listing(client: Client, prefix: str, limit: int | None) -> Iterator[StreamInfo]:
    try:
        yield from client.list(prefix, limit=limit)
    except (RouteNotFound, StreamNotFound, MethodNotAllowed) as error:
        if isinstance(error, RouteNotFound) and urlsplit(client.url).path:
            raise
        raise click.ClickException(
            f"{client.url} cannot list its streams. Only Penstock servers can."
        ) from None


def _watch(
    client: Client,
    prefix: str,
    limit: int | None,
    interval_s: float,
    *,
    is_long: bool,
    as_json: bool,
) -> None:
    redraw = sys.stdout.isatty() and not as_json
    before: dict[str, StreamInfo] = {}
    while True:
        streams = {info.path: info for info in _listing(client, prefix, limit)}
        if redraw:
            infos = iter(streams.values())
            lines = _long(infos, width=columns()) if is_long else _short(infos)
            head = styled(
                f"{amount(len(streams), 'stream')} on {client.url}  {time.strftime('%X')}", dim=True
            )
            click.echo(_HOME_AND_CLEAR + "\n".join([head, *lines]))
        else:
            for mark, info in _changes(before, streams):
                click.echo(_change_as_json(mark, info) if as_json else _change(mark, info, is_long))
        before = streams
        time.sleep(interval_s)  # the interval that the user has chosen


def _changes(
    before: dict[str, StreamInfo], after: dict[str, StreamInfo]
) -> Iterator[tuple[str, StreamInfo]]:
    for path in sorted(before.keys() | after.keys()):
        if path not in after:
            yield "-", before[path]
        elif path not in before:
            yield "+", after[path]
        elif before[path] != after[path]:
            yield "~", after[path]


def _change(mark: str, info: StreamInfo, is_long: bool) -> str:
    line = f"{mark} {printable(info.path)}"
    if not is_long:
        return line
    return f"{line}  {info.messages:,} messages  {size(info.bytes)}  {_state(info)}"


def _change_as_json(mark: str, info: StreamInfo) -> str:
    return _encode({"change": mark, **_fields(info)})


def _as_json(streams: Iterator[StreamInfo]) -> Iterator[str]:
    for info in streams:
        yield _encode(_fields(info))


def _short(streams: Iterator[StreamInfo]) -> Iterator[str]:
    for info in streams:
        yield printable(info.path)


def _long(streams: Iterator[StreamInfo], *, width: int | None = None) -> Iterator[str]:
    """Yield a table. If it has to fit a width, it has fewer columns, and never half a path."""
    rows = [LONG_COLUMNS]
    rows += [
        (
            f"{info.messages:,}",
            size(info.bytes),
            _state(info),
            info.created_at[:19] + "Z",
            printable(info.content_type),
            printable(info.path),
        )
        for info in streams
    ]
    columns = list(range(len(LONG_COLUMNS)))
    for name in OMITTED_FIRST if width is not None else ():
        if max(map(len, aligned([[row[n] for n in columns] for row in rows]))) <= (width or 0):
            break
        columns.remove(LONG_COLUMNS.index(name))
    head, *rest = aligned([[row[n] for n in columns] for row in rows], right={0, 1})
    yield styled(head, bold=True)
    yield from rest


def _state(info: StreamInfo) -> str:
    if info.closed:
        return "closed"
    return "open, expires" if info.ttl is not None or info.expires_at is not None else "open"


def _fields(info: StreamInfo) -> dict[str, Any]:
    import msgspec

    fields: dict[str, Any] = msgspec.to_builtins(info)
    return fields


def _encode(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
