"""`penstock state`: shows the state of a stream of events, now and at any offset."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click
import msgspec

from penstock.cli import Failure
from penstock.cli.commands.state.entities import (
    Entity,
    check_events,
    entities,
    fetch,
    object_text,
    on_one_line,
    pages,
    point,
    text,
)
from penstock.cli.commands.state.watch import watch
from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.exits import NOT_FOUND
from penstock.cli.terminal import note, print_columns, printable, styled

at_option: Callable[[Any], Any] = click.option(
    "--at",
    metavar="OFFSET|TIME",
    default="end",
    help="Show the state at this offset, or at a time such as 2026-11-01T10:00:00Z.  "
    "[default: the end]",
)


@click.group("state")
def command() -> None:
    """Show the state of a stream of State Protocol events.

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
@click.option(
    "--json", "as_json", is_flag=True, help="Print a JSON object that includes the offset."
)
@server_options
def get(server: Server, stream: str, type: str, key: str, at: str, as_json: bool) -> None:
    """Print the JSON value of one entity. The exit code is 3 if it does not exist."""
    with server.stream(stream) as remote:
        page = fetch(remote, {"type": type, "key": key, **point(at)})
        values = page.types.get(type, {})
        if key not in values:
            check_events(remote, stream)
            raise Failure(f"There is no {type} {key!r} in the state of {stream}.", NOT_FOUND)
    if as_json:
        entity = Entity(type, key, values[key])
        click.echo(object_text({**entity._asdict(), "offset": page.offset}))
    else:
        click.echo(text(values[key]))


@command.command("show")
@stream_argument()
@click.argument("type", required=False)
@click.option("--prefix", metavar="TEXT", help="Only keys that start with TEXT; needs TYPE.")
@at_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per entity.")
@server_options
def show(
    server: Server, stream: str, type: str | None, prefix: str | None, at: str, as_json: bool
) -> None:
    """List the entities of a state, ordered by type and key."""
    if prefix is not None and type is None:
        raise click.UsageError("--prefix needs TYPE.")
    filters = {"type": type, "prefix": prefix}
    query = {name: value for name, value in filters.items() if value is not None}
    with server.stream(stream) as remote:
        is_empty = True
        rows = []
        for entity in entities(remote, at, query):
            is_empty = False
            if as_json:
                click.echo(object_text(entity._asdict()))
            else:
                name, key, value = entity
                rows.append((on_one_line(name), on_one_line(key), text(value)))
        if is_empty:
            check_events(remote, stream)
    if rows:
        print_columns(("TYPE", "KEY", "VALUE"), rows)
    elif is_empty:
        what = "No entity matches" if query else "There are no entities"
        note(f"{what} in the state of {stream}.")


@command.command("history")
@stream_argument()
@click.argument("type")
@click.argument("key")
@at_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per change.")
@server_options
def history(server: Server, stream: str, type: str, key: str, at: str, as_json: bool) -> None:
    """List the changes of one entity, oldest first."""
    query = {"type": type, "key": key, "history": "true"}
    with server.stream(stream) as remote:
        steps = [step for page in pages(remote, at, query) for step in page.history]
        if not steps:
            check_events(remote, stream)
            raise Failure(f"There has been no {type} {key!r} in the state of {stream}.", NOT_FOUND)
    if as_json:
        for step in steps:
            click.echo(object_text(step))
        return
    print_columns(
        ("OFFSET", "OPERATION", "VALUE"),
        [
            (
                msgspec.json.decode(step["offset"]),
                msgspec.json.decode(step["operation"] if "operation" in step else step["control"]),
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
    """Show the differences between the states at the offsets or times BEFORE and AFTER.

    `+` is a new entity, `-` a deleted one, `~` one with another value.
    """
    with server.stream(stream) as remote:
        old, new = (
            {(type, key): value for type, key, value in entities(remote, at, {})}
            for at in (before, after)
        )
        if not (old or new):
            check_events(remote, stream)
    for entity in sorted(old.keys() | new.keys()):
        mark = "+" if entity not in old else "-" if entity not in new else "~"
        values = [text(state[entity]) for state in (old, new) if entity in state]
        if mark == "~" and values[0] == values[1]:
            continue
        if as_json:
            change = {"change": mark, "type": entity[0], "key": entity[1]}
            sides = {"old": old, "new": new}
            values_by_side = {
                side: state[entity] for side, state in sides.items() if entity in state
            }
            click.echo(object_text({**change, **values_by_side}))
        else:
            colour = {"+": "green", "-": "red", "~": "yellow"}[mark]
            line = f"{mark} {' '.join(map(on_one_line, entity))}  {' -> '.join(values)}"
            click.echo(styled(printable(line), fg=colour))
