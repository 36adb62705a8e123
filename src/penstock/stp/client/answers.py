"""Answers of State URLs as values: what a table is, where it ends, what a write has become."""

from __future__ import annotations

from typing import NamedTuple

from penstock.client.answers import Answer
from penstock.errors import (
    InvalidContentType,
    PenstockError,
    ProtocolError,
    StreamNotFound,
    TableNotFound,
)
from penstock.stp.content_type import SequenceType, parse_content_type

LAST_SEQNO = "stp-last-seqno"


class Declared(NamedTuple):
    """A table that was declared, or (`created` false) was there and matches."""

    created: bool
    last_seqno: int | None


class TableHead(NamedTuple):
    """What a table is, and the SeqNo of its last row if the server tells it."""

    schema: str | None
    version: int | None
    last_seqno: int | None
    escape: bool


class Written(NamedTuple):
    """The SeqNo of the last row that was written.

    `duplicate` if a producer's write was there already; which rows it had become is then not known.
    """

    seqno: int | None
    duplicate: bool


def declared(answer: Answer) -> Declared:
    # A repeated request finds what its first attempt, whose answer was lost, has created.
    return Declared(answer.status == 201 or answer.attempts > 1, last_seqno(answer))


def head(answer: Answer) -> TableHead:
    found = sequence_type(answer)
    return TableHead(found.schema, found.version, last_seqno(answer), found.escape)


def written(answer: Answer, producer: object) -> Written:
    # 204 means "was there already" to a producer, and the header then tells the table's end.
    duplicate = producer is not None and answer.status == 204
    return Written(None if duplicate else last_seqno(answer), duplicate)


def last_seqno(answer: Answer) -> int | None:
    return _number(answer.headers.get(LAST_SEQNO))


def sequence_type(
    answer: Answer, *, schema: str | None = None, version: int | None = None
) -> SequenceType:
    """What the answer says it is; anything but rows of the wanted schema is an error."""
    try:
        found = parse_content_type(answer.headers.get("content-type", ""))
    except InvalidContentType as error:
        raise ProtocolError(f"The answer is no table of rows: {error.detail}") from None
    if schema is not None and found.schema != schema:
        raise ProtocolError(f"The table has the schema {found.schema}, not {schema}.")
    if version is not None and found.version != version:
        raise ProtocolError(f"The table has version {found.version} of its schema, not {version}.")
    return found


def of_table(error: PenstockError) -> PenstockError:
    """The error as it is said of tables: 404 without a code, as any server or HEAD answers it."""
    if type(error) is not StreamNotFound:
        return error
    found = TableNotFound(error.detail.replace(StreamNotFound.title, TableNotFound.title, 1))
    found.headers = error.headers
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
