"""Answers of State URLs as values: declarations, heads and writes of tables."""

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
from penstock.stp.rows import parse_last_seqno

LAST_SEQNO = "stp-last-seqno"


class Declared(NamedTuple):
    """A table that was declared, or (`created` false) exists and matches."""

    created: bool
    last_seqno: int | None


class TableHead(NamedTuple):
    """The properties of a table, and the SeqNo of its last row if the server sends it."""

    schema: str | None
    version: int | None
    last_seqno: int | None
    escape: bool


class Written(NamedTuple):
    """The SeqNo of the last row that was written.

    `duplicate` if a producer's write was stored already; its rows are then unknown.
    """

    seqno: int | None
    duplicate: bool


def declared(answer: Answer) -> Declared:
    # The first attempt, whose answer was lost, may have created it.
    return Declared(answer.status == 201 or answer.attempts > 1, last_seqno(answer))


def head(answer: Answer) -> TableHead:
    media = sequence_type(answer)
    return TableHead(media.schema, media.version, last_seqno(answer), media.escape)


def written(answer: Answer, producer: object) -> Written:
    # For a producer 204 is a duplicate, and the header has the last SeqNo of the table.
    duplicate = producer is not None and answer.status == 204
    return Written(None if duplicate else last_seqno(answer), duplicate)


def last_seqno(answer: Answer) -> int | None:
    return parse_last_seqno(answer.headers.get(LAST_SEQNO))


def sequence_type(
    answer: Answer, *, schema: str | None = None, version: int | None = None
) -> SequenceType:
    """Return the media type of an answer; anything but rows of the expected schema is an error."""
    try:
        media = parse_content_type(answer.headers.get("content-type", ""))
    except InvalidContentType as error:
        raise ProtocolError(f"The answer is not a table: {error.detail}") from None
    if schema is not None and media.schema != schema:
        raise ProtocolError(f"The table has the schema {media.schema}, not {schema}.")
    if version is not None and media.version != version:
        raise ProtocolError(f"The table has version {media.version} of its schema, not {version}.")
    return media


def of_table(error: PenstockError) -> PenstockError:
    """Return the error in terms of tables: a 404 without a code is a missing table."""
    if type(error) is not StreamNotFound:
        return error
    missing = TableNotFound(error.detail.replace(StreamNotFound.title, TableNotFound.title, 1))
    missing.headers = error.headers
    return missing
