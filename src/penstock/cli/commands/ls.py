"""`penstock ls`: the streams of a server, once or as they change."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, server_options
from penstock.cli.system import broken_pipe_noticed, columns
from penstock.cli.terminal import printable, styled
from penstock.cli.text import aligned, size
from penstock.errors import MethodNotAllowed, RouteNotFound, StreamNotFound

if TYPE_CHECKING:
    from penstock.client.answers import StreamInfo
    from penstock.client.sync.client import Client

Show = Callable[[Iterator["StreamInfo"]], Iterator[str]]

_HOME_AND_CLEAR = "\x1b[H\x1b[2J\x1b[3J"


@click.command("ls")
@click.argument("prefix", default="")
@click.option("-l", "--long", "is_long", is_flag=True, help="Also size, messages, type and state.")
@click.option("-n", "--limit", type=click.IntRange(min=1), metavar="N", help="At most N streams.")
@click.option(
    "-w", "--watch", is_flag=True, help="Go on: redraw on a terminal, print changes elsewhere."
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="How often --watch looks.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a stream, or change.")
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
    """List the streams of a server whose path starts with PREFIX.

    In a pipe, --watch prints `+ path` for a new stream, `~ path` for one with new data or a new
    state and `- path` for one that is gone, beginning with all there are.

    \b
    Examples:
      penstock ls
      penstock ls -l logs/
      penstock ls --watch --json | jq 'select(.change == "+")'
    """
    show: Show = _as_json if as_json else _long if is_long else _short
    with server.client() as client:
        if not watch:
            found = _listed(client, prefix, limit)
            # The plain forms need no look at the whole, so they are printed as they come.
            for line in show(found):
                click.echo(line)
            return
        with broken_pipe_noticed():
            _watch(client, prefix, limit, interval, is_long=is_long, as_json=as_json)


def _listed(client: Client, prefix: str, limit: int | None) -> Iterator[StreamInfo]:
    try:
        yield from client.list(prefix, limit=limit)
    except (RouteNotFound, StreamNotFound, MethodNotAllowed):
        raise click.ClickException(
            f"{client.url} has no listing: it is an extension of Penstock servers"
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
    known: dict[str, StreamInfo] = {}
    while True:
        found = {info.path: info for info in _listed(client, prefix, limit)}
        if redraw:
            show: Show = _long if is_long else _short
            lines = list(show(iter(found.values())))
            width = columns()
            head = styled(f"{len(found)} streams on {client.url}  {time.strftime('%X')}", dim=True)
            click.echo(_HOME_AND_CLEAR + "\n".join([head, *(line[:width] for line in lines)]))
        else:
            for mark, info in _changes(known, found):
                click.echo(_change_as_json(mark, info) if as_json else _change(mark, info, is_long))
        known = found
        time.sleep(interval_s)  # the pause between two looks that --watch asks for


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


def _as_json(found: Iterator[StreamInfo]) -> Iterator[str]:
    for info in found:
        yield _encode(_fields(info))


def _short(found: Iterator[StreamInfo]) -> Iterator[str]:
    for info in found:
        yield printable(info.path)


def _long(found: Iterator[StreamInfo]) -> Iterator[str]:
    rows = [("MESSAGES", "SIZE", "STATE", "CREATED", "CONTENT TYPE", "PATH")]
    rows += [
        (
            f"{info.messages:,}",
            size(info.bytes),
            _state(info),
            info.created_at[:19] + "Z",
            printable(info.content_type),
            printable(info.path),
        )
        for info in found
    ]
    head, *rest = aligned(rows, right={0, 1})
    yield styled(head, bold=True)
    yield from rest


def _state(info: StreamInfo) -> str:
    if info.closed:
        return "closed"
    return "open, expires" if info.ttl is not None or info.expires_at is not None else "open"


def _fields(info: StreamInfo) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(info)
    return found


def _encode(value: object) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()
