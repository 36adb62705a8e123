"""`penstock bench`: how fast a server is, as seen by a client over the network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from penstock.cli.connection import Server, json_option, server_options


@click.group("bench")
def command() -> None:
    """Measure a server: appends, reads, or fan-out to live readers.

    A stream is made for each run and deleted afterwards. Latencies are percentiles over all
    requests (fanout: over all deliveries). One Python process is the client, so its own speed is
    part of what is measured.

    \b
    Examples:
      penstock bench append --connections 32
      penstock bench read --context prod
      penstock bench fanout --readers 100 --rate 50 --json
    """


def bench_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """What every bench takes."""
    for option in (
        json_option,
        click.option(
            "--size",
            "message_bytes",
            type=click.IntRange(min=10, max=1 << 20),
            default=100,
            show_default=True,
            metavar="BYTES",
            help="Size of a message.",
        ),
        click.option(
            "-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after so many."
        ),
        click.option(
            "-d",
            "--duration",
            "duration_s",
            type=click.FloatRange(min=0.1),
            default=5.0,
            show_default=True,
            metavar="SECONDS",
            help="Stop after so long, without --count.",
        ),
        server_options,
    ):
        function = option(function)
    return function


def connections_option(function: Callable[..., Any]) -> Callable[..., Any]:
    return click.option(
        "-c",
        "--connections",
        type=click.IntRange(min=1, max=1000),
        default=8,
        show_default=True,
        metavar="N",
        help="Requests at the same time.",
    )(function)


@command.command("append")
@connections_option
@click.option(
    "--batch",
    type=click.IntRange(min=1, max=10_000),
    default=1,
    show_default=True,
    metavar="N",
    help="Messages in one request.",
)
@bench_options
def append(server: Server, **options: Any) -> None:
    """Append to one stream over several connections."""
    from penstock.cli.commands import benches  # late, as in every command

    benches.append(server, **options)


@command.command("read")
@connections_option
@click.option(
    "--messages",
    type=click.IntRange(min=1, max=10_000_000),
    default=10_000,
    show_default=True,
    metavar="N",
    help="What the stream holds.",
)
@bench_options
def read(server: Server, **options: Any) -> None:
    """Read a whole stream, again and again, over several connections."""
    from penstock.cli.commands import benches

    benches.read(server, **options)


@command.command("fanout")
@click.option(
    "--readers",
    type=click.IntRange(min=1, max=10_000),
    default=20,
    show_default=True,
    metavar="N",
    help="Live readers (SSE) of the one stream.",
)
@click.option(
    "--rate",
    type=click.FloatRange(min=0.1),
    default=50.0,
    show_default=True,
    metavar="N",
    help="Appends a second.",
)
@bench_options
def fanout(server: Server, **options: Any) -> None:
    """Append to one stream and time how soon each live reader has the message."""
    from penstock.cli.commands import benches

    benches.fanout(server, **options)
