"""Live readers at a node that does not own their stream: one relay feeds all of them, and each sees
what the owner would have sent."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.cluster.workload import QUICK, Cluster, until
from tests.helpers.postgres import ON_POSTGRES, shared
from tests.helpers.server import Server

pytestmark = list(ON_POSTGRES)

JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
BYTES = {"content-type": "application/octet-stream"}
MESSAGES = 200
ROOT = {"authorization": "Bearer sesame"}


class Nodes:
    """A cluster whose streams are read at a node that does not own them."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.client = cluster.client
        self._owners: dict[str, Server] = {}

    def owner(self, path: str) -> Server:
        """Return the owner of a stream, which stays."""
        if path not in self._owners:
            self._owners[path] = self.cluster.owner(path)
        return self._owners[path]

    def other(self, path: str) -> Server:
        """Return a node that does not own a stream."""
        owner = self.owner(path)
        return next(node for node in self.cluster.running if node is not owner)

    def there(self, path: str) -> str:
        return f"{self.owner(path).url}/v1/stream/{path}"

    def here(self, path: str) -> str:
        return f"{self.other(path).url}/v1/stream/{path}"

    def make(self, path: str, headers: dict[str, str], **more: str) -> str:
        """Create a stream; return the offset of its tail."""
        answer = self.client.put(self.there(path), headers={**headers, **more})
        assert answer.status_code == 201, answer.text
        return answer.headers["stream-next-offset"]

    def append(self, path: str, body: bytes, headers: dict[str, str]) -> str:
        answer = self.client.post(self.there(path), content=body, headers=headers)
        assert answer.is_success, answer.text
        return answer.headers["stream-next-offset"]

    def figure(self, node: Server, name: str) -> float:
        text = self.client.get(f"{node.url}/metrics").text
        return next(float(line.split()[1]) for line in text.splitlines() if line.startswith(name))

    def relays(self, path: str) -> float:
        """Return how many streams are relayed at the node that a stream is read at."""
        return self.figure(self.other(path), "penstock_cluster_relays")

    def readers(self, path: str) -> float:
        return self.figure(self.other(path), "penstock_cluster_relayed_readers")


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        args = ["--cluster-durability", "single", "--token", "sesame"]
        args += ["--long-poll-timeout", "2", "--sse-timeout", "300"]
        cluster = Cluster(stack, dsn, *args, shards=6)
        cluster.client.headers.update(ROOT)
        cluster.start(2)
        cluster.spread()
        yield Nodes(cluster)


class Events:
    """The events of one response, as they come."""

    def __init__(self, response: httpx.Response) -> None:
        self.response = response
        self._lines = response.iter_lines()

    def next(self) -> tuple[str, str]:
        """Return the kind and the data of the next event."""
        kind, data = "", []
        for line in self._lines:
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                data.append(line[5:])
            elif not line and data:
                return kind, "\n".join(data)
        return "end", ""

    def control(self) -> dict[str, Any]:
        """Skip to the next control event; return it."""
        while True:
            kind, data = self.next()
            assert kind != "end"
            if kind == "control":
                return dict(json.loads(data))


@contextmanager
def events(
    url: str, offset: str, headers: dict[str, str] = ROOT, more: str = ""
) -> Iterator[Events]:
    with (
        httpx.Client(timeout=30, headers=headers, verify=False) as client,
        client.stream("GET", f"{url}?offset={offset}&live=sse{more}") as response,
    ):
        assert response.status_code == 200, response.read()
        yield Events(response)


class Poll(threading.Thread):
    """A long-poll that waits."""

    def __init__(self, url: str, offset: str, headers: dict[str, str] = ROOT) -> None:
        super().__init__()
        self._target_url = f"{url}?offset={offset}&live=long-poll"
        self._headers = headers
        self._response: httpx.Response | None = None
        self.start()

    def run(self) -> None:
        self._response = httpx.get(
            self._target_url, headers=self._headers, timeout=30, verify=False
        )

    def response(self) -> httpx.Response:
        self.join()
        assert self._response is not None
        return self._response


def waits(nodes: Nodes, path: str, readers: int) -> None:
    until(lambda: nodes.readers(path) == readers, f"{readers} readers of {path} are relayed")


