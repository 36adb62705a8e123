"""Idempotent writers over HTTP that outlive the server: each retries an append until it is told."""

from __future__ import annotations

import json
import re
import threading
from http.client import HTTPConnection, HTTPException
from typing import Self

TIMEOUT_S = 30.0
WRITERS = 8
STREAMS = ("j/one", "j/two", "bytes/one", "bytes/two")
_FRAME = re.compile(rb"<(\d+):(\d+):x*>")


def is_json(path: str) -> bool:
    return path.startswith("j/")


def content_type(path: str) -> str:
    return "application/json" if is_json(path) else "application/octet-stream"


def message(path: str, writer: int, seq: int) -> bytes:
    padding = "x" * (seq * 37 % 150)
    if is_json(path):
        return json.dumps({"writer": writer, "seq": seq, "padding": padding}).encode()
    return f"<{writer}:{seq}:{padding}>".encode()


def parse(path: str, body: bytes) -> list[tuple[int, int]]:
    """(writer, seq) of every message of a stream; every byte of it has to belong to one."""
    if is_json(path):
        return [(each["writer"], each["seq"]) for each in json.loads(body)]
    frames = list(_FRAME.finditer(body))
    assert b"".join(frame[0] for frame in frames) == body
    return [(int(frame[1]), int(frame[2])) for frame in frames]


class Address:
    """Where the server is now; writers wait here while there is none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._port = 0
        self._number = 0

    def publish(self, port: int) -> None:
        with self._changed:
            self._port = port
            self._number += 1
            self._changed.notify_all()

    def after(self, number: int) -> tuple[int, int]:
        """(number, port) of a server later than `number`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._number > number, TIMEOUT_S * 2)
            return self._number, self._port


class Progress:
    """What has been acknowledged, for the writers together."""

    def __init__(self) -> None:
        self.acknowledged = [0] * WRITERS
        self.duplicates = 0
        self.errors: list[str] = []
        self._changed = threading.Condition()

    def add(self, writer: int, *, duplicate: bool) -> None:
        with self._changed:
            self.acknowledged[writer] += 1
            self.duplicates += duplicate
            self._changed.notify_all()

    def fail(self, error: str) -> None:
        with self._changed:
            self.errors.append(error)
            self._changed.notify_all()

    def wait_for(self, total: int) -> None:
        with self._changed:
            assert self._changed.wait_for(
                lambda: sum(self.acknowledged) >= total or self.errors, TIMEOUT_S
            )
        assert not self.errors, self.errors


class Writer(threading.Thread):
    def __init__(
        self, number: int, address: Address, progress: Progress, ending: threading.Event
    ) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self._number = number
        self._path = STREAMS[number % len(STREAMS)]
        self._address = address
        self._progress = progress
        self._ending = ending

    def run(self) -> None:
        server, seq = 0, 0
        try:
            while not self._ending.is_set():
                server, port = self._address.after(server)
                seq = self._write(port, seq)
        except AssertionError as error:
            self._progress.fail(f"{self.name}: {error}")

    def _write(self, port: int, seq: int) -> int:
        """Append to this server until it is killed, or until there is nothing in flight to stop."""
        connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
        try:
            while not self._ending.is_set():
                while not self._append(connection, seq):
                    pass
                seq += 1
        except (OSError, HTTPException):
            pass  # killed: the next server gets the same append
        finally:
            connection.close()
        return seq

    def _append(self, connection: HTTPConnection, seq: int) -> bool:
        headers = {
            "Content-Type": content_type(self._path),
            "Producer-Id": self.name,
            "Producer-Epoch": "0",
            "Producer-Seq": str(seq),
        }
        body = message(self._path, self._number, seq)
        connection.request("POST", f"/v1/stream/{self._path}", body, headers)
        response = connection.getresponse()
        answer = response.read()
        if response.status == 503:
            return False
        assert response.status in (200, 204), f"{response.status} {answer!r}"
        assert response.headers["Producer-Seq"] == str(seq)
        self._progress.add(self._number, duplicate=response.status == 204)
        return True


class Writers:
    """All of them at work."""

    def __init__(self, address: Address, progress: Progress) -> None:
        self._ending = threading.Event()
        self._writers = [
            Writer(number, address, progress, self._ending) for number in range(WRITERS)
        ]

    def __enter__(self) -> Self:
        for writer in self._writers:
            writer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()

    def finish(self) -> None:
        """Return when each has been told of the append it was at."""
        self._ending.set()
        for writer in self._writers:
            writer.join(TIMEOUT_S)
            assert not writer.is_alive()


def create_streams(port: int) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    for path in STREAMS:
        headers = {"Content-Type": content_type(path)}
        connection.request("PUT", f"/v1/stream/{path}", headers=headers)
        response = connection.getresponse()
        response.read()
        assert response.status == 201
    connection.close()


def read_stream(port: int, path: str) -> list[tuple[int, int]]:
    """Every message of a stream, read to its end in as many parts as the server likes."""
    connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    sequences: list[tuple[int, int]] = []
    offset, parts = "-1", []
    while True:
        connection.request("GET", f"/v1/stream/{path}?offset={offset}")
        response = connection.getresponse()
        body = response.read()
        assert response.status == 200, body
        parts.append(body)
        offset = response.headers["Stream-Next-Offset"]
        if response.headers.get("Stream-Up-To-Date") == "true":
            break
    connection.close()
    if is_json(path):
        for part in parts:
            sequences += parse(path, part)
        return sequences
    return parse(path, b"".join(parts))
