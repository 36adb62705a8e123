"""`penstock close`: say that a stream is complete."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable
from penstock.cli.values import checked_json
from penstock.protocol.headers import is_json


@click.command("close")
@stream_argument()
@click.argument("value", required=False)
@json_option
@server_options
def command(server: Server, stream: str, value: str | None, as_json: bool) -> None:
    """Close STREAM for good, after a last VALUE if one is given.

    Readers are told at once that no more will come. Closing a closed stream changes nothing.

    \b
    Examples:
      penstock close orders
      penstock close orders '{"type": "end"}'
    """
    with server.stream(stream) as found:
        data: bytes | None = None
        if value is not None:
            data = value.encode()
            if is_json(found.head().content_type):
                data = checked_json(data, "the value")
            else:
                data += b"\n"
        closed = found.close(data)
        url = found.url
    if as_json:
        click.echo(json.dumps({"url": url, "offset": closed.offset, "closed": closed.closed}))
        return
    click.echo(printable(f"closed {stream} at {closed.offset}"))
