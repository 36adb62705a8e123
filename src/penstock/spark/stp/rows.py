"""Rows of an STP table over HTTP: where it ends, and its rows as Arrow batches.

A line that is no row comes out as a row with an error.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import httpx2
import msgspec
import pyarrow as pa

from penstock.client.answers import error_of
from penstock.client.http import answer_of, failure, is_failure
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.errors import (
    Gone,
    InvalidContentType,
    InvalidOption,
    InvalidRow,
    PenstockError,
    ProtocolError,
)
from penstock.limits import SPARK_ATTEMPTS_MAX
from penstock.spark.options import Given
from penstock.spark.source.columns import STP_ARROW
from penstock.spark.source.planning import lost
from penstock.stp.content_type import parse_content_type
from penstock.stp.escaping import unescape

ROWS_PER_BATCH: Final = 10_000
RESET: Final = "reset"  # the action of a row that says that nothing from before holds
READ_TIMEOUT_S: Final = 60.0  # a server may keep an answer open until something happens
_NAMES: Final = frozenset(
    {"tables", "token", "startingOffsets", "maxRowsPerTrigger", "failOnDataLoss", "maxAttempts"}
)


class StpOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What `format("stp")` reads, and how."""

    tables: tuple[str, ...]
    token: str | None = None
    starting: str | dict[str, int] = "earliest"
    rows_max: int | None = None
    fail_on_data_loss: bool = True
    attempts_max: int = SPARK_ATTEMPTS_MAX


