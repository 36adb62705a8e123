"""Rows of an STP table as Arrow batches: where the table ends, and its rows between two SeqNos.

Reads with the rules of the STP clients. A line that is not a row becomes a row with an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
import pyarrow as pa

from penstock.client.flow import Flow, Pause
from penstock.errors import ConnectionFailed, Gone, InvalidOption, ProtocolError
from penstock.limits import SPARK_ATTEMPTS_MAX
from penstock.spark.arrow_columns import STP_ARROW
from penstock.spark.error_text import data_lost
from penstock.spark.options import RawOptions
from penstock.spark.server import shared_client
from penstock.stp.client.reading import Reception, Source, batches, emit, everything
from penstock.stp.rows import Row, RowsBefore

ROWS_PER_BATCH: Final = 10_000
RESET: Final = "reset"  # the action of a row that invalidates all rows before it
_NAMES: Final = frozenset(
    {"tables", "token", "startingOffsets", "maxRowsPerTrigger", "failOnDataLoss", "maxAttempts"}
)


class StpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of `format("stp")`."""

    tables: tuple[str, ...]
    token: str | None = None
    starting: str | dict[str, int] = "earliest"
    rows_max: int | None = None
    fail_on_data_loss: bool = True
    attempts_max: int = SPARK_ATTEMPTS_MAX


def stp_options(values: Mapping[str, str]) -> StpOptions:
    """Return the checked options of the source."""
    options = RawOptions(values, _NAMES)
    tables = options.names("tables")
    if not tables or not all(table.startswith(("http://", "https://")) for table in tables):
        raise InvalidOption(
            "Option tables takes State URLs, separated by commas, such as "
            "http://127.0.0.1:4437/v1/table/endpoints."
        )
    text = options.text("startingOffsets") or "earliest"
    starting: str | dict[str, int] = text.lower()
    if starting not in ("earliest", "latest"):
        starting = options.json("startingOffsets", dict[str, int])
    return StpOptions(
        tables=tables,
        token=options.text("token"),
        starting=starting,
        rows_max=options.number("maxRowsPerTrigger"),
        fail_on_data_loss=options.flag("failOnDataLoss", default=True),
        attempts_max=options.number("maxAttempts") or SPARK_ATTEMPTS_MAX,
    )


class InvalidLine(Row, frozen=True, gc=False):
    """A line that is not a row but begins with a SeqNo; `record` is the line."""

    error: str = ""


class _Columns(NamedTuple):
    """One row, in the order of the columns after `table`."""

    seq: int | None
    timestamp: datetime | None
    action: str | None
    key: str | None
    record: str | None
    error: str | None = None


class TableReader:
    """Reads one table by its State URL."""

    def __init__(self, url: str, options: StpOptions) -> None:
        self._url = url
        self._options = options
        parts = urlsplit(url)
        server = f"{parts.scheme}://{parts.netloc}"
        self._client = shared_client(server, options.token, options.attempts_max)
        self._rows: list[_Columns] = []

    def last_seqno(self) -> int:
        """The SeqNo of the last row: from the header if the server sends it, else from the row."""
        reception = self._reception(-1)
        flow = batches(reception, None)
        with _named_errors(self._url), closing(self._client.iterate(flow)) as arriving:
            # One row was requested, and the server may keep the answer open.
            rows: list[Row] = next(arriving, [])
        if reception.last_seqno is not None:
            return reception.last_seqno
        return rows[-1].seqno if rows else 0

    def read(self, after: int, until: int, *, reset: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows with after < SeqNo <= until. With `reset`, a reset row comes first."""
        if reset:
            self._rows.append(_reset(after))
        while after < until:
            try:
                for row in self._between(after, until):
                    self._rows.append(_columns(row))
                    after = row.seqno
                    if len(self._rows) >= ROWS_PER_BATCH:
                        yield self._batch()
                after = until
            except Gone as error:
                earliest = _before_earliest(error, until)
                if self._options.fail_on_data_loss or earliest <= after:
                    raise data_lost(self._url, error.detail) from error
                after = earliest
                self._rows.append(_reset(after))
        if self._rows:
            yield self._batch()

    def _between(self, after: int, until: int) -> Iterator[Row]:
        flow = _rows_until(self._reception(after), until)
        with _named_errors(self._url), closing(self._client.iterate(flow)) as arriving:
            for rows in arriving:
                for row in rows:
                    if row.seqno <= until:
                        yield row
                    if row.seqno >= until:
                        return  # The server may keep the answer open.

    def _reception(self, since_id: int) -> Reception:
        source = Source(
            url=self._url,
            retry=self._client.retry,
            on_conflict="ignore",
            on_invalid=self._invalid,
        )
        return Reception(source, since_id)

    def _invalid(self, error: RowsBefore) -> Row | None:
        line = error.line.decode("utf-8", "replace").removesuffix("\r")
        number = line.partition("\t")[0]
        if number.isascii() and number.isdigit():
            return InvalidLine(int(number), "", "+", "", line, error.detail)
        # Without a SeqNo it takes no part in the order of rows, but keeps its place among them.
        self._rows.append(_Columns(None, None, None, None, line, error.detail))
        return None

    def _batch(self) -> pa.RecordBatch:
        columns = [[self._url] * len(self._rows), *zip(*self._rows, strict=True)]
        self._rows = []
        arrays = [
            pa.array(column, STP_ARROW.field(index).type) for index, column in enumerate(columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=STP_ARROW)


@contextmanager
def _named_errors(url: str) -> Iterator[None]:
    """Name the table in errors about its answers: a query may read many tables."""
    try:
        yield
    except ProtocolError as error:
        if url in error.detail:
            raise
        raise ProtocolError(f"{url}: {error.detail}") from error


def _rows_until(reception: Reception, until: int) -> Flow[None]:
    """Emit rows up to the SeqNo `until`; an answer that ends before it is requested again."""
    retry, attempt = reception.source.retry, 1
    while True:
        before = reception.deduplicator.position
        yield from everything(reception, emit)
        if reception.deduplicator.position >= until:
            return
        if reception.deduplicator.position > before:
            attempt = 1
        if retry.exhausted(attempt):
            raise ConnectionFailed(
                f"GET {reception.source.url} got no whole answer: it ended at SeqNo "
                f"{reception.deduplicator.position}, before {until}."
            )
        yield Pause(retry.pause_s(attempt))
        attempt += 1


def _columns(row: Row) -> _Columns:
    if isinstance(row, InvalidLine):
        return _Columns(row.seqno, None, None, None, row.record, row.error)
    record = row.record if row.action == "+" else None
    return _Columns(row.seqno, _time(row.timestamp), row.action, row.key, record)


def _reset(seqno: int) -> _Columns:
    return _Columns(seqno, None, RESET, None, None)


def _time(text: str) -> datetime | None:
    """The advisory time of a row, or None if the text is not a time."""
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.replace(tzinfo=UTC)


def _before_earliest(error: Gone, until: int) -> int:
    """The SeqNo after which a trimmed table can be read, at most `until`."""
    earliest = error.headers.get("Stp-Earliest-Seqno", "")
    return min(int(earliest) - 1, until) if earliest.isdigit() else until
