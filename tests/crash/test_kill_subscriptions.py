"""kill -9 of server, webhook receiver and worker, in any order, while events come in, the disk is
full now and then and the server is overloaded: every event reaches every subscriber, no cursor is
beyond what was acked or before what was kept, generations never go back, and a change of a
subscription is there after a kill if it was confirmed, and is not if it was refused.
"""

from __future__ import annotations

import json
import random
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from penstock.log.offline.verify import verify
from tests.crash import subscribers
from tests.crash.subscribers import REFUSED, SUBSCRIPTIONS
from tests.crash.test_kill import SMALL
from tests.helpers.server import ROOT, Server, running_server

ARGS = [
    *SMALL,
    *("--development", "--webhook-retry", "0.02", "--webhook-retry-max", "0.05"),
    *("--subscription-log-bytes", "4KiB"),
    *("--append-queue-bytes-max", "2KiB", "--max-body", "2KiB"),
]
NOISE = b"x" * 1500
NOISES = 8
"""Appends at the same time, more than the queue takes."""
STREAMS = 4
LEASE_MS = 1000
DEADLINE_S = 60.0
HEADERS = {"content-type": "application/json"}


class Subscriber:
    """A process that is started again and again with the same diary."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.kind = kind
        self.diary = folder / f"{kind}.diary"
        self.diary.touch()
        self._where = "0" if kind == "hook" else str(folder / "address")
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        self.kill()
        command = [sys.executable, subscribers.__file__, self.kind, str(self.diary), self._where]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if self.kind == "hook":
            self._where = port  # the next one listens there too

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._where}/hook"

    def lines(self, kind: str) -> list[list[str]]:
        lines = [line.split() for line in self.diary.read_text().splitlines()]
        return [line[1:] for line in lines if line[0] == kind]

    def furthest(self, kind: str) -> dict[str, str]:
        found: dict[str, str] = {}
        for path, offset in self.lines(kind):
            found[path] = max(offset, found.get(path, ""))
        return found


class Side:
    """A subscription that is changed, deleted and created: what the server has to know of it."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.states: list[frozenset[str] | None] = [None]
        """What it may be now: its streams, or None if there is no such subscription. More than one
        if nobody knows whether the last change was written."""
        self.refused = 0

    def change(self) -> tuple[str, str, Any, frozenset[str] | None]:
        """A request, and what there is afterwards."""
        (state,) = self.states
        path = f"side/{self._chance.randrange(3)}"
        if state is None:
            document = {"type": "pull-wake", "wake_stream": "wake", "streams": [path]}
            return "PUT", "", document, frozenset([path])
        if self._chance.random() < 0.3:
            return "DELETE", "", None, None
        if path in state:
            return "DELETE", f"/streams/{path}", None, state - {path}
        return "POST", "/streams", {"streams": [path]}, state | {path}


