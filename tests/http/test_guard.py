"""Auth, sizes, and errors as answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.access.authenticator import Access
from penstock.access.rules import Verb
from penstock.config.settings import Settings
from penstock.errors import PenstockError, SequenceGap
from penstock.http.endpoint import PUBLIC, Endpoint, Need
from penstock.http.guard import Guard
from penstock.http.message import Request, Response
from penstock.http.problems import problem

NEED = Need(Verb.READ)


def refuse(settings: dict[str, Any], request: Request, need: Need = NEED) -> Response | None:
    guard = Guard(Settings(**settings), Access(Settings(**settings)))
    try:
        answer = guard.refuse(request)
        if answer is None:
            guard.admit(request, Endpoint(lambda path, request: Response(200), need), "a")
    except PenstockError as error:
        return problem(error)
    return answer


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (None, 401),
        (b"", 401),
        (b"Bearer", 401),
        (b"Bearer ", 401),
        (b"Bearer wrong", 401),
        (b"Bearer s3cre", 401),
        (b"Bearer s3cret2", 401),
        (b"Basic s3cret", 401),
        (b"s3cret", 401),
        (b"Bearer s3cret, Bearer s3cret", 401),
        (b"Bearer s3cr\xc3\xa9t", 401),
        (b"Bearer s3cret", None),
        (b"bearer  s3cret", None),
    ],
)
def test_token_is_asked_for(header: bytes | None, status: int | None) -> None:
    headers = {} if header is None else {b"authorization": header}
    answer = refuse({"auth_token": "s3cret"}, Request("GET", b"/v1/stream/a", b"", headers))
    assert (answer.status if answer else None) == status
    if answer:
        assert (b"www-authenticate", b'Bearer realm="penstock"') in answer.headers


def test_public_paths_and_preflights_need_no_token() -> None:
    assert refuse({"auth_token": "t"}, Request("GET", b"/healthz"), PUBLIC) is None
    answer = refuse({"auth_token": "t"}, Request("OPTIONS", b"/v1/stream/a"))
    assert answer is not None
    assert answer.status == 204


@pytest.mark.parametrize(
    ("length", "status"),
    [(b"10", None), (b"11", 413), (b"9" * 400, 413), (b"junk", None), (b"0011", 413)],
)
def test_announced_length_is_checked_before_the_body(length: bytes, status: int | None) -> None:
    request = Request("POST", b"/", b"", {b"content-length": length})
    answer = refuse({"body_bytes_max": 10}, request)
    assert (answer.status if answer else None) == status


def test_problem_names_the_error_and_carries_its_headers() -> None:
    answer = problem(SequenceGap("Send 3 first.", Producer_Expected_Seq="3"))
    assert answer.status == 409
    assert (b"producer-expected-seq", b"3") in answer.headers
    assert (b"content-type", b"application/problem+json") in answer.headers
    assert isinstance(answer.body, bytes)
    assert msgspec.json.decode(answer.body) == {
        "type": "/problems/producer-sequence-gap",
        "title": "Producer sequence gap",
        "status": 409,
        "detail": "Send 3 first.",
        "code": "producer-sequence-gap",
    }


def test_problem_survives_what_clients_send() -> None:
    answer = problem(PenstockError('quote " lone \ud800 surrogate'))
    assert isinstance(answer.body, bytes)
    assert msgspec.json.decode(answer.body)["detail"] == 'quote " lone ? surrogate'
