"""Writers and readers that go on through faults, on every node, and the check of what they saw."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any, Self

import httpx

from penstock.config.settings import Settings
from penstock.log.cluster.node import assigned
from penstock.log.cluster.status import read_status
from penstock.protocol.shards import shard_of
from tests.helpers.server import Server, running_server

JSON = {"content-type": "application/json"}
PATIENCE_S = 60.0
TIMEOUT_S = 2.0
"""After so long a client goes to another node: the one it has asked may be frozen."""
FEW = 6
"""Messages to wait for while a node does not answer: each that is sent there takes its time."""
LONG_POLL_S = 1.0
QUICK = ("--cluster-beat", "0.25", "--cluster-lease", "0.8", "--cluster-takeover", "1.5")
"""Settings with which a node that is frozen is replaced sooner than by default."""
SHARDS = 6
STREAMS = 6
LATE = 9
"""The writer of what is appended by nodes that were replaced."""

Message = tuple[int, int]


class Cluster:
    """Nodes of one cluster, as processes."""

    def __init__(
        self,
        stack: ExitStack,
        dsn: str,
        *args: str,
        shards: int = SHARDS,
        env: dict[str, str] | None = None,
    ) -> None:
        self._stack = stack
        self._env = env
        self.dsn = dsn
        self.shards = shards
        self._args = ["--cluster-shards", str(shards)]
        self._args += ["--long-poll-timeout", str(LONG_POLL_S), *args]
        self.nodes: list[Server] = []
        self.names: dict[str, Server] = {}
        # Without certificates to verify: to load them takes longer than most tests.
        self.client = stack.enter_context(httpx.Client(timeout=TIMEOUT_S, verify=False))

    def add(self) -> Server:
        """Start one more node."""
        return self.start(1)[0]

    def start(self, count: int, *, dsn: str | None = None) -> list[Server]:
        """Start so many more nodes at a time. `dsn` is how they reach the database, if not as all
        others do."""
        names = [f"node-{len(self.names) + number}" for number in range(count)]
        args = [*self._args, "--cluster", dsn or self.dsn]
        starting = [
            running_server(args=[*args, "--cluster-node", name], env=self._env) for name in names
        ]
        with ThreadPoolExecutor(count) as threads:
            started = [threads.submit(each.__enter__) for each in starting]
        for context, future in zip(starting, started, strict=True):
            if future.exception() is None:
                self._stack.push(context)
        # One after the other they would hand over everything to the last.
        self._stack.callback(self._stop_all)
        return [self._add(name, each.result()) for name, each in zip(names, started, strict=True)]

    def _stop_all(self) -> None:
        for node in self.running:
            node.process.send_signal(signal.SIGTERM)

    def _add(self, name: str, node: Server) -> Server:
        self.nodes.append(node)
        self.names[name] = node
        return node

    def status(self) -> dict[str, Any]:
        settings = Settings(cluster=self.dsn, cluster_durability="managed")
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(asyncio.run, read_status(settings)).result()

    def shard_rows(self) -> list[dict[str, Any]]:
        """Return what the database knows of every shard."""
        rows: list[dict[str, Any]] = self.status()["shards"]
        return rows

    def owner(self, path: str = "log-0") -> Server:
        """Return the node that owns a path and lives, when there is one."""
        node: Server = until(lambda: self._owner(path), f"a node owns {path}")
        return node

    def _owner(self, path: str) -> Server | None:
        shard = self.status()["shards"][shard_of(path, self.shards)]
        node = self.names.get(shard["owner"] or "")
        return node if node is not None and node.running else None

    def settle(self) -> None:
        """Wait until every shard has an owner, and every node that runs says so."""
        until(lambda: all(self.is_ready(node) for node in self.running), "all nodes are ready")

    def spread(self) -> None:
        """Wait until every shard is with the node that it is assigned to."""
        until(self._is_spread, "shards are where they belong")
        self.settle()

    def _is_spread(self) -> bool:
        living = [name for name, node in self.names.items() if node.running]
        shards = self.status()["shards"]
        return all(each["owner"] == assigned(each["shard"], living) for each in shards)

    def is_ready(self, node: Server) -> bool:
        try:
            return self.client.get(f"{node.url}/readyz").status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]

    @property
    def running(self) -> list[Server]:
        return [node for node in self.nodes if node.running]


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not in time: {what}")


class Reader:
    """What one reader has seen of one stream. It reads at the node at `place`, if that lives."""

    def __init__(self, kind: str, path: str, place: int) -> None:
        self.kind = kind
        self.path = path
        self.place = place
        self.seen: list[Message] = []
        self.offset = "-1"

    def __repr__(self) -> str:
        return f"{self.kind} of {self.path} at node {self.place}"


class Workload:
    """Writers with producer headers, each with messages of its own to every stream, and readers by
    long-poll and by events at every node."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        writers: int = 3,
        streams: int = STREAMS,
        readers: bool = True,
        prefix: str = "",
    ) -> None:
        self._cluster = cluster
        self._ending = threading.Event()
        self.paths = [f"{prefix}log-{number}" for number in range(streams)]
        self.acknowledged: dict[tuple[str, int], int] = defaultdict(int)
        self._writers = range(writers)
        self.total = 0
        self.late: list[int] = []
        """What was appended by nodes that had been replaced, and acknowledged."""
        self.errors: list[BaseException] = []
        self.refused: list[str] = []
        """Answers that it is not possible now."""
        self.unanswered: dict[str, list[str]] = defaultdict(list)
        """Creations and deletions that nobody has answered, by method and target: each may have
        been carried out, or be carried out late."""
        self.readers = [
            Reader(kind, self.paths[(2 * place + index) % streams], place)
            for place in range(3 if readers else 0)
            for index, kind in enumerate(("long-poll", "sse"))
        ]
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._write, number))
            for number in self._writers
        ]
        self._threads += [
            threading.Thread(
                target=self._guarded,
                args=(self._poll if each.kind == "long-poll" else self._follow, each),
            )
            for each in self.readers
        ]

    def __enter__(self) -> Self:
        for path in self.paths:
            self.send("PUT", f"/v1/stream/{path}", b"", 0)
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors

    def goes_on(self, more: int = 30) -> float:
        """Wait until so many more messages are acknowledged; return when the first one was."""
        before, started = self.total, time.monotonic()
        until(lambda: self.total > before or self.errors, "an append is acknowledged")
        first = time.monotonic() - started
        until(lambda: self.total >= before + more or self.errors, "appends go on")
        assert not self.errors, self.errors
        return first

    def _guarded(self, work: Callable[[Any], None], argument: Any) -> None:
        try:
            work(argument)
        except BaseException as error:  # noqa: BLE001 - shown at the end
            self.errors.append(error)

    def send(
        self, method: str, target: str, body: bytes, place: int, **headers: str
    ) -> httpx.Response:
        """Send a request to one node after the other until one has answered it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            nodes = self._cluster.nodes
            url = nodes[place % len(nodes)].url
            try:
                answer = self._cluster.client.request(
                    method, url + target, content=body, headers={**JSON, **headers}
                )
            except (httpx.ConnectError, httpx.ConnectTimeout):
                place += 1  # it has reached nobody
                continue
            except httpx.HTTPError as error:
                self._note_unanswered(method, target, f"{url}: {error!r}")
                place += 1
                continue
            if answer.status_code < 500:
                return answer
            self._note_unanswered(method, target, f"{url}: {answer.status_code} {answer.text}")
            self.refused.append(f"{method} {target}: {answer.text}")
            place += 1
            time.sleep(0.02)
        raise AssertionError(f"nobody answers {method} {target}")

    def _note_unanswered(self, method: str, target: str, what: str) -> None:
        if method in ("PUT", "DELETE"):
            self.unanswered[f"{method} {target}"].append(f"{time.monotonic():.3f} {what}")

    def logs(self, lines: int) -> str:
        """Return the last lines of what each node has logged."""
        return "\n".join(
            f"-- {name}, {node.url}\n" + "\n".join(node.stderr.splitlines()[-lines:])
            for name, node in self._cluster.names.items()
        )

    def _write(self, number: int) -> None:
        turn = number
        while not self._ending.is_set():
            turn += 1
            path = self.paths[turn % len(self.paths)]
            sent = self.acknowledged[path, number]
            headers = {
                "producer-id": f"p{number}",
                "producer-epoch": "0",
                "producer-seq": str(sent),
            }
            body = json.dumps([[number, sent]]).encode()
            # Not the same node for the same stream each time.
            answer = self.send(
                "POST", f"/v1/stream/{path}", body, turn // len(self.paths) + turn, **headers
            )
            assert answer.status_code in (200, 204), answer.text
            self.acknowledged[path, number] = sent + 1
            self.total += 1

    # -- readers

    def _poll(self, reader: Reader) -> None:
        while not self._ending.is_set():
            target = f"/v1/stream/{reader.path}?offset={reader.offset}&live=long-poll"
            answer = self.send("GET", target, b"", reader.place)
            assert answer.status_code in (200, 204), answer.text
            if answer.status_code == 200:
                reader.seen += map(tuple, answer.json())
            reader.offset = answer.headers["stream-next-offset"]

    def _follow(self, reader: Reader) -> None:
        place = reader.place
        while not self._ending.is_set():
            nodes = self._cluster.nodes
            url = f"{nodes[place % len(nodes)].url}/v1/stream/{reader.path}"
            try:
                with self._cluster.client.stream(
                    "GET", f"{url}?offset={reader.offset}&live=sse"
                ) as answer:
                    if answer.status_code == 200:
                        self._take_events(reader, answer)
                        continue
                    assert answer.status_code >= 500, answer.status_code
            except httpx.HTTPError:
                pass
            place += 1
            self._ending.wait(0.02)

    def _take_events(self, reader: Reader, answer: httpx.Response) -> None:
        """Take events over until the response ends. A message counts when the offset behind it is
        known: it is asked for again else."""
        kind, lines = "", list[str]()
        waiting: list[Message] = []
        for line in answer.iter_lines():
            if line.startswith("event:"):
                kind = line[6:].strip()
            elif line.startswith("data:"):
                lines.append(line[5:])
            elif not line and lines:
                content = json.loads("".join(lines))
                if kind == "data":
                    waiting += map(tuple, content)
                elif kind == "control":
                    reader.seen += waiting
                    reader.offset = content["streamNextOffset"]
                    waiting = []
                lines = []
            if self._ending.is_set():
                return

    # -- the check

    def check(self) -> dict[str, list[Message]]:
        """Check that everything acknowledged is there, once, in order, the same on every node, and
        that no reader has seen anything else."""
        self._cluster.settle()
        stored = {path: self.read(path, self._cluster.running[0]) for path in self.paths}
        for node in self._cluster.running[1:]:
            for path in self.paths:
                assert self.read(path, node) == stored[path], f"{path} is another at {node.url}"
        for path, messages in stored.items():
            for writer in self._writers:
                numbers = [number for each, number in messages if each == writer]
                assert numbers == list(range(len(numbers))), f"{path}: lost, doubled, reordered"
                acknowledged = self.acknowledged[path, writer]
                assert acknowledged <= len(numbers) <= acknowledged + 1, f"{path}: lost"
        late = [number for writer, number in stored[self.paths[0]] if writer == LATE]
        assert set(self.late) <= set(late), "lost by a node that was replaced"
        for reader in self.readers:
            assert stored[reader.path][: len(reader.seen)] == reader.seen, reader
        return stored

    def delete(self, path: str) -> None:
        answer = self.send("DELETE", f"/v1/stream/{path}", b"", 0)
        assert answer.status_code in (204, 404), answer.text

    def read(self, path: str, node: Server) -> list[Message]:
        """Return all messages of a stream, read at a node."""
        messages: list[Message] = []
        offset = "-1"
        while True:
            answer = self._cluster.client.get(f"{node.url}/v1/stream/{path}?offset={offset}")
            assert answer.status_code == 200, answer.text
            messages += map(tuple, answer.json())
            offset = answer.headers["stream-next-offset"]
            if "stream-up-to-date" in answer.headers:
                return messages
