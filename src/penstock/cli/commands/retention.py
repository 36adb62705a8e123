"""`penstock retention`: the limits within which a stream is kept."""

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


class _Written(click.ParamType[int]):
    """A value as people write it."""

    def __init__(self, name: str, parse: Callable[[str], int], example: str) -> None:
        self.name = name
        self._parse = parse
        self._example = example

    def convert(self, value: Any, param: Any, ctx: Any) -> int:
        try:
            found = self._parse(value)
        except ValueError:
            found = 0
        if found < 1:
            self.fail(f"{value!r} is none: write it as {self._example}", param, ctx)
        return found


@click.group("retention")
def command() -> None:
    """How long a stream's data is kept: by age, by bytes, by the ratio of log to live state.

    A stream without limits of its own has those of its path, from the server's setting `retention`.

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
    """Show the limits in force for STREAM, and where it begins."""
    with server.stream(stream) as found:
        _print(stream, found.retention(), as_json=as_json)


@command.command("set")
@stream_argument()
@click.option(
    "--age",
    type=_Written("age", parse_age, "90s, 15m, 12h or 7d"),
    metavar="AGE",
    help="Let go of what is older: 90s, 15m, 12h, 7d.",
)
@click.option(
    "--bytes",
    type=_Written("size", parse_size, "65536, 512k or 10GiB"),
    metavar="SIZE",
    help="Let go of what is before the last so many bytes.",
)
@click.option(
    "--compact",
    type=click.IntRange(RATIO_MIN, NUMBER_MAX),
    metavar="N",
    help="Compact a state stream whose log is N times its live state.",
)
@click.option("--forever", is_flag=True, help="Keep everything, whatever holds for its path.")
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
    """Give STREAM limits of its own, in the place of any that it has."""
    if forever == any(limit is not None for limit in (age, bytes, compact)):
        raise click.UsageError("give --age, --bytes or --compact, or --forever without them")
    with server.stream(stream) as found:
        found.set_retention(age_s=age, bytes=bytes, compact=compact)
        _print(stream, found.retention(), as_json=as_json)


@command.command("rm")
@stream_argument()
@json_option
@server_options
def remove(server: Server, stream: str, as_json: bool) -> None:
    """Take the own limits of STREAM away: those of its path hold again."""
    with server.stream(stream) as found:
        found.reset_retention()
        _print(stream, found.retention(), as_json=as_json)


def _print(stream: str, found: Retention, *, as_json: bool) -> None:
    if as_json:
        told: dict[str, Any] = {"stream": stream, "age": found.age_s, "bytes": found.bytes}
        told |= {"compact": found.compact, "own": found.own, "earliest": found.earliest}
        click.echo(json.dumps(told))
        return
    limits = []
    if found.age_s is not None:
        limits.append(f"lets go of what is older than {show_age(found.age_s)}")
    if found.bytes is not None:
        limits.append(f"lets go of what is before its last {show_size(found.bytes)}")
    if found.compact is not None:
        limits.append(f"is compacted at {found.compact} times its live state")
    kept = ", ".join(limits) or "keeps everything"
    whose = "limits of its own" if found.own else "those of its path"
    click.echo(printable(f"{stream} {kept} ({whose}), and starts at {found.earliest}"))
