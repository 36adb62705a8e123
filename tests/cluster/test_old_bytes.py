"""Large reads at a node that does not own the stream: the owner plans them, the node reads the
bytes itself, and the answer is the one that the owner would have given."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
from collections.abc import Iterator
from contextlib import ExitStack
from typing import NamedTuple
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cluster.workload import QUICK, Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.server import Server

pytestmark = list(ON_POSTGRES)

JSON = {"content-type": "application/json"}
BYTES = {"content-type": "application/octet-stream"}
PLAIN = {"accept-encoding": "identity"}
CHECKPOINT_BYTES = 1024 * 1024
PIECE_BYTES = 300_000
"""What is appended at a time: three are no checkpoint yet, four are one."""
FRESH_BYTES_MAX = 32 * 1024
"""What an owner may send with a plan: less than a block at both ends of what is in no extent."""


class Nodes(NamedTuple):
    """Two nodes, both with shards. Streams are written at their owner."""

    cluster: Cluster
    dsn: str

    @property
    def client(self) -> httpx.Client:
        return self.cluster.client

    def owner(self, path: str) -> Server:
        return self.cluster.owner(path)

    def other(self, path: str) -> Server:
        owner = self.owner(path)
        return next(node for node in self.cluster.running if node is not owner)

    def there(self, path: str) -> str:
        return f"{self.owner(path).url}/v1/stream/{path}"

    def here(self, path: str) -> str:
        return f"{self.other(path).url}/v1/stream/{path}"

    def query(self, text: str) -> list[str]:
        return shared().query(text, self.dsn.rpartition("/")[2])

    def make(self, path: str, headers: dict[str, str], **more: str) -> None:
        answer = self.client.put(self.there(path), headers={**headers, **more})
        assert answer.status_code == 201, answer.text

    def append(self, path: str, content: bytes, headers: dict[str, str]) -> str:
        answer = self.client.post(self.there(path), content=content, headers=headers)
        assert answer.is_success, answer.text
        return answer.headers["stream-next-offset"]

    def stored(self, path: str) -> int:
        """Return how many bytes of a stream are in extents."""
        rows = self.query(
            "SELECT coalesce(sum(length), 0)::bigint FROM penstock.extent JOIN penstock.stream s"
            f" ON s.id = stream_id WHERE s.path = '{path}'"
        )
        return int(rows[0])

    def fill(self, path: str, headers: dict[str, str], pieces: int = 8) -> list[str]:
        """Append pieces until extents have most of them; return the offsets after each."""
        offsets = [self.append(path, piece(number, headers), headers) for number in range(pieces)]
        goal = pieces * PIECE_BYTES - CHECKPOINT_BYTES - PIECE_BYTES
        until(lambda: self.stored(path) >= goal, f"{path} is in extents")
        return offsets

    def figure(self, node: Server, name: str) -> float:
        text = self.client.get(f"{node.url}/metrics").text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))

    def read_bytes(self, path: str) -> float:
        return self.figure(self.other(path), "penstock_cluster_read_bytes_total")

    def fetched_bytes(self, path: str) -> float:
        return self.figure(self.other(path), "penstock_cluster_fetched_bytes_total")

    def same(self, path: str, query: str = "", headers: dict[str, str] = PLAIN) -> httpx.Response:
        """Ask both nodes; return the answer that both have given."""
        theirs = self.client.get(self.there(path) + query, headers=headers)
        ours = self.client.get(self.here(path) + query, headers=headers)
        assert ours.status_code == theirs.status_code
        assert digest(ours.content) == digest(theirs.content)
        assert {**ours.headers, "date": ""} == {**theirs.headers, "date": ""}
        return ours

    def same_pages(self, path: str) -> bytes:
        """Read a stream to its end at both nodes; return its bytes."""
        offset, content = "-1", b""
        while True:
            answer = self.same(path, f"?offset={offset}")
            content += answer.content
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return content


def digest(content: bytes) -> tuple[int, str]:
    """A content that differs is too long to be shown."""
    return len(content), hashlib.sha256(content).hexdigest()


def piece(number: int, headers: dict[str, str]) -> bytes:
    """Return an append that no other is equal to, and whose bytes differ everywhere."""
    content = random.Random(number).randbytes(PIECE_BYTES)
    if headers is BYTES:
        return content
    items = (content[start : start + 500].hex() for start in range(0, PIECE_BYTES // 2, 500))
    return b"[" + b",".join(b'"%b"' % item.encode() for item in items) + b"]"


@pytest.fixture(scope="module", params=["database", "folder"])
def nodes(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Nodes]:
    args = ["--cluster-durability", "single", "--checkpoint-bytes", str(CHECKPOINT_BYTES)]
    if request.param == "folder":
        args += ["--cluster-extents", f"file://{tmp_path_factory.mktemp('extents')}"]
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        cluster = Cluster(stack, dsn, *args, shards=6)
        cluster.start(2)
        cluster.spread()
        yield Nodes(cluster, dsn)


@pytest.mark.parametrize("headers", [JSON, BYTES], ids=["json", "bytes"])
def test_any_node_gives_the_answer_of_the_owner(nodes: Nodes, headers: dict[str, str]) -> None:
    path = f"same-{headers['content-type'][-4:]}"
    nodes.make(path, headers)
    offsets = nodes.fill(path, headers)
    before = nodes.read_bytes(path), nodes.fetched_bytes(path)
    whole = nodes.same(path)
    for query in (
        "",
        f"?offset={offsets[1]}",
        f"?offset={offsets[1]}&until={offsets[6]}",
        f"?until={offsets[0]}",
        "?offset=now",
        "?offset=0000000000000000_9999999999999999",
        *(("?count=2500", f"?offset={offsets[0]}&count=1") if headers is JSON else ()),
    ):
        nodes.same(path, query)
        nodes.same(path, query, {"accept-encoding": "gzip"})
    tag = {**PLAIN, "if-none-match": whole.headers["etag"]}
    assert nodes.same(path, "", tag).status_code == 304
    assert nodes.read_bytes(path) > before[0] + 2 * PIECE_BYTES
    nodes.append(path, b"[1]" if headers is JSON else b"1", headers)
    nodes.same(path)
    closing = {**headers, "stream-closed": "true"}
    assert nodes.client.post(nodes.there(path), headers=closing).is_success
    assert nodes.same(path).headers["stream-closed"] == "true"


def test_old_bytes_do_not_pass_through_the_owner(nodes: Nodes) -> None:
    path = "not-through"
    nodes.make(path, BYTES)
    nodes.fill(path, BYTES)
    stored, size = nodes.stored(path), 8 * PIECE_BYTES
    url = nodes.here(path)
    for _ in range(2):
        read, fetched = nodes.read_bytes(path), nodes.fetched_bytes(path)
        assert len(nodes.client.get(url, headers=PLAIN).content) == size
        assert nodes.read_bytes(path) - read >= stored
        # Only what is in no extent can come from there.
        assert nodes.fetched_bytes(path) - fetched <= size - stored


def test_fresh_bytes_come_from_the_owner_once(nodes: Nodes) -> None:
    path = "fresh"
    nodes.make(path, BYTES)
    content = b""
    for number in range(3):
        content += piece(number, BYTES)
        nodes.append(path, piece(number, BYTES), BYTES)
    url = nodes.here(path)
    if nodes.stored(path):
        pytest.skip("a checkpoint for another stream has come between")
    fetched = nodes.fetched_bytes(path)
    assert digest(nodes.client.get(url, headers=PLAIN).content) == digest(content)
    assert nodes.fetched_bytes(path) - fetched == len(content)
    fetched = nodes.fetched_bytes(path)
    assert digest(nodes.client.get(url, headers=PLAIN).content) == digest(content)
    assert nodes.fetched_bytes(path) - fetched < FRESH_BYTES_MAX


def test_small_answers_are_sent_by_the_owner(nodes: Nodes) -> None:
    path = "small"
    nodes.make(path, BYTES)
    nodes.append(path, piece(0, BYTES)[:200_000], BYTES)
    before = nodes.read_bytes(path), nodes.fetched_bytes(path)
    assert len(nodes.same(path).content) == 200_000
    assert (nodes.read_bytes(path), nodes.fetched_bytes(path)) == before


@pytest.mark.parametrize("headers", [JSON, BYTES], ids=["json", "bytes"])
def test_what_a_fork_has_inherited_is_read_as_its_own(
    nodes: Nodes, headers: dict[str, str]
) -> None:
    kind = headers["content-type"][-4:]
    source = f"source-{kind}"
    nodes.make(source, headers)
    offsets = nodes.fill(source, headers)
    for number in range(4):  # at home in the shard of the source, and in others
        fork = f"fork-{kind}-{number}"
        where = {"stream-forked-from": f"/v1/stream/{source}", "stream-fork-offset": offsets[5]}
        nodes.make(fork, headers, **where)
        before = nodes.read_bytes(fork)
        inherited = nodes.same(fork).content
        nodes.append(fork, piece(100 + number, headers), headers)
        content = nodes.same(fork).content
        assert content[: PIECE_BYTES * 5] == inherited[: PIECE_BYTES * 5]
        assert len(content) > 6.9 * PIECE_BYTES
        if nodes.owner(fork) is nodes.owner(source):
            assert nodes.read_bytes(fork) > before
    # Without its source, which stays for its forks.
    assert nodes.client.delete(nodes.there(source)).is_success
    for number in range(4):
        nodes.same(f"fork-{kind}-{number}")


def test_what_was_trimmed_is_refused_though_the_node_still_has_it(nodes: Nodes) -> None:
    path = "trimmed"
    nodes.make(path, BYTES)
    offsets = nodes.fill(path, BYTES)
    nodes.same(path)
    trim = nodes.client.post(f"{nodes.there(path)}/__ds/trim", json={"before": offsets[3]})
    assert trim.is_success, trim.text
    assert len(nodes.same(path).content) == 4 * PIECE_BYTES
    assert nodes.same(path, f"?offset={offsets[0]}").status_code == 410
    assert len(nodes.same(path, f"?offset={offsets[4]}").content) == 3 * PIECE_BYTES


def test_a_stream_that_is_created_again_is_another(nodes: Nodes) -> None:
    path = "again"
    for first in (0, 50):
        nodes.make(path, BYTES)
        offsets = [nodes.append(path, piece(first + each, BYTES), BYTES) for each in range(6)]
        until(lambda: nodes.stored(path) > 0, "some of it is in extents")
        expected = b"".join(piece(first + each, BYTES) for each in range(6))
        assert digest(nodes.same(path).content) == digest(expected)
        assert nodes.client.delete(nodes.there(path)).is_success
        assert nodes.same(path).status_code == 404
    nodes.make(path, BYTES)
    nodes.append(path, b"new", BYTES)
    assert nodes.same(path).content == b"new"
    assert nodes.same(path, f"?offset={offsets[0]}").status_code == 410


@pytest.mark.parametrize("damage", ["gone", "wrong", "short"])
def test_bytes_that_the_node_cannot_read_come_from_the_owner(nodes: Nodes, damage: str) -> None:
    path = f"damaged-{damage}"
    nodes.make(path, BYTES)
    nodes.fill(path, BYTES)
    expected = nodes.client.get(nodes.there(path), headers=PLAIN).content  # cached by the owner
    changes = {
        "gone": "DELETE FROM penstock.extent WHERE {}",
        "wrong": "UPDATE penstock.extent SET object = NULL, object_length = 0, body ="
        " decode(repeat('00', length::int), 'hex') WHERE {}",
        "short": "UPDATE penstock.extent SET object = NULL, object_length = 0, body = '' WHERE {}",
    }
    rows = f"stream_id = (SELECT id FROM penstock.stream WHERE path = '{path}') AND base > 0"
    nodes.query(changes[damage].format(rows) + " RETURNING 1")
    fetched = nodes.fetched_bytes(path)
    ours = nodes.client.get(nodes.here(path), headers=PLAIN)
    assert digest(ours.content) == digest(expected)
    assert nodes.fetched_bytes(path) - fetched >= PIECE_BYTES


def test_bytes_that_nobody_can_read_are_an_error_and_never_a_gap(nodes: Nodes) -> None:
    path = "lost"
    nodes.make(path, BYTES)
    nodes.fill(path, BYTES)
    expected = b"".join(piece(number, BYTES) for number in range(8))
    rows = f"stream_id = (SELECT id FROM penstock.stream WHERE path = '{path}') AND base > 500000"
    nodes.query(f"DELETE FROM penstock.extent WHERE {rows} RETURNING 1")
    for url in (nodes.here(path), nodes.there(path)):
        content, is_cut = b"", False
        with nodes.client.stream("GET", url, headers=PLAIN) as response:
            assert response.status_code == 200
            try:
                for part in response.iter_bytes():
                    content += part
            except httpx.RemoteProtocolError:
                is_cut = True
        assert is_cut
        assert content
        assert expected.startswith(content)


class SlowReader:
    """A read whose client takes its bytes only when it is told to."""

    def __init__(self, node: Server, path: str) -> None:
        url = urlsplit(node.url)
        assert url.hostname is not None
        assert url.port is not None
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        self._socket.settimeout(30)
        self._socket.connect((url.hostname, url.port))
        request = f"GET /v1/stream/{path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"
        self._socket.sendall(request.encode())
        self._data = b""
        while b"\r\n\r\n" not in self._data:
            self._data += self._socket.recv(1000)

    def rest(self) -> bytes:
        """Return the body, as far as it comes."""
        data = bytearray(self._data)
        try:
            while more := self._socket.recv(1 << 20):
                data += more
        except ConnectionResetError:
            pass
        self._socket.close()
        head, _, body = bytes(data).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200")
        return body


LONG = 40
"""Pieces of a body that is longer than what sockets take without being read."""


@pytest.fixture
def slow() -> Iterator[Nodes]:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        args = ("--cluster-durability", "single", "--chunk-size", "64MiB", "--cluster-cache-bytes")
        more = ("4MiB", "--checkpoint-bytes", "6MiB", "--cluster-garbage", "0", *QUICK)
        cluster = Cluster(stack, dsn, *args, *more, shards=6)
        cluster.client.timeout = httpx.Timeout(30)
        cluster.start(3)
        cluster.spread()
        yield Nodes(cluster, dsn)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_read_goes_on_while_another_node_takes_over(slow: Nodes, how: signal.Signals) -> None:
    path = "long"
    slow.make(path, BYTES)
    for number in range(LONG):
        slow.append(path, piece(number, BYTES), BYTES)
    until(lambda: slow.stored(path) > 4_000_000, "some of it is in extents")
    owner = slow.owner(path)
    reader = SlowReader(slow.other(path), path)
    os.kill(owner.pid, how)
    until(lambda: slow.owner(path) is not owner, "another node owns the stream")
    expected = b"".join(piece(number, BYTES) for number in range(LONG))
    assert digest(reader.rest()) == digest(expected)


def test_a_trim_during_a_read_leaves_no_gap(slow: Nodes) -> None:
    path = "shrinking"
    slow.make(path, BYTES)
    for number in range(LONG):
        last = slow.append(path, piece(number, BYTES), BYTES)
    until(lambda: slow.stored(path) > 4_000_000, "some of it is in extents")
    reader = SlowReader(slow.other(path), path)
    trim = slow.client.post(f"{slow.there(path)}/__ds/trim", json={"before": last})
    assert trim.is_success, trim.text
    more = piece(LONG, BYTES)
    while slow.stored(path) > 4_000_000:  # until a checkpoint has dropped what was trimmed
        slow.append(path, more, BYTES)
    body = reader.rest()
    expected = b"".join(piece(number, BYTES) for number in range(LONG))
    assert body
    assert digest(body) == digest(expected[: len(body)])
