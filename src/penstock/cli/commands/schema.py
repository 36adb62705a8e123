"""`penstock schema`: the declaration of a state stream, set, shown and tried out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.connection import Server, server_options, stream_argument
from penstock.cli.exits import FAILURE
from penstock.cli.system import open_for_read, stdin_bytes
from penstock.cli.terminal import printable
from penstock.cli.text import amount

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream

_file_type = click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path)


@click.group("schema")
def command() -> None:
    """Declare state streams: a JSON Schema for each type of entity.

    \b
    Examples:
      penstock schema set team team.json
      penstock schema get team
      penstock schema check team - < events.jsonl
      penstock schema rm team
    """


@command.command("set")
@stream_argument()
@click.argument("file", type=_file_type)
@server_options
def set_(server: Server, stream: str, file: Path) -> None:
    """Declare STREAM as FILE says (- is stdin): {"types": {"user": {"schema": {…}}}}."""
    from penstock.client.requests import Request

    body = _content(file)
    with server.stream(stream) as found:
        headers = {"Content-Type": "application/json"}
        answer = found.client.request(Request("PUT", _url(found), headers, body=body))
    declared = json.loads(answer.body)
    click.echo(f"version {declared['version']} of {stream}, mode {declared['mode']}")


@command.command("get")
@stream_argument()
@server_options
def get(server: Server, stream: str) -> None:
    """Print how STREAM is declared, as JSON that `set` takes."""
    with server.stream(stream) as found:
        click.echo(json.dumps(json.loads(_declaration(found)), indent=2, ensure_ascii=False))


@command.command("rm")
@stream_argument()
@server_options
def remove(server: Server, stream: str) -> None:
    """Take the declaration of STREAM back: it takes any JSON again. Its messages stay."""
    from penstock.client.requests import Request

    with server.stream(stream) as found:
        found.client.request(Request("DELETE", _url(found)))
    click.echo(printable(f"undeclared {stream}"))


@command.command("check")
@stream_argument()
@click.argument("file", type=_file_type, required=False)
@server_options
def check(server: Server, stream: str, file: Path | None) -> None:
    """Check events against the declaration of STREAM, without appending them.

    FILE has an event a line, or one JSON array (- is stdin). Without it the messages that are in
    the stream are checked. Exit code 1 if one is invalid.
    """
    from penstock.errors import InvalidEvent
    from penstock.state.declaration import Compiled, decode

    checked = invalid = 0
    with server.stream(stream) as found:
        compiled = Compiled(decode(_declaration(found)))
        for event in _of_stream(found) if file is None else _of_file(_content(file)):
            try:
                compiled.check(b"[" + event + b"]")
            except InvalidEvent as error:
                invalid += 1
                detail = error.detail.removeprefix("Event 0: ")
                click.echo(printable(f"{checked}: {detail} ({error.path or '/'}, {error.rule})"))
            checked += 1
    click.echo(f"{amount(checked, 'event')}, {invalid:,} invalid")
    if invalid:
        click.get_current_context().exit(FAILURE)


def _declaration(stream: Stream) -> bytes:
    from penstock.client.requests import Request

    return stream.client.request(Request("GET", _url(stream))).body


def _url(stream: Stream) -> str:
    return stream.url.replace("/v1/stream/", "/v1/schema/", 1)


def _content(file: Path) -> bytes:
    if str(file) == "-":
        return stdin_bytes()
    with open_for_read(file) as opened:
        return opened.read()


def _of_stream(stream: Stream) -> Iterator[bytes]:
    import msgspec

    for batch in stream.iter_batches(message_type=msgspec.Raw):
        yield from map(bytes, batch.messages)


def _of_file(content: bytes) -> Iterator[bytes]:
    import msgspec

    if content.lstrip()[:1] == b"[":
        try:
            yield from map(bytes, msgspec.json.decode(content, type=list[msgspec.Raw]))
        except msgspec.DecodeError as error:
            raise click.ClickException(f"the file is not a JSON array: {error}") from None
        return
    yield from (line for line in content.splitlines() if line.strip())
