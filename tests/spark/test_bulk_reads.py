"""Large reads over a connection of their own: plain successes alone, the rest is the client's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import cast

import pytest

from penstock import Client
from penstock.client.answers import Answer
from penstock.spark.source.bulk import BulkReads, Read
from tests.helpers.server import Server
from tests.spark.direct import read
from tests.spark.test_batch_reads import fill, users


@contextmanager
def answering(*answers: bytes) -> Iterator[str]:
    """A server that sends these bytes, one for each request, and then closes."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            for answer in answers:
                connection.recv(65536)
                connection.sendall(answer)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/v1/stream/s"
    finally:
        thread.join()
        listener.close()


OK = b"HTTP/1.1 200 OK\r\nStream-Next-Offset: 1_1\r\nContent-Length: 4\r\n\r\n[12]"


def test_answers_come_one_after_the_other() -> None:
    with answering(OK, OK) as url, closing(BulkReads("secret")) as reads:
        for _ in range(2):
            answer = reads.read(Read(url, "-1", "1_1"))
            assert answer is not None
            assert (answer.body, answer.headers["stream-next-offset"]) == (b"[12]", "1_1")


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n[1,",  # and the connection ends
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"nothing of HTTP\r\n\r\n",
        b"",
    ],
)
def test_anything_but_a_plain_success_is_left_to_the_client(answer: bytes) -> None:
    with answering(answer) as url, closing(BulkReads(None)) as reads:
        assert reads.read(Read(url, "-1", "1_1")) is None


def test_a_server_that_falls_silent_is_left_to_the_client() -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Length: 2000000\r\n\r\n[" + b"1" * 1_000_000
    # The answer to the second request never comes: the server waits for one.
    with answering(half, b"") as url, closing(BulkReads(None, timeout_s=0.2)) as reads:
        assert reads.read(Read(url, "-1", "1_1")) is None


@pytest.mark.parametrize("size", [0, 5000, 3_000_000])
def test_heads_and_bodies_of_any_length(size: int) -> None:
    long = b"x" * min(size, 5000)
    head = b"HTTP/1.1 200 OK\r\nX-Long: %s\r\nContent-Length: %d\r\n\r\n" % (long, size)
    body = bytes(range(250)) * (size // 250)
    with answering(OK, head + body, OK) as url, closing(BulkReads(None)) as reads:
        for expected in (b"[12]", body, b"[12]"):
            answer = reads.read(Read(url, "-1", "1_1"))
            assert answer is not None
            assert answer.body == expected


def test_large_ranges_are_read_so(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "bulk", users(3000))
    answers = []
    original = BulkReads.read

    def recorded(self: BulkReads, each: Read) -> object:
        answers.append(original(self, each))
        return answers[-1]

    monkeypatch.setattr(BulkReads, "read", recorded)
    rows = read(server.url, "bulk")
    assert [row["key"] for row in rows] == [f"u{number}" for number in range(3000)]
    assert len(answers) > 1
    assert None not in answers
    monkeypatch.setattr(BulkReads, "read", lambda self, each: None)
    assert read(server.url, "bulk") == rows


def array(body: bytes, after: int, status: bytes = b"200 OK") -> bytes:
    return (
        b"HTTP/1.1 %s\r\nContent-Type: application/json\r\nStream-Next-Offset: %016d_%016d\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (status, 1, after, len(body), body)
    )


UNTIL = f"{1:016d}_{15:016d}"
FIRST, SECOND, THIRD = array(b"[10]", 4), array(b"[2,\n3]", 10), array(b"[456]", 15)


@pytest.mark.parametrize(
    ("answers", "size", "body", "after"),
    [
        ([FIRST, SECOND, THIRD], 100, b"[10,\n2,\n3,\n456]", 15),
        ([FIRST, SECOND], 10, b"[10,\n2,\n3]", 10),  # a third one would not have room
        ([FIRST], 7, b"[10]", 4),
        ([THIRD], 100, b"[456]", 15),
    ],
)
def test_answers_that_continue_each_other_are_one_array(
    answers: list[bytes], size: int, body: bytes, after: int
) -> None:
    with answering(*answers) as url, closing(BulkReads(None)) as reads:
        answer = reads.read_on(Read(url, "-1", UNTIL), size)
        assert answer is not None
        assert (bytes(answer.body), answer.offset) == (body, f"{1:016d}_{after:016d}")


@pytest.mark.parametrize(
    "second",
    [
        array(b"[2]", 10, b"410 Gone"),
        array(b"[]", 4),
        array(b"[%s]" % (b"1" * 100), 10),  # larger than the first one said
        b"HTTP/1.1 200 OK\r\nContent-Le",
        b"",
    ],
)
def test_an_answer_that_is_not_continued_is_left_to_the_client(second: bytes) -> None:
    with answering(FIRST, second) as url, closing(BulkReads(None)) as reads:
        assert reads.read_on(Read(url, "-1", UNTIL), 50) is None


def test_two_answers_have_buffers_that_are_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.spark.source.bulk._spare", [])
    buffers = []
    for _ in range(2):
        answers = [array(b"[%d]" % number, 4) for number in range(10, 16)]
        with answering(*answers) as url, closing(BulkReads(None)) as reads:
            before = b""
            for number in range(0, 6, 2):
                answer = reads.read_on(Read(url, "-1", UNTIL), 10)
                assert answer is not None
                body = cast("memoryview", answer.body)
                assert bytes(body) == b"[%d,\n%d]" % (10 + number, 11 + number)
                assert not number or bytes(before) == b"[%d,\n%d]" % (8 + number, 9 + number)
                before = answer.body
                buffers.append(id(body.obj))
    assert len(set(buffers)) == 2


def test_bytes_are_not_joined() -> None:
    data = FIRST.replace(b"application/json", b"application/data")
    with answering(data) as url, closing(BulkReads(None)) as reads:
        answer = reads.read_on(Read(url, "-1", UNTIL), 100)
        assert answer is not None
        assert answer.body == b"[10]"


def test_raw_messages_are_the_same_in_batches_of_any_size(
    client: Client, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(client, "joined", users(3000))
    sizes = []
    original = BulkReads.read_on

    def recorded(self: BulkReads, each: Read, size: int) -> Answer | None:
        answer = original(self, each, size)
        assert answer is not None
        sizes.append(len(answer.body))
        return answer

    monkeypatch.setattr(BulkReads, "read_on", recorded)
    rows = read(server.url, "joined", mode="raw")
    assert len(rows) == 3000
    assert max(sizes) > 64 * 1024, "more than the server sends with one answer"
    monkeypatch.setattr("penstock.spark.source.reader.RAW_BATCH_BYTES", 200_000)
    sizes.clear()
    assert read(server.url, "joined", mode="raw") == rows
    assert len(sizes) > 1
    monkeypatch.setattr(BulkReads, "read_on", lambda *_: None)
    assert read(server.url, "joined", mode="raw") == rows
