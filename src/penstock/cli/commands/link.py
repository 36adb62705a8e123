"""`penstock link`: prints URLs that need no token, and ends all of them."""

from __future__ import annotations

import json
from typing import Final, Literal

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import printable
from penstock.cli.values import Duration

Resource = Literal["stream", "table", "state"]

DEEDS: Final = {
    "read": "read",
    "list": "list",
    "append": "append to",
    "create": "create",
    "delete": "delete",
}
"""The verbs that a link may carry, as they are said."""


@click.group("link")
def command() -> None:
    """Print a URL that needs no token, for one verb and one path or pattern.

    It is for clients that cannot send a header: EventSource, <img>, receivers of webhooks. Whoever
    has the URL can use it until it expires, until the token that signed it is revoked, or until
    `penstock link rotate`.

    \b
    Examples:
      penstock link read chat/42 --expires 1h
      penstock link read prices --of table --expires 7d
      penstock link append inbox/github --expires 30d
      penstock link rotate
    """


def _add(verb: str, deed: str) -> None:
    @command.command(verb, help=f"Print a URL with which anybody can {deed} PATH.")
    @click.argument("path")
    @click.option(
        "--expires",
        type=Duration(),
        default="1h",
        show_default=True,
        metavar="DURATION",
        help="Lifetime, such as 15m, 12h or 7d.",
    )
    @click.option(
        "--of",
        type=click.Choice(["stream", "table", "state"]),
        default="stream",
        show_default=True,
        help="What the URL is of. The link is valid for all of them.",
    )
    @json_option
    @server_options
    def sign(server: Server, path: str, expires: int, of: Resource, as_json: bool) -> None:
        _sign(server, verb, path, expires, of, as_json)


for _verb, _deed in DEEDS.items():
    _add(_verb, _deed)


@command.command("rotate")
@server_options
def rotate(server: Server) -> None:
    """End all links and cookies of the server at once, whoever has made them."""
    with server.client() as client:
        client.rotate_link_key()
    click.echo("all links and cookies have ended")


def _sign(server: Server, verb: str, path: str, expires: int, of: Resource, as_json: bool) -> None:
    if path.startswith(("http://", "https://")):
        raise click.UsageError("PATH is a path or a pattern, not a URL: name the server by --url.")
    target = server.target(path)
    with server.stream(path) as stream:
        link = stream.client.sign_link(
            verb,
            target.path,
            expires_in_s=expires,
            of=of,
        )
    if as_json:
        document = {"url": link.url, "link": link.link, "expires_at": link.expires_at}
        click.echo(json.dumps(document))
        return
    click.echo(link.url)
    note = f"Whoever has this URL can {DEEDS[verb]} {target.path} until {link.expires_at}."
    click.echo(printable(note), err=True)
