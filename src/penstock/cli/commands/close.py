"""`penstock close`: closes a stream."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable
from penstock.cli.values import argument_bytes, checked_json
from penstock.protocol.headers import is_json


@click.command("close")
@stream_argument()
@click.argument("value", required=False)
@json_option
@server_options
def command(server: Server, stream: str, value: str | None, as_json: bool) -> None:
    """Close STREAM permanently, after appending a last VALUE if there is one.

    Readers learn at once that the stream is complete. Closing a closed stream changes nothing.

    \b
    Examples:
      penstock close orders
      penstock close orders '{"type": "end"}'
    """
    with server.stream(stream) as remote:
        data: bytes | None = None
        if value is not None:
            data = argument_bytes(value)
            if is_json(remote.head().content_type):
                data = checked_json(data, "The value")
            else:
                data += b"\n"
        closed = remote.close(data)
        url = remote.url
    if as_json:
        click.echo(json.dumps({"url": url, "offset": closed.offset, "closed": closed.closed}))
        return
    click.echo(printable(f"closed {stream} at {closed.offset}"))
