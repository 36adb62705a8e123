"""`penstock compact`: replaces the history of a state stream with its state."""

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
    """Replace the history of STREAM with a snapshot of its current state, in one step.

    STREAM has to be a declared state stream (`penstock schema set`). Writers and readers can
    continue meanwhile.

    \b
    Examples:
      penstock compact app/users
    """
    with server.stream(stream) as remote:
        earliest = remote.compact()
        url = remote.url
    if as_json:
        click.echo(json.dumps({"url": url, "earliest": earliest}))
        return
    click.echo(printable(f"{stream} starts at {earliest}"))
