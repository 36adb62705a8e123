"""`penstock table`: tables of the State Transfer Protocol, on any STP server."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import click

from penstock.cli import Failure
from penstock.cli.connection import Server, json_option, server_options, stream_argument
from penstock.cli.exits import NOT_FOUND
from penstock.cli.system import broken_pipe_noticed, columns, stdin_bytes
from penstock.cli.terminal import note, print_columns, printable, styled
from penstock.cli.text import amount
from penstock.cli.values import file_checkpoint

if TYPE_CHECKING:
    from penstock.stp.client.sync.table import TableRows
    from penstock.stp.rows import Row

_KEY_WIDTH = 24
_WIDTH_MIN = 60

_since = click.option(
    "-s",
    "--since",
    type=int,
    default=0,
    show_default=True,
    metavar="SEQNO",
    help="Only rows after this SeqNo; -N selects the last N rows.",
)
_json_rows = click.option("--json", "as_json", is_flag=True, help="Print one JSON object per row.")
_count = click.option(
    "-c", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N rows."
)


@click.group("table")
def command() -> None:
    """Create, write, read and follow STP tables.

    STP is the State Transfer Protocol; a table has rows of changes at a State URL. A TABLE is a
    path on the server, CONTEXT:PATH, or the State URL of any STP server. Rows are printed as they
    are on the wire: SeqNo, time, + or -, key and record, separated by tabs; on a terminal, in
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
@click.option("--schema", metavar="ID", help="Id of the schema.  [default: the last part of TABLE]")
@click.option(
    "--version",
    type=click.IntRange(min=0),
    default=1,
    show_default=True,
    metavar="N",
    help="Version of the schema.",
)
@click.option("--type", metavar="TYPE", help="Entity type of the events.  [default: the schema]")
@click.option(
    "--record",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the records.",
)
@click.option("--escape", is_flag=True, help="Allow tabs and line ends in keys and records.")
@click.option("--stream", metavar="STREAM", help="State stream of which the table shows one type.")
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
    with server.table(table) as remote:
        name = schema or remote.url.rstrip("/").rsplit("/", 1)[-1]
        declared = remote.create(
            name,
            version=version,
            type=type,
            record=record,
            escape=escape,
            stream=stream,
            exist_ok=exist_ok,
        )
        url = remote.url
    if as_json:
        fields = {"url": url, "created": declared.created, "schema": name, "version": version}
        click.echo(json.dumps(fields))
    else:
        outcome = "created" if declared.created else "already exists:"
        click.echo(printable(f"{outcome} {table} (schema {name}, version {version})"))


@command.command("put")
@stream_argument("table")
@click.argument("key", required=False)
@click.argument("record", required=False)
@json_option
@server_options
def put(server: Server, table: str, key: str | None, record: str | None, as_json: bool) -> None:
    """Set the RECORD of KEY in TABLE. Without RECORD, the record is read from stdin.

    Without KEY, changes are read from stdin, one per line: `+`, key and record, or `-` and key,
    separated by tabs. They are written in one request: all of them or none.

    \b
    Examples:
      penstock table put endpoints fhir_read https://prov.example/fhir
      penstock table put notes today < today.txt
      printf '+\\ta\\t1\\n-\\tb\\n' | penstock table put counts
    """
    with server.table(table) as remote:
        if key is None:
            from penstock.stp.rows import parse_changes

            lines = stdin_bytes()
            if not lines.strip():
                raise click.ClickException("There is nothing to write: stdin is empty.")
            changes = parse_changes(lines, escape=remote.head().escape)
            written = remote.write(changes)
        else:
            text = stdin_bytes().removesuffix(b"\n") if record is None else record
            written = remote.put(key, text)
    _report(written.seqno, as_json)


@command.command("rm")
@stream_argument("table")
@click.argument("keys", nargs=-1, required=True)
@json_option
@server_options
def rm(server: Server, table: str, keys: tuple[str, ...], as_json: bool) -> None:
    """Delete KEYS from TABLE in one request. Their rows stay in the history."""
    with server.table(table) as remote:
        if len(keys) == 1:
            written = remote.delete(keys[0])
        else:
            written = remote.write([("-", key) for key in keys])
    _report(written.seqno, as_json)


