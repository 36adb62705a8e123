"""`penstock retention`: shows and changes the retention policy of a stream."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.terminal import printable
from penstock.protocol.retention import RATIO_MIN, parse_age, show_age
from penstock.units import NUMBER_MAX, parse_size, show_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from penstock.client.answers import Retention


class _Limit(click.ParamType[int]):
    """A number with a unit, as people write it."""

    def __init__(self, name: str, parse: Callable[[str], int], example: str) -> None:
        self.name = name
        self._parse = parse
        self._example = example

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            limit = self._parse(value)
        except ValueError:
            limit = 0
        if limit < 1:
            self.fail(f"{value!r} is not a limit such as {self._example}.", param, ctx)
        return limit


@click.group("retention")
def command() -> None:
    """Show or change how long a stream keeps its data.

    The limits are age, bytes, and the ratio of the log to the live state. A stream without limits
    of its own has those of its path, from the server's setting `retention`.

    \b
    Examples:
      penstock retention show logs/web
      penstock retention set logs/web --age 7d --bytes 10GiB
      penstock retention set app/users --compact 4
      penstock retention rm logs/web
    """


@command.command("show")
@stream_argument()
@json_option
@server_options
def show(server: Server, stream: str, as_json: bool) -> None:
    """Show the limits of STREAM and its first offset."""
    with server.stream(stream) as remote:
        _print(stream, remote.retention(), as_json=as_json)


@command.command("set")
@stream_argument()
@click.option(
    "--age",
    type=_Limit("age", parse_age, "90s, 15m, 12h or 7d"),
    metavar="AGE",
    help="Delete older messages: 90s, 15m, 12h, 7d.",
)
@click.option(
    "--bytes",
    type=_Limit("size", parse_size, "65536, 512k or 10GiB"),
    metavar="SIZE",
    help="Delete messages before the last SIZE bytes.",
)
@click.option(
    "--compact",
    type=click.IntRange(RATIO_MIN, NUMBER_MAX),
    metavar="N",
    help="Compact a state stream when its log is N times its live state.",
)
@click.option(
    "--forever", is_flag=True, help="Keep all messages, whatever the limits of its path are."
)
@json_option
@server_options
def set_(
    server: Server,
    stream: str,
    age: int | None,
    bytes: int | None,
    compact: int | None,
    forever: bool,
    as_json: bool,
) -> None:
    """Set limits of its own for STREAM, replacing any that it has."""
    if forever == any(limit is not None for limit in (age, bytes, compact)):
        raise click.UsageError("Set --age, --bytes or --compact, or --forever alone.")
    with server.stream(stream) as remote:
        remote.set_retention(age_s=age, bytes=bytes, compact=compact)
        _print(stream, remote.retention(), as_json=as_json)


@command.command("rm")
@stream_argument()
@json_option
@server_options
def remove(server: Server, stream: str, as_json: bool) -> None:
    """Remove the limits of STREAM. Those of its path apply again."""
    with server.stream(stream) as remote:
        remote.reset_retention()
        _print(stream, remote.retention(), as_json=as_json)


def _print(stream: str, retention: Retention, *, as_json: bool) -> None:
    if as_json:
        fields: dict[str, Any] = {"stream": stream, "age": retention.age_s}
        fields |= {"bytes": retention.bytes, "compact": retention.compact}
        fields |= {"own": retention.own, "earliest": retention.earliest}
        click.echo(json.dumps(fields))
        return
    limits = []
    if retention.age_s is not None:
        limits.append(f"deletes messages older than {show_age(retention.age_s)}")
    if retention.bytes is not None:
        limits.append(f"deletes messages before its last {show_size(retention.bytes)}")
    if retention.compact is not None:
        limits.append(f"is compacted at {retention.compact} times its live state")
    policy = ", ".join(limits) or "keeps all messages"
    owner = "its own limits" if retention.own else "limits of its path"
    click.echo(printable(f"{stream} {policy} ({owner}); it starts at {retention.earliest}"))
