"""`penstock subscription`: creates, lists, shows, changes and deletes subscriptions; replaces the
key that signs webhooks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, json_option, server_options
from penstock.cli.terminal import printable
from penstock.cli.text import aligned
from penstock.cli.values import Name

if TYPE_CHECKING:
    from penstock.client.subscriptions import SubscriptionInfo, WebhookKey

JSON = "application/json"


@click.group("subscription")
def command() -> None:
    """Create, list, show and delete subscriptions.

    A subscription is a durable cursor over streams. It wakes a worker when there are new messages.

    \b
    Examples:
      penstock subscription create mail --pattern 'orders/*' --webhook https://mail.example/hook
      penstock subscription create jobs --pattern 'jobs/**' --wake-stream wake/jobs
      penstock work jobs -- ./do-job
      penstock subscription add jobs archive/jobs
      penstock subscription ls
    """


@command.command("create")
@click.argument("id", type=Name())
@click.option(
    "--pattern", metavar="GLOB", help="Pattern of the streams: orders/*, orders-*, jobs/**."
)
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="STREAM",
    help="Path of a stream; can be repeated.",
)
@click.option("--webhook", metavar="URL", help="URL that the server calls for each wake.")
@click.option(
    "--wake-stream",
    metavar="STREAM",
    help="Stream of the wakes for workers. It is created if needed.",
)
@click.option(
    "--lease-ms", type=click.IntRange(1000, 600_000), help="Duration of a lease in milliseconds."
)
@click.option("--description", metavar="TEXT", help="Text for people.")
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
    """Create the subscription ID, or confirm an equal existing one.

    Existing streams are linked at their ends: only messages appended from now on cause wakes.
    """
    if (webhook is None) == (wake_stream is None):
        raise click.UsageError("Set either --webhook or --wake-stream.")
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
@click.argument("id", type=Name())
@json_option
@server_options
def show(server: Server, id: str, as_json: bool) -> None:
    """Show the subscription ID: its streams, and the acknowledged offset of each."""
    with server.client() as client:
        _print(client.subscription(id).show(), as_json)


@command.command("ls")
@click.argument("prefix", default="")
@json_option
@server_options
def ls(server: Server, prefix: str, as_json: bool) -> None:
    """List the subscriptions whose ids start with PREFIX."""
    with server.client() as client:
        subscriptions = list(client.subscriptions(prefix))
    if as_json:
        for info in subscriptions:
            click.echo(json.dumps(_plain(info), ensure_ascii=False))
        return
    if not subscriptions:
        click.echo("There are no subscriptions.")
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
        for info in subscriptions
    ]
    for line in aligned(lines, right=(3, 4)):
        click.echo(printable(line))


@command.command("add")
@click.argument("id", type=Name())
@click.argument("streams", nargs=-1, required=True)
@server_options
def add(server: Server, id: str, streams: tuple[str, ...]) -> None:
    """Link STREAMS to the subscription ID, each at its end, in addition to its pattern."""
    with server.client() as client:
        client.subscription(id).add(*streams)
    click.echo(printable(f"added {len(streams)} to {id}"))


@command.command("remove")
@click.argument("id", type=Name())
@click.argument("streams", nargs=-1, required=True)
@server_options
def remove(server: Server, id: str, streams: tuple[str, ...]) -> None:
    """Unlink STREAMS from the subscription ID. Streams that its pattern matches stay linked."""
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

    The new key is in jwks.json at once. It signs after five minutes, the time for which receivers
    may cache the key set. The old key stays published for webhook_key_overlap_s after that.
    """
    with server.client() as client:
        key = client.rotate_webhook_key()
    if as_json:
        click.echo(json.dumps(_plain(key)))
    else:
        click.echo(f"{key.kid} signs from {key.signs_from}")


@command.command("rm")
@click.argument("ids", nargs=-1, required=True, type=Name())
@server_options
def rm(server: Server, ids: tuple[str, ...]) -> None:
    """Delete the subscriptions IDS with their cursors. Their streams do not change."""
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
