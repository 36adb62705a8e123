"""Writers and a reader that go on through faults, and the check of what they have seen."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Self

import httpx

from tests.helpers.server import Server, running_server

JSON = {"content-type": "application/json"}
PATIENCE_S = 60.0
LATE = 9
"""The writer of what is appended by nodes that were replaced."""


class Cluster:
    """Nodes of one cluster, as processes."""

    def __init__(
        self, stack: ExitStack, dsn: str, *args: str, env: dict[str, str] | None = None
    ) -> None:
        self._stack = stack
        self._env = env
        self._args = ["--cluster", dsn, *args]
        self.nodes: list[Server] = []
        self.client = stack.enter_context(httpx.Client(timeout=3))

    def add(self) -> Server:
        node = self._stack.enter_context(running_server(args=self._args, env=self._env))
        self.nodes.append(node)
        return node

    def owner(self) -> Server:
        """Return the node that owns the streams, when there is one."""
        node: Server = until(self._owner, "a node owns the streams")
        return node

    def _owner(self) -> Server | None:
        for node in self.nodes:
            if node.running:
                try:
                    answer = self.client.get(f"{node.url}/healthz")
                    if answer.status_code == 200 and answer.json().get("role") != "standby":
                        return node
                except httpx.HTTPError:
                    continue
        return None

    @property
    def urls(self) -> list[str]:
        return [node.url for node in self.nodes]


def until(condition: Callable[[], Any], what: str) -> Any:
    """Return the first true value of a condition."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        value = condition()
        if value:
            return value
        time.sleep(0.02)
    raise AssertionError(f"not in time: {what}")


class Workload:
    """Writers with producer headers, each with messages of its own, and a long-polling reader."""

    def __init__(self, cluster: Cluster, *, writers: int = 3) -> None:
        self._cluster = cluster
        self._ending = threading.Event()
        self.acknowledged: list[list[int]] = [[] for _ in range(writers)]
        self.read: list[list[int]] = []
        self.late: list[int] = []
        """What was appended by nodes that had been replaced, and acknowledged."""
        self.errors: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._guarded, args=(self._write, number))
            for number in range(writers)
        ]
        self._threads.append(threading.Thread(target=self._guarded, args=(self._read, 0)))

    def __enter__(self) -> Self:
        self._somewhere("PUT", "/v1/stream/log", b"")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        assert not self.errors, self.errors

    @property
    def total(self) -> int:
        return sum(map(len, self.acknowledged))

    def goes_on(self, more: int = 30) -> float:
        """Wait until so many more messages are acknowledged; return when the first one was."""
        before, started = self.total, time.monotonic()
        until(lambda: self.total > before or self.errors, "an append is acknowledged")
        first = time.monotonic() - started
        until(lambda: self.total >= before + more or self.errors, "appends go on")
        assert not self.errors, self.errors
        return first

    def _guarded(self, work: Callable[[int], None], number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - shown at the end
            self.errors.append(error)

    def _somewhere(self, method: str, target: str, body: bytes, **headers: str) -> httpx.Response:
        """Send a request to one node after the other until one has answered it."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for url in self._cluster.urls:
                try:
                    answer = self._cluster.client.request(
                        method, url + target, content=body, headers={**JSON, **headers}
                    )
                except httpx.HTTPError:
                    continue
                if answer.status_code < 500:
                    return answer
            time.sleep(0.02)
        raise AssertionError(f"nobody answers {method} {target}")

    def _write(self, number: int) -> None:
        sent = 0
        while not self._ending.is_set():
            headers = {
                "producer-id": f"p{number}",
                "producer-epoch": "0",
                "producer-seq": str(sent),
            }
            body = json.dumps([[number, sent]]).encode()
            answer = self._somewhere("POST", "/v1/stream/log", body, **headers)
            assert answer.status_code in (200, 204), answer.text
            self.acknowledged[number].append(sent)
            sent += 1

    def _read(self, _: int) -> None:
        offset = "-1"
        while not self._ending.is_set():
            target = f"/v1/stream/log?offset={offset}&live=long-poll"
            answer = self._somewhere("GET", target, b"")
            assert answer.status_code in (200, 204), answer.text
            if answer.status_code == 200:
                self.read += answer.json()
            offset = answer.headers["stream-next-offset"]

    def check(self) -> list[list[int]]:
        """Check that everything acknowledged is there, once, in order, and was never otherwise."""
        stored: list[list[int]] = []
        offset, is_all = "-1", False
        while not is_all:
            answer = self._somewhere("GET", f"/v1/stream/log?offset={offset}", b"")
            stored += answer.json()
            offset, is_all = (
                answer.headers["stream-next-offset"],
                "stream-up-to-date" in (answer.headers),
            )
        by_writer: Sequence[list[int]] = [
            [number for writer, number in stored if writer == each]
            for each in range(len(self.acknowledged))
        ]
        for numbers, acknowledged in zip(by_writer, self.acknowledged, strict=True):
            assert numbers == list(range(len(numbers))), "lost, doubled or reordered"
            assert len(acknowledged) <= len(numbers) <= len(acknowledged) + 1
        late = [number for writer, number in stored if writer == LATE]
        assert set(self.late) <= set(late), "lost by a node that was replaced"
        assert stored[: len(self.read)] == self.read, "a reader has seen what is not there"
        return stored
