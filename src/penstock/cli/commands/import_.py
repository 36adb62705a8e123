"""`penstock import`: appends a file to a stream, each line exactly once. A run can be resumed."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from penstock.cli.connection import Server, json_option, patient, server_options, stream_argument
from penstock.cli.producer_marks import stored_epoch
from penstock.cli.system import digest, open_for_read
from penstock.cli.terminal import Progress, printable
from penstock.cli.text import amount, size
from penstock.cli.values import checked_json
from penstock.errors import ContentTypeMismatch, InvalidJson, StreamNotFound
from penstock.limits import MIB
from penstock.protocol.headers import is_json, media_type

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream

# The bytes of a request depend on nothing but where it starts, so that a request of a killed run
# and its repetition are equal.
REQUEST_BYTES = MIB
JSON_SUFFIXES = {".jsonl", ".ndjson", ".json"}


class Result(NamedTuple):
    """The result of a run: the bytes stored before it, and the bytes and messages it appended."""

    skipped_bytes: int
    bytes: int
    messages: int


@click.command("import")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@stream_argument()
@click.option(
    "-t",
    "--content-type",
    metavar="TYPE",
    help="Content type of a stream that is created.  [default: from FILE.penstock, or from the "
    "name of FILE]",
)
@click.option(
    "--producer",
    "producer_id",
    metavar="ID",
    help="Name of this file for the server.  [default: derived from its content]",
)
@click.option("--close", "close_stream", is_flag=True, help="Close the stream at the end.")
@json_option
@server_options
def command(
    server: Server,
    file: Path,
    stream: str,
    content_type: str | None,
    producer_id: str | None,
    close_stream: bool,
    as_json: bool,
) -> None:
    """Append FILE to STREAM. STREAM is created if it does not exist.

    A JSON stream needs JSON Lines, one message per line. Other streams get the bytes as they are.
    The server remembers how much of FILE is stored: run the command again after an interruption,
    and it continues from there and appends nothing twice. The server identifies a file by its
    content. With --producer ID it identifies the file by ID, so that lines added to FILE later can
    be imported, too (in a JSON stream, complete lines only). If a line is not JSON, nothing is
    appended.

    \b
    Examples:
      penstock import orders.jsonl orders
      penstock import photo.png images/1 -t image/png --close
      penstock import app.log logs --producer app.log      # run it repeatedly
    """
    with server.stream(stream) as remote, open_for_read(file) as source:
        kind = _content_type(remote, file, content_type)
        reader = _Source(source, file.name, lines=is_json(kind), grows=producer_id is not None)
        with Progress(f"import {file.name}", total=reader.length) as progress:
            identity = producer_id or reader.identity(progress)
            result = _copy(reader, patient(remote), identity, progress)
        if close_stream:
            remote.close()
    if as_json:
        click.echo(json.dumps({"url": remote.url, **result._asdict(), "producer": identity}))
    elif sys.stdout.isatty():
        before = f", {size(result.skipped_bytes)} already stored" if result.skipped_bytes else ""
        messages = f" ({amount(result.messages, 'message')})" if is_json(kind) else ""
        click.echo(printable(f"{stream}: {size(result.bytes)} appended{messages}{before}"))


def _content_type(stream: Stream, file: Path, option: str | None) -> str:
    """Return the content type of the stream, which is created if it does not exist."""
    from penstock.cli import sidecar

    beside = sidecar.load(file)
    expected = option or (beside and beside.content_type)
    try:
        existing = stream.head().content_type
    except StreamNotFound:
        by_name = "application/octet-stream"
        if file.suffix in JSON_SUFFIXES:
            by_name = "application/json"
        elif file.suffix in {".txt", ".log"}:
            by_name = "text/plain"
        return stream.ensure(expected or by_name).content_type
    if expected and media_type(expected) != media_type(existing):
        raise ContentTypeMismatch(
            f"The stream has content type {existing}, but {file.name} is {expected}. "
            "Import into another stream."
        )
    return existing


def _copy(source: _Source, stream: Stream, producer_id: str, progress: Progress) -> Result:
    start = stored_epoch(stream, producer_id) or 0
    if start > source.length:
        raise click.ClickException(
            f"{source.name} has {source.length} bytes, but {start} bytes are imported: it is not "
            "the same file any more. Use another --producer."
        )
    source.check(start, progress)
    progress.begin("appending", done=start)
    position, messages = start, 0
    for part in source.parts(start):
        position += len(part)
        values = source.values(part)
        if values:
            stream.append_many(values, producer=(producer_id, position, 0))
            messages += len(values)
        progress.bytes(position)
    return Result(start, position - start, messages)


class _Source:
    """The file, in parts that depend on nothing but where they start."""

    def __init__(self, file: BinaryIO, name: str, *, lines: bool, grows: bool) -> None:
        self.name = name
        self._file = file
        self._lines = lines
        # The last line of a growing file may be incomplete, so it is imported later.
        self._whole_lines = lines and grows
        self.length = file.seek(0, 2)

    def identity(self, progress: Progress) -> str:
        progress.begin("reading")
        return f"penstock-import-{digest(self._file, progress.bytes)[:32]}"

    def parts(self, start: int) -> Iterator[bytes]:
        position = start
        while True:
            self._file.seek(position)
            part = self._file.read(REQUEST_BYTES)
            if self._lines and not part.endswith(b"\n"):
                end = part.rfind(b"\n") + 1
                # A line longer than a request is one part.
                part = part[:end] if end else part + self._file.readline()
                if self._whole_lines and not part.endswith(b"\n"):
                    return
            if not part:
                return
            yield part
            position += len(part)

    def values(self, part: bytes) -> list[bytes]:
        """Return the values of a part: its lines if they are messages, else the part itself."""
        if not self._lines:
            return [part]
        return [line for line in part.split(b"\n") if line.strip()]

    def check(self, start: int, progress: Progress) -> None:
        """Raise InvalidJson for an invalid line, before anything is appended."""
        if not self._lines:
            return
        number = self._count_lines(start)
        progress.begin("checking", done=start)
        position = start
        for part in self.parts(start):
            position += len(part)
            for line in part.removesuffix(b"\n").split(b"\n"):
                number += 1
                if line.strip():
                    try:
                        checked_json(line, f"Line {number} of {self.name}")
                    except InvalidJson as error:
                        more = "more " if start else ""
                        raise InvalidJson(
                            f"{error.detail.rstrip('.')}. Nothing {more}was appended."
                        ) from None
            progress.bytes(position)

    def _count_lines(self, end: int) -> int:
        """Return the number of lines before a position, which is the end of one."""
        count = 0
        self._file.seek(0)
        while end > 0:
            piece = self._file.read(min(REQUEST_BYTES, end))
            count += piece.count(b"\n")
            end -= len(piece)
        return count
