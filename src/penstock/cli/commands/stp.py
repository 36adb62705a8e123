"""`penstock stp`: shows and changes the tables that a server follows and the URLs it notifies."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import printable
from penstock.cli.text import aligned

if TYPE_CHECKING:
    from penstock.client.sync.client import Client

REGISTRY = "__stp/registry"


@click.group("stp")
def command() -> None:
    """Make a server follow tables of other servers, and show which URLs it notifies.

    \b
    Examples:
      penstock stp follow https://prov.example/v1/table/endpoints --into provider/endpoints
      penstock stp status
      penstock stp unfollow provider/endpoints
    """


@command.command("follow")
@click.argument("surl")
@click.option(
    "--into", metavar="STREAM", help="Path of the mirror.  [default: mirror/<host>/<path>]"
)
@click.option(
    "--nurl", metavar="URL", help="Notify URL of the source, to register for notifications."
)
@click.option("--adopt", is_flag=True, help="Allow a mirror that already has rows.")
@json_option
@server_options
def follow(
    server: Server, surl: str, into: str | None, nurl: str | None, adopt: bool, as_json: bool
) -> None:
    """Make the server mirror the table at SURL, also after a restart.

    Nobody else can write to the mirror. It has each row of the source once; rows that change
    nothing are omitted.
    """
    from penstock.protocol.outbound import parse_url
    from penstock.stp.server.peers import mirror_path

    table = into or mirror_path(parse_url(surl))
    document = {"surl": surl, "adopt": adopt, **({} if nurl is None else {"nurl": nurl})}
    with server.client() as client:
        mirror = _request(client, "PUT", f"follow/{table}", document)
    if as_json:
        click.echo(json.dumps(mirror, ensure_ascii=False))
    else:
        click.echo(printable(f"{table} follows {mirror['surl']}"))


@command.command("unfollow")
@click.argument("table")
@server_options
def unfollow(server: Server, table: str) -> None:
    """Make TABLE follow nothing. Its rows stay, and it accepts writes again."""
    with server.client() as client:
        _request(client, "DELETE", f"follow/{table}")
    click.echo(printable(f"{table} no longer follows another table"))


@command.command("status")
@click.argument("table", required=False)
@json_option
@server_options
def status(server: Server, table: str | None, as_json: bool) -> None:
    """Show the followed tables and the notified URLs, or the progress of TABLE."""
    with server.client() as client:
        if table is None:
            entries = _registry(client)
            names = entries.get("follow", {})
            follows = [_request(client, "GET", f"follow/{name}") for name in names]
        else:
            entries, follows = {}, [_request(client, "GET", f"follow/{table}")]
    listeners = list(entries.get("listener", {}).values())
    if as_json:
        both: Any = {"follows": follows, "listeners": listeners}
        click.echo(json.dumps(follows[0] if table else both, ensure_ascii=False))
        return
    if follows:
        lines = [("TABLE", "SEQNO", "STATE", "SOURCE", "")]
        for each in follows:
            reason = each["reason"] or each["last_conflict"]
            lines.append((each["table"], str(each["seqno"]), each["state"], each["surl"], reason))
        _show(lines, right=(1,))
    if listeners:
        lines = [("TABLE", "EVENT", "STATE", "NURL", "")]
        for each in listeners:
            fields = (each["table"], each["event"], each["state"], each["nurl"])
            lines.append((*fields, each["reason"]))
        _show(lines)
    if not follows and not listeners:
        click.echo("The server follows no table and notifies no URL.")


def _show(lines: Sequence[Sequence[str]], right: tuple[int, ...] = ()) -> None:
    for line in aligned(lines, right=right):
        click.echo(printable(line))


def _registry(client: Client) -> dict[str, Any]:
    """Return all entries of the registry, by kind."""
    from penstock.errors import StreamNotFound

    types: dict[str, Any] = {}
    after: str | None = None
    while True:
        params = {} if after is None else {"after": after}
        try:
            page = _request(client, "GET", f"state/{REGISTRY}", params=params)
        except StreamNotFound:
            return {}
        for kind, entries in page["types"].items():
            types.setdefault(kind, {}).update(entries)
        after = page["next"]
        if after is None:
            return types


def _request(
    client: Client,
    method: str,
    path: str,
    document: Any = None,
    params: dict[str, str] | None = None,
) -> Any:
    from penstock.client.requests import Request

    url = client.stream("x").url.replace("/v1/stream/x", f"/v1/{path}", 1)
    headers = {} if document is None else {"Content-Type": "application/json"}
    body = b"" if document is None else json.dumps(document).encode()
    answer = client.request(Request(method, url, headers, params or {}, body))
    return json.loads(answer.body) if answer.body else None
