"""`penstock token`: creates, lists and revokes the tokens that a server has stored."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import printable
from penstock.cli.text import aligned
from penstock.cli.values import NEVER, Expiry

if TYPE_CHECKING:
    from penstock.client.access import NewToken, TokenInfo


@click.group("token")
def command() -> None:
    """Create, list and revoke tokens.

    A token may do what its rules say, and nothing else. A rule is a verb (create, append, read,
    list, delete, admin, subscribe, follow, or * for all) and a pattern of paths. The server needs a
    root token (`penstock serve` with PENSTOCK_TOKEN) before it has others.

    \b
    Examples:
      penstock token create --allow 'read:chat/42/**' --allow append:chat/42/in --expires 30d
      penstock token create --allow 'read:**' --expires never --name backup > backup.token
      penstock token ls
      penstock token rm 7xk2m9qwer
    """


@command.command("create")
@click.option(
    "--allow",
    "allow",
    multiple=True,
    required=True,
    metavar="VERB:PATTERN",
    help="Rule, such as 'read:chat/42/**'; can be repeated.",
)
@click.option(
    "--expires",
    type=Expiry(),
    metavar="DURATION",
    help="Lifetime, such as 12h or 30d, or `never`.  [default: 90d]",
)
@click.option("--name", default="", metavar="TEXT", help="Name for people, in lists and errors.")
@json_option
@server_options
def create(server: Server, allow: tuple[str, ...], expires: Any, name: str, as_json: bool) -> None:
    """Create a token and print it. It is not stored and cannot be shown again."""
    with server.client() as client:
        token = client.create_token(allow, expires_in_s=expires, name=name)
    if as_json:
        click.echo(json.dumps(_plain(token), ensure_ascii=False))
        return
    click.echo(token.token)
    click.echo(printable(_note(token)), err=True)


@command.command("ls")
@json_option
@server_options
def ls(server: Server, as_json: bool) -> None:
    """List the tokens, the oldest first. Their texts are not shown: the server does not know them.

    An expired token is listed for another 7 days.
    """
    with server.client() as client:
        tokens = sorted(client.tokens(), key=lambda token: (token.created_at, token.id))
    if as_json:
        for token in tokens:
            click.echo(json.dumps(_plain(token), ensure_ascii=False))
        return
    if not tokens:
        click.echo("There are no tokens.")
        return
    lines = [("ID", "NAME", "ALLOW", "EXPIRES", "CREATED", "BY")]
    lines += [
        (
            token.id,
            token.name,
            " ".join(token.allow),
            "expired" if token.expired else _day(token.expires_at) or NEVER,
            _day(token.created_at),
            token.created_by,
        )
        for token in tokens
    ]
    for line in aligned(lines):
        click.echo(printable(line))


@command.command("rm")
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@server_options
def rm(server: Server, ids: tuple[str, ...]) -> None:
    """Revoke tokens by their IDS. Requests with them are refused, and their live reads end.

    Links and cookies that were made with them end, too.
    """
    with server.client() as client:
        for id in ids:
            client.revoke_token(id)
            click.echo(f"revoked {printable(id)}")


def _note(token: NewToken) -> str:
    expiry = "does not expire" if token.expires_at is None else f"expires {token.expires_at}"
    name = f" ({token.name})" if token.name else ""
    return f"Token {token.id}{name} {expiry}. It is not shown again: store it now."


def _day(time: str | None) -> str:
    return "" if time is None else time.partition("T")[0]


def _plain(token: TokenInfo) -> dict[str, Any]:
    from msgspec import to_builtins

    plain: dict[str, Any] = to_builtins(token)
    return plain
