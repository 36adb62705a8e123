"""`penstock append`: appends messages from arguments, or from stdin as they arrive."""

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
from penstock.cli.values import argument_bytes, checked_json, whole_body
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
@click.option("--json", "must_be_json", is_flag=True, help="Refuse input that is not JSON.")
@click.option(
    "--text", is_flag=True, help="Treat values and lines as text; a JSON stream gets strings."
)
@click.option(
    "--batch",
    type=click.IntRange(min=1, max=100_000),
    default=BATCH_DEFAULT,
    show_default=True,
    metavar="N",
    help="Maximum number of lines in one request.",
)
@click.option("--whole", is_flag=True, help="Append all of stdin as the body of one request.")
@click.option(
    "--producer", "producer_id", metavar="ID", help="Append each line exactly once; see above."
)
@click.option(
    "--create",
    "create_type",
    metavar="TYPE",
    help="Create the stream with this content type if it does not exist.",
)
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
    """Append each VALUE to STREAM, or each line of stdin if there is no VALUE.

    In a JSON stream, each value or line is one message and is checked before it is sent. Other
    streams get each value or line with a line end. Lines are sent as they arrive, so `tail -f` is
    followed without delay; lines that arrive together share a request. With --whole, stdin is the
    body of one request, and a JSON array is the messages in it.

    --producer ID makes the command idempotent. ID names the input, and the server remembers how
    many lines of it are stored. Run the command again with the same or a longer input, after any
    failure, and only the missing lines are appended. Without --producer, a request whose response
    is lost is not repeated, and the command fails.

    \b
    Examples:
      penstock append orders '{"id": 1}' '{"id": 2}'
      tail -f app.log | penstock append logs --create text/plain
      tail -n +1 -F app.log | penstock append logs --producer app.log
      penstock append events < events.jsonl
      penstock append images --whole < photo.png
    """
    if whole and (values or text):
        raise click.UsageError("--whole cannot be used with VALUES or --text.")
    if must_be_json and text:
        raise click.UsageError("--json and --text cannot be used together.")
    with server.stream(stream) as remote:
        content_type = _content_type(remote, stream, create_type)
        writer = _Writer(remote if values else patient(remote), producer_id)
        try:
            if whole:
                writer.send([Record(1, _whole_stdin(content_type))])
            else:
                encode = _encoder(content_type, must_be_json=must_be_json, text=text)
                unit = "value" if values else "line"
                for lines in _input(values, batch):
                    writer.send_lines(lines, encode, unit)
        finally:
            writer.report(summary=summary)


def _whole_stdin(content_type: str) -> bytes:
    stdin = stdin_bytes()
    content = stdin.strip() if is_json(content_type) else stdin
    body = whole_body(stdin, content_type) if content else None
    if body is None:
        raise click.ClickException("There is nothing to append: stdin is empty.")
    return body


class _Writer:
    """Appends records and counts them."""

    def __init__(self, stream: Stream, producer_id: str | None) -> None:
        self._stream = stream
        self._mark = None if producer_id is None else LineMark(stream, producer_id)
        self._appended = 0
        self._offset: str | None = None
        self._line = 0

    def send_lines(
        self, lines: Sequence[bytes], encode: Callable[[bytes, str], bytes | None], unit: str
    ) -> None:
        """Append the lines, up to the first that is invalid."""
        records: list[Record] = []
        invalid: InvalidJson | None = None
        for line in lines:
            self._line += 1
            try:
                data = encode(line, f"{unit.capitalize()} {self._line}")
            except InvalidJson as error:
                invalid = error
                break
            if data is not None:
                records.append(Record(self._line, data))
        if records:
            self.send(records)
        if invalid is not None:
            before = amount(self._appended, f"{unit} before it was", f"{unit}s before it were")
            done = f"The {before} appended." if self._appended else "Nothing was appended."
            raise InvalidJson(f"{invalid.detail.rstrip('.')}. {done}")

    def send(self, records: list[Record]) -> None:
        if self._mark is None:
            answer = self._stream.append_many([record.data for record in records])
            self._appended += len(records)
        else:
            skipped = self._mark.skipped
            response = self._mark.append(records)
            self._appended += len(records) - (self._mark.skipped - skipped)
            if response is None:
                return
            answer = response
        self._offset = answer.offset

    def report(self, *, summary: bool) -> None:
        skipped = 0 if self._mark is None else self._mark.skipped
        if summary:
            counts = {"appended": self._appended, "skipped": skipped, "offset": self._offset}
            click.echo(json.dumps(counts))
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
                f"There is no stream {name}. Create it with `penstock create {name}`, or append "
                "with --create TYPE."
            ) from None
    return stream.ensure(create_type).content_type


def _input(values: Sequence[str], batch: int) -> Iterator[Sequence[bytes]]:
    if not values:
        yield from arriving_lines(batch, BATCH_BYTES_MAX)
        return
    for start in range(0, len(values), batch):
        yield [argument_bytes(value) for value in values[start : start + batch]]


def _encoder(
    content_type: str, *, must_be_json: bool, text: bool
) -> Callable[[bytes, str], bytes | None]:
    """Return the function that turns a line into the bytes to append, or None for a blank line."""
    if not is_json(content_type):
        return _json_line if must_be_json else _line
    return _string if text else _message


def _message(line: bytes, label: str) -> bytes | None:
    return checked_json(line, label) if line.strip() else None


def _string(line: bytes, label: str) -> bytes:
    try:
        text = line.decode()
    except UnicodeDecodeError as error:
        raise InvalidJson(
            f"{label} is not text: its byte {error.start + 1} ({line[error.start]:#04x}) is not "
            "UTF-8. Convert the input to UTF-8, or append it to a stream that is not JSON."
        ) from None
    return json.dumps(text, ensure_ascii=False).encode()


def _line(line: bytes, label: str) -> bytes:
    return line + b"\n"


def _json_line(line: bytes, label: str) -> bytes | None:
    value = _message(line, label)
    return None if value is None else value + b"\n"
