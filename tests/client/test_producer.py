"""Both producers against a real server: the same tests for each."""

from __future__ import annotations

import itertools
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import msgspec
import pytest

import penstock
from penstock import Retry, errors
from tests.client.producers import (
    LOSE_ANSWER,
    LOSE_REQUEST,
    PASS,
    REFUSE,
    WAIT_S,
    Connect,
    Rule,
    Verdicts,
    connecting,
)
from tests.helpers.server import Server, running_server

QUICK = Retry(attempts_max=None, first_s=0.001, max_s=0.01)
NEVER_MS = 3_600_000.0

_numbers = itertools.count()


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(memory=True) as running:
        yield running


@pytest.fixture(params=["sync", "async"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    with connecting(request.param) as function:
        yield function


@pytest.fixture
def eager_threads() -> Iterator[None]:
    """Threads take turns all the time, so that few interleavings are left out."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(usual)


@pytest.fixture
def name() -> str:
    return f"stream-{next(_numbers)}"


@pytest.fixture
def stream(connect: Connect, server: Server, name: str) -> Any:
    new_stream = connect(server.url).stream(name)
    new_stream.create()
    return new_stream


# -- what is stored


def test_every_kind_of_json_value_becomes_one_message(stream: Any) -> None:
    values = [{"a": 1}, [1, [2]], [], "text", 7, 1.5, True, None, b'{"encoded": 1}']
    with stream.producer("p") as producer:
        for value in values:
            producer.append(value)
    assert stream.read_json() == [*values[:-1], {"encoded": 1}]


def test_text_and_bytes_are_joined_in_order(connect: Connect, server: Server, name: str) -> None:
    for content_type, values in (
        ("text/plain", ["Hello", " ", "Wörld"]),
        ("application/octet-stream", [b"\x00\xff", bytearray(b"\n"), memoryview(b"end")]),
    ):
        stream = connect(server.url).stream(f"{name}-{content_type[:4]}")
        stream.create(content_type)
        with stream.producer("p") as producer:
            for value in values:
                producer.append(value)
        expected = b"".join(v.encode() if isinstance(v, str) else bytes(v) for v in values)
        assert stream.read_bytes() == expected


def test_the_content_type_is_asked_for_if_it_is_not_known(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    other = connect(server.url).stream(name)
    assert other.content_type is None
    with other.producer("p") as producer:
        producer.append([1, 2])
    assert stream.read_json() == [[1, 2]]


def test_what_cannot_be_encoded_is_refused_at_once_and_harms_nothing(stream: Any) -> None:
    with stream.producer("p") as producer:
        producer.append(1)
        with pytest.raises(TypeError):
            producer.append(object())
        with pytest.raises(ValueError, match="JSON"):
            producer.append(b"1,2")
        producer.append(2)
    assert stream.read_json() == [1, 2]


def test_batches_are_cut_by_items_and_numbered(stream: Any) -> None:
    with stream.producer("p", batch_items_max=10, linger_ms=NEVER_MS) as producer:
        for number in range(95):
            producer.append(number)
        producer.flush()
        assert (producer.epoch, producer.next_seq) == (0, 10)
        assert (producer.pending_count, producer.in_flight_count) == (0, 0)
        assert producer.offset == stream.head().offset
    assert stream.read_json() == list(range(95))


def test_a_message_is_sent_after_its_linger_without_a_flush(stream: Any, server: Server) -> None:
    offset = stream.head().offset
    with stream.producer("p", linger_ms=1) as producer:
        producer.append("alone")
        answer = httpx2.get(
            stream.url, params={"offset": offset, "live": "long-poll"}, timeout=WAIT_S
        )
        assert answer.json() == ["alone"]


def test_what_was_appended_last_is_not_left_behind(stream: Any) -> None:
    """Nothing comes after it that could push it on."""
    with stream.producer("p", linger_ms=50) as producer:
        for number in range(3):
            producer.append(number)
        numbers: list[int] = []
        offset = "-1"
        while len(numbers) < 3:
            params = {"offset": offset, "live": "long-poll"}
            answer = httpx2.get(stream.url, params=params, timeout=WAIT_S)
            assert answer.status_code == 200, "it never came"
            numbers += answer.json()
            offset = answer.headers["stream-next-offset"]
    assert numbers == [0, 1, 2]


def test_an_append_that_a_close_overtakes_is_told(server: Server, name: str) -> None:
    """Another thread closes the producer just before the message is put into its inbox."""

    class Inbox(deque[bytes]):
        def append(self, message: bytes) -> None:
            producer.close()
            super().append(message)

    with penstock.Client(server.url) as client:
        stream = client.stream(name)
        stream.create()
        producer = stream.producer("p", linger_ms=NEVER_MS)
        producer.append("stored")
        producer._inbox = Inbox()
        with pytest.raises(errors.ClientClosed):
            producer.append("too late")
        assert stream.read_json() == ["stored"]


def test_many_threads_share_one_producer(stream: Any) -> None:
    producer = stream.producer("p", batch_items_max=7, queue_bytes_max=2000)

    def append(thread: int) -> None:
        for number in range(50):
            producer.append([thread, number])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(append, range(6)))
    producer.close()
    messages = stream.read_json()
    assert len(messages) == 300
    for thread in range(6):
        assert [number for t, number in messages if t == thread] == list(range(50))


def told_of(stream: Any, count: int, interrupt: Callable[[Any], None]) -> None:
    """Many threads append while something ends the producer: each message is stored once, or
    somebody was told."""
    reported: list[bytes] = []
    producer = stream.producer("p", on_error=lambda _, messages: reported.extend(messages))
    producer.append("first")
    producer.flush()
    started = threading.Barrier(5)

    def append(thread: int) -> list[str]:
        started.wait()
        refused: list[str] = []
        for number in range(count):
            message = f"{thread}-{number}"
            try:
                producer.append(message)
            except errors.PenstockError:
                refused.append(message)
        return refused

    with ThreadPoolExecutor(4) as pool:
        appending = [pool.submit(append, thread) for thread in range(4)]
        started.wait()
        interrupt(producer)
        refused = {message for future in appending for message in future.result()}
    try:
        producer.close()
    except errors.PenstockError:
        pass
    failed = {msgspec.json.decode(message) for message in reported}
    stored = stream.read_json()
    everything = {f"{thread}-{number}" for thread in range(4) for number in range(count)}
    assert set(stored) | failed | refused == {"first", *everything}
    assert len(stored) == len(set(stored))
    assert not set(stored) & refused
    for thread in range(4):
        numbers = [int(m.split("-")[1]) for m in stored if m.startswith(f"{thread}-")]
        assert numbers == sorted(numbers)


@pytest.mark.usefixtures("eager_threads")
def test_threads_that_append_while_others_flush_lose_nothing(stream: Any) -> None:
    def flush(producer: Any) -> None:
        for _ in range(20):
            producer.flush()

    told_of(stream, 1000, flush)


@pytest.mark.usefixtures("eager_threads")
def test_threads_that_append_while_the_producer_is_closed_are_told(stream: Any) -> None:
    told_of(stream, 1000, lambda producer: producer.close())


@pytest.mark.usefixtures("eager_threads")
def test_threads_that_append_while_the_stream_is_closed_are_told(stream: Any) -> None:
    told_of(stream, 1000, lambda _: stream.close())


# -- the network


def test_lost_requests_and_answers_lose_and_double_nothing(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    chance = random.Random(7)
    verdicts = [PASS, PASS, LOSE_ANSWER, LOSE_REQUEST, REFUSE]
    faulty = connect(server.url, rule=Verdicts(lambda: chance.choice(verdicts))).stream(name)
    faulty.ensure()
    with faulty.producer("p", batch_items_max=5, linger_ms=0, retry=QUICK) as producer:
        for number in range(1000):
            producer.append(number)
    assert stream.read_json() == list(range(1000))


class Overtaken(Rule):
    """The second batch arrives only after one that was sent later has been refused."""

    def __init__(self) -> None:
        self.refused = threading.Event()

    def overtaken(self, request: httpx2.Request) -> threading.Event | None:
        return self.refused if request.headers.get("producer-seq") == "1" else None

    def answered(self, request: httpx2.Request, status: int) -> None:
        if status == 409:
            self.refused.set()


def test_batches_that_overtake_each_other_are_stored_in_order(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    rule = Overtaken()
    slow = connect(server.url, rule=rule).stream(name)
    slow.ensure()
    with slow.producer("p", batch_items_max=1) as producer:
        for number in range(20):
            producer.append(number)
    assert rule.refused.is_set()
    assert stream.read_json() == list(range(20))


def test_append_waits_while_the_queue_is_full(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    asked, free = threading.Event(), threading.Event()

    def hold() -> str:
        asked.set()
        free.wait(WAIT_S)
        return PASS

    slow = connect(server.url, rule=Verdicts(hold)).stream(name)
    slow.ensure()
    producer = slow.producer("p", queue_bytes_max=1000, linger_ms=0)
    done = 0

    def append() -> None:
        nonlocal done
        for _ in range(50):
            producer.append("x" * 90)
            done += 1

    appending = threading.Thread(target=append)
    appending.start()
    assert asked.wait(WAIT_S)
    appending.join(0.2)  # it goes on until the queue is full, and then no further
    assert appending.is_alive()
    assert done <= 1000 // 90
    free.set()
    appending.join(WAIT_S)
    assert not appending.is_alive()
    producer.close()
    assert len(stream.read_json()) == 50


def test_flush_gives_up_waiting_but_not_sending(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    free = threading.Event()

    def hold() -> str:
        free.wait(WAIT_S)
        return PASS

    slow = connect(server.url, rule=Verdicts(hold)).stream(name)
    slow.ensure()
    producer = slow.producer("p")
    producer.append("late")
    with pytest.raises(TimeoutError, match="1 messages"):
        producer.flush(0.01)
    free.set()
    producer.flush()
    producer.close()
    assert stream.read_json() == ["late"]


# -- errors


def test_a_fatal_error_is_told_raised_and_ends_the_producer(
    connect: Connect, server: Server, name: str
) -> None:
    failures: list[tuple[Exception, list[bytes]]] = []
    stream = connect(server.url).stream(name)
    stream.create()
    producer = stream.producer("p", on_error=lambda *failure: failures.append(failure))
    stream.delete()
    producer.append({"n": 1})
    with pytest.raises(errors.StreamNotFound):
        producer.flush()
    assert [(type(error), messages) for error, messages in failures] == [
        (errors.StreamNotFound, [b'{"n":1}'])
    ]
    with pytest.raises(errors.StreamNotFound):
        producer.append({"n": 2})
    with pytest.raises(errors.StreamNotFound):
        producer.close()
    producer.close()


def test_everything_that_is_given_up_is_told(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    asked, free, all_told = threading.Event(), threading.Event(), threading.Event()
    reported: list[bytes] = []

    def hold() -> str:
        asked.set()
        free.wait(WAIT_S)
        return PASS

    def on_error(_: Exception, messages: list[bytes]) -> None:
        reported.extend(messages)
        if len(reported) == 5:
            all_told.set()

    slow = connect(server.url, rule=Verdicts(hold)).stream(name)
    slow.ensure()
    producer = slow.producer("p", linger_ms=0, on_error=on_error)
    producer.append(0)
    assert asked.wait(WAIT_S)
    for number in range(1, 5):
        producer.append(number)
    stream.delete()
    free.set()
    assert all_told.wait(WAIT_S)
    assert reported == [b"0", b"1", b"2", b"3", b"4"]
    assert producer.pending_count == 0


def test_flush_raises_when_the_error_callback_has_been_called(stream: Any) -> None:
    """Even if that takes its time."""
    called, over = threading.Event(), threading.Event()

    def on_error(*_: object) -> None:
        called.set()
        over.wait(0.05)
        over.set()

    stream.delete()
    producer = stream.producer("p", on_error=on_error, linger_ms=0)
    producer.append(1)
    called.wait(WAIT_S)
    with pytest.raises(errors.StreamNotFound):
        producer.flush()
    assert over.is_set()


def test_a_failing_error_callback_harms_nothing(
    connect: Connect, server: Server, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    def on_error(*_: object) -> None:
        raise KeyError("mistake")

    stream = connect(server.url).stream(name)
    stream.create(closed=True)
    producer = stream.producer("p", on_error=on_error)
    producer.append(1)
    with pytest.raises(errors.StreamClosed):
        producer.close()


def test_restart_after_an_error_begins_the_next_epoch(stream: Any) -> None:
    producer = stream.producer("p")
    stream.delete()
    producer.append("lost")
    with pytest.raises(errors.StreamNotFound):
        producer.flush()
    stream.create()
    producer.restart()
    producer.append("found")
    producer.close()
    assert producer.epoch == 1
    assert stream.read_json() == ["found"]


def test_giving_up_after_the_last_attempt_raises_what_the_network_said(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    lossy = connect(server.url, rule=Verdicts(lambda: LOSE_REQUEST)).stream(name)
    lossy.head()
    producer = lossy.producer("p", retry=Retry(attempts_max=3, first_s=0.001))
    producer.append(1)
    with pytest.raises(errors.ConnectionFailed) as failure:
        producer.flush()
    assert isinstance(failure.value.__cause__, httpx2.WriteError)


def test_an_error_in_the_block_is_not_hidden_by_one_in_sending(stream: Any) -> None:
    def fail(producer: Any) -> None:
        with producer:
            producer.append(1)
            raise KeyError("the user's own")

    stream.delete()
    with pytest.raises(KeyError):
        fail(stream.producer("p"))


def test_nothing_can_be_appended_after_closing(stream: Any) -> None:
    producer = stream.producer("p")
    producer.append(1)
    producer.close()
    producer.close()
    with pytest.raises(errors.ClientClosed, match="producer is closed"):
        producer.append(2)
    assert stream.read_json() == [1]
    assert stream.head().closed is False


# -- epochs


def test_a_second_producer_fences_the_first(stream: Any) -> None:
    first, second = stream.producer("p"), stream.producer("p", epoch=1)
    first.append("first")
    first.flush()
    second.append("second")
    second.flush()
    first.append("zombie")
    with pytest.raises(errors.StaleEpoch) as failure:
        first.flush()
    assert failure.value.epoch == 1
    second.close()
    assert stream.read_json() == ["first", "second"]


def test_auto_claim_takes_over_and_stores_everything(stream: Any) -> None:
    rival = stream.producer("p", epoch=5)
    rival.append("rival")
    rival.flush()
    with stream.producer("p", auto_claim=True, batch_items_max=1) as producer:
        for number in range(20):
            producer.append(number)
        producer.flush()
        assert producer.epoch == 6
    assert stream.read_json() == ["rival", *range(20)]
    rival.append("zombie")
    with pytest.raises(errors.StaleEpoch):
        rival.close()


def test_two_that_claim_the_id_from_each_other_store_everything_once(stream: Any) -> None:
    """Each message is flushed: with no answer lost, a claim is always safe."""
    with (
        stream.producer("p", auto_claim=True) as left,
        stream.producer("p", auto_claim=True) as right,
    ):
        for number in range(10):
            for producer in (left, right):
                producer.append([number, producer is left])
                producer.flush()
    assert len(stream.read_json()) == 20


def test_a_second_run_under_the_same_epoch_is_noticed_and_not_swallowed(stream: Any) -> None:
    with stream.producer("p") as first_run:
        first_run.append("first run")
    second_run = stream.producer("p")
    second_run.append("second run")
    with pytest.raises(errors.StaleEpoch, match="auto_claim"):
        second_run.flush()
    with stream.producer("p", auto_claim=True) as third_run:
        third_run.append("third run")
    assert stream.read_json() == ["first run", "third run"]


def test_restart_flushes_and_begins_the_next_epoch(stream: Any) -> None:
    with stream.producer("p", linger_ms=NEVER_MS) as producer:
        producer.append(1)
        producer.restart()
        assert (producer.epoch, producer.next_seq, stream.read_json()) == (1, 0, [1])
        producer.append(2)
    assert stream.read_json() == [1, 2]


# -- endings


def test_close_stream_appends_the_last_message_and_closes(stream: Any) -> None:
    producer = stream.producer("p", linger_ms=NEVER_MS)
    producer.append(1)
    answer = producer.close_stream("final")
    assert answer.closed
    assert answer.offset == stream.head().offset
    assert producer.close_stream("again") == answer
    producer.close()
    assert stream.read_json() == [1, "final"]
    assert stream.head().closed


def test_close_stream_without_a_message(stream: Any) -> None:
    with stream.producer("p") as producer:
        assert producer.close_stream().closed
    assert stream.head().closed
    assert stream.read_json() == []


def test_close_stream_whose_answer_is_lost_closes_once(
    connect: Connect, server: Server, stream: Any, name: str
) -> None:
    verdicts = iter([LOSE_ANSWER, LOSE_ANSWER])
    lossy = connect(server.url, rule=Verdicts(lambda: next(verdicts, PASS))).stream(name)
    lossy.head()
    assert lossy.producer("p", retry=QUICK).close_stream("final").closed
    assert stream.read_json() == ["final"]


def test_another_producer_cannot_close_a_closed_stream_with_a_message(stream: Any) -> None:
    stream.producer("p").close_stream("final")
    with pytest.raises(errors.StreamClosed):
        stream.producer("q").close_stream("other")
    assert stream.read_json() == ["final"]


def test_a_second_run_under_the_same_epoch_does_not_believe_it_has_closed(stream: Any) -> None:
    with stream.producer("p") as first_run:
        first_run.append("first run")
    with pytest.raises(errors.StaleEpoch):
        stream.producer("p").close_stream()
    assert stream.producer("p", auto_claim=True).close_stream().closed
    assert stream.head().closed


def test_detach_stops_at_once_and_tells_how_much_it_leaves(stream: Any) -> None:
    producer = stream.producer("p", linger_ms=NEVER_MS)
    producer.append(1)
    producer.append(2)
    assert producer.detach() == 2
    with pytest.raises(errors.ClientClosed):
        producer.append(3)
    with pytest.raises(errors.ClientClosed):
        producer.flush()
    assert stream.read_json() == []
    assert stream.head().closed is False


def test_a_closed_client_ends_the_producer(connect: Connect, server: Server, stream: Any) -> None:
    client = connect(server.url)
    target = client.stream(stream.url)
    target.head()
    producer = target.producer("p", linger_ms=NEVER_MS)
    producer.append(1)
    client.close()
    with pytest.raises(errors.ClientClosed):
        producer.flush()
