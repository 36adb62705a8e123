"""`penstock audit`: shows the admin actions of a server, and new ones as they happen."""

from __future__ import annotations

from typing import Any

import click

from penstock.cli.connection import Server, json_option, outage_notes, server_options
from penstock.cli.system import broken_pipe_noticed
from penstock.cli.terminal import note, printable
from penstock.cli.values import offset_of

AUDIT_PATH = "/v1/audit"


@click.command("audit")
@click.option("-f", "--follow", is_flag=True, help="Continue with new actions.")
@click.option(
    "-o",
    "--offset",
    default="start",
    show_default=True,
    metavar="OFFSET",
    help="Where to start: an offset, `start` or `end`.",
)
@json_option
@server_options
def command(server: Server, follow: bool, offset: str, as_json: bool) -> None:
    """Show the admin actions of a server, one per line: when, who, from where, what, the outcome.

    The outcome is the HTTP status: 403 is an attempt that was refused, `?` a request whose client
    went away. It needs a token that may read `__ds/audit`.

    \b
    Examples:
      penstock audit
      penstock audit -f --offset end
      penstock audit --json | jq 'select(.action == "stream.delete")'
    """
    with server.client() as client, broken_pipe_noticed():
        stream = client.stream(client.url.rstrip("/") + AUDIT_PATH)
        with stream.follow(
            offset_of(offset),
            decode=not as_json,
            stop_when_up_to_date=not follow,
            # A follower waits for the server; a read to the end reports a failure.
            retry=None if follow else client.retry,
            on_outage=outage_notes(note) if follow else None,
        ) as batches:
            for batch in batches:
                if as_json:
                    _print_json(batch.data)
                else:
                    for event in batch.messages:
                        click.echo(printable(_line(event)))


def _print_json(data: bytes) -> None:
    from penstock.cli.messages import json_messages

    for message in json_messages(data):
        click.echo(message)


def _line(event: dict[str, Any]) -> str:
    status = event.get("status")
    who = event.get("principal", "?")
    if event.get("principal_id", who) != who:
        who = f"{who} ({event['principal_id']})"
    line = (
        f"{event.get('time', '?')}  {who}  {event.get('address') or '-'}  "
        f"{event.get('action', '?')}  {event.get('path') or '-'}  "
        f"{'?' if status is None else status}"
    )
    if event.get("suppressed"):
        line += f"  ({event['suppressed']} more refusals before it)"
    return line
