"""`penstock schema`: sets, shows, removes and tests the declaration of a state stream."""

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
    """Declare a JSON Schema for each type of a state stream.

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
    """Declare the types of STREAM.

    FILE (- is stdin) is a JSON document such as {"types": {"user": {"schema": {…}}}}. A type may
    have a "key_pattern", and "unknown_types": "refuse" refuses all other types.
    """
    from penstock.client.requests import Request
    from penstock.errors import InvalidJson

    body = _content(file)
    with server.stream(stream) as remote:
        headers = {"Content-Type": "application/json"}
        try:
            answer = remote.client.request(Request("PUT", _url(remote), headers, body=body))
        except InvalidJson as error:
            reason = (error.reason or error.detail).removeprefix("The body is not valid JSON: ")
            raise InvalidJson(f"{file} is not valid JSON: {reason}") from None
    declared = json.loads(answer.body)
    refuses = declared.get("unknown_types") == "refuse"
    more = ", unknown types refused" if refuses else ""
    click.echo(f"version {declared['version']} of {stream}, mode {declared['mode']}{more}")


@command.command("get")
@stream_argument()
@server_options
def get(server: Server, stream: str) -> None:
    """Print the declaration of STREAM, as JSON that `set` accepts."""
    with server.stream(stream) as remote:
        click.echo(json.dumps(json.loads(_declaration(remote)), indent=2, ensure_ascii=False))


@command.command("rm")
@stream_argument()
@server_options
def remove(server: Server, stream: str) -> None:
    """Remove the declaration of STREAM. Its messages stay, and it accepts any JSON again."""
    from penstock.client.requests import Request

    with server.stream(stream) as remote:
        remote.client.request(Request("DELETE", _url(remote)))
    click.echo(printable(f"undeclared {stream}"))


@command.command("check")
@stream_argument()
@click.argument("file", type=_file_type, required=False)
@server_options
def check(server: Server, stream: str, file: Path | None) -> None:
    """Check events against the declaration of STREAM, without appending them.

    FILE has one event per line, or is one JSON array (- is stdin). Without FILE, the messages of
    STREAM are checked. The exit code is 1 if an event is invalid.
    """
    from penstock.errors import InvalidEvent
    from penstock.state.declaration import Compiled, decode

    checked = invalid = 0
    with server.stream(stream) as remote:
        compiled = Compiled(decode(_declaration(remote)))
        for event in _stream_events(remote) if file is None else _file_events(_content(file)):
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


def _stream_events(stream: Stream) -> Iterator[bytes]:
    import msgspec

    for batch in stream.iter_batches(message_type=msgspec.Raw):
        yield from map(bytes, batch.messages)


def _file_events(content: bytes) -> Iterator[bytes]:
    import msgspec

    if content.lstrip()[:1] == b"[":
        try:
            yield from map(bytes, msgspec.json.decode(content, type=list[msgspec.Raw]))
        except msgspec.DecodeError as error:
            raise click.ClickException(f"The file is not a JSON array: {error}.") from None
        return
    yield from (line for line in content.splitlines() if line.strip())
