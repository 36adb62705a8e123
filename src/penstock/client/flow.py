"""Flows: the operations of the clients as generators that do no I/O.

A flow yields an effect (an exchange, a pause, a piece of a response) and is sent its outcome, or
has its failure thrown in. The two shells perform effects; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from penstock.client import answers, requests
from penstock.client.answers import Answer, StreamInfo, error_of
from penstock.client.requests import REDIRECTS_MAX, Request, redirected, shown_url
from penstock.client.retry import Retry
from penstock.errors import ConnectionFailed, PenstockError, ProtocolError

T = TypeVar("T")

LIST_PAGE = 1000
ERROR_BODY_BYTES_MAX = 64 * 1024


class Exchange(NamedTuple):
    """Send a request and read all of its answer. The outcome is an Answer of any status."""

    request: Request


class Open(NamedTuple):
    """Send a request and read the head of its answer. The outcome is an Answer without a body.

    `Piece` reads the body. The next `Open`, a `Close` or the end of the flow closes the response.
    """

    request: Request


class Piece(NamedTuple):
    """Read the next bytes of the open response. The outcome is None at its regular end."""


class Close(NamedTuple):
    """Close the open response, if there is one."""


class Pause(NamedTuple):
    """Wait for some seconds."""

    seconds: float


class Call(NamedTuple):
    """Call a function of the user, or of a checkpoint. With AsyncClient it may be async.

    AsyncClient runs a `blocking` function, which is one of ours, in a thread.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    blocking: bool = False


class Emit(NamedTuple):
    """Pass a value to the code that iterates over the flow."""

    value: Any


class Done(NamedTuple):
    """The end of a flow, with its return value."""

    value: Any


Effect = Exchange | Open | Piece | Close | Pause | Call | Emit
Flow = Generator[Effect, Any, T]


def advance(flow: Flow[Any], value: Any = None) -> Effect | Done:
    """Send a flow the outcome of its last effect; return its next effect."""
    try:
        return flow.send(value)
    except StopIteration as stop:
        return Done(stop.value)


def fail(flow: Flow[Any], error: Exception) -> Effect | Done:
    """Throw the failure of its last effect into a flow; return its next effect."""
    try:
        return flow.throw(error)
    except StopIteration as stop:
        return Done(stop.value)


def exchange(effect: Exchange | Open) -> Flow[Answer]:
    """Return the answer after redirects, whatever its status."""
    for _ in range(REDIRECTS_MAX + 1):
        answer: Answer = yield effect
        target = redirected(effect.request, answer.status, answer.headers.get("location"))
        if target is None:
            return answer
        effect = effect._replace(request=target)
    url = shown_url(effect.request.url)
    raise ProtocolError(f"More than {REDIRECTS_MAX} redirects, the last to {url}.")


def refusal(request: Request, answer: Answer) -> Flow[PenstockError]:
    """Return the error of an answer that was opened: it is a refusal, or has no events."""
    if answer.status < 300:
        return ProtocolError(f"The answer is {answer.media_type}, not text/event-stream.")
    body = b""
    while len(body) < ERROR_BODY_BYTES_MAX:
        piece: bytes | None = yield Piece()
        if piece is None:
            break
        body += piece
    return error_of(request, answer._replace(body=body))


def send(request: Request, retry: Retry) -> Flow[Answer]:
    """Return the successful answer to a request, which is retried as far as that is allowed."""
    attempt = 1
    while True:
        failure: PenstockError
        try:
            answer = yield from exchange(Exchange(request))
        except ConnectionFailed as error:
            failure = error
        else:
            # The resource is missing because an attempt whose answer was lost has deleted it.
            deleted = request.method == "DELETE" and answer.status == 404 and attempt > 1
            if answer.status < 300 or deleted:
                return answer._replace(attempts=attempt)
            failure = error_of(request, answer)
        if retry.exhausted(attempt) or not retry.applies(failure, repeatable=request.repeatable):
            raise failure
        yield Pause(retry.pause_s(attempt, failure))
        attempt += 1


def list_streams(base_url: str, prefix: str, limit: int | None, retry: Retry) -> Flow[None]:
    """Emit every stream of the listing, page after page."""
    after = ""
    remaining = limit
    while remaining is None or remaining > 0:
        size = LIST_PAGE if remaining is None else min(remaining, LIST_PAGE)
        answer = yield from send(requests.page(base_url, prefix, after, size), retry)
        page = answers.page(answer)
        info: StreamInfo
        for info in page.streams:
            yield Emit(info)
        if remaining is not None:
            remaining -= len(page.streams)
        if page.next is None or not page.streams:
            return
        after = page.next
