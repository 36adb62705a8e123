"""`penstock trim`: deletes the messages of a stream before an offset."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable


@click.command("trim")
@stream_argument()
@click.option(
    "--before",
    metavar="OFFSET",
    required=True,
    help="First offset to keep; `now` deletes all messages.",
)
@json_option
@server_options
def command(server: Server, stream: str, before: str, as_json: bool) -> None:
    """Delete messages before an offset of STREAM. The other messages keep their offsets.

    \b
    Examples:
      penstock trim logs/web --before 0000000000000001_0000000000004096
      penstock trim logs/web --before now
    """
    with server.stream(stream) as remote:
        earliest = remote.trim(before)
        url = remote.url
    if as_json:
        click.echo(json.dumps({"url": url, "earliest": earliest}))
        return
    click.echo(printable(f"{stream} starts at {earliest}"))