class Town:
    """Everybody at once: a server, its subscribers, and a writer that is never killed."""

    def __init__(self, folder: Path, stack: ExitStack, chance: random.Random) -> None:
        self.folder = folder
        self.full_disk = folder / "full"
        self.side = Side(chance)
        self._port = _free_port()
        self._crowd = stack.enter_context(ThreadPoolExecutor(NOISES))
        self._stack = stack
        self._http = stack.enter_context(httpx2.Client())
        self._up = ExitStack()
        stack.callback(lambda: self._up.close())
        self.server: Server
        self.hook, self.pull = (Subscriber(kind, folder) for kind in ("hook", "pull"))
        self.sent: list[int] = []
        self._next = 0
        self._seen: dict[str, tuple[int, dict[str, str]]] = {}
        for subscriber in (self.hook, self.pull):
            stack.callback(subscriber.kill)

    def serve(self) -> None:
        self._up.close()
        self._up = ExitStack()
        folder = self.folder / "data"
        if folder.exists():
            assert verify(folder).problems == []
        # At the same address: the receiver of a webhook calls the one it was told.
        args = [*ARGS, "--port", str(self._port)]
        self.server = self._up.enter_context(
            running_server(data_dir=folder, args=args, full_disk=self.full_disk)
        )
        self.check()
        self._http.put(f"{self.server.url}/v1/stream/wake", headers=HEADERS).raise_for_status()
        self._subscribe("hook", type="webhook", webhook={"url": self.hook.url})
        self._subscribe("pull", type="pull-wake", wake_stream="wake")
        address = self.folder / "address.new"
        address.write_text(self.server.url)
        address.rename(self.folder / "address")

    def _subscribe(self, id: str, **document: Any) -> None:
        document = {"pattern": "events/*", "lease_ttl_ms": LEASE_MS, **document}
        answer = self._http.put(f"{self.server.url}{SUBSCRIPTIONS}/{id}", json=document)
        assert answer.status_code in (200, 201), answer.text

    def append(self) -> None:
        value = self._next
        self._next += 1
        url = f"{self.server.url}/v1/stream/events/{value % STREAMS}"
        try:
            answer = self._http.post(url, content=json.dumps(value), headers=HEADERS)
            if answer.status_code == 404:
                answer = self._http.put(url, content=json.dumps(value), headers=HEADERS)
        except httpx2.HTTPError:
            return  # perhaps it is there, perhaps not
        if answer.status_code not in REFUSED:
            answer.raise_for_status()
            self.sent.append(value)

    def overload(self) -> None:
        """Begin more appends than the server takes at a time."""
        headers = {"content-type": "text/plain", "connection": "close"}
        url = f"{self.server.url}/v1/stream/noise"

        def append() -> None:
            with suppress(httpx2.HTTPError):
                httpx2.post(url, content=NOISE, headers=headers)

        with suppress(httpx2.HTTPError):
            self._http.put(url, headers={"content-type": "text/plain"})
        for _ in range(NOISES):
            self._crowd.submit(append)

    def change_side(self) -> None:
        """Change the subscription that nobody works for, by the same request twice at once, and see
        what it is then."""
        side = self.side
        method, action, document, after = side.change()
        url = f"{self.server.url}{SUBSCRIPTIONS}/side{action}"

        def send(_: int) -> int | None:
            try:
                return httpx2.request(method, url, json=document).status_code
            except httpx2.HTTPError:
                return None

        statuses = list(self._crowd.map(send, range(2)))
        assert set(statuses) <= {200, 201, 204, None, *REFUSED}
        side.refused += sum(status in REFUSED for status in statuses)
        if {200, 201, 204}.intersection(statuses):
            side.states = [after]
        elif None in statuses:
            side.states.append(after)
        self.check_side()

    def check_side(self) -> None:
        shown = self.show("side")
        state = None if shown is None else frozenset(each["path"] for each in shown["streams"])
        assert state in self.side.states
        self.side.states = [state]

    def show(self, id: str) -> Any:
        url = f"{self.server.url}{SUBSCRIPTIONS}/{id}"
        while (answer := self._http.get(url)).status_code in REFUSED:
            time.sleep(0.01)  # what it would show is being undone
        return None if answer.status_code == 404 else answer.json()

    def check(self) -> None:
        """What the server knows of each subscriber, beside what that one has in its diary."""
        self.check_side()
        for subscriber in (self.hook, self.pull):
            # The diary first: a cursor may have moved since.
            kept = subscriber.furthest("acked")
            told = max((int(words[0]) for words in subscriber.lines("generation")), default=0)
            shown = self.show(subscriber.kind)
            if shown is None:
                assert not told
                continue
            cursors = {each["path"]: each["acked_offset"] for each in shown["streams"]}
            cursors = {path: offset for path, offset in cursors.items() if offset != "-1"}
            said = subscriber.furthest("acking")
            for path, offset in cursors.items():
                assert offset <= said.get(path, ""), f"{subscriber.kind}: {path} beyond its acks"
            for path, offset in kept.items():
                assert cursors.get(path, "") >= offset, f"{subscriber.kind}: {path} went back"
            generation, before = self._seen.get(subscriber.kind, (0, {}))
            assert shown["generation"] >= max(told, generation), subscriber.kind
            assert all(cursors.get(path, "") >= offset for path, offset in before.items())
            self._seen[subscriber.kind] = (told, kept)

    def settle(self) -> None:
        """Until everybody has done everything."""
        for subscriber in (self.hook, self.pull):
            self._wait_for(subscriber)
            tails = {}
            for number in range(STREAMS):
                path = f"events/{number}"
                head = self._http.head(f"{self.server.url}/v1/stream/{path}")
                tails[path] = head.headers["stream-next-offset"]
            shown = self.show(subscriber.kind)["streams"]
            assert {each["path"]: each["acked_offset"] for each in shown} == tails
            generations = [int(words[0]) for words in subscriber.lines("generation")]
            assert generations == sorted(generations)

    def _wait_for(self, subscriber: Subscriber) -> None:
        wanted = set(self.sent)
        _until(lambda: {int(words[0]) for words in subscriber.lines("done")} >= wanted)
        _until(lambda: self.show(subscriber.kind)["pending"] == 0)


def _until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)  # other processes are looked at: there is no event to wait for


def _run(folder: Path, *, kills: int, seed: int) -> None:
    chance = random.Random(seed)
    with ExitStack() as stack:
        town = Town(folder, stack, chance)
        town.hook.start()
        town.serve()
        town.pull.start()
        for _ in range(kills):
            for _ in range(chance.randrange(1, 30)):
                town.append()
            _trouble(town, chance)
            victims = chance.choice(("server", "hook", "pull", "server hook", "server hook pull"))
            if "server" in victims:
                town.server.kill()
            for subscriber in (town.hook, town.pull):
                if subscriber.kind in victims:
                    subscriber.start()
            town.full_disk.unlink(missing_ok=True)
            if "server" in victims:
                town.serve()
            town.check()
        town.append()
        town.settle()
        town.check()
        assert town.side.refused
        assert town.server.terminate() == 0
    assert verify(folder / "data").problems == []


def _trouble(town: Town, chance: random.Random) -> None:
    """Changes while the disk is full, while the server is overloaded, or while all is well."""
    kind = chance.choice(("full", "full", "overload", "none"))
    if kind == "full":
        town.full_disk.touch()
    elif kind == "overload":
        town.overload()
    for _ in range(4):
        town.change_side()
        town.append()
    if chance.random() < 0.5:
        town.full_disk.unlink(missing_ok=True)
        for _ in range(2):
            town.change_side()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def test_no_event_is_lost_to_a_subscriber_over_5_kills(tmp_path: Path) -> None:
    _run(tmp_path, kills=5, seed=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", [2, 3])
def test_no_event_is_lost_to_a_subscriber_over_300_kills(tmp_path: Path, seed: int) -> None:
    _run(tmp_path, kills=300, seed=seed)
