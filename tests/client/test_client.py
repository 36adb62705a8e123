"""Both clients against a real server: the same tests for each."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import pairwise
from typing import Any

import httpx2
import msgspec
import pytest

import penstock
from penstock import Retry, errors
from penstock.client.answers import Answer, Appended
from penstock.client.requests import Request
from tests.client.conftest import QUICK
from tests.client.driver import Connect
from tests.helpers.server import Server, running_server

BIG = [{"id": i, "note": "x" * 50} for i in range(200)]  # several chunks


def test_create_append_read_close_delete(stream: Any) -> None:
    created = stream.create()
    assert created.created
    assert created.content_type == "application/json"
    assert stream.append({"a": 1}).offset > created.offset
    assert stream.append([1, 2]).closed is False
    tail = stream.append_many(["x", None]).offset
    read = stream.read()
    assert read.messages == [{"a": 1}, [1, 2], "x", None]
    assert (read.next_offset, read.up_to_date, read.closed) == (tail, True, False)
    assert stream.close("end").closed
    assert stream.read(tail).messages == ["end"]
    assert stream.read(tail).closed
    stream.delete()
    assert not stream.exists()


def test_a_number_with_too_many_digits_is_refused_at_the_door(json_stream: Any) -> None:
    with pytest.raises(errors.NumberTooLong) as refused:
        json_stream.append(b"9" * 4301)
    assert (refused.value.status, refused.value.code) == (400, "number-too-long")
    json_stream.append(b"9" * 1000)
    assert json_stream.read_json() == [10**1000 - 1]


@pytest.mark.parametrize("data", [[], [b"text\n"]])
def test_a_text_stream_has_no_json_to_read(stream: Any, data: list[bytes]) -> None:
    stream.create("text/plain")
    for each in data:
        stream.append(each)
    with pytest.raises(errors.ContentTypeMismatch, match=r"text/plain.*read_text"):
        stream.read_json()
    assert stream.read_text() == "".join(each.decode() for each in data)


def test_create_refuses_a_stream_that_exists_and_ensure_does_not(stream: Any) -> None:
    stream.create("text/plain")
    with pytest.raises(errors.StreamExists):
        stream.create("text/plain")
    assert stream.create("text/plain", exist_ok=True).created is False
    assert stream.ensure("text/plain").created is False
    with pytest.raises(errors.StreamExists) as differs:
        stream.ensure("application/json")
    assert differs.value.status == 409


def test_head_tells_what_was_created(stream: Any) -> None:
    stream.create("text/plain", ttl_s=600, body="hello")
    head = stream.head()
    assert (head.content_type, head.ttl_s, head.closed) == ("text/plain", 600, False)
    assert head.offset == stream.read().next_offset


def test_expiry_is_given_as_a_time(stream: Any) -> None:
    stream.create(expires_at=datetime(2099, 1, 1, tzinfo=UTC))
    assert stream.head().expires_at == "2099-01-01T00:00:00.000Z"


def test_stream_can_be_created_closed_with_its_only_message(stream: Any) -> None:
    assert stream.create(body={"only": 1}, closed=True).closed
    assert stream.read().closed
    assert stream.read_json() == [{"only": 1}]


def test_read_goes_on_chunk_after_chunk(json_stream: Any) -> None:
    json_stream.append_many(BIG)
    batches = list(json_stream.iter_batches())
    assert len(batches) > 3
    assert [message for batch in batches for message in batch.messages] == BIG
    assert [batch.up_to_date for batch in batches[:-1]] == [False] * (len(batches) - 1)
    for before, after in pairwise(batches):
        assert before.next_offset == after.offset
    assert json_stream.read_json() == BIG
    assert msgspec.json.decode(json_stream.read_bytes()) == BIG
    assert json_stream.read_json(batches[1].offset) == BIG[len(batches[0].messages) :]


def test_read_ends_at_its_bounds(json_stream: Any) -> None:
    json_stream.append_many(BIG)
    middle = list(json_stream.iter_batches())[1].next_offset
    bounded = json_stream.read(until=middle)
    assert bounded.next_offset == middle
    assert bounded.messages == BIG[: len(bounded.messages)]
    assert json_stream.read(count=100).messages == BIG[:100]
    raw = json_stream.read(count=100, decode=False)
    assert msgspec.json.decode(raw.data) == BIG[:100]
    assert json_stream.read(middle, until=middle).messages == []


def test_text_is_whole_though_chunks_cut_characters(stream: Any) -> None:
    stream.create("text/plain")
    text = "aé€😀\r\n" * 1000
    stream.append(text)
    assert stream.read_text() == text
    assert stream.read().text == text
    assert "".join(batch.text for batch in stream.iter_batches()) == text


def test_bytes_come_back_as_they_were(stream: Any) -> None:
    stream.create("application/octet-stream")
    data = bytes(range(256)) * 40
    stream.append(data)
    assert stream.read_bytes() == data
    assert stream.read().data == data


def test_messages_can_have_a_type(json_stream: Any) -> None:
    class Order(msgspec.Struct):
        id: int

    json_stream.append_many([{"id": 1}, {"id": 2}])
    assert json_stream.read(message_type=Order).messages == [Order(1), Order(2)]


def test_content_type_is_asked_for_once(client: Any, name: str) -> None:
    client.stream(name).create("text/plain")
    stream = client.stream(name)
    stream.append("hello")
    assert stream.content_type == "text/plain"
    with pytest.raises(TypeError):
        stream.append({"not": "text"})
    typed = client.stream(name, content_type="application/json")
    with pytest.raises(errors.ContentTypeMismatch):
        typed.append({"wrong": "type"})


def test_conditional_append_sees_that_the_tail_has_moved(json_stream: Any) -> None:
    tail = json_stream.append(1).offset
    assert json_stream.append(2, if_match=tail).offset > tail
    with pytest.raises(errors.TailMoved):
        json_stream.append(3, if_match=tail)


def test_sequence_that_goes_back_is_a_conflict(json_stream: Any) -> None:
    json_stream.append(1, seq="b")
    with pytest.raises(errors.StreamSeqConflict):
        json_stream.append(2, seq="a")


def test_append_of_a_producer_is_stored_once(json_stream: Any) -> None:
    first = json_stream.append(1, producer=("p", 0, 0))
    again = json_stream.append(1, producer=("p", 0, 0))
    assert (first.duplicate, again.duplicate) == (False, True)
    assert (again.producer_epoch, again.producer_seq) == (0, 0)
    with pytest.raises(errors.SequenceGap) as gap:
        json_stream.append(2, producer=("p", 0, 5))
    assert (gap.value.expected, gap.value.received) == (1, 5)
    json_stream.append(2, producer=("p", 3, 0))
    with pytest.raises(errors.StaleEpoch) as stale:
        json_stream.append(3, producer=("p", 1, 0))
    assert stale.value.epoch == 3
    assert json_stream.read_json() == [1, 2]


def test_closed_stream_takes_nothing_more(json_stream: Any) -> None:
    json_stream.close()
    assert json_stream.close().closed
    with pytest.raises(errors.StreamClosed) as closed:
        json_stream.append(1)
    assert closed.value.headers["Stream-Closed"] == "true"


def test_errors_tell_what_the_server_said(json_stream: Any) -> None:
    with pytest.raises(errors.OffsetBeyondTail):
        json_stream.read(json_stream.head().offset[:-4] + "9999")
    with pytest.raises(errors.InvalidOffset) as invalid:
        json_stream.read("nonsense")
    assert invalid.value.status == 400
    assert "nonsense" in invalid.value.detail
    assert invalid.value.headers["Content-Type"] == "application/problem+json"


def test_missing_stream_is_not_found(stream: Any) -> None:
    for operation in (stream.read, stream.head, stream.delete, lambda: stream.append(1)):
        with pytest.raises(errors.StreamNotFound):
            operation()


@pytest.mark.parametrize("path", ["née/with space", "a%2Fb", "50%", "a:b@c"])
def test_any_path_works_and_is_listed_as_it_can_be_used(client: Any, path: str, name: str) -> None:
    path = f"{name}/{path}"
    client.stream(path).create(body="here")
    (info,) = client.list(name)
    assert client.stream(info.path).read_json() == ["here"]
    assert client.stream(client.stream(path).url).read_json() == ["here"]


def test_listing_goes_on_page_after_page(
    client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.flow.LIST_PAGE", 2)
    for i in range(5):
        client.stream(f"{name}/{i}").create("text/plain")
    assert [info.path for info in client.list(name + "/")] == [f"{name}/{i}" for i in range(5)]
    assert [info.path for info in client.list(name + "/", limit=3)] == [
        f"{name}/{i}" for i in range(3)
    ]
    assert next(iter(client.list(name))).content_type == "text/plain"
    assert list(client.list("nothing-starts-like-this")) == []


def test_headers_and_parameters_are_asked_for_with_every_request(connect: Connect) -> None:
    seen: list[tuple[str | None, str | None]] = []
    numbers = iter(range(100))

    def handler(request: httpx2.Request) -> httpx2.Response:
        seen.append((request.headers.get("X-Trace"), request.url.params.get("tenant")))
        if len(seen) == 1:
            return httpx2.Response(503)
        return httpx2.Response(200, headers={"Stream-Next-Offset": "0_0"})

    client = connect(
        "http://host",
        headers={"X-Trace": lambda: f"t{next(numbers)}"},
        params={"tenant": "a b"},
        retry=QUICK,
        transport=httpx2.MockTransport(handler),
    )
    client.stream("x").head()
    assert seen == [("t0", "a b"), ("t1", "a b")]


def test_token_is_sent_and_may_change(connect: Connect, name: str) -> None:
    with running_server(memory=True, args=["--token", "secret"]) as guarded:
        with pytest.raises(errors.Unauthorized):
            connect(guarded.url).stream(name).create()
        assert connect(guarded.url, token="secret").stream(name).create().created
        tokens = iter(["secret", "wrong", "wrong too"])
        stream = connect(guarded.url, token=lambda: next(tokens)).stream(name)
        stream.head()
        with pytest.raises(errors.Unauthorized):
            stream.head()


def _mock(connect: Connect, *answers: httpx2.Response | Exception, **options: Any) -> Any:
    """A client whose server gives these answers; `requests` has what was asked."""
    left = list(answers)
    requests: list[httpx2.Request] = []

    def handler(request: httpx2.Request) -> httpx2.Response:
        requests.append(request)
        answer = left.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    client = connect(
        "http://host",
        transport=httpx2.MockTransport(handler),
        retry=options.pop("retry", QUICK),
        **options,
    )
    return client.stream("x", content_type="text/plain"), requests


def _ok(status: int = 200, **headers: str) -> httpx2.Response:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return httpx2.Response(status, headers={"Stream-Next-Offset": "0_0", **names})


def test_redirect_is_followed_within_the_origin_only(connect: Connect) -> None:
    stream, requests = _mock(connect, httpx2.Response(307, headers={"Location": "/y"}), _ok())
    stream.head()
    assert [str(request.url) for request in requests] == [
        "http://host/v1/stream/x",
        "http://host/y",
    ]
    elsewhere = httpx2.Response(307, headers={"Location": "http://evil/v1/stream/x"})
    stream, requests = _mock(connect, elsewhere, token="secret")
    with pytest.raises(errors.ProtocolError, match="origin"):
        stream.head()
    assert len(requests) == 1
    loop = [httpx2.Response(307, headers={"Location": "/y"}) for _ in range(20)]
    with pytest.raises(errors.ProtocolError, match="redirects"):
        _mock(connect, *loop)[0].head()


def test_plain_append_is_not_sent_again_if_it_may_have_been_stored(connect: Connect) -> None:
    stream, requests = _mock(connect, httpx2.ReadError("reset"), _ok())
    with pytest.raises(errors.ConnectionFailed, match="not known whether") as failed:
        stream.append("x")
    assert isinstance(failed.value.__cause__, httpx2.ReadError)
    assert len(requests) == 1
    stream, requests = _mock(
        connect,
        httpx2.ConnectError("refused"),
        httpx2.Response(503),
        httpx2.Response(429, headers={"Retry-After": "0"}),
        _ok(204),
    )
    stream.append("x")
    assert len(requests) == 4


def test_append_that_can_be_repeated_is(connect: Connect) -> None:
    failures: list[httpx2.Response | Exception] = [
        httpx2.ReadError("reset"),
        httpx2.Response(500),
        httpx2.ReadTimeout("slow"),
    ]
    stream, requests = _mock(connect, *failures, _ok(200))
    stream.append("x", producer=("p", 0, 0))
    assert len({request.headers["Producer-Seq"] for request in requests}) == 1
    resend = Retry(first_s=0.001, resend_appends=True)
    stream, requests = _mock(connect, *failures, _ok(204), retry=resend)
    stream.append("x")
    assert len(requests) == 4


def test_duplicate_that_is_confirmed_without_an_offset_is_looked_up(connect: Connect) -> None:
    # As the reference server answers.
    bare = httpx2.Response(204, headers={"Producer-Epoch": "0", "Producer-Seq": "4"})
    stream, requests = _mock(connect, bare, _ok(200, Stream_Next_Offset="0_9"))
    appended = stream.append("x", producer=("p", 0, 3))
    assert appended == Appended("0_9", False, True, 0, 4)
    assert [request.method for request in requests] == ["POST", "HEAD"]
    with pytest.raises(errors.ProtocolError, match="Stream-Next-Offset"):
        _mock(connect, httpx2.Response(204))[0].append("x", producer=("p", 0, 3))


def test_delete_that_finds_nothing_after_a_lost_answer_has_succeeded(connect: Connect) -> None:
    stream, _ = _mock(connect, httpx2.ReadError("reset"), httpx2.Response(404))
    stream.delete()


def test_retries_end(connect: Connect) -> None:
    refused = [httpx2.ConnectError("refused") for _ in range(9)]
    stream, requests = _mock(connect, *refused, retry=Retry(attempts_max=3, first_s=0.001))
    with pytest.raises(errors.ConnectionFailed):
        stream.read()
    assert len(requests) == 3


def test_answer_without_offset_is_not_taken_for_an_empty_stream(connect: Connect) -> None:
    with pytest.raises(errors.ProtocolError, match="Stream-Next-Offset"):
        _mock(connect, httpx2.Response(200, content=b"proxy says hello"))[0].read()


def test_read_that_does_not_move_on_is_no_endless_loop(connect: Connect) -> None:
    stream, _ = _mock(connect, *[_ok() for _ in range(5)])
    with pytest.raises(errors.ProtocolError, match="no new offset"):
        stream.read("0_0")


def test_error_of_a_callable_reaches_the_caller(server: Server, connect: Connect) -> None:
    def no_token() -> str:
        raise LookupError("no token")

    with pytest.raises(LookupError):
        connect(server.url, token=no_token).stream("x").head()


def test_closed_client_says_so(server: Server, connect: Connect) -> None:
    client = connect(server.url)
    client.stream("x").exists()
    client.close()
    with pytest.raises(errors.ClientClosed):
        client.stream("x").exists()


def test_request_primitive_gives_the_checked_answer(client: Any, json_stream: Any) -> None:
    answer: Answer = client.request(Request("HEAD", json_stream.url))
    assert answer.status == 200
    assert answer.offset == json_stream.head().offset
    with pytest.raises(errors.StreamNotFound):
        client.request(Request("HEAD", json_stream.url + "-missing"))


def test_http2_without_its_package_is_a_clear_error(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("penstock.client.http.find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"penstock-streams\[h2\]"):
        connect("http://host", http2=True)


def test_everything_public_can_be_imported_from_the_package() -> None:
    for name in penstock.__all__:
        assert getattr(penstock, name) is not None
    with pytest.raises(AttributeError):
        _ = penstock.Nonsense


def test_a_fork_goes_on_from_its_source(stream: Any) -> None:
    stream.create()
    middle = stream.append_many([1, 2]).offset
    stream.append(3)
    path = stream.url.rpartition("/")[2] + "-fork"
    fork = stream.fork(path, at=middle, body=30)
    assert fork.read().messages == [1, 2, 30]
    again = stream.fork(path, at=middle, exist_ok=True)
    assert again.url == fork.url
    with pytest.raises(errors.StreamExists):
        stream.fork(path)
    further = stream.fork(path + "-2", at=middle, sub_offset=1, ttl_s=60)
    assert further.read().messages == [1, 2, 3]
    assert further.head().ttl_s == 60
    with pytest.raises(errors.InvalidForkOffset):
        stream.fork(path + "-3", sub_offset=1)
    stream.delete()
    with pytest.raises(errors.StreamSoftDeleted):
        stream.read()
    with pytest.raises(errors.PathBlocked):
        stream.create()
    assert fork.read().messages == [1, 2, 30]
    for each in (fork, further):
        each.delete()
    with pytest.raises(errors.StreamNotFound):
        stream.read()


def test_a_fork_holds_what_its_source_does(stream: Any) -> None:
    stream.create("text/plain", body="hello")
    path = stream.url.rpartition("/")[2] + "-fork"
    fork = stream.fork(path, body=" world")
    assert fork.head().content_type == "text/plain"
    assert fork.read().data == b"hello world"
    with pytest.raises(ValueError, match="another"):
        stream.create(forked_from="http://elsewhere:1/v1/stream/x")


def test_trim_and_retention(stream: Any) -> None:
    stream.create()
    first = stream.append(1).offset
    second = stream.append(2).offset
    stream.append(3)
    assert stream.trim(second) == second
    assert stream.head().earliest == second
    assert stream.read().messages == [3]
    with pytest.raises(errors.StreamTrimmed) as gone:
        stream.read(first)
    assert gone.value.earliest == second
    followed = list(stream.follow(first, on_reset="restart", stop_when_up_to_date=True))
    assert [batch.messages for batch in followed] == [[3]]
    stream.set_retention(age_s=3600, bytes=10_000, compact=4)
    stream.reset_retention()
    with pytest.raises(errors.NotStateStream):
        stream.compact()


def test_the_state_at_an_offset_and_a_time_and_the_history_of_an_entity(json_stream: Any) -> None:
    def event(key: str, value: Any) -> dict[str, Any]:
        headers = {"operation": "upsert", "timestamp": "2026-11-01T10:00:00Z"}
        return {"type": "user", "key": key, "value": value, "headers": headers}

    first = json_stream.append(event("1", {"name": "Ann"})).offset
    many = [event(f"k{number:04d}", number) for number in range(1200)]  # more than a page
    tail = json_stream.append_many([event("1", {"name": "Anna"}), *many]).offset
    state = json_stream.state()
    assert (state.offset, len(state.types["user"])) == (tail, 1201)
    assert json_stream.state(offset=first).types == {"user": {"1": {"name": "Ann"}}}
    assert json_stream.state(type="user", prefix="k000").types["user"]["k0009"] == 9
    assert json_stream.state(at=datetime(2020, 1, 1, tzinfo=UTC)).types == {}
    assert json_stream.state(at="2100-01-01T00:00:00Z").offset == tail
    steps = json_stream.history("user", "1")
    assert [(step.operation, step.value) for step in steps] == [
        ("upsert", {"name": "Ann"}),
        ("upsert", {"name": "Anna"}),
    ]
    assert (steps[0].offset, steps[0].timestamp) == (first, "2026-11-01T10:00:00Z")
    assert len(json_stream.history("user", "1", offset=first)) == 1
    with pytest.raises(ValueError, match="one of them"):
        json_stream.state(offset=first, at="2100-01-01T00:00:00Z")
    with pytest.raises(ValueError, match="time zone"):
        json_stream.state(at=datetime(2020, 1, 1))  # noqa: DTZ001 - that is the mistake
