"""Declaring a table and changing it, as flows without I/O. Writing is Penstock's extension."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.answers import Answer
from penstock.client.flow import Flow, send
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.errors import StreamNotFound, TableExists
from penstock.stp.client import _answers, _requests
from penstock.stp.client._answers import Declared, TableHead, Written
from penstock.stp.client._requests import AnyChange, Producer


class Writing:
    """The flows that change one table."""

    __slots__ = ("_accept", "_escape", "_retry", "url")

    def __init__(self, url: str, retry: Retry, accept: str) -> None:
        self.url = url
        self._retry = retry
        self._accept = accept
        self._escape: bool | None = None

    def declare(
        self,
        schema: str,
        *,
        version: int,
        type: str | None,
        record: str,
        escape: bool,
        stream: str | None,
        exist_ok: bool,
    ) -> Flow[Declared]:
        request = _requests.declare(
            self.url,
            schema=schema,
            version=version,
            type=type,
            record=record,
            escape=escape,
            stream=stream,
        )
        declared = _answers.declared((yield from send(request, self._retry)))
        if not (declared.created or exist_ok):
            raise TableExists(f"{self.url} exists already, with the same declaration.")
        return declared

    def head(self) -> Flow[TableHead]:
        answer = yield from self._send(_requests.head(self.url, self._accept))
        return _answers.head(answer)

    def put(self, key: str, record: str | bytes, producer: Producer | None) -> Flow[Written]:
        body = record.encode() if isinstance(record, str) else bytes(record)
        answer = yield from self._send(_requests.put(self.url, key, body, producer))
        return _answers.written(answer, producer)

    def delete(self, key: str, producer: Producer | None) -> Flow[Written]:
        answer = yield from self._send(_requests.delete(self.url, key, producer))
        return _answers.written(answer, producer)

    def write(self, changes: Iterable[AnyChange], producer: Producer | None) -> Flow[Written]:
        if self._escape is None:
            # Which of the two spellings a backslash has, only the table can tell.
            self._escape = (yield from self.head()).escape
        body = _requests.rows_body(changes, escape=self._escape)
        answer = yield from self._send(_requests.write(self.url, body, producer))
        return _answers.written(answer, producer)

    def _send(self, request: Request) -> Flow[Answer]:
        try:
            return (yield from send(request, self._retry))
        except StreamNotFound as error:
            raise _answers.of_table(error) from None
