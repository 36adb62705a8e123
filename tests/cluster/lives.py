"""Streams that are created, written under a condition, forked, closed and deleted through faults,
at any node: each client sees what it has done itself.

A creation that nobody has answered may be carried out late, after the deletion. That is the one way
in which a stream may be there again, and it can be told from a stream that was never gone."""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import Self

import httpx

from tests.cluster.workload import Workload

log = logging.getLogger(__name__)

MESSAGES = 3
LOG_LINES = 40
"""Last lines of the log of each node that a failure shows."""


def generation_of(offset: str) -> int:
    return int(offset.partition("_")[0])


class Life:
    """What is known of one stream by its own client, and what may be seen of it after its end.

    `late` are the creations of it that nobody has answered, `source` is what it was forked from."""

    def __init__(
        self, path: str, created: httpx.Response, late: list[str], source: Life | None = None
    ) -> None:
        self.path = path
        self.source = source
        self.generation = generation_of(created.headers["stream-next-offset"])
        self.late = late
        # One that found the stream was preceded by one that made it.
        self._left = len(late) - (created.status_code == 200)
        self.could_return = self._left > 0
        self.evidence: list[str] = []
        self.note(f"PUT {created.status_code}: generation {self.generation}")
        assert self._left >= 0, self.failure("it was there before it was created")

    def note(self, what: str) -> None:
        self.evidence.append(f"{time.monotonic():.3f} {what}")

    def failure(self, reason: str) -> str:
        """Return what to say of a life that is not as it has to be."""
        lines = [f"{self.path}: {reason}", *self.evidence, "creations without an answer:"]
        lines += self.late or ["none"]
        if self.source is not None:
            lines.append(self.source.failure("the source"))
        return "\n".join(lines)

    def goes_on(self, offset: str) -> None:
        """Check that an offset of the stream, which nobody has deleted yet, is of this life."""
        generation = generation_of(offset)
        assert generation == self.generation, self.failure(f"it is another: {offset}")

    @property
    def beginnings(self) -> list[list[int]]:
        """What a creation that is carried out after the end of this life may begin with."""
        if self.source is None:
            return [[]]
        whole = [*range(MESSAGES)]
        return [whole, []] if self.source.could_return else [whole]

    def returned(self, offset: str, numbers: list[int], *, closed: bool) -> None:
        """Take note that the stream was there after its end: only as one that a late creation has
        made, and as often as there can be such."""
        generation = generation_of(offset)
        self.note(f"there again: {offset}, {numbers}, closed: {closed}")
        assert generation > self.generation, self.failure("what was deleted is there again")
        assert numbers in self.beginnings, self.failure("it is not as a creation makes it")
        assert not closed, self.failure("nobody has closed what is there again")
        self.generation = generation
        self.count_return()

    def count_return(self) -> None:
        """Take note that a late creation was carried out."""
        self._left -= 1
        assert self._left >= 0, self.failure("it was created more often than anybody has asked for")


