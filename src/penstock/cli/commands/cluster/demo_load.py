"""The load of `penstock cluster demo`: a writer on every node, each with a stream of its own, and
a reader of every stream on every node; and the comparison of what they have seen.

A request that a node does not answer is sent again: to the owner that it names, or to the next
node. Writers send producer headers, so that what is sent again is stored once.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from typing import Final, NamedTuple, Self
from urllib.parse import urlsplit

ANSWER_TIMEOUT_S: Final = 3.0
PATIENCE_S: Final = 60.0
"""How long the demo waits for a step before it gives up."""
RETRY_S: Final = 0.02
PACE_S: Final = 0.002
"""A pause between two appends of a writer, so that the demo does not fill the machine."""


class LoadFailed(Exception):
    """The cluster has not answered for too long, or not as it should."""


class Answer(NamedTuple):
    status: int
    body: bytes
    next_offset: str
    is_up_to_date: bool


class Caller:
    """Sends requests of one writer or reader, to its node first, then to whoever answers."""

    def __init__(self, urls: list[str], number: int, abandoned: threading.Event) -> None:
        addresses = [urlsplit(url).netloc for url in urls]
        self._addresses = addresses[number:] + addresses[:number]
        self._abandoned = abandoned
        self._connections: dict[str, HTTPConnection] = {}

    def send(self, method: str, target: str, body: bytes = b"", **headers: str) -> Answer:
        """Return the first answer that is not 5xx; LoadFailed if there is none for a minute."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and not self._abandoned.is_set():
            for address in self._addresses:
                answer, owner = self._try(address, method, target, body, headers)
                if answer is None and owner is not None:
                    answer, _ = self._try(owner, method, target, body, headers)
                if answer is not None:
                    return answer
            time.sleep(RETRY_S)  # nobody owns the stream yet: asking faster only takes time away
        raise LoadFailed(f"No node has answered {method} {target} for {PATIENCE_S:.0f} s.")

    def _try(
        self, address: str, method: str, target: str, body: bytes, headers: dict[str, str]
    ) -> tuple[Answer | None, str | None]:
        """Return the answer of a node, or None and the address of the owner that it names."""
        connection = self._connections.get(address)
        if connection is None:
            connection = HTTPConnection(address, timeout=ANSWER_TIMEOUT_S)
            self._connections[address] = connection
        try:
            connection.request(
                method, target, body, {"content-type": "application/json", **headers}
            )
            response = connection.getresponse()
            content = response.read()
        except (OSError, HTTPException):
            connection.close()
            return None, None
        if response.status >= 500:
            return None, _owner_in(content)
        offset = response.headers.get("stream-next-offset", "")
        is_all = "stream-up-to-date" in response.headers
        return Answer(response.status, content, offset, is_all), None

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


def _owner_in(content: bytes) -> str | None:
    try:
        url = json.loads(content).get("owner")
    except (ValueError, AttributeError):
        return None
    return urlsplit(url).netloc if isinstance(url, str) else None


class Report(NamedTuple):
    """What the comparison has shown."""

    acknowledged: int
    stored: int
    lost: int
    doubled: int
    reordered: int
    readers: int
    misled: int
    """Readers that have not read exactly what is stored."""

    @property
    def is_clean(self) -> bool:
        is_whole = self.stored == self.acknowledged
        return is_whole and not (self.lost or self.doubled or self.reordered or self.misled)


def compare(
    acknowledged: list[int], stored: list[list[int]], read: list[tuple[int, list[int]]]
) -> Report:
    """Compare the number of messages that each writer had acknowledged, the numbers that are stored
    of each, and what readers have read, by writer."""
    lost = doubled = reordered = 0
    for count, numbers in zip(acknowledged, stored, strict=True):
        distinct = set(numbers)
        lost += len(set(range(count)) - distinct)
        doubled += len(numbers) - len(distinct)
        reordered += sum(later < earlier for earlier, later in itertools.pairwise(numbers))
    misled = sum(seen != stored[writer] for writer, seen in read)
    total = sum(map(len, stored))
    return Report(sum(acknowledged), total, lost, doubled, reordered, len(read), misled)


