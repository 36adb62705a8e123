"""`penstock rm`: deletes streams."""

from __future__ import annotations

import json
import sys

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable
from penstock.errors import Gone, StreamNotFound


@click.command("rm")
@stream_argument("streams", nargs=-1, required=True)
@click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")
@click.option(
    "-f", "--force", is_flag=True, help="Do not ask, and ignore streams that do not exist."
)
@json_option
@server_options
def command(
    server: Server, streams: tuple[str, ...], yes: bool, force: bool, as_json: bool
) -> None:
    """Delete STREAMS with all their data. On a terminal, the command asks first.

    \b
    Examples:
      penstock rm orders
      penstock rm --yes logs/web logs/db
    """
    if sys.stdin.isatty() and not (yes or force):
        names = streams[0] if len(streams) == 1 else f"{len(streams)} streams"
        if not click.confirm(f"Delete {printable(names)} with all data?", err=True):
            raise click.ClickException("Nothing was deleted.")
    for stream in streams:
        with server.stream(stream) as remote:
            deleted = True
            try:
                remote.delete()
            except (StreamNotFound, Gone):
                if not force:
                    raise
                deleted = False
            url = remote.url
        if as_json:
            click.echo(json.dumps({"url": url, "deleted": deleted}))
        elif deleted:
            click.echo(printable(f"deleted {stream}"))
