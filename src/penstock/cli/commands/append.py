"""`penstock append`: messages from arguments or from stdin, as they arrive."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import click

from penstock.cli.connection import Server, patient, server_options, stream_argument
from penstock.cli.producer_marks import LineMark, Record
from penstock.cli.system import arriving_lines, stdin_bytes
from penstock.cli.terminal import note
from penstock.cli.text import amount
from penstock.cli.values import checked_json, whole_body
from penstock.errors import InvalidJson, StreamNotFound
from penstock.limits import MIB
from penstock.protocol.headers import is_json

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream

BATCH_DEFAULT = 1000
BATCH_BYTES_MAX = MIB


@click.command("append")
@stream_argument()
@click.argument("values", nargs=-1)
@click.option("--json", "must_be_json", is_flag=True, help="Refuse what is not JSON.")
@click.option("--text", is_flag=True, help="Take values and lines as text: as strings if JSON.")
@click.option(
    "--batch",
    type=click.IntRange(min=1, max=100_000),
    default=BATCH_DEFAULT,
    show_default=True,
    metavar="N",
    help="At most so many lines in one request.",
)
@click.option("--whole", is_flag=True, help="Append all of stdin as one body, byte for byte.")
@click.option("--producer", "producer_id", metavar="ID", help="Append each line once; see above.")
@click.option("--create", "create_type", metavar="TYPE", help="Create the stream if it is absent.")
@click.option("--summary", is_flag=True, help="Print a JSON summary at the end.")
@server_options
def command(
    server: Server,
    stream: str,
    values: tuple[str, ...],
    must_be_json: bool,
    text: bool,
    batch: int,
    whole: bool,
    producer_id: str | None,
    create_type: str | None,
    summary: bool,
) -> None:
    """Append each VALUE to STREAM, or each line of stdin if there is none.

    In a JSON stream each value or line is one message, checked before it is sent; other streams get
    it with a line end. Lines are sent as they arrive, those that wait together in one request, so
    `tail -f` is followed without delay. With --whole, stdin is the body of one request; a JSON
    array then stands for the messages in it.

    --producer ID makes it idempotent: ID stands for the input, and the server remembers how many
    lines of it are stored. Repeat the command with the same input after any failure, or with the
    same input grown longer, and only what is missing is appended. Without it, a request whose
    answer is lost is not repeated, and the command fails.

    \b
    Examples:
      penstock append orders '{"id": 1}' '{"id": 2}'
      tail -f app.log | penstock append logs --create text/plain
      tail -n +1 -F app.log | penstock append logs --producer app.log
      penstock append events < events.jsonl
      penstock append images --whole < photo.png
    """
    if whole and (values or text):
        raise click.UsageError("--whole takes stdin as it is: no VALUES and no --text")
    if must_be_json and text:
        raise click.UsageError("--json and --text exclude each other")
    with server.stream(stream) as found:
        content_type = _content_type(found, stream, create_type)
        writer = _Writer(found if values else patient(found), producer_id)
        try:
            if whole:
                body = whole_body(stdin_bytes(), content_type)
                if body is None:
                    raise click.ClickException("there is nothing to append")
                writer.send([Record(1, body)])
            else:
                encode = _encoder(content_type, must_be_json=must_be_json, text=text)
                name = "value" if values else "line"
                for lines in _input(values, batch):
                    writer.send_lines(lines, encode, name)
        finally:
            writer.report(summary=summary)


class _Writer:
    """Sends records and keeps account of them."""

    def __init__(self, stream: Stream, producer_id: str | None) -> None:
        self._stream = stream
        self._mark = None if producer_id is None else LineMark(stream, producer_id)
        self._appended = 0
        self._offset: str | None = None
        self._line = 0

    def send_lines(
        self, lines: Sequence[bytes], encode: Callable[[bytes, str], bytes | None], name: str
    ) -> None:
        """Append the lines; those before one that is refused are appended first."""
        records: list[Record] = []
        refused: InvalidJson | None = None
        for line in lines:
            self._line += 1
            try:
                data = encode(line, f"{name} {self._line}")
            except InvalidJson as error:
                refused = error
                break
            if data is not None:
                records.append(Record(self._line, data))
        if records:
            self.send(records)
        if refused is not None:
            before = amount(self._appended, f"{name} before it was", f"{name}s before it were")
            done = f"the {before} appended" if self._appended else "nothing was appended"
            raise InvalidJson(f"{refused.detail.rstrip('.')}; {done}")

    def send(self, records: list[Record]) -> None:
        if self._mark is None:
            answer = self._stream.append_many([record.data for record in records])
            self._appended += len(records)
        else:
            skipped = self._mark.skipped
            found = self._mark.append(records)
            self._appended += len(records) - (self._mark.skipped - skipped)
            if found is None:
                return
            answer = found
        self._offset = answer.offset

    def report(self, *, summary: bool) -> None:
        skipped = 0 if self._mark is None else self._mark.skipped
        if summary:
            done = {"appended": self._appended, "skipped": skipped, "offset": self._offset}
            click.echo(json.dumps(done))
        if skipped:
            note(f"{amount(skipped, 'message')} skipped: stored by an earlier run of this producer")
        if sys.stderr.isatty() and not summary:
            note(f"appended {amount(self._appended, 'message')}")


def _content_type(stream: Stream, name: str, create_type: str | None) -> str:
    try:
        return stream.head().content_type
    except StreamNotFound:
        if create_type is None:
            raise StreamNotFound(
                f"There is no stream {name}: create it with `penstock create {name}`, or append "
                "with --create TYPE."
            ) from None
    return stream.ensure(create_type).content_type


def _input(values: Sequence[str], batch: int) -> Iterator[Sequence[bytes]]:
    if not values:
        yield from arriving_lines(batch, BATCH_BYTES_MAX)
        return
    for start in range(0, len(values), batch):
        # What the shell passed, even if it is not text.
        yield [value.encode("utf-8", "surrogateescape") for value in values[start : start + batch]]


def _encoder(
    content_type: str, *, must_be_json: bool, text: bool
) -> Callable[[bytes, str], bytes | None]:
    """What turns a line into the bytes to append, or None for a line that stands for nothing."""
    if not is_json(content_type):
        return _json_line if must_be_json else _line
    return _string if text else _message


def _message(line: bytes, what: str) -> bytes | None:
    return checked_json(line, what) if line.strip() else None


def _string(line: bytes, what: str) -> bytes:
    return json.dumps(line.decode("utf-8", "replace"), ensure_ascii=False).encode()


def _line(line: bytes, what: str) -> bytes:
    return line + b"\n"


def _json_line(line: bytes, what: str) -> bytes | None:
    value = _message(line, what)
    return None if value is None else value + b"\n"