def test_all_readers_of_a_stream_share_one_relay(nodes: Nodes) -> None:
    path = "shared"
    until(lambda: nodes.relays(path) == 0, "all relays have ended")
    offset = nodes.make(path, JSON)
    with ExitStack() as stack:
        readers = [stack.enter_context(events(nodes.here(path), offset)) for _ in range(5)]
        for reader in readers:
            assert reader.control()["upToDate"] is True
        polls = [Poll(nodes.here(path), offset) for _ in range(5)]
        waits(nodes, path, 10)
        assert nodes.relays(path) == 1
        name = "penstock_cluster_forwarded_requests"
        before = nodes.figure(nodes.other(path), name)
        end = nodes.append(path, b'["one"]', JSON)
        answers = [poll.response() for poll in polls]
        assert [each.json() for each in answers] == [["one"]] * 5
        assert {each.headers["stream-next-offset"] for each in answers} == {end}
        assert all(each.headers["stream-up-to-date"] == "true" for each in answers)
        for reader in readers:
            kind, data = reader.next()
            assert (kind, json.loads(data)) == ("data", ["one"])
            control = reader.control()
            assert (control["streamNextOffset"], control["upToDate"]) == (end, True)
        assert nodes.figure(nodes.other(path), name) == before


@pytest.mark.parametrize(
    ("headers", "appends"),
    [
        (JSON, [b'[{"a":1},2]', b"[3]", b'["' + b"x" * 100_000 + b'"]', b"[4]"]),
        # A character whose bytes come in two appends, and a line break that does.
        (TEXT, [b"caf\xc3", b"\xa9 au", b" lait\r", b"\nfin", b"y" * 70_000]),
        (BYTES, [b"\x00\xff", b"\x01" * 1000]),
    ],
    ids=["json", "text", "bytes"],
)
def test_events_are_those_of_the_owner(
    nodes: Nodes, headers: dict[str, str], appends: list[bytes]
) -> None:
    path = f"same-{headers['content-type'][-4:]}"
    offset = nodes.make(path, headers)
    with events(nodes.there(path), offset) as there, events(nodes.here(path), offset) as here:
        assert here.control()["streamNextOffset"] == there.control()["streamNextOffset"]
        waits(nodes, path, 1)
        for body in appends:
            nodes.append(path, body, headers)
        nodes.client.post(nodes.there(path), headers={"stream-closed": "true"})
        ours, theirs = list(iter(here.next, ("end", ""))), list(iter(there.next, ("end", "")))
        encoding = "stream-sse-data-encoding"
        assert here.response.headers.get(encoding) == there.response.headers.get(encoding)
    assert _without_cursor(ours) == _without_cursor(theirs)
    assert json.loads(ours[-1][1])["streamClosed"] is True


