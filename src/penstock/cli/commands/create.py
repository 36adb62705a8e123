"""`penstock create`: creates a stream."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.system import stdin_bytes
from penstock.cli.terminal import printable
from penstock.cli.values import Duration, argument_bytes, whole_body
from penstock.errors import StreamExists


@click.command("create")
@stream_argument()
@click.option(
    "-t",
    "--content-type",
    metavar="TYPE",
    default="application/json",
    show_default=True,
    help="Content type of the stream.",
)
@click.option(
    "--ttl", type=Duration(), metavar="DURATION", help="Delete it after this time without use."
)
@click.option("--expires-at", metavar="TIME", help="Delete it at a time such as 2030-01-31T12:00Z.")
@click.option("--closed", is_flag=True, help="Close it at once; --body is its whole content.")
@click.option("--body", metavar="TEXT", help="Initial content. `-` reads it from stdin.")
@click.option("--exist-ok", is_flag=True, help="Succeed if it exists with the same configuration.")
@json_option
@server_options
def command(
    server: Server,
    stream: str,
    content_type: str,
    ttl: int | None,
    expires_at: str | None,
    closed: bool,
    body: str | None,
    exist_ok: bool,
    as_json: bool,
) -> None:
    """Create STREAM.

    A --body for a JSON stream is one message, or an array of messages.

    \b
    Examples:
      penstock create orders
      penstock create logs/web -t text/plain --ttl 7d
      penstock create config/v1 --closed --body - < settings.json
    """
    data = stdin_bytes() if body == "-" else None if body is None else argument_bytes(body)
    content = None if data is None else whole_body(data, content_type)
    with server.stream(stream) as remote:
        try:
            created = remote.create(
                content_type,
                ttl_s=ttl,
                expires_at=expires_at,
                closed=closed,
                body=content,
                exist_ok=exist_ok,
            )
        except StreamExists as error:
            if error.url is not None:  # it differs, and the server says how
                raise
            raise StreamExists(f"{stream} exists already. --exist-ok accepts that.") from None
        url = remote.url
    if as_json:
        click.echo(json.dumps({"url": url, **created._asdict()}))
        return
    outcome = "created" if created.created else "already exists:"
    state = ", closed" if created.closed else ""
    click.echo(printable(f"{outcome} {stream} ({created.content_type}{state})"))