class Lives:
    """Threads that lead streams from their creation to their end, one after the other."""

    def __init__(self, work: Workload, prefix: str, *, seed: float, threads: int = 2) -> None:
        self._work = work
        self._prefix = prefix
        self._chance = random.Random(seed)
        self._ending = threading.Event()
        self.total = 0
        """Streams that have lived."""
        self.returns = 0
        """Streams that were there again by a late creation."""
        self._gone: list[Life] = []
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
            self._show(error)
            self._work.errors.append(error)

    def _show(self, error: BaseException) -> None:
        log.error("%s\n%s", error, self._work.logs(LOG_LINES))

    def _send(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> httpx.Response:
        """Send a request to any node, until one has answered it."""
        place = self._chance.randrange(100)
        return self._work.send(method, f"/v1/stream/{path}", body, place, **(headers or {}))

    def _live(self, path: str) -> None:
        life = self._create(path)
        for number in range(MESSAGES):
            self._append_if_there_are(life, number)
        fork = self._create(f"{path}-fork", life)
        self._append_if_there_are(fork, MESSAGES)
        numbers, offset = self._read(life)
        assert numbers == list(range(MESSAGES)), life.failure(f"it has {numbers}")
        # With a condition, as all that is sent: carried out late, it must change no other stream.
        condition = {"if-match": f'"{offset}"'}
        closed = self._send("POST", path, b"", {"stream-closed": "true", **condition})
        assert closed.status_code == 204, life.failure(closed.text)
        refused = self._send("POST", path, b"[0]", condition)
        assert refused.status_code == 409, life.failure(refused.text)
        assert self._read(life) == (numbers, offset), life.failure("it has changed")
        numbers, _ = self._read(fork)
        assert numbers == list(range(MESSAGES + 1)), fork.failure(f"it has {numbers}")
        self.end(fork)
        self.end(life)

    def _create(self, path: str, source: Life | None = None) -> Life:
        headers = {} if source is None else {"stream-forked-from": f"/v1/stream/{source.path}"}
        created = self._send("PUT", path, b"", headers)
        assert created.status_code in (200, 201), (path, created.text)
        return Life(path, created, self._work.unanswered[f"PUT /v1/stream/{path}"], source)

    def _append_if_there_are(self, life: Life, count: int) -> None:
        """Append a number if the stream has so many. One that is repeated, because the answer was
        lost, is refused by its condition."""
        is_done = False
        while True:
            numbers, offset = self._read(life)
            assert numbers in ([*range(count)], [*range(count + 1)]), life.failure(f"has {numbers}")
            if len(numbers) > count:
                return
            assert not is_done, life.failure(f"{count} is lost")
            answer = self._send("POST", life.path, b"[%d]" % count, {"if-match": f'"{offset}"'})
            assert answer.status_code in (200, 204, 412), life.failure(answer.text)
            is_done = answer.status_code != 412

    def _get(self, path: str) -> httpx.Response:
        """Return all of a stream, or that there is none. A node that was replaced says what it has,
        and not that it is all: that is no answer here."""
        while True:
            answer = self._send("GET", f"{path}?offset=-1")
            if answer.status_code != 200 or "stream-up-to-date" in answer.headers:
                return answer

    def _read(self, life: Life) -> tuple[list[int], str]:
        """Return all numbers of a stream, and the offset behind them."""
        answer = self._get(life.path)
        assert answer.status_code == 200, life.failure(answer.text)
        offset = answer.headers["stream-next-offset"]
        life.goes_on(offset)
        return answer.json(), offset

    def end(self, life: Life) -> None:
        """Delete a stream, and see that it is gone."""
        self._delete(life)
        self._gone.append(life)
        self.stays_away(life)

    def _delete(self, life: Life) -> None:
        answer = self._send("DELETE", life.path)
        life.note(f"DELETE {answer.status_code}")
        if answer.status_code == 204:
            return
        failure = life.failure(f"it cannot be deleted: {answer.text}")
        assert answer.status_code == 404 or _is_kept(answer), failure
        # The answer to an earlier one was lost.
        assert self._work.unanswered[f"DELETE /v1/stream/{life.path}"], failure

    def stays_away(self, life: Life) -> None:
        """See that what was deleted is gone. What a late creation has made is deleted, too."""
        while (answer := self._get(life.path)).status_code != 404:
            if _is_kept(answer):
                self._end_late_fork(life)
                continue
            assert answer.status_code == 200, life.failure(answer.text)
            self.returns += 1
            offset = answer.headers["stream-next-offset"]
            life.returned(offset, answer.json(), closed="stream-closed" in answer.headers)
            self._delete(life)

    def _end_late_fork(self, life: Life) -> None:
        """A stream is kept for a fork, which only a late creation can have made: end that."""
        fork = next((each for each in self._gone if each.source is life), None)
        life.note("kept for a fork")
        assert fork is not None, life.failure("it is kept for a fork that nobody has made")
        before = fork.generation
        self.stays_away(fork)
        if fork.generation == before:
            # A late deletion of the fork was quicker.
            fork.note("its source was kept for it")
            fork.count_return()

    def check(self) -> None:
        """Check that what was deleted stays away."""
        try:
            for life in self._gone:
                self.stays_away(life)
        except AssertionError as error:
            self._show(error)
            raise


def _is_kept(answer: httpx.Response) -> bool:
    """Whether a stream is deleted, and kept for its forks."""
    return answer.status_code == 410 and answer.json()["code"] == "stream-soft-deleted"
