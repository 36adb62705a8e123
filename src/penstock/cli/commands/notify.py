"""`penstock notify`: sends a Notify form to a Notify URL."""

from __future__ import annotations

import json

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import note, printable


@click.command("notify")
@click.argument("nurl")
@click.argument("callbacks", nargs=-1, metavar="[EVENT=NURL]...")
@click.option("--surl", metavar="URL", help="State URL of the table that may have new rows.")
@json_option
@server_options
def command(
    server: Server, nurl: str, callbacks: tuple[str, ...], surl: str | None, as_json: bool
) -> None:
    """Notify NURL that the table at --surl may have new rows.

    NURL is a Notify URL, or the name of a Notify URL on the server. EVENT=NURL registers a Notify
    URL of yours that is called for events of that type. Without --surl the Notify is a handshake
    that only registers them. A Notify can be repeated: it says that there may be new rows, but not
    which. A Penstock server reports what it did with the form, and --json prints the report. The
    secret in PENSTOCK_NOTIFY_SECRET, if it is set, signs the form.

    \b
    Examples:
      penstock notify https://hub.example/v1/notify/hub --surl https://me.example/v1/table/endpoints
      penstock notify hub manifest_nurl=https://me.example/v1/notify/manifest
    """
    urls: dict[str, str] = {}
    for callback in callbacks:
        event_type, equals, url = callback.partition("=")
        if not equals:
            raise click.UsageError(f"{callback!r} is not of the form EVENT=NURL.")
        if event_type in urls:
            raise click.UsageError(f"{event_type} is named twice.")
        urls[event_type] = url
    with server.notifier(nurl) as (notifier, url):
        try:
            report = notifier.notify(url, surl=surl, callbacks=urls)
        except ValueError as error:
            raise click.UsageError(str(error)) from None
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    click.echo(printable(f"notified {nurl}"))
    ignored = report.get("ignored")
    if isinstance(ignored, dict):
        for name, reason in ignored.items():
            note(f"The server ignored {name}: {reason}")
