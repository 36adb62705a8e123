"""Streams that are created, written under a condition, forked, closed and deleted through faults,
at any node: each client sees what it has done itself."""

from __future__ import annotations

import random
import threading
from typing import Self

import httpx

from tests.cluster.workload import Workload

MESSAGES = 3
TRIES = 5
"""Deletions of a stream: more than there can be late creations of it."""


class Lives:
    """Threads that lead streams from their creation to their end, one after the other."""

    def __init__(self, work: Workload, prefix: str, *, seed: float, threads: int = 2) -> None:
        self._work = work
        self._prefix = prefix
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self.total = 0
        """Streams that have lived."""
        self._gone: list[str] = []
        self._threads = [threading.Thread(target=self._run, args=(n,)) for n in range(threads)]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()

    def _run(self, thread: int) -> None:
        number = 0
        try:
            while not self._ending.is_set():
                self._live(f"{self._prefix}life-{thread}-{number}")
                self.total += 1
                number += 1
        except BaseException as error:  # noqa: BLE001 - shown when the workload ends
            self._work.errors.append(error)

    def _send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send a request to any node, until one has answered it."""
        place = self._chance.randrange(100)
        return self._work.send(method, f"/v1/stream/{path}", body, place, **(headers or {}))

    def _live(self, path: str) -> None:
        assert self._send("PUT", path).status_code in (200, 201)
        for number in range(MESSAGES):
            self._append_if_there_are(path, number)
        fork = f"{path}-fork"
        source = {"stream-forked-from": f"/v1/stream/{path}"}
        assert self._send("PUT", fork, b"", source).status_code in (200, 201)
        self._append_if_there_are(fork, MESSAGES)
        closed = self._send("POST", path, b"", {"stream-closed": "true"})
        assert closed.status_code == 204, closed.text
        refused = self._send("POST", path, b"[0]")
        assert refused.status_code == 409, refused.text
        assert self._numbers(path) == list(range(MESSAGES))
        assert self._numbers(fork) == list(range(MESSAGES + 1))
        for each in (fork, path):
            self._delete(each)
            self._gone.append(each)

    def _append_if_there_are(self, path: str, count: int) -> None:
        """Append a number if the stream has so many. One that is repeated, because the answer was
        lost, is refused by its condition."""
        is_done = False
        while True:
            numbers, offset = self._read(path)
            assert numbers in ([*range(count)], [*range(count + 1)]), (path, numbers)
            if len(numbers) > count:
                return
            assert not is_done, f"{path}: {count} is lost"
            answer = self._send("POST", path, b"[%d]" % count, {"if-match": f'"{offset}"'})
            assert answer.status_code in (200, 204, 412), answer.text
            is_done = answer.status_code != 412

    def _numbers(self, path: str) -> list[int]:
        return self._read(path)[0]

    def _read(self, path: str) -> tuple[list[int], str]:
        """Return all numbers of a stream, and the offset behind them. A node that was replaced says
        what it has, and not that it is all: that is no answer here."""
        while True:
            answer = self._send("GET", f"{path}?offset=-1")
            assert answer.status_code == 200, answer.text
            if "stream-up-to-date" in answer.headers:
                return answer.json(), answer.headers["stream-next-offset"]

    def _delete(self, path: str) -> None:
        """Delete a stream until it is gone. A creation that was repeated, because a node did not
        answer, may be carried out late; and a node that was replaced says what it has."""
        seen = []
        for _ in range(TRIES):
            # A repeated one finds nothing: the answer to the first was lost.
            assert self._send("DELETE", path).status_code in (204, 404)
            answer = self._send("GET", f"{path}?offset=-1")
            if answer.status_code == 404:
                return
            seen.append((answer.status_code, dict(answer.headers), answer.text))
        raise AssertionError(f"{path} is not gone: {seen}")

    def check(self) -> None:
        """Check that what was deleted goes, and stays away."""
        for path in self._gone[-50:]:
            self._delete(path)
