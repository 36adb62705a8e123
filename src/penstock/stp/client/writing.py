"""Declaring and changing a table, as flows without I/O. Writing is Penstock's extension."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.client.answers import Answer
from penstock.client.flow import Flow, send
from penstock.client.requests import Request
from penstock.client.retry import Retry
from penstock.errors import StreamNotFound, TableExists
from penstock.stp.client import answers, requests
from penstock.stp.client.answers import Declared, TableHead, Written
from penstock.stp.client.requests import AnyChange, Declaration, Producer


class Writing:
    """The flows that change one table."""

    __slots__ = ("_accept", "_escape", "_retry", "url")

    def __init__(self, url: str, retry: Retry, accept: str) -> None:
        self.url = url
        self._retry = retry
        self._accept = accept
        self._escape: bool | None = None

    def declare(self, declaration: Declaration, *, exist_ok: bool) -> Flow[Declared]:
        request = requests.declare(self.url, declaration)
        declared = answers.declared((yield from send(request, self._retry)))
        if not (declared.created or exist_ok):
            raise TableExists(f"{self.url} exists already, with the same declaration.")
        return declared

    def head(self) -> Flow[TableHead]:
        answer = yield from self._send(requests.head(self.url, self._accept))
        return answers.head(answer)

    def put(self, key: str, record: str | bytes, producer: Producer | None) -> Flow[Written]:
        body = record.encode() if isinstance(record, str) else bytes(record)
        answer = yield from self._send(requests.put(self.url, key, body, producer))
        return answers.written(answer, producer)

    def delete(self, key: str, producer: Producer | None) -> Flow[Written]:
        answer = yield from self._send(requests.delete(self.url, key, producer))
        return answers.written(answer, producer)

    def write(self, changes: Iterable[AnyChange], producer: Producer | None) -> Flow[Written]:
        if self._escape is None:
            # Whether a backslash is escaped depends on the table.
            self._escape = (yield from self.head()).escape
        body = requests.rows_body(changes, escape=self._escape)
        answer = yield from self._send(requests.write(self.url, body, producer))
        return answers.written(answer, producer)

    def _send(self, request: Request) -> Flow[Answer]:
        try:
            return (yield from send(request, self._retry))
        except StreamNotFound as error:
            raise answers.of_table(error) from None
