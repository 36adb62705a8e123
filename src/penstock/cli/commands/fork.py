"""`penstock fork`: creates a stream that starts with the data of another."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable
from penstock.cli.values import Duration
from penstock.errors import StreamExists, StreamNotFound


@click.command("fork")
@stream_argument("source")
@stream_argument("target")
@click.option(
    "--at", metavar="OFFSET", help="Offset of the fork in SOURCE.  [default: the end of SOURCE]"
)
@click.option(
    "--skip",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Fork N messages after --at, or N bytes if SOURCE is not JSON.",
)
@click.option(
    "--ttl", type=Duration(), metavar="DURATION", help="Delete it after this time without use."
)
@click.option("--expires-at", metavar="TIME", help="Delete it at a time such as 2030-01-31T12:00Z.")
@click.option("--exist-ok", is_flag=True, help="Succeed if the fork already exists.")
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
    """Create TARGET, which starts with the data of SOURCE up to an offset.

    No data is copied, and both streams are independent afterwards. SOURCE can be deleted: its data
    stays until its last fork is deleted.

    \b
    Examples:
      penstock fork orders orders-test
      penstock fork chat/1 chat/1-again --at 0000000000000001_0000000000000420
    """
    origin = server.target(source)
    with server.stream(target) as remote:
        if origin.server.url != remote.client.url:
            raise click.UsageError("SOURCE and TARGET have to be on the same server.")
        try:
            created = remote.create(
                ttl_s=ttl,
                expires_at=expires_at,
                exist_ok=exist_ok,
                forked_from=origin.path,
                fork_offset=at,
                fork_sub_offset=skip,
            )
        except StreamNotFound:
            raise StreamNotFound(
                f"There is no stream {source} on {remote.client.url}; `penstock ls` lists them."
            ) from None
        except StreamExists as error:
            if error.url is not None:
                raise
            raise StreamExists(f"{target} exists already. --exist-ok accepts that.") from None
        url = remote.url
    if as_json:
        click.echo(json.dumps({"url": url, **created._asdict()}))
        return
    outcome = "forked" if created.created else "already exists:"
    click.echo(printable(f"{outcome} {target} from {source}, at {created.offset}"))
