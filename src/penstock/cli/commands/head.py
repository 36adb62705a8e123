"""`penstock head`: shows the properties of a stream and where it ends."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable
from penstock.cli.text import aligned, amount


@click.command("head")
@stream_argument()
@json_option
@server_options
def command(server: Server, stream: str, as_json: bool) -> None:
    """Show the content type, the state and the end of STREAM, without reading it.

    \b
    Examples:
      penstock head orders
      penstock head orders --json | jq -r .offset
    """
    with server.stream(stream) as remote:
        head = remote.head()
        url = remote.url
    if as_json:
        click.echo(json.dumps({"url": url, **head._asdict()}))
        return
    rows = [
        ("stream", url),
        ("content type", head.content_type),
        ("state", "closed" if head.closed else "open"),
        ("ends at", head.offset),
    ]
    if head.successor is not None:
        rows.append(("redirects to", head.successor))
    if head.earliest is not None:
        rows.append(("starts at", head.earliest))
    if head.ttl_s is not None:
        rows.append(("expires", f"when unused for {amount(head.ttl_s, 'second')}"))
    elif head.expires_at is not None:
        rows.append(("expires", head.expires_at))
    click.echo(printable("\n".join(aligned(rows))))
