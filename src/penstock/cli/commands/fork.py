"""`penstock fork`: make a stream that begins with what another has."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable
from penstock.cli.values import Duration


@click.command("fork")
@stream_argument("source")
@stream_argument("target")
@click.option("--at", metavar="OFFSET", help="Where to leave SOURCE; its end if not given.")
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Leave it N messages after --at, or N bytes if it holds no JSON.",
)
@click.option("--ttl", type=Duration(), metavar="DURATION", help="Delete it when unused so long.")
@click.option("--expires-at", metavar="TIME", help="Delete it at a time such as 2030-01-31T12:00Z.")
@click.option("--exist-ok", is_flag=True, help="Succeed if it is there already.")
@json_option
@server_options
def command(
    server: Server,
    source: str,
    target: str,
    at: str | None,
    skip: int,
    ttl: int | None,
    expires_at: str | None,
    exist_ok: bool,
    as_json: bool,
) -> None:
    """Create TARGET, which begins with what SOURCE has up to an offset.

    Nothing is copied, and both go on by themselves. SOURCE can be deleted; what its forks have of
    it stays until the last of them goes.

    \b
    Examples:
      penstock fork orders orders-test
      penstock fork chat/1 chat/1-again --at 0000000000000001_0000000000000420
    """
    with server.stream(target) as found:
        created = found.create(
            ttl_s=ttl,
            expires_at=expires_at,
            exist_ok=exist_ok,
            forked_from=source,
            fork_offset=at,
            fork_sub_offset=skip,
        )
        url = found.url
    if as_json:
        click.echo(json.dumps({"url": url, **created._asdict()}))
        return
    done = "forked" if created.created else "found"
    click.echo(printable(f"{done} {target} from {source}, going on at {created.offset}"))
