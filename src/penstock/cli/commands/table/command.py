"""`penstock table`: tables of the State Transfer Protocol, on any server that speaks it."""

from __future__ import annotations

import json

import click

from penstock.cli import Failure
from penstock.cli.commands.state.command import show_columns
from penstock.cli.commands.table.output import RowsOutput
from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.exits import NOT_FOUND
from penstock.cli.system import broken_pipe_noticed, stdin_bytes
from penstock.cli.terminal import note, printable

_since = click.option(
    "-s",
    "--since",
    type=int,
    default=0,
    show_default=True,
    metavar="SEQNO",
    help="Only rows after this SeqNo; -N are the last N.",
)
_json_rows = click.option("--json", "as_json", is_flag=True, help="Print one JSON object a row.")
_count = click.option(
    "-c", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N."
)


@click.group("table")
def command() -> None:
    """Tables of STP, the State Transfer Protocol: rows of changes at a State URL.

    A TABLE is a path on the server, CONTEXT:PATH, or the State URL of any STP server. Rows come as
    they are on the wire: SeqNo, time, + or -, key and record, separated by tabs; on a terminal in
    columns.

    \b
    Examples:
      penstock table create endpoints --schema endpoint_manifest
      penstock table put endpoints fhir_read https://prov.example/fhir
      penstock table state endpoints
      penstock table follow https://prov.example/v1/table/endpoints
    """


@command.command("create")
@stream_argument("table")
@click.option(
    "--schema", metavar="ID", help="The id of its schema.  [default: the last part of TABLE]"
)
@click.option(
    "--version",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="The version of its schema.",
)
@click.option(
    "--type", metavar="TYPE", help="The entity type of its events.  [default: the schema]"
)
@click.option(
    "--record",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="What records are.",
)
@click.option("--escape", is_flag=True, help="Allow tabs and line ends in keys and records.")
@click.option(
    "--stream", metavar="STREAM", help="A state stream to show as a table, one type of it."
)
@click.option("--exist-ok", is_flag=True, help="Succeed if it exists with the same declaration.")
@json_option
@server_options
def create(
    server: Server,
    table: str,
    schema: str | None,
    version: int,
    type: str | None,
    record: str,
    escape: bool,
    stream: str | None,
    exist_ok: bool,
    as_json: bool,
) -> None:
    """Declare TABLE."""
    with server.table(table) as found:
        name = schema or found.url.rstrip("/").rsplit("/", 1)[-1]
        declared = found.create(
            name,
            version=version,
            type=type,
            record=record,
            escape=escape,
            stream=stream,
            exist_ok=exist_ok,
        )
        url = found.url
    if as_json:
        said = {"url": url, "created": declared.created, "schema": name, "version": version}
        click.echo(json.dumps(said))
    else:
        done = "created" if declared.created else "found"
        click.echo(printable(f"{done} {table} (schema {name}, version {version})"))


@command.command("put")
@stream_argument("table")
@click.argument("key", required=False)
@click.argument("record", required=False)
@json_option
@server_options
def put(server: Server, table: str, key: str | None, record: str | None, as_json: bool) -> None:
    """Set the RECORD of KEY in TABLE; without RECORD it is read from stdin.

    Without KEY, changes are read from stdin, one a line: `+`, key and record, or `-` and key,
    separated by tabs. They are written in one request: all of them or none.

    \b
    Examples:
      penstock table put endpoints fhir_read https://prov.example/fhir
      penstock table put notes today < today.txt
      printf '+\\ta\\t1\\n-\\tb\\n' | penstock table put counts
    """
    with server.table(table) as found:
        if key is None:
            from penstock.stp.rows import parse_changes

            lines = stdin_bytes()
            if not lines.strip():
                raise click.ClickException("there is nothing to write")
            changes = parse_changes(lines, escape=found.head().escape)
            written = found.write(changes)
        else:
            text = stdin_bytes().removesuffix(b"\n") if record is None else record
            written = found.put(key, text)
    _report(written.seqno, as_json)


@command.command("rm")
@stream_argument("table")
@click.argument("keys", nargs=-1, required=True)
@json_option
@server_options
def rm(server: Server, table: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Delete KEYS from TABLE, in one request; the history keeps the rows."""
    with server.table(table) as found:
        if len(keys) == 1:
            written = found.delete(keys[0])
        else:
            written = found.write([("-", key) for key in keys])
    _report(written.seqno, as_json)


@command.command("read")
@stream_argument("table")
@_since
@_count
@_json_rows
@server_options
def read(server: Server, table: str, since: int, count: int | None, as_json: bool) -> None:
    """Print the rows of TABLE."""
    with server.table(table) as found, broken_pipe_noticed(), found.iter_rows(since) as rows:
        RowsOutput(as_json=as_json, count=count).write(rows)


@command.command("tail")
@stream_argument("table")
@click.option(
    "-n",
    "lines",
    type=click.IntRange(min=1),
    default=10,
    show_default=True,
    metavar="N",
    help="So many rows.",
)
@click.option("-f", "--follow", "live", is_flag=True, help="Go on with what comes.")
@_json_rows
@server_options
def tail(server: Server, table: str, lines: int, live: bool, as_json: bool) -> None:
    """Print the last rows of TABLE."""
    with (
        server.table(table) as found,
        broken_pipe_noticed(),
        found.follow(-lines) if live else found.iter_rows(-lines) as rows,
    ):
        RowsOutput(as_json=as_json).write(rows)


@command.command("follow")
@stream_argument("table")
@_since
@_count
@click.option(
    "--checkpoint",
    metavar="FILE",
    help="Keep the SeqNo in FILE when rows are written, and begin there the next time.",
)
@_json_rows
@server_options
def follow(
    server: Server,
    table: str,
    since: int,
    count: int | None,
    checkpoint: str | None,
    as_json: bool,
) -> None:
    """Print the rows of TABLE, and go on with what comes.

    A failing connection is waited out and goes on after the last row; no row is printed twice. A
    server that only answers once is polled. Rows that contradict earlier ones are left out and
    reported.
    """
    from penstock.client.checkpoint import FileCheckpoint

    if checkpoint and count is not None:
        raise click.UsageError("--checkpoint keeps what has been printed: no --count")
    keep = FileCheckpoint(checkpoint) if checkpoint else None
    with (
        server.table(table) as found,
        broken_pipe_noticed(),
        found.follow(since, checkpoint=keep) as rows,
    ):
        RowsOutput(as_json=as_json, count=count).write(rows)


@command.command("state")
@stream_argument("table")
@click.argument("key", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object a key.")
@server_options
def state(server: Server, table: str, key: str | None, as_json: bool) -> None:
    """Print the records of TABLE by key, or the record of KEY; exit code 3 if there is none."""
    with server.table(table) as found, broken_pipe_noticed():
        records = found.state()
    if key is not None and key not in records:
        raise Failure(f"there is no {key!r} in {table}", NOT_FOUND)
    shown = sorted(records) if key is None else [key]
    if as_json:
        for name in shown:
            row = records.rows[name]
            fields = {"key": name, "record": row.record, "seqno": row.seqno}
            click.echo(json.dumps({**fields, "timestamp": row.timestamp}, ensure_ascii=False))
    elif key is not None:
        click.echo(printable(records[key]))
    else:
        cells = [(name, records[name], str(records.rows[name].seqno)) for name in shown]
        show_columns(
            ("KEY", "SEQNO", "RECORD"), [(name, seqno, text) for name, text, seqno in cells]
        )


def _report(seqno: int | None, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"seqno": seqno}))
    else:
        note(f"SeqNo {seqno}")
