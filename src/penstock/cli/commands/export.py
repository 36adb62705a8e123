"""`penstock export`: writes a stream to a file. A later run continues it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from penstock.cli.connection import Server, json_option, patient, server_options, stream_argument
from penstock.cli.producer_marks import seekable
from penstock.cli.system import file_size, open_for_append, sync
from penstock.cli.terminal import Progress, printable
from penstock.cli.text import size
from penstock.protocol.headers import is_json
from penstock.protocol.offsets import START

if TYPE_CHECKING:
    from penstock.cli.sidecar import Sidecar
    from penstock.client.answers import Head
    from penstock.client.sync.stream import Stream


@click.command("export")
@stream_argument()
@click.argument("file", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--force", is_flag=True, help="Start again and overwrite FILE.")
@json_option
@server_options
def command(server: Server, stream: str, file: Path, force: bool, as_json: bool) -> None:
    """Write STREAM to FILE, or what is new since the last run.

    A JSON stream becomes JSON Lines, one message per line. Other streams are written byte for byte.
    FILE.penstock stores the content type and the offset at the end of FILE. Run the same command
    again, after an interruption or when the stream has grown, and it continues from there.

    \b
    Examples:
      penstock export orders orders.jsonl
      penstock export prod:logs/web web.log
    """
    from penstock.cli import sidecar

    with server.stream(stream) as remote:
        head = remote.head()
        before = None if force else sidecar.load(file)
        state = _begin(remote, head, file, before)
        sidecar.save(file, state)  # before any data: a file without it is not an export
        state = _copy(patient(remote), file, state, head)
    if as_json:
        fields = {"offset": state.offset, "bytes": state.bytes, "closed": state.closed}
        click.echo(json.dumps({"file": str(file), **fields}))
    elif sys.stdout.isatty():
        added = state.bytes - (before.bytes if before else 0)
        click.echo(printable(f"{file}: {size(state.bytes)}, {size(added)} new"))


def _begin(stream: Stream, head: Head, file: Path, before: Sidecar | None) -> Sidecar:
    """Return where to start, or raise if FILE is not an export of the stream."""
    from penstock.cli.sidecar import Sidecar, sidecar_path

    length = file_size(file)
    if before is None:
        if length and not click.get_current_context().params["force"]:
            raise click.ClickException(
                f"{file} exists, but {sidecar_path(file).name} does not, so the export cannot "
                "continue. Choose another file, or overwrite it with --force."
            )
        return Sidecar(
            url=stream.url, content_type=head.content_type, offset=START, bytes=0, closed=False
        )
    if before.url != stream.url:
        raise click.ClickException(
            f"{file} is an export of {before.url}, not of {stream.url}. Choose another file."
        )
    if (length or 0) < before.bytes:
        raise click.ClickException(
            f"{file} is shorter than its last export. Start again with --force."
        )
    return before


def _copy(stream: Stream, file: Path, state: Sidecar, head: Head) -> Sidecar:
    from penstock.cli import sidecar
    from penstock.cli.messages import json_messages

    end = seekable(head.offset)
    total = None if end is None else end.position
    with (
        Progress(f"export {file.name}", total=total) as progress,
        # Bytes beyond the offset are from a run that ended before it stored its offset.
        open_for_append(file, state.bytes) as output,
    ):
        for batch in stream.iter_batches(state.offset, decode=False):
            data = batch.data
            if is_json(batch.content_type):
                data = b"".join(message + b"\n" for message in json_messages(data))
            output.write(data)
            sync(output)
            state = sidecar.Sidecar(
                url=state.url,
                content_type=state.content_type,
                offset=batch.next_offset,
                bytes=state.bytes + len(data),
                closed=batch.closed,
            )
            sidecar.save(file, state)
            reached = seekable(batch.next_offset)
            progress.bytes(state.bytes if reached is None else reached.position)
    return state
