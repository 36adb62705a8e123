"""Rows of the State Transfer Protocol: `SeqNo ⇥ Timestamp ⇥ +/- ⇥ Key ⇥ Record`, as bytes and as
values.

Pure and usable without a server. Parsing is lenient where the text is (CRLF, a missing record, tabs
in a record), formatting is strict: what is written can be read by everybody.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from penstock import limits
from penstock.errors import InvalidParameter, InvalidRow
from penstock.stp.escaping import escape as escape_text
from penstock.stp.escaping import unescape as unescape_text

Action = Literal["+", "-"]

SEQNO_MAX: Final = limits.INTEGER_MAX
_DIGITS_MAX: Final = 20
_PLAIN_DIGITS: Final = 16  # fewer than these are below SEQNO_MAX
_ACTIONS: Final = ("+", "-")
_ESCAPE_ADVICE: Final = 'declare the table with "escape": true, or leave it out'


class Row(msgspec.Struct, frozen=True, gc=False):
    """One change of a table: `+` sets the key's record, `-` deletes it."""

    seqno: int
    timestamp: str
    action: Action
    key: str
    record: str = ""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A row that a writer sends: it has no SeqNo and no timestamp yet."""

    action: Action
    key: str
    record: str = ""


def parse_row(line: bytes | str, *, escape: bool = False) -> Row:
    """Return the row of a line, with or without its line end."""
    text = _text(line)
    # At most four splits: a tab inside a record must not truncate it.
    fields = _bare(text).split("\t", 4)
    if len(fields) < 4:
        raise InvalidRow(
            f"A row has four or five fields separated by tabs, not {len(fields)}: "
            f"{_excerpt(text)}.",
            field="row",
        )
    seqno = parse_seqno(fields[0])
    action = _action(fields[2])
    record = fields[4] if len(fields) == 5 else ""
    return Row(seqno, fields[1], action, *_key_and_record(fields[3], record, escape=escape))


def format_row(row: Row, *, escape: bool = False) -> bytes:
    """Return the line of a row, five fields and a line feed; a delete row ends in a tab."""
    if not 1 <= row.seqno <= SEQNO_MAX:
        raise InvalidRow(f"A SeqNo is a number from 1 to {SEQNO_MAX}.", field="seqno")
    _action(row.action)
    _check_plain(row.timestamp, "timestamp", advice="it is one RFC 3339 time")
    tail = _fields(row.action, row.key, row.record, escape=escape)
    return _utf8(f"{row.seqno}\t{row.timestamp}\t{tail}\n")


def parse_change(line: bytes | str, *, escape: bool = False) -> Change:
    """Return the change of a writer's line `+/- ⇥ key ⇥ record`."""
    text = _text(line)
    fields = _bare(text).split("\t", 2)
    if len(fields) < 2:
        raise InvalidRow(
            f"A row to write is `+`, a key and a record, or `-` and a key, separated by tabs: "
            f"{_excerpt(text)} has no tab.",
            field="row",
        )
    action = _action(fields[0])
    record = fields[2] if len(fields) == 3 else ""
    if action == "-" and record:
        raise InvalidRow("A `-` row deletes a key and has no record.", field="record")
    return Change(action, *_key_and_record(fields[1], record, escape=escape))


def parse_changes(body: bytes, *, escape: bool = False) -> list[Change]:
    """Return the changes of a writer's body; a last line without line feed counts."""
    changes: list[Change] = []
    for index, line in enumerate(_lines(body)):
        try:
            changes.append(parse_change(line, escape=escape))
        except InvalidRow as error:
            raise in_batch(error, index) from None
    return changes


def format_change(change: Change, *, escape: bool = False) -> bytes:
    """Return the line of a change, as a writer sends it."""
    _action(change.action)
    return _utf8(_fields(change.action, change.key, change.record, escape=escape) + "\n")


def in_batch(error: InvalidRow, index: int) -> InvalidRow:
    """Return the same error with the number of the row in its batch."""
    return InvalidRow(f"Row {index}: {error.detail}", field=error.field, index=index)


def check_key(key: str, *, escape: bool = False) -> None:
    """Refuse a key that no row of the table can hold."""
    if not key:
        raise InvalidRow("A key must not be empty.", field="key")
    if not escape:
        _check_plain(key, "key")


def check_record(record: str, *, escape: bool = False) -> None:
    """Refuse a record that no row of the table can hold."""
    if not escape:
        _check_plain(record, "record")


def parse_seqno(text: str) -> int:
    if not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
        raise InvalidRow(f"A SeqNo is a whole number, not {_excerpt(text)}.", field="seqno")
    seqno = int(text)
    if not 1 <= seqno <= SEQNO_MAX:
        raise InvalidRow(f"A SeqNo is a number from 1 to {SEQNO_MAX}.", field="seqno")
    return seqno


def parse_since_id(text: str | None) -> int:
    """Return the `since_id` of a reader: rows after N, or with -N the last N. Missing is 0."""
    if text is None:
        return 0
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise InvalidParameter(
            "`since_id` is a SeqNo, or -N for the last N rows; leave it out to read all."
        )
    # Any number is allowed; a very large one is beyond all rows as well.
    digits = digits.lstrip("0")
    number = int(digits or "0") if len(digits) <= _DIGITS_MAX else SEQNO_MAX
    number = min(number, SEQNO_MAX)
    return -number if text[0] == "-" else number


