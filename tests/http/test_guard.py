"""Auth, rate limit, sizes, and errors as answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from penstock.access.authenticator import Access
from penstock.access.rules import Verb
from penstock.config.settings import Settings
from penstock.errors import PenstockError, RateLimited, SequenceGap
from penstock.http.endpoint import PUBLIC, Endpoint, Need
from penstock.http.guard import Guard, RateLimit
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


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_bucket_allows_a_second_of_requests_and_refills() -> None:
    clock = Clock()
    rate = RateLimit(5, monotonic=clock)
    for _ in range(5):
        rate.take("a")
    with pytest.raises(RateLimited) as caught:
        rate.take("a")
    assert caught.value.headers == {"Retry-After": "1"}
    rate.take("b")
    clock.now += 0.4
    rate.take("a")
    rate.take("a")
    with pytest.raises(RateLimited):
        rate.take("a")
    clock.now += 1000
    for _ in range(5):
        rate.take("a")
    with pytest.raises(RateLimited):
        rate.take("a")


def test_slow_rate_still_lets_one_request_through() -> None:
    clock = Clock()
    rate = RateLimit(0.1, monotonic=clock)
    rate.take("a")
    with pytest.raises(RateLimited) as caught:
        rate.take("a")
    clock.now += int(caught.value.headers["Retry-After"])
    rate.take("a")


def test_refused_requests_do_not_push_the_refill_away() -> None:
    clock = Clock()
    rate = RateLimit(1, monotonic=clock)
    rate.take("a")
    for _ in range(3):
        clock.now += 0.3
        with pytest.raises(RateLimited):
            rate.take("a")
    clock.now += 0.3
    rate.take("a")


def test_table_of_peers_is_bounded() -> None:
    rate = RateLimit(1, monotonic=Clock(), peers_max=10)
    rate.take("kept")
    for n in range(100):
        rate.take(f"peer{n}")
        with pytest.raises(RateLimited):
            rate.take("kept")  # seen again and again, so never the one that is forgotten
        assert len(rate) <= 10


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
