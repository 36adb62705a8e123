"""`penstock state`: what a stream of events adds up to, now and at any offset."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import click

from penstock.cli import Failure
from penstock.cli.commands.state.watch import watch
from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.entities import Entity, ask, entities, pages, text, word
from penstock.cli.exits import NOT_FOUND
from penstock.cli.system import columns
from penstock.cli.terminal import printable, styled
from penstock.cli.text import aligned
from penstock.cli.values import offset_of

_VALUE_WIDTH_MIN = 20

at_option: Callable[[Any], Any] = click.option(
    "--at",
    metavar="OFFSET",
    default="end",
    help="The state at this offset instead of at the end.",
)


@click.group("state")
def command() -> None:
    """Show the state that a stream of State Protocol events stands for.

    \b
    Examples:
      penstock state show team
      penstock state get team user 1
      penstock state history team user 1
      penstock state diff team start
      penstock state watch team
    """


command.add_command(watch)


@command.command("get")
@stream_argument()
@click.argument("type")
@click.argument("key")
@at_option
@click.option("--json", "as_json", is_flag=True, help="Print an object with the offset, too.")
@server_options
def get(server: Server, stream: str, type: str, key: str, at: str, as_json: bool) -> None:
    """Print the value of one entity, which is JSON; exit code 3 if there is none."""
    with server.stream(stream) as found:
        answer = ask(found, {"type": type, "key": key, "offset": offset_of(at)})
    values = answer["types"].get(type, {})
    if key not in values:
        raise Failure(f"there is no {type} {key!r} in the state of {stream}", NOT_FOUND)
    if as_json:
        click.echo(text({**Entity(type, key, values[key])._asdict(), "offset": answer["offset"]}))
    else:
        click.echo(text(values[key]))


@command.command("show")
@stream_argument()
@click.argument("type", required=False)
@click.option("--prefix", metavar="TEXT", help="Only keys that begin so; needs TYPE.")
@at_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object an entity.")
@server_options
def show(
    server: Server, stream: str, type: str | None, prefix: str | None, at: str, as_json: bool
) -> None:
    """List the entities of a state, in the order of type and key."""
    if prefix is not None and type is None:
        raise click.UsageError("--prefix needs TYPE")
    given = {"type": type, "prefix": prefix}
    query = {name: word for name, word in given.items() if word is not None}
    with server.stream(stream) as found:
        shown = entities(found, offset_of(at), query)
        if as_json:
            for entity in shown:
                click.echo(text(entity._asdict()))
            return
        rows = [(word(type), word(key), text(value)) for type, key, value in shown]
    show_columns(("TYPE", "KEY", "VALUE"), rows)


@command.command("history")
@stream_argument()
@click.argument("type")
@click.argument("key")
@at_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a change.")
@server_options
def history(server: Server, stream: str, type: str, key: str, at: str, as_json: bool) -> None:
    """List what happened to one entity, oldest first."""
    query = {"type": type, "key": key, "history": "true"}
    with server.stream(stream) as found:
        steps = [step for page in pages(found, offset_of(at), query) for step in page["history"]]
    if as_json:
        for step in steps:
            click.echo(text(step))
        return
    show_columns(
        ("OFFSET", "OPERATION", "VALUE"),
        [
            (
                step["offset"],
                step.get("operation") or step["control"],
                text(step["value"]) if "value" in step else "",
            )
            for step in steps
        ],
    )


@command.command("diff")
@stream_argument()
@click.argument("before")
@click.argument("after", default="end")
@json_option
@server_options
def diff(server: Server, stream: str, before: str, after: str, as_json: bool) -> None:
    """Show what changed in a state between the offsets BEFORE and AFTER.

    `+` is an entity that came, `-` one that went, `~` one with another value.
    """
    with server.stream(stream) as found:
        old, new = (
            {(type, key): value for type, key, value in entities(found, offset_of(at), {})}
            for at in (before, after)
        )
    for place in sorted(old.keys() | new.keys()):
        mark = "+" if place not in old else "-" if place not in new else "~"
        values = [text(state[place]) for state in (old, new) if place in state]
        if mark == "~" and values[0] == values[1]:
            continue
        if as_json:
            change = {"change": mark, "type": place[0], "key": place[1]}
            sides = {"old": old, "new": new}
            click.echo(text({**change, **{k: s[place] for k, s in sides.items() if place in s}}))
        else:
            colour = {"+": "green", "-": "red", "~": "yellow"}[mark]
            line = f"{mark} {word(place[0])} {word(place[1])}  {' -> '.join(values)}"
            click.echo(styled(printable(line), fg=colour))


def show_columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Rows below each other, cut to the width of a terminal; the last column is the long one."""
    shown = [tuple(printable(cell) for cell in row) for row in rows]
    first, *rest = aligned([head, *shown])
    width = max(columns(), _VALUE_WIDTH_MIN) if sys.stdout.isatty() else None
    click.echo(styled(first, bold=True))
    for line in rest:
        click.echo(line[:width])
