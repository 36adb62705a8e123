"""Requests that mean much work do not hold up anybody else.

While each of them runs, another client appends one message after the other. Its latency is
compared with what it is without them, on the same machine a moment before.
"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import pytest

from penstock import limits
from tests.helpers.server import Server, running_server
from tests.http.wire import chunked, get

# The 99th percentile may be so many times that of a calm server (counted as a millisecond at
# least), and the number of answers so many times smaller.
SLOWER_MAX = 100
FEWER_MAX = 20
# A machine that is busy with other tests may hold up a round. A request that holds up the server
# does so in every round.
ROUNDS_MAX = 4
PAUSE_S = 0.002
JSON = "application/json"


class Latencies(NamedTuple):
    answers: int
    p99_s: float
    seconds: float

    @property
    def rate(self) -> float:
        return self.answers / self.seconds


class Connection:
    """A client with one connection, and nothing but bytes."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), 120)
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, method: str, path: str, body: bytes = b"", kind: str = JSON) -> int:
        return self.send(
            b"%b %b HTTP/1.1\r\nHost: localhost\r\nContent-Type: %b\r\nContent-Length: %d\r\n\r\n"
            % (method.encode(), path.encode(), kind.encode(), len(body))
            + body
        )

    def send(self, data: bytes) -> int:
        """Send a request; return the status of its answer."""
        self.sock.sendall(data)
        answer = b""
        while b"\r\n\r\n" not in answer:
            answer += self.sock.recv(65536)
        head, _, body = answer.partition(b"\r\n\r\n")
        status = int(head.split(b" ")[1])
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.split(b":")[1])
        while len(body) < length:
            body += self.sock.recv(65536)
        return status

    def close(self) -> None:
        self.sock.close()


@contextmanager
def connection(server: Server) -> Iterator[Connection]:
    client = Connection(server)
    try:
        yield client
    finally:
        client.close()


def measured(server: Server, until: Callable[[], bool]) -> Latencies:
    """The latencies of appends, one after the other, until a condition holds."""
    samples: list[float] = []
    with connection(server) as client:
        begun = time.perf_counter()
        while not until() or len(samples) < 20:
            before = time.perf_counter()
            assert client.ask("POST", "/v1/stream/probe", b"1") == 204
            samples.append(time.perf_counter() - before)
            time.sleep(PAUSE_S)
        seconds = time.perf_counter() - begun
    samples.sort()
    return Latencies(len(samples), samples[int(len(samples) * 0.99)], seconds)


def assert_fair(server: Server, hostile: Callable[[Connection], None]) -> None:
    with connection(server) as client:
        client.ask("PUT", "/v1/stream/probe")
    rounds: list[tuple[Latencies, Latencies]] = []
    while len(rounds) < ROUNDS_MAX:
        calm = measured_for(server, 0.5)
        busy = measured_during(server, hostile)
        if is_fair(calm, busy):
            return
        rounds.append((calm, busy))
    raise AssertionError(rounds)


def is_fair(calm: Latencies, busy: Latencies) -> bool:
    is_prompt = busy.p99_s < SLOWER_MAX * max(calm.p99_s, 0.001)
    return is_prompt and busy.rate > calm.rate / FEWER_MAX


def measured_for(server: Server, seconds: float) -> Latencies:
    end = time.perf_counter() + seconds
    return measured(server, lambda: time.perf_counter() > end)


