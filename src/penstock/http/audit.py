"""What requests leave in the audit log, and `/v1/audit`, where it is read.

An endpoint says where it is registered that it is audited; handlers know nothing of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from penstock.access.audit import FORBIDDEN, PATH, AuditLog, Deed
from penstock.access.rules import Verb
from penstock.errors import PenstockError, StreamNotFound
from penstock.http.dialect import Dialect, Routes, Services
from penstock.http.endpoint import Answer, Endpoint, Handler, on_server
from penstock.http.exchange import request_id
from penstock.http.message import Later, Request, Response
from penstock.http.metrics import audit_metrics
from penstock.http.permission import principal_of

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from penstock.http.openapi.model import Description

_FAILED: Final = 500


class AuditDialect(Dialect):
    """`get` and `head` are those of streams."""

    def __init__(self, services: Services, *, get: Handler, head: Handler) -> None:
        self.log = AuditLog(
            services.engine, services.settings, services.access, clock=services.clock
        )
        self._get = get
        self._head = head

    def routes(self) -> Routes:
        return Routes(
            fixed={
                b"/v1/audit": {
                    "GET": on_server(Verb.READ, "audit", partial(self._read, self._get)),
                    "HEAD": on_server(Verb.READ, "audit", partial(self._read, self._head)),
                }
            }
        )

    def describe(self) -> Description:
        from penstock.http.openapi import parameters
        from penstock.http.openapi.model import Description
        from penstock.http.streams.operations import DESCRIBE, READ

        changes: dict[str, Any] = {"path": "/v1/audit", "tag": "server"}
        operations = [
            replace(
                read,
                **changes,
                id=f"{name}Audit",
                summary=summary,
                parameters=tuple(each for each in read.parameters if each != parameters.STREAM),
                answers=tuple(each._replace(links=()) for each in read.answers),
            )
            for read, name, summary in (
                (READ, "read", "Read the audit log, and follow it"),
                (DESCRIBE, "describe", "Describe the stream of the audit log"),
            )
        ]
        return Description(operations)

    def metrics(self) -> Iterable[Metric]:
        return audit_metrics(self.log)

    async def _read(self, handler: Handler, path: str, request: Request) -> Response:
        await self.log.ensure()
        try:
            answer = handler(PATH, request)
            return answer if isinstance(answer, Response) else await answer
        except StreamNotFound:
            raise StreamNotFound(
                "Nothing is audited here: the setting `audit` is off, or it is auto and the server "
                "has no access rules."
            ) from None

    # -- recording

    def handler(self, endpoint: Endpoint, head: Request) -> Handler:
        """Return the handler of an endpoint, which records what it does if that is audited."""
        action = endpoint.audits(head)
        if not action:
            return endpoint.handler
        return partial(self._handle, endpoint.handler, action, endpoint.needs(head).resource)

    def refused(self, endpoint: Endpoint, head: Request, path: str, error: PenstockError) -> None:
        """Record an attempt that the guard has refused."""
        action = endpoint.audits(head)
        if action and error.status == FORBIDDEN:
            self._record(action, endpoint.needs(head).resource, path, head, error.status)

    def _handle(
        self, handler: Handler, action: str, resource: str | None, path: str, request: Request
    ) -> Answer:
        record = partial(self._record, action, resource, path, request)
        try:
            answer = handler(path, request)
        except Exception as error:
            record(_status(error))
            raise
        if isinstance(answer, Response):
            record(answer.status, answer)
            return answer
        if answer.__class__ is Later:
            assert isinstance(answer, Later)
            rendered = _Rendered(answer, record)
            # Not when it is rendered for the client, who may have gone.
            answer.future.add_done_callback(rendered)
            return Later(answer.future, rendered)
        return _wait(answer, record)

    def _record(
        self,
        action: str,
        resource: str | None,
        path: str,
        request: Request,
        status: int | None,
        response: Response | None = None,
    ) -> None:
        sent_id = request_id(request)
        if resource is not None:
            path = "/".join(part for part in (resource, path or _new_name(response)) if part)
        self.log.record(
            Deed(
                action,
                path,
                status,
                principal_of(request),
                request.peer,
                None if sent_id is None else sent_id.decode(),
            )
        )


class _Rendered:
    """The response of a Later, rendered and recorded once."""

    __slots__ = ("_later", "_record", "_response")

    def __init__(self, later: Later, record: partial[None]) -> None:
        self._later = later
        self._record = record
        self._response: Response | None = None

    def __call__(self, future: asyncio.Future[Any]) -> Response:
        if self._response is None:
            self._response = self._later.render(future)
            self._record(self._response.status, self._response)
        return self._response


async def _wait(answer: Awaitable[Response], record: partial[None]) -> Response:
    try:
        response = await answer
    except asyncio.CancelledError:
        record(None)
        raise
    except Exception as error:
        record(_status(error))
        raise
    record(response.status, response)
    return response


def _status(error: Exception) -> int:
    return error.status if isinstance(error, PenstockError) else _FAILED


def _new_name(response: Response | None) -> str:
    """Return the name of what a request has made, as its Location says; else an empty text."""
    for name, value in () if response is None else response.headers:
        if name == b"location":
            return value.partition(b"?")[0].rpartition(b"/")[2].decode("latin-1")
    return ""