def parse_last_seqno(text: str | None) -> int | None:
    """Return the value of an STP-Last-SeqNo header; None if it is missing or not a SeqNo."""
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > _DIGITS_MAX:
        return None
    return int(text)


class RowDecoder:
    """Decodes the rows of an answer that arrives in pieces.

    Lines end with LF or CRLF; empty lines, which keep a connection alive, are skipped. A last line
    without line end is not a row: read again after the last complete one.
    """

    __slots__ = ("_escape", "_line_bytes_max", "_rest", "index")

    def __init__(self, *, escape: bool = False, line_bytes_max: int = limits.ROW_BYTES_MAX) -> None:
        self._escape = escape
        self._line_bytes_max = line_bytes_max
        self._rest = bytearray()
        self.index = 0

    def feed(self, data: bytes) -> list[Row]:
        """Return the rows that are complete with these bytes.

        A line that is not a row raises RowsBefore, with its `index` in the answer and the rows
        before it; the next call continues after it.
        """
        # Only after a bad line `_rest` has whole lines; else a search of the new bytes is enough.
        if b"\n" not in data and b"\n" not in self._rest:
            self._rest += data
            if len(self._rest) > self._line_bytes_max:
                raise InvalidRow(f"A line has more than {self._line_bytes_max} bytes.", field="row")
            return []
        whole = bytes(self._rest) + data
        end = whole.rindex(b"\n")
        plain = None if self._escape and b"\\" in whole else _plain_rows(whole[:end])
        if plain is not None:
            self._rest = bytearray(whole[end + 1 :])
            self.index += len(plain)
            return plain
        *lines, rest = whole.split(b"\n")
        self._rest = bytearray(rest)
        rows: list[Row] = []
        for number, line in enumerate(lines):
            self.index += 1
            if not line or line == b"\r":
                continue
            try:
                rows.append(parse_row(line, escape=self._escape))
            except InvalidRow as error:
                remaining = lines[number + 1 :]
                self._rest = bytearray(b"\n".join([*remaining, rest]))
                raise RowsBefore(in_batch(error, self.index - 1), rows, line) from None
        return rows

    def end(self) -> bytes:
        """End the answer; return the bytes that are dropped because their line never ended."""
        dropped, self._rest = bytes(self._rest), bytearray()
        return dropped


class RowsBefore(InvalidRow):
    """A line that is not a row, with the rows before it."""

    def __init__(self, error: InvalidRow, rows: list[Row], line: bytes) -> None:
        super().__init__(error.detail, field=error.field, index=error.index)
        self.rows = rows
        self.line = line


def _plain_rows(lines: bytes) -> list[Row] | None:
    """Return the rows of lines that are all as a server writes them; None if one is not. It takes
    less than half the time of parsing each line."""
    rows: list[Row] = []
    try:
        for line in lines.decode().split("\n"):
            seqno, timestamp, action, key, record = line.split("\t", 4)
            if not (key and seqno.isdigit() and seqno.isascii() and len(seqno) < _PLAIN_DIGITS):
                return None
            if action == "+":
                rows.append(Row(int(seqno), timestamp, "+", key, record))
            elif action == "-":
                rows.append(Row(int(seqno), timestamp, "-", key, record))
            else:
                return None
    except ValueError:  # It is not UTF-8, or has not five fields.
        return None
    return rows if b"\r" not in lines and all(row.seqno for row in rows) else None


def _fields(action: str, key: str, record: str, *, escape: bool) -> str:
    check_key(key, escape=escape)
    check_record(record, escape=escape)
    if escape:
        key, record = escape_text(key), escape_text(record)
    return f"{action}\t{key}\t{record}"


def _key_and_record(key: str, record: str, *, escape: bool) -> tuple[str, str]:
    if not key:
        raise InvalidRow("A key must not be empty.", field="key")
    if not escape:
        return key, record
    return unescape_text(key, "key"), unescape_text(record, "record")


def _action(text: str) -> Action:
    if text not in _ACTIONS:
        raise InvalidRow(f"The action is + or -, not {_excerpt(text)}.", field="action")
    return "+" if text == "+" else "-"


def _check_plain(text: str, field: str, advice: str = "") -> None:
    for character, name in (("\t", "a tab"), ("\n", "a line feed"), ("\r", "a carriage return")):
        if character in text:
            raise InvalidRow(
                f"The {field} holds {name}, which would break the row; {advice or _ESCAPE_ADVICE}.",
                field=field,
            )


def _lines(body: bytes) -> list[bytes]:
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _bare(text: str) -> str:
    if text.endswith("\n"):
        text = text[:-1]
    return text[:-1] if text.endswith("\r") else text


def _text(line: bytes | str) -> str:
    if isinstance(line, str):
        return line
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise InvalidRow(
            f"A row is UTF-8, and byte {error.start} of this one is not.", field="row"
        ) from None


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRow("Half of a surrogate pair cannot be written.", field="row") from None


def _excerpt(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:60] + "…")
