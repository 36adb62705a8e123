"""Every operation of the clients, written once, as generators that do no I/O.

A flow yields what it wants done (an exchange, a pause, a piece of a response) and is sent the
outcome, or has the failure thrown into it. The two shells run flows; they decide nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, NamedTuple, TypeVar

from penstock.client import answers, requests
from penstock.client.answers import Answer, StreamInfo, error_of
from penstock.client.requests import REDIRECTS_MAX, Request, redirected
from penstock.client.retry import Retry
from penstock.errors import ConnectionFailed, PenstockError, ProtocolError

T = TypeVar("T")

LIST_PAGE = 1000


class Exchange(NamedTuple):
    """Send a request and read all of its answer, whatever its status: an Answer."""

    request: Request


class Open(NamedTuple):
    """Send a request and read the head of its answer: an Answer without a body.

    Pieces are then asked for with `Piece`. The next `Open`, a `Close` or the end of the flow closes
    it.
    """

    request: Request


class Piece(NamedTuple):
    """The next bytes of the open response, as they come, or None at its proper end."""


class Close(NamedTuple):
    """Close the open response, if there is one."""


class Pause(NamedTuple):
    """Wait."""

    seconds: float


class Call(NamedTuple):
    """Call a function of the user, or of a checkpoint; with AsyncClient it may be async.

    `blocking` functions of ours run in a thread there.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    blocking: bool = False


class Emit(NamedTuple):
    """Hand a value to whoever iterates."""

    value: Any


class Done(NamedTuple):
    """The flow has returned this."""

    value: Any


Effect = Exchange | Open | Piece | Close | Pause | Call | Emit
Flow = Generator[Effect, Any, T]


def advance(flow: Flow[Any], value: Any = None) -> Effect | Done:
    """Tell a flow the outcome of its last effect; gives the next one."""
    try:
        return flow.send(value)
    except StopIteration as stop:
        return Done(stop.value)


def fail(flow: Flow[Any], error: Exception) -> Effect | Done:
    """Tell a flow that its last effect failed; gives the next one."""
    try:
        return flow.throw(error)
    except StopIteration as stop:
        return Done(stop.value)


def exchange(effect: Exchange | Open) -> Flow[Answer]:
    """One answer, whatever its status, after redirects."""
    for _ in range(REDIRECTS_MAX + 1):
        answer: Answer = yield effect
        target = redirected(effect.request, answer.status, answer.headers.get("location"))
        if target is None:
            return answer
        effect = effect._replace(request=target)
    raise ProtocolError(f"More than {REDIRECTS_MAX} redirects, the last to {effect.request.url}.")


def send(request: Request, retry: Retry) -> Flow[Answer]:
    """Send until it succeeds, or fails for good: the answer has a status below 300."""
    attempt = 1
    while True:
        failure: PenstockError
        try:
            answer = yield from exchange(Exchange(request))
        except ConnectionFailed as error:
            failure = error
        else:
            # Not found, but only now: an attempt whose answer was lost has deleted it.
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
    left = limit
    while left is None or left > 0:
        size = LIST_PAGE if left is None else min(left, LIST_PAGE)
        answer = yield from send(requests.page(base_url, prefix, after, size), retry)
        page = answers.page(answer)
        info: StreamInfo
        for info in page.streams:
            yield Emit(info)
        if left is not None:
            left -= len(page.streams)
        if page.next is None or not page.streams:
            return
        after = page.next
