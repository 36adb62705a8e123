"""Large reads over a connection of their own: plain successes alone, the rest is the client's."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from penstock import Client
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
