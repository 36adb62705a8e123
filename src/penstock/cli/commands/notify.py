"""`penstock notify`: a Notify form to a Notify URL."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import note, printable


@click.command("notify")
@click.argument("nurl")
@click.argument("callbacks", nargs=-1, metavar="[EVENT=NURL]...")
@click.option("--surl", metavar="URL", help="The table that may have news.")
@json_option
@server_options
def command(
    server: Server, nurl: str, callbacks: tuple[str, ...], surl: str | None, as_json: bool
) -> None:
    """Tell the Notify URL NURL that the table at --surl may have news.

    EVENT=NURL names a Notify URL of ours for events of a type, to be called back. Without --surl
    it is a handshake: only these are made known. A Notify may be repeated: it says that something
    may be new, never what. A Penstock server says what it made of it, and --json prints that. NURL
    is a URL, or the name of a Notify URL on the server. The secret in PENSTOCK_NOTIFY_SECRET, if
    there is one, signs the form.

    \b
    Examples:
      penstock notify https://hub.example/v1/notify/hub --surl https://me.example/v1/table/endpoints
      penstock notify hub manifest_nurl=https://me.example/v1/notify/manifest
    """
    found: dict[str, str] = {}
    for callback in callbacks:
        event_type, equals, url = callback.partition("=")
        if not equals:
            raise click.UsageError(f"{callback!r} is not EVENT=NURL")
        if event_type in found:
            raise click.UsageError(f"{event_type} is given twice")
        found[event_type] = url
    with server.notifier(nurl) as (notifier, url):
        try:
            said = notifier.notify(url, surl=surl, callbacks=found)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(said, ensure_ascii=False))
        return
    click.echo(printable(f"notified {nurl}"))
    ignored = said.get("ignored")
    if isinstance(ignored, dict):
        for name, reason in ignored.items():
            note(f"it ignored {name}: {reason}")
