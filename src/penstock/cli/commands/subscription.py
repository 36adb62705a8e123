"""`penstock subscription`: make, list, show, change and delete them; replace the signing key."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import printable
from penstock.cli.text import aligned

if TYPE_CHECKING:
    from penstock.client.subscriptions import SubscriptionInfo, WebhookKey

JSON = "application/json"


@click.group("subscription")
def command() -> None:
    """Durable cursors over streams that wake a worker when there is something new.

    \b
    Examples:
      penstock subscription create mail --pattern 'orders/*' --webhook https://mail.example/hook
      penstock subscription create jobs --pattern 'jobs/**' --wake-stream wake/jobs
      penstock work jobs -- ./do-job
      penstock subscription add jobs archive/jobs
      penstock subscription ls
    """


@command.command("create")
@click.argument("id")
@click.option("--pattern", metavar="GLOB", help="Streams: orders/*, orders-*, jobs/**.")
@click.option("--stream", "streams", multiple=True, metavar="STREAM", help="A stream; repeatable.")
@click.option("--webhook", metavar="URL", help="Have the server call this URL.")
@click.option("--wake-stream", metavar="STREAM", help="Wake workers here; made if it is absent.")
@click.option("--lease-ms", type=click.IntRange(1000, 600_000), help="How long a worker may take.")
@click.option("--description", metavar="TEXT", help="For people.")
@json_option
@server_options
def create(
    server: Server,
    id: str,
    pattern: str | None,
    streams: tuple[str, ...],
    webhook: str | None,
    wake_stream: str | None,
    lease_ms: int | None,
    description: str | None,
    as_json: bool,
) -> None:
    """Make the subscription ID, or confirm the one that is there.

    Streams that are there now are linked at their end; what is appended from now on is to be done.
    """
    if (webhook is None) == (wake_stream is None):
        raise click.UsageError("give --webhook or --wake-stream, and not both")
    with server.client() as client:
        if wake_stream is not None:
            client.stream(wake_stream).ensure(JSON)
        info = client.subscription(id).create(
            pattern=pattern,
            streams=streams,
            webhook=webhook,
            wake_stream=wake_stream,
            lease_ttl_ms=lease_ms,
            description=description,
        )
    _print(info, as_json)


@command.command("show")
@click.argument("id")
@json_option
@server_options
def show(server: Server, id: str, as_json: bool) -> None:
    """Show the subscription ID: its streams, and how far each is processed."""
    with server.client() as client:
        _print(client.subscription(id).show(), as_json)


@command.command("ls")
@click.argument("prefix", default="")
@json_option
@server_options
def ls(server: Server, prefix: str, as_json: bool) -> None:
    """List the subscriptions whose ids start with PREFIX."""
    with server.client() as client:
        found = list(client.subscriptions(prefix))
    if as_json:
        for info in found:
            click.echo(json.dumps(_plain(info), ensure_ascii=False))
        return
    if not found:
        click.echo("no subscriptions")
        return
    lines = [("ID", "TYPE", "STATUS", "STREAMS", "PENDING", "OF", "TO")]
    lines += [
        (
            info.id,
            info.type,
            info.status,
            str(_streams(info)),
            str(info.pending),
            info.pattern or "its list",
            _target(info),
        )
        for info in found
    ]
    for line in aligned(lines, right=(3, 4)):
        click.echo(printable(line))


@command.command("add")
@click.argument("id")
@click.argument("streams", nargs=-1, required=True)
@server_options
def add(server: Server, id: str, streams: tuple[str, ...]) -> None:
    """Link STREAMS to the subscription ID, each at its end, beside those of its pattern."""
    with server.client() as client:
        client.subscription(id).add(*streams)
    click.echo(printable(f"added {len(streams)} to {id}"))


@command.command("remove")
@click.argument("id")
@click.argument("streams", nargs=-1, required=True)
@server_options
def remove(server: Server, id: str, streams: tuple[str, ...]) -> None:
    """Take STREAMS from the subscription ID; those that its pattern matches stay linked by it."""
    with server.client() as client:
        subscription = client.subscription(id)
        for stream in streams:
            subscription.remove(stream)
            click.echo(printable(f"removed {stream} from {id}"))


@command.command("rotate-key")
@json_option
@server_options
def rotate_key(server: Server, as_json: bool) -> None:
    """Replace the key that webhooks are signed with.

    The new one is in jwks.json at once and signs when receivers, who may keep the set for five
    minutes, can know it; the old one stays there for webhook_key_overlap_s after that.
    """
    with server.client() as client:
        key = client.rotate_webhook_key()
    if as_json:
        click.echo(json.dumps(_plain(key)))
    else:
        click.echo(f"{key.kid} signs from {key.signs_from}")


@command.command("rm")
@click.argument("ids", nargs=-1, required=True)
@server_options
def rm(server: Server, ids: tuple[str, ...]) -> None:
    """Delete the subscriptions IDS, and their cursors with them; streams stay as they are."""
    with server.client() as client:
        for id in ids:
            client.subscription(id).delete()
            click.echo(printable(f"deleted {id}"))


def _print(info: SubscriptionInfo, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(_plain(info), ensure_ascii=False))
        return
    rows = [
        ("subscription", info.id),
        ("type", info.type),
        ("to", _target(info)),
        ("status", info.status),
        ("lease", f"{info.lease_ttl_ms / 1000:g} s"),
    ]
    if info.pattern is not None:
        rows.append(("pattern", info.pattern))
    if info.description is not None:
        rows.append(("description", info.description))
    if info.holder is not None:
        rows.append(("held by", info.holder))
    if info.next_attempt_at is not None:
        rows.append(("next attempt", f"{info.next_attempt_at}, after {info.attempts} failed"))
    lines = list(aligned(rows))
    links = info.streams if isinstance(info.streams, list) else []
    if links:
        table = [(each.path, each.link_type, each.acked_offset) for each in links]
        lines += ["", *aligned([("STREAM", "LINK", "ACKED"), *table])]
    for line in lines:
        click.echo(printable(line))


def _streams(info: SubscriptionInfo) -> int:
    return info.streams if isinstance(info.streams, int) else len(info.streams)


def _target(info: SubscriptionInfo) -> str:
    return info.webhook.url if info.webhook is not None else info.wake_stream or ""


def _plain(info: SubscriptionInfo | WebhookKey) -> Any:
    import msgspec

    return msgspec.to_builtins(info)