def measured_during(server: Server, hostile: Callable[[Connection], None]) -> Latencies:
    """The latencies of appends while a hostile client runs."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            with connection(server) as client:
                hostile(client)
        except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    busy = measured(server, lambda: not thread.is_alive())
    thread.join()
    if failures:
        raise failures[0]
    return busy


Hostile = Callable[[Connection, int], None]


def one_large_value(client: Connection, size: int) -> None:
    body = b'{"a":[' + b"[],{}," * (size // 6) + b"1]}"
    assert client.ask("POST", "/v1/stream/s", body) == 204


def array_of_messages(client: Connection, size: int) -> None:
    message = b'{"type":"user","key":"1","value":{"a":[1,2]},"headers":{"operation":"upsert"}},'
    assert (
        client.ask("POST", "/v1/stream/s", b"[" + message * (size // len(message)) + b"1]") == 204
    )


def array_of_numbers(client: Connection, size: int) -> None:
    count = size // 2
    status = 204 if count <= limits.MESSAGES_PER_APPEND_MAX else 413
    assert client.ask("POST", "/v1/stream/s", b"[" + b"1," * (count - 1) + b"1]") == status


def array_that_is_no_json(client: Connection, size: int) -> None:
    message = b'"' + b"x" * 60 + b'",'
    body = b"[" + message * (size // len(message)) + b"x]"
    assert client.ask("POST", "/v1/stream/s", body) == 400


def creation(client: Connection, size: int) -> None:
    body = b"[" + b'{"a":1},' * (size // 8) + b"1]"
    assert client.ask("PUT", f"/v1/stream/created-{size}", body) in (201, 413)


def splits_of_one_message(client: Connection, size: int) -> None:
    assert client.ask("PUT", "/v1/stream/one", b'"' + b"x" * size + b'"') in (200, 201)
    for _ in range(5):
        assert client.ask("GET", "/v1/stream/one?splits=4096") == 200


def splits_of_one_append(client: Connection, size: int) -> None:
    body = b"[" + b'"xxxxxxxxxxx",' * (size // 14) + b"1]"
    assert client.ask("PUT", "/v1/stream/many", body) in (200, 201, 413)
    for _ in range(5):
        assert client.ask("GET", "/v1/stream/many?splits=4096") in (200, 404)


def table_rows(client: Connection, size: int) -> None:
    assert client.ask("PUT", "/v1/table/t", b'{"schema":"s"}') in (200, 201)
    rows = [b"+\t%d\tx\n" % number for number in range(size // 16)]
    most = limits.TABLE_ROWS_PER_POST_MAX
    assert len(rows) > most
    kind = "text/tab-separated-values"
    assert client.ask("POST", "/v1/table/t", b"".join(rows), kind) == 413
    for _ in range(2):
        assert client.ask("POST", "/v1/table/t", b"".join(rows[:most]), kind) == 204


def tiny_chunks(client: Connection, size: int) -> None:
    data = chunked("/v1/stream/bytes", *[b"x"] * (size // 6))
    client.ask("PUT", "/v1/stream/bytes", b"", "application/octet-stream")
    host = b"Host: localhost"
    data = data.replace(host, host + b"\r\nContent-Type: application/octet-stream", 1)
    assert client.send(data) == 204


def pipeline(client: Connection, size: int) -> None:
    request = get("/healthz")
    count = size // len(request) // 4
    reader = threading.Thread(target=client.sock.sendall, args=(request * count,))
    reader.start()
    answered = 0
    while answered < count:
        answered += client.sock.recv(1 << 20).count(b'{"status":"ok"}')
        # An answer that was cut in two is missed: the last ones are not waited for.
        if answered > count * 0.9:
            break
    client.sock.shutdown(socket.SHUT_RDWR)
    reader.join()


def pipeline_that_is_not_read(client: Connection, size: int) -> None:
    client.ask("PUT", "/v1/stream/large", b"x" * 50_000, "text/plain")
    client.sock.settimeout(0.5)
    try:
        client.sock.sendall(get("/v1/stream/large") * (size // 40))
    except OSError:
        pass  # the server has stopped to read


def costly_schema(client: Connection, size: int) -> None:
    definitions: dict[str, object] = {"d0": {"type": "object"}}
    for level in range(1, 14):
        alternative = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {"anyOf": [alternative, alternative]}
    schema = {"$defs": definitions, "$ref": "#/$defs/d13"}
    client.ask("PUT", "/v1/stream/declared")
    document = json.dumps({"types": {"user": {"schema": schema}}}).encode()
    assert client.ask("PUT", "/v1/schema/declared", document) in (200, 201)
    event = b'{"type":"user","key":"1","value":%b,"headers":{"operation":"upsert"}}'
    for _ in range(3):
        assert client.ask("POST", "/v1/stream/declared", event % b"1") == 422
        assert client.ask("POST", "/v1/stream/declared", event % b"{}") == 204
    large = b"[" + b"{}," * (size // 16) + b"{}]"
    assert client.ask("POST", "/v1/stream/declared", event % large) == 422


def many_events(client: Connection, size: int) -> None:
    client.ask("PUT", "/v1/stream/events")
    schema = b'{"types":{"user":{"schema":{"type":"object","required":["name"]}}}}'
    assert client.ask("PUT", "/v1/schema/events", schema) in (200, 201)
    event = b'{"type":"user","key":"1","value":{"name":"a"},"headers":{"operation":"upsert"}}'
    body = b"[" + (event + b",") * (size // (len(event) + 1) - 1) + event + b"]"
    assert client.ask("POST", "/v1/stream/events", body) == 204


def subscription_of_many_streams(client: Connection, size: int) -> None:
    path = f"/v1/stream/__ds/subscriptions/many-{size}"
    names = [f"events/{number:06d}" for number in range(size // 24)]
    document = {"type": "pull-wake", "wake_stream": "wake/pool", "streams": names}
    assert client.ask("PUT", path, json.dumps(document).encode()) == 413
    most = limits.SUBSCRIPTION_NAMES_MAX
    document["streams"] = names[:most]
    assert client.ask("PUT", path, json.dumps(document).encode()) in (200, 201)
    for start in range(most, 10 * most, most):
        more = {"streams": names[start : start + most]}
        assert client.ask("POST", f"{path}/streams", json.dumps(more).encode()) == 204
    assert client.ask("GET", path) == 200


def filtered_event(client: Connection, size: int) -> None:
    value = b"[" + b"[],{}," * ((size - 200) // 6) + b"1]"
    event = b'{"type":"user","key":"1","value":%b,"headers":{"operation":"upsert"}}'
    assert client.ask("PUT", "/v1/stream/filtered", b"") in (200, 201)
    assert client.ask("POST", "/v1/stream/filtered", event % value) == 204
    for name in ("user", "other"):
        assert client.ask("GET", f"/v1/stream/filtered?type={name}&tail=1") == 200


HOSTILE: list[Hostile] = [
    one_large_value,
    array_of_messages,
    array_of_numbers,
    array_that_is_no_json,
    creation,
    splits_of_one_message,
    splits_of_one_append,
    table_rows,
    tiny_chunks,
    pipeline,
    pipeline_that_is_not_read,
    costly_schema,
    many_events,
    subscription_of_many_streams,
    filtered_event,
]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running_server(memory=True, args=["--schema-check-timeout", "0.5"]) as server:
        with connection(server) as client:
            client.ask("PUT", "/v1/stream/s")
        yield server


@pytest.mark.xdist_group("fairness")
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_another_client_is_served_meanwhile(server: Server, hostile: Hostile) -> None:
    assert_fair(server, lambda client: hostile(client, 2 * limits.MIB))


@pytest.mark.soak
@pytest.mark.xdist_group("fairness")
@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.__name__)
def test_another_client_is_served_while_the_largest_requests_run(
    server: Server, hostile: Hostile
) -> None:
    for _ in range(3):
        assert_fair(server, lambda client: hostile(client, limits.BODY_BYTES_MAX - limits.KIB))
