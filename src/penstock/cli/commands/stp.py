"""`penstock stp`: what a server follows and whom it tells. It does both itself; this asks it to."""

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
    """Let a server follow tables of other servers, and see whom it tells of its own.

    \b
    Examples:
      penstock stp follow https://prov.example/v1/table/endpoints --into provider/endpoints
      penstock stp status
      penstock stp unfollow provider/endpoints
    """


@command.command("follow")
@click.argument("surl")
@click.option("--into", metavar="STREAM", help="The mirror.  [default: mirror/<host>/<path>]")
@click.option("--nurl", metavar="URL", help="A Notify URL of the source, asked to tell us.")
@click.option("--adopt", is_flag=True, help="Follow into a table that has rows of its own.")
@json_option
@server_options
def follow(
    server: Server, surl: str, into: str | None, nurl: str | None, adopt: bool, as_json: bool
) -> None:
    """Make the server mirror the table at SURL, from now on and over restarts.

    The mirror is read-only to everybody else. Its rows are those of the source, each once; rows
    that change nothing are left out.
    """
    from penstock.protocol.outbound import parse_url
    from penstock.stp.server.peers import mirror_path

    table = into or mirror_path(parse_url(surl))
    document = {"surl": surl, "adopt": adopt, **({} if nurl is None else {"nurl": nurl})}
    with server.client() as client:
        found = _ask(client, "PUT", f"follow/{table}", document)
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        click.echo(printable(f"{table} follows {found['surl']}"))


@command.command("unfollow")
@click.argument("table")
@server_options
def unfollow(server: Server, table: str) -> None:
    """End the following of TABLE; its rows stay, and it can be written to again."""
    with server.client() as client:
        _ask(client, "DELETE", f"follow/{table}")
    click.echo(printable(f"{table} follows nothing any more"))


@command.command("status")
@click.argument("table", required=False)
@json_option
@server_options
def status(server: Server, table: str | None, as_json: bool) -> None:
    """Show what is followed and who is told, or how the following of TABLE goes."""
    with server.client() as client:
        if table is None:
            found = _registry(client)
            follows = [_ask(client, "GET", f"follow/{name}") for name in found.get("follow", {})]
        else:
            found, follows = {}, [_ask(client, "GET", f"follow/{table}")]
    listeners = list(found.get("listener", {}).values())
    if as_json:
        both: Any = {"follows": follows, "listeners": listeners}
        click.echo(json.dumps(follows[0] if table else both, ensure_ascii=False))
        return
    if follows:
        lines = [("TABLE", "SEQNO", "STATE", "SOURCE", "")]
        for each in follows:
            told = each["reason"] or each["last_conflict"]
            lines.append((each["table"], str(each["seqno"]), each["state"], each["surl"], told))
        _show(lines, right=(1,))
    if listeners:
        lines = [("TABLE", "EVENT", "STATE", "NURL", "")]
        for each in listeners:
            told = each["reason"]
            lines.append((each["table"], each["event"], each["state"], each["nurl"], told))
        _show(lines)
    if not follows and not listeners:
        click.echo("nothing is followed and nobody is told")


def _show(lines: Sequence[Sequence[str]], right: tuple[int, ...] = ()) -> None:
    for line in aligned(lines, right=right):
        click.echo(printable(line))


def _registry(client: Client) -> dict[str, Any]:
    """All entries, page by page."""
    from penstock.errors import StreamNotFound

    types: dict[str, Any] = {}
    after: str | None = None
    while True:
        params = {} if after is None else {"after": after}
        try:
            page = _ask(client, "GET", f"state/{REGISTRY}", params=params)
        except StreamNotFound:
            return {}
        for kind, entries in page["types"].items():
            types.setdefault(kind, {}).update(entries)
        after = page["next"]
        if after is None:
            return types


def _ask(
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
