"""`penstock compact`: put the state of a stream in the place of its history."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable


@click.command("compact")
@stream_argument()
@json_option
@server_options
def command(server: Server, stream: str, as_json: bool) -> None:
    """Append the live state of STREAM as a snapshot and let go of everything before, in one step.

    STREAM is a declared state stream (`penstock schema set`). Writers and readers go on meanwhile.

    \b
    Examples:
      penstock compact app/users
    """
    with server.stream(stream) as found:
        earliest = found.compact()
        url = found.url
    if as_json:
        click.echo(json.dumps({"url": url, "earliest": earliest}))
        return
    click.echo(printable(f"{stream} starts at {earliest}"))