@command.command("read")
@stream_argument("table")
@_since
@_count
@_json_rows
@server_options
def read(server: Server, table: str, since: int, count: int | None, as_json: bool) -> None:
    """Print the rows of TABLE."""
    with server.table(table) as remote, broken_pipe_noticed(), remote.iter_rows(since) as rows:
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
    help="Number of rows.",
)
@click.option("-f", "--follow", "live", is_flag=True, help="Continue with new rows.")
@_json_rows
@server_options
def tail(server: Server, table: str, lines: int, live: bool, as_json: bool) -> None:
    """Print the last rows of TABLE."""
    with (
        server.table(table) as remote,
        broken_pipe_noticed(),
        remote.follow(-lines) if live else remote.iter_rows(-lines) as rows,
    ):
        RowsOutput(as_json=as_json).write(rows)


@command.command("follow")
@stream_argument("table")
@_since
@_count
@click.option(
    "--checkpoint",
    metavar="FILE",
    help="Store the SeqNo in FILE after printing, and start there the next time.",
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
    """Print the rows of TABLE, and continue with new rows.

    If the connection fails, the command resumes after the last row; no row is printed twice. A
    server that does not stream is polled. Rows that contradict earlier ones are omitted and
    reported.
    """
    if checkpoint and count is not None:
        raise click.UsageError("--checkpoint and --count cannot be used together.")
    position = file_checkpoint(checkpoint) if checkpoint else None
    with (
        server.table(table) as remote,
        broken_pipe_noticed(),
        remote.follow(since, checkpoint=position) as rows,
    ):
        RowsOutput(as_json=as_json, count=count).write(rows)


@command.command("state")
@stream_argument("table")
@click.argument("key", required=False)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per key.")
@server_options
def state(server: Server, table: str, key: str | None, as_json: bool) -> None:
    """Print the current records of TABLE, or the record of KEY.

    The exit code is 3 if KEY does not exist.
    """
    with server.table(table) as remote, broken_pipe_noticed():
        records = remote.state()
    if key is not None and key not in records:
        raise Failure(f"There is no key {key!r} in {table}.", NOT_FOUND)
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
        print_columns(
            ("KEY", "SEQNO", "RECORD"), [(name, seqno, text) for name, text, seqno in cells]
        )


def _report(seqno: int | None, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"seqno": seqno}))
    else:
        note(f"SeqNo {seqno}")


class RowsOutput:
    """Prints rows as they arrive, and flushes stdout when no more rows are waiting."""

    def __init__(self, *, as_json: bool, count: int | None = None) -> None:
        self._as_json = as_json
        self._remaining = count
        self._is_terminal = sys.stdout.isatty() and not as_json

    def write(self, rows: TableRows) -> None:
        output = sys.stdout.buffer
        for row in rows:
            if self._is_terminal:
                text = self._columns(row)
            elif self._as_json:
                text = _json(row)
            else:
                text = _line(row, escape=rows.media is not None and rows.media.escape)
            output.write(f"{text}\n".encode())
            if rows.waiting == 0:
                output.flush()
            if self._remaining is not None:
                self._remaining -= 1
                if self._remaining == 0:
                    break
        output.flush()
        if rows.conflicts:
            note(f"Omitted {amount(rows.conflicts, 'row')} that contradicted earlier rows.")

    def _columns(self, row: Row) -> str:
        cells = f"{row.seqno:>8}  {row.timestamp}  {row.action}  {row.key:<{_KEY_WIDTH}}  "
        line = printable(f"{cells}{row.record}".expandtabs(1).rstrip())
        width = max(columns(), _WIDTH_MIN)
        return styled(line[:width], fg="green" if row.action == "+" else "red")


def _line(row: Row, *, escape: bool) -> str:
    """Return the row as it was received. A record of another server may contain a tab."""
    key, record = row.key, row.record
    if escape:
        from penstock.stp.escaping import escape as escaped

        key, record = escaped(key), escaped(record)
    return f"{row.seqno}\t{row.timestamp}\t{row.action}\t{key}\t{record}"


def _json(row: Row) -> str:
    import msgspec

    return json.dumps(msgspec.structs.asdict(row), ensure_ascii=False)