class Load:
    """Writers and readers, as threads."""

    def __init__(self, urls: list[str]) -> None:
        self._urls = urls
        self._ending = threading.Event()
        self._abandoned = threading.Event()
        """Whether the threads are to end as soon as they can: nobody waits for a result."""
        self._written = threading.Event()
        """Whether no writer appends any more, so that readers may end at the tail."""
        self._acknowledged = [0] * len(urls)
        self._last = [0.0] * len(urls)
        self._pauses = [0.0] * len(urls)
        self._seen: list[tuple[int, list[int]]] = []
        self._errors: list[Exception] = []
        self._writers = [
            threading.Thread(target=self._guarded, args=(self._write, number))
            for number in range(len(urls))
        ]
        self._readers: list[threading.Thread] = []
        for node, writer in itertools.product(range(len(urls)), repeat=2):
            seen: list[int] = []
            self._seen.append((writer, seen))
            self._readers.append(
                threading.Thread(target=self._guarded, args=(self._read, node, writer, seen))
            )

    def __enter__(self) -> Self:
        with self._caller(0) as caller:
            for number in range(len(self._urls)):
                caller.send("PUT", _target(number))
        for thread in (*self._writers, *self._readers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        for event in (self._abandoned, self._ending, self._written):
            event.set()
        for thread in (*self._writers, *self._readers):
            thread.join()

    @property
    def acknowledged(self) -> int:
        return sum(self._acknowledged)

    @property
    def read(self) -> int:
        return sum(len(seen) for _, seen in self._seen)

    @property
    def readers(self) -> int:
        return len(self._readers)

    def until_more(self, count: int) -> None:
        """Wait until so many more messages are acknowledged."""
        goal = self.acknowledged + count
        self._until(lambda: self.acknowledged >= goal, "appends go on")

    def until_all_go_on(self) -> None:
        """Wait until every writer has had a message acknowledged that it sent from now on."""
        # One may have been sent already: the second one was not.
        goals = [count + 2 for count in self._acknowledged]
        self._until(
            lambda: all(a >= b for a, b in zip(self._acknowledged, goals, strict=True)),
            "every writer goes on",
        )

    def forget_pauses(self) -> None:
        self._pauses = [0.0] * len(self._urls)

    def longest_pause_s(self) -> float:
        """Return the longest time between two acknowledgements of a writer."""
        return max(self._pauses)

    def finish(self) -> Report:
        """End the writers, let every reader reach the end, and compare."""
        self._ending.set()
        for thread in self._writers:
            thread.join()
        self._written.set()
        for thread in self._readers:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return compare(self._acknowledged, self._stored(), self._seen)

    def _stored(self) -> list[list[int]]:
        with self._caller(0) as caller:
            return [self._numbers(caller, writer) for writer in range(len(self._urls))]

    @staticmethod
    def _numbers(caller: Caller, writer: int) -> list[int]:
        numbers: list[int] = []
        offset, is_all = "-1", False
        while not is_all:
            answer = caller.send("GET", f"{_target(writer)}?offset={offset}")
            numbers += _decoded(answer)
            offset, is_all = answer.next_offset, answer.is_up_to_date
        return numbers

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            if self._errors:
                raise self._errors[0]
            if time.monotonic() > deadline:
                raise LoadFailed(f"Not within {PATIENCE_S:.0f} s: {what}.")
            time.sleep(RETRY_S)  # counters of other threads, which do not say when they change

    def _guarded(self, work: Callable[..., None], *arguments: object) -> None:
        try:
            work(*arguments)
        except Exception as error:  # noqa: BLE001 - raised where the threads are waited for
            self._errors.append(error)

    @contextmanager
    def _caller(self, number: int) -> Iterator[Caller]:
        caller = Caller(self._urls, number, self._abandoned)
        try:
            yield caller
        finally:
            caller.close()

    def _write(self, number: int) -> None:
        with self._caller(number) as caller:
            while not self._ending.wait(PACE_S):
                sent = self._acknowledged[number]
                headers = {
                    "producer-id": f"writer-{number}",
                    "producer-epoch": "0",
                    "producer-seq": str(sent),
                }
                answer = caller.send(
                    "POST", _target(number), json.dumps([sent]).encode(), **headers
                )
                if answer.status not in (200, 204):
                    raise LoadFailed(f"An append was answered with {answer.status}.")
                now = time.monotonic()
                if self._last[number]:
                    self._pauses[number] = max(self._pauses[number], now - self._last[number])
                self._last[number] = now
                self._acknowledged[number] = sent + 1

    def _read(self, node: int, writer: int, seen: list[int]) -> None:
        """Follow a stream from its start until no more can come."""
        offset = "-1"
        with self._caller(node) as caller:
            while True:
                is_last = self._written.is_set()
                live = "" if is_last else "&live=long-poll"
                answer = caller.send("GET", f"{_target(writer)}?offset={offset}{live}")
                if answer.status == 200:
                    seen += _decoded(answer)
                offset = answer.next_offset
                if is_last and answer.is_up_to_date:
                    return
                if self._ending.is_set():
                    self._written.wait()


def _target(writer: int) -> str:
    return f"/v1/stream/demo/writer-{writer + 1}"


def _decoded(answer: Answer) -> list[int]:
    if answer.status != 200:
        raise LoadFailed(f"A read was answered with {answer.status}.")
    numbers: list[int] = json.loads(answer.body)
    return numbers
