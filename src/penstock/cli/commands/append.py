"""`penstock append`: appends messages from arguments, or from stdin as they arrive."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from penstock.cli.connection import Server, patient, server_options, stream_argument
from penstock.cli.producer_marks import LineMark, Record
from penstock.cli.system import arriving_lines, stdin_bytes
from penstock.cli.terminal import note
from penstock.cli.text import amount
from penstock.cli.values import Escaped, argument_bytes, checked_json, whole_body
from penstock.errors import InvalidJson, StreamNotFound
from penstock.limits import MIB
from penstock.protocol.headers import is_json

if TYPE_CHECKING:
    from penstock.client.sync.stream import Stream

BATCH_DEFAULT = 1000
BATCH_BYTES_MAX = MIB


HELP: Final = """\
Append each VALUE to STREAM, or each line of stdin if there is no VALUE.

In a JSON stream, each value or line is one message and is checked before it is sent. Other
streams get each value or line with a line end. Lines are sent as they arrive, so `tail -f` is
followed without delay; lines that arrive together share a request. With --whole, stdin is the
body of one request, and a JSON array is the messages in it.

--type TYPE with --key-delimiter TEXT makes a change event of each line `key<TEXT>value`, for a
state stream: it sets the entity of that key to the JSON value (with --text, to the text), and
an empty value deletes it.

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
  find . -print0 | penstock append files --text --delimiter '\\0'
  echo '7:{"name": "Ada"}' | penstock append team --type user --key-delimiter :
  penstock append images --whole < photo.png
"""


@click.command("append", help=HELP)
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
@click.option(
    "-D",
    "--delimiter",
    type=Escaped(),
    metavar="TEXT",
    help="What ends a line of stdin, such as \\0.  [default: \\n]",
)
@click.option(
    "--type", "type_", metavar="TYPE", help="Append state events of this type; see above."
)
@click.option(
    "-K",
    "--key-delimiter",
    type=Escaped(),
    metavar="TEXT",
    help="What separates the key from the value; needs --type.",
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
    delimiter: bytes | None,
    type_: str | None,
    key_delimiter: bytes | None,
    whole: bool,
    producer_id: str | None,
    create_type: str | None,
    summary: bool,
) -> None:
    if whole and (values or text or delimiter or type_ is not None):
        raise click.UsageError("--whole cannot be used with VALUES, --text, --delimiter or --type.")
    if (type_ is None) != (key_delimiter is None):
        raise click.UsageError("--type and --key-delimiter make state events together: use both.")
    if type_ == "":
        raise click.UsageError("The type is empty.")
    if must_be_json and text:
        raise click.UsageError("--json and --text cannot be used together.")
    with server.stream(stream) as remote:
        content_type = _content_type(remote, stream, create_type)
        writer = _Writer(remote if values else patient(remote), producer_id)
        try:
            if whole:
                writer.send([Record(1, _whole_stdin(content_type))])
            else:
                encode = _encoder(
                    content_type, must_be_json=must_be_json, text=text, end=delimiter or b"\n"
                )
                if type_ is not None and key_delimiter is not None:
                    if not is_json(content_type):
                        raise click.UsageError(
                            f"{stream} holds {content_type}; state events are JSON."
                        )
                    encode = _event_encoder(encode, type_, key_delimiter)
                unit = "value" if values else "line"
                for lines in _input(values, batch, delimiter or b"\n"):
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

    def send_lines(self, lines: Sequence[bytes], encode: Encoder, unit: str) -> None:
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


def _input(values: Sequence[str], batch: int, delimiter: bytes) -> Iterator[Sequence[bytes]]:
    if not values:
        yield from arriving_lines(batch, BATCH_BYTES_MAX, delimiter)
        return
    for start in range(0, len(values), batch):
        yield [argument_bytes(value) for value in values[start : start + batch]]


Encoder = Callable[[bytes, str], bytes | None]


def _encoder(content_type: str, *, must_be_json: bool, text: bool, end: bytes) -> Encoder:
    """Return the function that turns a line into the bytes to append, or None for a blank line."""
    if is_json(content_type):
        return _string if text else _message
    encode = _message if must_be_json else _line

    def ended(line: bytes, label: str) -> bytes | None:
        data = encode(line, label)
        return None if data is None else data + end

    return ended


def _event_encoder(encode: Encoder, type_: str, key_delimiter: bytes) -> Encoder:
    """Return the function that turns a line with a key into a change event, by that for values."""

    def event(line: bytes, label: str) -> bytes | None:
        if not line.strip():
            return None
        raw_key, delimiter, rest = line.partition(key_delimiter)
        if not delimiter or not raw_key:
            raise InvalidJson(f"{label} has no key: --key-delimiter does not follow one.")
        operation, value = "delete", b""
        if rest.strip():
            operation, value = "upsert", b',"value":' + (encode(rest, label) or b"null")
        names = b'"type":' + json.dumps(type_).encode() + b',"key":' + _string(raw_key, label)
        return b"{%b%b" % (names, value) + b',"headers":{"operation":"%b"}}' % operation.encode()

    return event


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
    return line
