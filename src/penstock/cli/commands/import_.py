"""`penstock import`: a file into a stream, each line once, however often it is interrupted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import click

from penstock.cli.connection import Server, json_option, patient, server_options, stream_argument
from penstock.cli.producer_marks import known_epoch
from penstock.cli.system import digest, open_for_read
from penstock.cli.terminal import Progress, printable
from penstock.cli.text import amount, size
from penstock.cli.values import checked_json
from penstock.errors import ContentTypeMismatch, InvalidJson, StreamNotFound
from penstock.limits import MIB
from penstock.protocol.headers import is_json, media_type

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream

# A request holds what is read from a position until this is reached: the same bytes each time, so
# that a request of a killed run and its repetition are one and the same.
REQUEST_BYTES = MIB
JSON_SUFFIXES = {".jsonl", ".ndjson", ".json"}


class Result(NamedTuple):
    """What one run did: bytes of the file that were there already, bytes and messages it added."""

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
    help="For a stream that is created.  [default: from FILE.penstock, or from FILE's name]",
)
@click.option(
    "--producer",
    "producer_id",
    metavar="ID",
    help="Stands for this file.  [default: made from its content]",
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
    """Append all that FILE holds to STREAM, which is created if it is absent.

    JSON streams take JSON Lines, one message a line; any other stream takes the bytes as they are.
    The server remembers how far it has come: repeat the command after an interruption and it goes
    on from there, and appends nothing twice. A file is known by its content; with --producer ID it
    is known by ID instead, so that what was added to its end can be imported later (in a JSON
    stream, once its last line has an end). A line that is not JSON stops the import before anything
    is appended.

    \b
    Examples:
      penstock import orders.jsonl orders
      penstock import photo.png images/1 -t image/png --close
      penstock import app.log logs --producer app.log      # again and again
    """
    with server.stream(stream) as found, open_for_read(file) as source:
        kind = _content_type(found, file, content_type)
        reader = _Source(source, file.name, lines=is_json(kind), grows=producer_id is not None)
        with Progress(f"import {file.name}", total=reader.length) as progress:
            identity = producer_id or reader.identity()
            result = _copy(reader, patient(found), identity, progress)
        if close_stream:
            found.close()
    if as_json:
        click.echo(json.dumps({"url": found.url, **result._asdict(), "producer": identity}))
    elif sys.stdout.isatty():
        before = f", {size(result.skipped_bytes)} were there" if result.skipped_bytes else ""
        what = f" ({amount(result.messages, 'message')})" if is_json(kind) else ""
        click.echo(printable(f"{stream}: {size(result.bytes)} appended{what}{before}"))


def _content_type(stream: Stream, file: Path, given: str | None) -> str:
    """The type of the stream, which is made if need be."""
    from penstock.cli import sidecar

    beside = sidecar.load(file)
    wanted = given or (beside and beside.content_type)
    try:
        found = stream.head().content_type
    except StreamNotFound:
        by_name = "application/octet-stream"
        if file.suffix in JSON_SUFFIXES:
            by_name = "application/json"
        elif file.suffix in {".txt", ".log"}:
            by_name = "text/plain"
        return stream.ensure(wanted or by_name).content_type
    if wanted and media_type(wanted) != media_type(found):
        raise ContentTypeMismatch(f"The stream holds {found}, and {file.name} {wanted}.")
    return found


def _copy(source: _Source, stream: Stream, producer_id: str, progress: Progress) -> Result:
    start = known_epoch(stream, producer_id) or 0
    if start > source.length:
        raise click.ClickException(
            f"{source.name} has {source.length} bytes, but {start} of it were imported: it is "
            "another file now; give it another --producer"
        )
    source.check(start)
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
        # In a file that grows the last line may be half written: it waits for its end.
        self._whole_lines = lines and grows
        self.length = file.seek(0, 2)

    def identity(self) -> str:
        return f"penstock-import-{digest(self._file)[:32]}"

    def parts(self, start: int) -> Iterator[bytes]:
        position = start
        while True:
            self._file.seek(position)
            part = self._file.read(REQUEST_BYTES)
            if self._lines and not part.endswith(b"\n"):
                end = part.rfind(b"\n") + 1
                # A line that is longer than a request is taken whole.
                part = part[:end] if end else part + self._file.readline()
                if self._whole_lines and not part.endswith(b"\n"):
                    return
            if not part:
                return
            yield part
            position += len(part)

    def values(self, part: bytes) -> list[bytes]:
        """What a part appends: its lines if they are messages, else all of it."""
        if not self._lines:
            return [part]
        return [line for line in part.split(b"\n") if line.strip()]

    def check(self, start: int) -> None:
        """Refuse a file with a bad line before anything of it is appended."""
        if not self._lines:
            return
        number = 0
        if start:
            self._file.seek(0)
            number = sum(1 for line in self._file if self._file.tell() <= start)
        for part in self.parts(start):
            for line in part.removesuffix(b"\n").split(b"\n"):
                number += 1
                if line.strip():
                    try:
                        checked_json(line, f"line {number} of {self.name}")
                    except InvalidJson as error:
                        more = "more " if start else ""
                        raise InvalidJson(
                            f"{error.detail.rstrip('.')}; nothing {more}was appended"
                        ) from None
