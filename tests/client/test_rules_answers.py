"""Answers as values: results, and the error of every kind of refusal."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from penstock import errors
from penstock.client import answers, requests
from penstock.client.answers import Answer, error_of
from penstock.errors import PenstockError

URL = "http://host/v1/stream/orders"
PROBLEM = {"content-type": "application/problem+json"}


def _request(method: str) -> requests.Request:
    return requests.Request(method, URL)


@pytest.mark.parametrize(
    ("method", "status", "headers", "cls"),
    [
        ("POST", 400, {}, errors.BadRequest),
        ("GET", 401, {}, errors.Unauthorized),
        ("GET", 403, {}, errors.Forbidden),
        ("POST", 403, {"producer-epoch": "4"}, errors.StaleEpoch),
        ("GET", 404, {}, errors.StreamNotFound),
        ("POST", 405, {}, errors.MethodNotAllowed),
        ("POST", 409, {"stream-closed": "true"}, errors.StreamClosed),
        ("POST", 409, {"producer-expected-seq": "2"}, errors.SequenceGap),
        ("PUT", 409, {}, errors.StreamExists),
        ("POST", 409, {}, errors.Conflict),
        ("GET", 410, {}, errors.Gone),
        ("POST", 412, {}, errors.TailMoved),
        ("POST", 413, {}, errors.BodyTooLarge),
        ("GET", 418, {}, errors.BadRequest),
        ("GET", 429, {}, errors.RateLimited),
        ("GET", 500, {}, errors.ServerError),
        ("GET", 503, {}, errors.ServerError),
        ("GET", 304, {}, errors.ProtocolError),
    ],
)
def test_servers_without_codes_are_understood_by_status_and_headers(
    method: str, status: int, headers: dict[str, str], cls: type[PenstockError]
) -> None:
    error = error_of(_request(method), Answer(status, headers))
    assert type(error) is cls
    assert error.status == status


@pytest.mark.parametrize(
    ("status", "code", "cls"),
    [
        (410, "stream-trimmed", errors.StreamTrimmed),
        (410, "stream-recreated", errors.StreamRecreated),
        (409, "content-type-mismatch", errors.ContentTypeMismatch),
        (400, "invalid-offset", errors.InvalidOffset),
        (503, "store-read-only", errors.StoreReadOnly),
        (500, "internal", errors.InternalError),
        (404, "nobody-knows-this", errors.StreamNotFound),
        (404, "disk-full", errors.StreamNotFound),  # the status is what counts
        (503, "connection-failed", errors.ServerError),  # a server cannot fake our own failures
        (500, "store-locked", errors.ServerError),
    ],
)
def test_code_of_the_problem_document_names_the_class(
    status: int, code: str, cls: type[PenstockError]
) -> None:
    body = msgspec.json.encode({"code": code, "detail": "what to do"})
    error = error_of(_request("GET"), Answer(status, PROBLEM, body))
    assert type(error) is cls
    assert error.detail.startswith("what to do")


def test_an_answer_to_head_has_no_body_and_says_what_to_do() -> None:
    error = error_of(_request("HEAD"), Answer(404, {}, b""))
    assert error.detail.startswith("There is no such stream. Create it first (HEAD http")


def test_numbers_in_headers_are_attributes_of_the_error() -> None:
    gap = error_of(
        _request("POST"),
        Answer(409, {"producer-expected-seq": "3", "producer-received-seq": "5"}),
    )
    assert isinstance(gap, errors.SequenceGap)
    assert (gap.expected, gap.received) == (3, 5)
    stale = error_of(_request("POST"), Answer(403, {"producer-epoch": "9"}))
    assert isinstance(stale, errors.StaleEpoch)
    assert stale.epoch == 9
    assert errors.SequenceGap("gap").expected is None


@pytest.mark.parametrize(
    ("code", "cls"),
    [
        ("validation-failed", errors.ValidationFailed),
        ("invalid-event", errors.InvalidEvent),
        ("invalid-schema", errors.InvalidSchema),
        ("somebody-elses", errors.Unprocessable),
        (None, errors.Unprocessable),
    ],
)
def test_refused_content_says_which_item_where_and_by_which_rule(
    code: str | None, cls: type[errors.Unprocessable]
) -> None:
    place = {"index": 1, "path": "/value/email", "field": "value.email", "rule": "format"}
    body = msgspec.json.encode({"code": code, "detail": "no email", **place})
    error = error_of(_request("POST"), Answer(422, PROBLEM, body))
    assert type(error) is cls
    assert error.members == place
    odd = msgspec.json.encode({"code": code, "index": "1", "path": 7, "field": None, "rule": []})
    error = error_of(_request("POST"), Answer(422, PROBLEM, odd))
    assert isinstance(error, errors.Unprocessable)
    assert error.members == {}


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"detail":7}', b"[" * 100_000])
def test_broken_problem_document_still_gives_an_error(body: bytes) -> None:
    error = error_of(_request("GET"), Answer(404, PROBLEM, body))
    assert isinstance(error, errors.StreamNotFound)
    assert "404" in error.detail


def test_plain_body_is_the_detail_and_is_bounded() -> None:
    error = error_of(_request("GET"), Answer(502, {}, b"bad gateway " + b"x" * 5000))
    assert error.detail.startswith("bad gateway")
    assert len(error.detail) < 700


def test_answer_without_next_offset_breaks_the_protocol() -> None:
    with pytest.raises(errors.ProtocolError, match="Stream-Next-Offset"):
        _ = Answer(200, {}).offset


@pytest.mark.parametrize(
    ("headers", "up_to_date", "closed"),
    [
        ({}, False, False),
        ({"stream-up-to-date": "true"}, True, False),
        ({"stream-closed": "TRUE"}, True, True),
        ({"stream-closed": "yes"}, False, False),
    ],
)
def test_flags_are_true_only_if_they_say_true(
    headers: dict[str, str], up_to_date: bool, closed: bool
) -> None:
    answer = Answer(200, headers)
    assert (answer.up_to_date, answer.closed) == (up_to_date, closed)


@pytest.mark.parametrize(
    ("status", "attempts", "created"), [(201, 1, True), (200, 1, False), (200, 2, True)]
)
def test_stream_found_by_a_repeated_create_was_created_by_the_lost_one(
    status: int, attempts: int, created: bool
) -> None:
    answer = Answer(status, {"stream-next-offset": "0_0"}, attempts=attempts)
    assert answers.created(answer, "text/plain").created is created


@pytest.mark.parametrize(
    ("status", "producer", "body", "duplicate"),
    [
        (200, ("p", 0, 0), b"x", False),
        (204, ("p", 0, 0), b"x", True),
        (204, ("p", 0, 0), b"", False),
        (204, None, b"x", False),
    ],
)
def test_append_is_a_duplicate_only_for_a_producer_that_sent_data(
    status: int, producer: tuple[str, int, int] | None, body: bytes, duplicate: bool
) -> None:
    request = requests.append(URL, body, "a/b", producer=producer, close=not body)
    answer = Answer(status, {"stream-next-offset": "0_0"})
    assert answers.appended(answer, request).duplicate is duplicate


def test_listing_that_cannot_be_understood_breaks_the_protocol() -> None:
    with pytest.raises(errors.ProtocolError):
        answers.page(Answer(200, {}, b"<html>"))


def test_an_error_is_of_the_catalogue_whatever_else_is_imported() -> None:
    """A class elsewhere that has the code of its base is never raised for an answer."""
    script = (
        "import penstock.stp.rows\n"
        "from penstock.client import answers\n"
        "from penstock.errors import InvalidRow\n"
        "assert answers._BY_CODE[InvalidRow.code] is InvalidRow\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
