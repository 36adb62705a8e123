"""`penstock state`: what a stream of events adds up to, now and at any offset."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from penstock.cli import Failure
from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.exits import NOT_FOUND
from penstock.cli.system import columns
from penstock.cli.tables import aligned
from penstock.cli.terminal import printable, styled
from penstock.cli.values import offset_of

if TYPE_CHECKING:
    from penstock.client.stream import Stream

_VALUE_WIDTH_MIN = 20

at_option: Callable[[Any], Any] = click.option(
    "--at",
    metavar="OFFSET",
    default="end",
    help="The state at this offset instead of at the end.",
)


class Entity(NamedTuple):
    type: str
    key: str
    value: Any


@click.group("state")
def command() -> None:
    """Show the state that a stream of State Protocol events stands for.

    \b
    Examples:
      penstock state show team
      penstock state get team user 1
      penstock state history team user 1
      penstock state diff team start
    """


@command.command("get")
@stream_argument()
@click.argument("type")
@click.argument("key")
@at_option
@server_options
def get(server: Server, stream: str, type: str, key: str, at: str) -> None:
    """Print the value of one entity as JSON; exit code 3 if there is none."""
    with server.stream(stream) as found:
        answer = _ask(found, {"type": type, "key": key, "offset": offset_of(at)})
    values = answer["types"].get(type, {})
    if key not in values:
        raise Failure(f"there is no {type} {key!r} in the state of {stream}", NOT_FOUND)
    click.echo(_text(values[key]))


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
    query = {name: text for name, text in given.items() if text is not None}
    with server.stream(stream) as found:
        entities = _all(found, offset_of(at), query)
        if as_json:
            for entity in entities:
                click.echo(_text(entity._asdict()))
            return
        rows = [(entity.type, entity.key, _text(entity.value)) for entity in entities]
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
        steps = [step for page in _pages(found, offset_of(at), query) for step in page["history"]]
    if as_json:
        for step in steps:
            click.echo(_text(step))
        return
    show_columns(
        ("OFFSET", "OPERATION", "VALUE"),
        [
            (
                step["offset"],
                step.get("operation") or step["control"],
                _text(step["value"]) if "value" in step else "",
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
            {(entity.type, entity.key): entity.value for entity in _all(found, offset_of(at), {})}
            for at in (before, after)
        )
    for place in sorted(old.keys() | new.keys()):
        mark = "+" if place not in old else "-" if place not in new else "~"
        values = [_text(state[place]) for state in (old, new) if place in state]
        if mark == "~" and values[0] == values[1]:
            continue
        if as_json:
            change = {"change": mark, "type": place[0], "key": place[1]}
            sides = {"old": old, "new": new}
            click.echo(_text({**change, **{k: s[place] for k, s in sides.items() if place in s}}))
        else:
            colour = {"+": "green", "-": "red", "~": "yellow"}[mark]
            line = f"{mark} {place[0]} {place[1]}  {' -> '.join(values)}"
            click.echo(styled(printable(line), fg=colour))


def _all(stream: Stream, offset: str, query: dict[str, str]) -> Iterator[Entity]:
    for page in _pages(stream, offset, query):
        for type, values in page["types"].items():
            for key, value in values.items():
                yield Entity(type, key, value)


def _pages(stream: Stream, offset: str, query: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Every page of one state: the first says which offset the others have to be of."""
    query = {**query, "offset": offset}
    while True:
        page = _ask(stream, query)
        yield page
        if page["next"] is None:
            return
        query = {**query, "offset": page["offset"], "after": page["next"]}


def _ask(stream: Stream, query: dict[str, str]) -> dict[str, Any]:
    from penstock.client._requests import Request

    url = stream.url.replace("/v1/stream/", "/v1/state/", 1)
    found: dict[str, Any] = json.loads(stream.client.request(Request("GET", url, {}, query)).body)
    return found


def show_columns(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> None:
    """Rows below each other, cut to the width of a terminal; the last column is the long one."""
    shown = [tuple(printable(cell) for cell in row) for row in rows]
    first, *rest = aligned([head, *shown])
    width = max(columns(), _VALUE_WIDTH_MIN) if sys.stdout.isatty() else None
    click.echo(styled(first, bold=True))
    for line in rest:
        click.echo(line[:width])


def _text(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