def _without_cursor(seen: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return events without what is the clock's; commits may be cut differently."""
    data = "".join(data for kind, data in seen if kind == "data")
    offsets = [json.loads(data) for kind, data in seen if kind == "control"]
    last = {name: value for name, value in offsets[-1].items() if name != "streamCursor"}
    return [("data", data), ("control", json.dumps(last, sort_keys=True))]


def test_a_close_answers_long_polls_and_ends_events(nodes: Nodes) -> None:
    path = "closing"
    offset = nodes.make(path, TEXT)
    poll = Poll(nodes.here(path), offset)
    with events(nodes.here(path), offset) as reader:
        assert reader.control()["streamNextOffset"] == offset
        waits(nodes, path, 2)
        answer = nodes.client.post(nodes.there(path), headers={"stream-closed": "true"})
        assert answer.is_success
        assert reader.control()["streamClosed"] is True
        assert reader.next() == ("end", "")
    answer = poll.response()
    assert (answer.status_code, answer.headers["stream-closed"]) == (204, "true")


def test_a_deletion_ends_events_and_is_404_for_long_polls(nodes: Nodes) -> None:
    path = "deleting"
    offset = nodes.make(path, TEXT)
    poll = Poll(nodes.here(path), offset)
    with events(nodes.here(path), offset) as reader:
        reader.control()
        waits(nodes, path, 2)
        assert nodes.client.delete(nodes.there(path)).is_success
        # Another stream of the same path is another stream.
        nodes.make(path, TEXT)
        nodes.append(path, b"of another", TEXT)
        assert reader.next() == ("end", "")
    answer = poll.response()
    assert answer.status_code in (404, 410), answer.text


def test_what_was_trimmed_is_refused_as_the_owner_refuses_it(nodes: Nodes) -> None:
    path = "trimming"
    start = nodes.make(path, JSON)
    with events(nodes.here(path), start) as reader:
        reader.control()
        nodes.append(path, b"[1]", JSON)
        second = nodes.append(path, b"[2]", JSON)
        while reader.control()["streamNextOffset"] != second:
            pass
        waits(nodes, path, 1)
        trim = nodes.client.post(f"{nodes.there(path)}/__ds/trim", json={"before": second})
        assert trim.is_success, trim.text
        target = f"?offset={start}&live=long-poll"
        ours, theirs = (
            nodes.client.get(url + target) for url in (nodes.here(path), nodes.there(path))
        )
        assert ours.status_code == theirs.status_code == 410
        assert ours.json()["code"] == theirs.json()["code"]
        # Whoever is at the end goes on.
        end = nodes.append(path, b"[3]", JSON)
        assert reader.control()["streamNextOffset"] == end


def test_a_reader_gets_only_what_its_token_allows_and_only_while_it_does(nodes: Nodes) -> None:
    offsets = {path: nodes.make(path, TEXT) for path in ("open/one", "secret/one")}
    base = nodes.owner("open/one").url
    answer = nodes.client.post(f"{base}/v1/tokens", json={"allow": ["read:open/**"]})
    assert answer.status_code == 201, answer.text
    token = answer.json()
    headers = {"authorization": f"Bearer {token['token']}"}
    with ExitStack() as stack:
        # A relay that root has opened is no way around the rules.
        roots = [
            stack.enter_context(events(nodes.here(path), offset))
            for path, offset in offsets.items()
        ]
        for each in roots:
            each.control()
        for live in ("sse", "long-poll"):
            target = f"?offset={offsets['secret/one']}&live={live}"
            ours, theirs = (
                httpx.get(url("secret/one") + target, headers=headers)
                for url in (nodes.here, nodes.there)
            )
            assert ours.status_code == theirs.status_code >= 400
            assert ours.json()["code"] == theirs.json()["code"]
            stranger = httpx.get(nodes.here("secret/one") + target)
            assert stranger.status_code == 401
        before = nodes.readers("open/one")
        reader = stack.enter_context(events(nodes.here("open/one"), offsets["open/one"], headers))
        reader.control()
        poll = Poll(nodes.here("open/one"), offsets["open/one"], headers)
        waits(nodes, "open/one", int(before) + 2)
        assert nodes.client.delete(f"{base}/v1/tokens/{token['id']}").is_success
        waits(nodes, "open/one", int(before) + 1)
        assert reader.next() == ("end", "")
        nodes.append("open/one", b"after", TEXT)
        assert poll.response().status_code == 401


def test_what_a_client_has_written_is_there_when_it_reads(nodes: Nodes) -> None:
    path = "own"
    offset = nodes.make(path, JSON)
    with events(nodes.here(path), offset) as reader:
        reader.control()
        for number in range(20):
            end = nodes.append(path, b"[%d]" % number, JSON)
            answer = nodes.client.get(f"{nodes.here(path)}?offset={offset}&live=long-poll")
            assert (answer.status_code, answer.json()) == (200, [number])
            offset = answer.headers["stream-next-offset"]
            assert offset == end
            with events(nodes.here(path), "now") as now:
                assert now.control()["streamNextOffset"] == end


def test_a_long_poll_without_news_is_answered_as_by_the_owner(nodes: Nodes) -> None:
    path = "quiet"
    offset = nodes.make(path, TEXT)
    polls = [Poll(url(path), offset) for url in (nodes.here, nodes.there)]
    ours, theirs = (poll.response() for poll in polls)
    assert ours.status_code == theirs.status_code == 204
    for name in ("stream-next-offset", "stream-up-to-date", "cache-control"):
        assert ours.headers[name] == theirs.headers[name]
    assert "stream-cursor" in ours.headers


def test_a_client_never_gets_a_cursor_below_its_own(nodes: Nodes) -> None:
    path = "cursors"
    offset = nodes.make(path, TEXT)
    with events(nodes.here(path), offset, more="&cursor=99999999999") as reader:
        assert int(reader.control()["streamCursor"]) >= 99999999999
        nodes.append(path, b"x", TEXT)
        assert int(reader.control()["streamCursor"]) >= 99999999999


def test_a_reader_that_reads_nothing_is_ended_and_holds_up_nobody(nodes: Nodes) -> None:
    path = "slow"
    offset = nodes.make(path, TEXT)
    node = urlsplit(nodes.other(path).url)
    with socket.create_connection((node.hostname, node.port)) as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.sendall(
            f"GET /v1/stream/{path}?offset={offset}&live=sse HTTP/1.1\r\nhost: 127.0.0.1\r\n"
            "authorization: Bearer sesame\r\n\r\n".encode()
        )
        with events(nodes.here(path), offset) as reader:
            reader.control()
            waits(nodes, path, 2)
            block, sent = b"z" * 200_000, 0
            while nodes.readers(path) == 2:
                end = nodes.append(path, block, TEXT)
                sent += 1
                assert sent < 400, "a reader that reads nothing is kept"
                while reader.control()["streamNextOffset"] != end:
                    pass
            assert nodes.readers(path) == 1


def test_a_stream_is_followed_only_while_somebody_reads(nodes: Nodes) -> None:
    path = "left"
    offset = nodes.make(path, TEXT)
    with events(nodes.here(path), offset) as reader:
        reader.control()
        waits(nodes, path, 1)
    waits(nodes, path, 0)
    until(lambda: nodes.relays(path) == 0, "the relay has ended")


def test_a_stream_with_a_ttl_is_read_while_somebody_reads_it_at_another_node(nodes: Nodes) -> None:
    """Each read that begins restarts its time, and so does the end of the last one."""
    path = "ttl"
    offset = nodes.make(path, TEXT, **{"stream-ttl": "60"})

    def touched() -> str:
        answer = nodes.client.get(f"{nodes.owner(path).url}/v1/streams?prefix={path}")
        (stream,) = answer.json()["streams"]
        return str(stream["touched_at"])

    with events(nodes.here(path), offset) as reader:
        reader.control()
        waits(nodes, path, 1)
        before = touched()
        with events(nodes.here(path), offset) as second:
            second.control()
            assert touched() > before
        nodes.append(path, b"x", TEXT)
        assert reader.next()[0] == "data"
        before = touched()
    until(lambda: touched() > before, "the owner knows that nobody reads any more")
    answers = [
        nodes.client.get(f"{url}?offset={offset}&live=long-poll")
        for url in (nodes.here(path), nodes.there(path))
    ]
    assert answers[0].headers["cache-control"] == answers[1].headers["cache-control"]


def test_a_stream_lives_longer_than_its_ttl_while_it_is_read_at_another_node(nodes: Nodes) -> None:
    path = "short"
    offset = nodes.make(path, TEXT, **{"stream-ttl": "1"})
    with ExitStack() as stack:
        # A long-poll here takes twice as long.
        polls = [Poll(nodes.here(path), offset) for _ in range(2)]
        waits(nodes, path, 2)
        assert [poll.response().status_code for poll in polls] == [204, 204]
        reader = stack.enter_context(events(nodes.here(path), offset))
        reader.control()
        assert Poll(nodes.here(path), offset).response().status_code == 204
        nodes.append(path, b"still there", TEXT)
        assert reader.next() == ("data", "still there")
    until(lambda: nodes.client.head(nodes.there(path)).status_code == 404, "it has expired")


def test_nothing_new_is_not_said_while_the_owner_does_not_know() -> None:
    with ExitStack() as stack:
        args = ("--cluster-durability", "single", "--sse-timeout", "300", *QUICK)
        cluster = Cluster(stack, shared().fresh_database(), *args, shards=6)
        cluster.start(2)
        cluster.spread()
        nodes, path = Nodes(cluster), "unsure"
        offset, url = nodes.make(path, TEXT), nodes.here(path)
        lease = partial(nodes.figure, nodes.owner(path), "penstock_cluster_lease")
        with events(url, offset) as reader:
            assert reader.control()["upToDate"] is True
            shared().pause()
            try:
                until(lambda: lease() == 0, "the owner has no lease")
                with events(url, offset) as unsure:
                    assert "upToDate" not in unsure.control()
                assert Poll(url, offset).response().status_code == 503
            finally:
                shared().go_on()


def test_events_go_on_over_a_takeover_without_a_gap() -> None:
    with ExitStack() as stack:
        dsn = shared().fresh_database()
        cluster = Cluster(stack, dsn, "--cluster-durability", "single", shards=12)
        cluster.start(3)
        cluster.spread()
        owner = cluster.owner("log-0")
        owning = {each["owner"] for each in cluster.status()["shards"]}
        node = next(cluster.names[name] for name in owning if cluster.names[name] is not owner)
        client = cluster.client
        url = f"{node.url}/v1/stream/log-0"
        offset = client.put(url, headers=JSON).headers["stream-next-offset"]
        with Writer(client, url) as writer, events(url, offset) as reader:
            seen: list[int] = []
            while len(seen) < MESSAGES:
                kind, data = reader.next()
                assert kind != "end", writer.error
                seen += json.loads(data) if kind == "data" else []
                if len(seen) > MESSAGES // 4 and owner.running:
                    owner.kill()
        assert seen == list(range(MESSAGES))


class Writer(threading.Thread):
    """Appends numbers one after the other, each until it is acknowledged."""

    def __init__(self, client: httpx.Client, url: str) -> None:
        super().__init__()
        self._client = client
        self._url = url
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            for number in range(MESSAGES):
                headers = {"producer-id": "w", "producer-epoch": "0", "producer-seq": str(number)}
                until(lambda: self._append(number, {**JSON, **headers}), "an append")  # noqa: B023
        except BaseException as error:  # noqa: BLE001 - shown by who reads
            self.error = error

    def _append(self, number: int, headers: dict[str, str]) -> bool:
        answer = self._client.post(self._url, content=b"[%d]" % number, headers=headers)
        return answer.is_success

    def __enter__(self) -> Writer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.join()