def stp_options(given: Mapping[str, str]) -> StpOptions:
    options = Given(given, _NAMES)
    tables = options.names("tables")
    if not tables or not all(table.startswith(("http://", "https://")) for table in tables):
        raise InvalidOption(
            "Option tables takes State URLs, with commas between them, such as "
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


class _Row(NamedTuple):
    seq: int | None
    timestamp: datetime | None
    action: str | None
    key: str | None
    record: str | None
    error: str | None = None


class Surl:
    """A table by its State URL."""

    def __init__(self, url: str, options: StpOptions) -> None:
        self._url = url
        self._options = options

    def last_seq(self) -> int:
        """The SeqNo of the last row: by the header if the server has it, else by asking for it."""
        with self._client() as client, self._open(client, -1) as response:
            _escapes(self._url, response)
            told = response.headers.get("stp-last-seqno", "")
            if told.isascii() and told.isdigit():
                return int(told)
            last = 0
            for line in _lines(response):
                row = parse_row(line)
                if row.seq is not None:
                    last = row.seq
                    break  # it was asked for one, and the server may keep the answer open
            return last

    def batches(self, after: int, until: int, *, reset: bool = False) -> Iterator[pa.RecordBatch]:
        """The rows with after < SeqNo <= until; a broken answer is taken up where it broke.

        With `reset` a row comes first that says that nothing from before holds.
        """
        attempt = 1
        retry = Retry(attempts_max=self._options.attempts_max)
        rows: list[_Row] = [_reset(after)] if reset else []
        with self._client() as client:
            while after < until:
                try:
                    with self._open(client, after) as response:
                        escape = _escapes(self._url, response)
                        for line in _lines(response):
                            row = parse_row(line, escape=escape)
                            if row.seq is not None and row.seq <= after:
                                continue  # told twice, which a server may
                            if row.seq is not None and row.seq > until:
                                after = until
                                break
                            rows.append(row)
                            after = after if row.seq is None else row.seq
                            attempt = 1
                            if len(rows) >= ROWS_PER_BATCH:
                                yield self._batch(rows)
                                rows = []
                            if after >= until:
                                break
                        else:
                            raise _cut_short(self._url)
                except Gone as error:
                    left = _before_earliest(error, until)
                    if self._options.fail_on_data_loss or left <= after:
                        raise lost(self._url, error.detail) from error
                    after = left
                    rows.append(_reset(after))
                except (httpx2.TransportError, httpx2.StreamError, PenstockError) as error:
                    known = self._known(error)
                    if not retry.applies(known, repeatable=True) or retry.exhausted(attempt):
                        raise known from error
                    time.sleep(retry.pause_s(attempt, known))  # before another attempt
                    attempt += 1
        if rows:
            yield self._batch(rows)

    def _known(self, error: Exception) -> PenstockError:
        if isinstance(error, PenstockError):
            return error
        return failure(error, Request("GET", self._url))

    def _client(self) -> httpx2.Client:
        headers = {"Accept-Encoding": "identity"}
        if self._options.token is not None:
            headers["Authorization"] = f"Bearer {self._options.token}"
        return httpx2.Client(headers=headers, timeout=READ_TIMEOUT_S)

    def _open(self, client: httpx2.Client, since_id: int) -> Any:
        return _Opened(client, self._url, since_id, self._options.attempts_max)

    def _batch(self, rows: list[_Row]) -> pa.RecordBatch:
        columns = [[self._url] * len(rows), *zip(*rows, strict=True)]
        arrays = [
            pa.array(column, STP_ARROW.field(index).type) for index, column in enumerate(columns)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=STP_ARROW)


class _Opened:
    """An answer that has begun well; opening it is tried again, reading it is the caller's."""

    def __init__(self, client: httpx2.Client, url: str, since_id: int, attempts_max: int) -> None:
        self._client, self._url, self._since_id = client, url, since_id
        self._retry = Retry(attempts_max=attempts_max)

    def __enter__(self) -> httpx2.Response:
        attempt = 1
        while True:
            try:
                self._response = self._begin()
                return self._response
            except PenstockError as error:
                if not self._retry.applies(error, repeatable=True) or self._retry.exhausted(
                    attempt
                ):
                    raise
                time.sleep(self._retry.pause_s(attempt, error))  # before another attempt
                attempt += 1

    def __exit__(self, *_: object) -> None:
        self._response.close()

    def _begin(self) -> httpx2.Response:
        asked = Request("GET", self._url)
        url = httpx2.URL(self._url)
        # `timeout=0` is Penstock's way to ask for no more than there is; others ignore it.
        url = url.copy_merge_params({"since_id": str(self._since_id), "timeout": "0"})
        try:
            response = self._client.send(self._client.build_request("GET", url), stream=True)
            if response.status_code != 200:
                response.read()
                raise error_of(asked, answer_of(response, response.content))
        except Exception as error:
            if is_failure(error):
                raise failure(error, asked) from error
            raise
        return response


def parse_row(line: str, *, escape: bool = False) -> _Row:
    """A line as a row: five fields, of which the last may hold tabs; four for a delete."""
    fields = line.split("\t", 4)
    seq = int(fields[0]) if fields[0].isascii() and fields[0].isdigit() else None
    if seq is None:
        return _Row(None, None, None, None, line, "The line does not begin with a SeqNo.")
    if len(fields) < 4 or (len(fields) == 4 and fields[2] != "-"):
        return _Row(seq, None, None, None, line, "A row has five fields with tabs between them.")
    if fields[2] not in ("+", "-"):
        return _Row(seq, None, None, None, line, f"The action is {fields[2][:16]!r}, not + or -.")
    if not fields[3]:
        return _Row(seq, None, None, None, line, "The key is empty.")
    key, record = fields[3], fields[4] if fields[2] == "+" else None
    if escape:
        try:
            key = unescape(key, "key")
            record = None if record is None else unescape(record, "record")
        except InvalidRow as error:
            return _Row(seq, None, None, None, line, error.detail)
    return _Row(seq, _moment(fields[1]), fields[2], key, record)


def _reset(seq: int) -> _Row:
    return _Row(seq, None, RESET, None, None)


def _escapes(url: str, response: httpx2.Response) -> bool:
    """Whether the rows of an answer are escaped; an error if it has none."""
    try:
        return parse_content_type(response.headers.get("content-type", "")).escape
    except InvalidContentType as error:
        raise ProtocolError(f"{url} is no table of rows: {error.detail}") from None


def _moment(text: str) -> datetime | None:
    """The advisory time of a row; what is none is left out."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def _lines(response: httpx2.Response) -> Iterator[str]:
    """Whole lines: one that has no end was cut off, and comes again."""
    rest = b""
    for piece in response.iter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            text = line.decode("utf-8", "replace").removesuffix("\r")
            if text:
                yield text


def _cut_short(url: str) -> PenstockError:
    return failure(
        httpx2.RemoteProtocolError("the answer ended before the last row"), Request("GET", url)
    )


def _before_earliest(error: Gone, until: int) -> int:
    told = error.headers.get("Stp-Earliest-Seqno", "")
    return min(int(told) - 1, until) if told.isdigit() else until
