"""`penstock stp`: shows and changes the tables that a server follows and the URLs it notifies."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.commands.stp.check import check
from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import note, printable
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
      penstock stp nurls
      penstock stp notify matches --event match
      penstock stp check https://prov.example/v1/table/endpoints
    """


command.add_command(check)


@command.command("follow")
@click.argument("surl")
@click.option(
    "--into", metavar="STREAM", help="Path of the mirror.  [default: mirror/<host>/<path>]"
)
@click.option(
    "--nurl", metavar="URL", help="Notify URL of the source, to register for notifications."
)
@click.option("--adopt", is_flag=True, help="Allow a mirror that already has rows.")
@click.option(
    "--links",
    type=click.IntRange(min=0),
    metavar="DEPTH",
    help="Follow the tables that its records name too, this deep; 0 ends that.",
)
@json_option
@server_options
def follow(
    server: Server,
    surl: str,
    into: str | None,
    nurl: str | None,
    adopt: bool,
    links: int | None,
    as_json: bool,
) -> None:
    """Make the server mirror the table at SURL, also after a restart.

    Nobody else can write to the mirror. It has each row of the source once; rows that change
    nothing are omitted.
    """
    from penstock.protocol.outbound import parse_url
    from penstock.stp.server.peers import mirror_path

    table = into or mirror_path(parse_url(surl))
    options = {"nurl": nurl, "links": links}
    chosen = {name: value for name, value in options.items() if value is not None}
    document = {"surl": surl, "adopt": adopt, **chosen}
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


def _selection(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that choose NURLs."""
    for option, help in reversed(
        [
            ("--event", "Only NURLs that were advertised for this event."),
            ("--table", "Only NURLs of this table."),
            ("--source", "Only NURLs that came with this State URL of a peer."),
            ("--nurl", "Only this NURL."),
        ]
    ):
        function = click.option(option, metavar="TEXT", help=help)(function)
    return function


@command.command("nurls")
@_selection
@json_option
@server_options
def nurls(server: Server, as_json: bool, **selection: str | None) -> None:
    """List the Notify URLs that peers have advertised.

    STATE is active (notified when TABLE changes), given-up, waiting (for TABLE to be declared, or
    for SOURCE to be followed) or followed (it knows that TABLE follows SOURCE).
    """
    params = _chosen(selection)
    advertised: list[Any] = []
    with server.client() as client:
        while True:
            page = _request(client, "GET", "nurls", params=params)
            advertised += page["nurls"]
            if page["next"] is None:
                break
            params["after"] = page["next"]
    if as_json:
        click.echo(json.dumps(advertised, ensure_ascii=False))
        return
    if not advertised:
        click.echo("No peer has advertised such a Notify URL.")
        return
    lines = [("NURL", "EVENT", "STATE", "TABLE", "SOURCE", "")]
    for each in advertised:
        tables = " or ".join(each["tables"]) or "-"
        until = f"until {each['expires_at']}" if each["expires_at"] else ""
        source = each["source"] or "-"
        lines.append(
            (each["nurl"], each["event"], each["state"], tables, source, each["reason"] or until)
        )
    _show(lines)


@command.command("notify")
@click.argument("surl")
@_selection
@json_option
@server_options
def notify(server: Server, surl: str, as_json: bool, **selection: str | None) -> None:
    """Make the server send a Notify of SURL to Notify URLs that peers have advertised.

    SURL is a State URL, or the path of a table on the server. The server signs the Notify and adds
    the tokens of its peers. Each Notify URL gets it once; those that fail are listed.

    \b
    Example:
      penstock stp notify matches --event match
    """
    chosen = _chosen(selection)
    if not chosen:
        raise click.UsageError("Choose Notify URLs with --event, --table, --source or --nurl.")
    with server.client() as client:
        if "://" not in surl:
            surl = client.stream("x").url.replace("/v1/stream/x", f"/v1/table/{surl}", 1)
        report = _request(client, "POST", "nurls", {"surl": surl, **chosen})
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
    else:
        for nurl in report["sent"]:
            click.echo(printable(f"notified {nurl}"))
        for nurl, reason in report["failed"].items():
            note(f"{nurl}: {reason}")
    if report["failed"]:
        raise SystemExit(1)


@command.command("forget")
@_selection
@server_options
def forget(server: Server, **selection: str | None) -> None:
    """Remove Notify URLs that peers have advertised. A peer can advertise them again."""
    chosen = _chosen(selection)
    if not chosen:
        raise click.UsageError("Choose Notify URLs with --event, --table, --source or --nurl.")
    with server.client() as client:
        removed = _request(client, "DELETE", "nurls", params=chosen)["removed"]
    click.echo(f"{removed} removed")


def _chosen(selection: dict[str, str | None]) -> dict[str, str]:
    return {name: text for name, text in selection.items() if text}


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
