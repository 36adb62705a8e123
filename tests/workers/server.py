"""Servers of several workers for tests, and paths that belong to one of them."""

from __future__ import annotations

import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from penstock.protocol.shards import shard_of
from tests.helpers.server import Server

JSON = {"content-type": "application/json"}
_numbers = itertools.count(1)


def path_at(worker: int, name: str = "s", *, workers: int = 2) -> str:
    """A path that was not used before and is at home with a worker."""
    return next(
        path for number in _numbers if shard_of(path := f"{name}-{number}", workers) == worker
    )


def worker_pids(server: Server) -> dict[int, int]:
    """The process of each worker, by its index: the one that has its folder locked."""
    assert server.data_dir is not None
    locks = sorted((server.data_dir / "workers").glob("*/LOCK"))
    return {int(lock.parent.name): int(lock.read_text()) for lock in locks}


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


class RawConnection:
    """One connection whose bytes a test decides: several requests, or half of one."""

    def __init__(self, server: Server) -> None:
        self.sock = socket.create_connection(("127.0.0.1", server.port), timeout=10)
        self._received = b""

    def send(self, *lines: str, body: bytes = b"") -> None:
        head = "\r\n".join((*lines, "host: localhost", "", ""))
        self.sock.sendall(head.encode() + body)

    def append(self, path: str, body: bytes) -> int:
        self.send(
            f"POST /v1/stream/{path} HTTP/1.1",
            "content-type: application/json",
            f"content-length: {len(body)}",
            body=body,
        )
        return self.status()

    def status(self) -> int:
        """The status of the next response, whose body is skipped."""
        return self.response()[0]

    def response(self) -> tuple[int, dict[str, str], bytes]:
        head = self._until(b"\r\n\r\n").decode()
        first, *lines = head.split("\r\n")[:-2]
        headers = {}
        for line in lines:
            name, _, value = line.partition(": ")
            headers[name] = value
        body = self._exactly(int(headers.get("content-length", 0)))
        return int(first.split()[1]), headers, body

    def events(self) -> Iterator[bytes]:
        """The chunks of a live response."""
        while True:
            size = int(self._until(b"\r\n"), 16)
            data = self._exactly(size)
            self._exactly(2)
            if not size:
                return
            yield data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._received:
            self._receive()
        end = self._received.index(mark) + len(mark)
        data, self._received = self._received[:end], self._received[end:]
        return data

    def _exactly(self, size: int) -> bytes:
        while len(self._received) < size:
            self._receive()
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _receive(self) -> None:
        data = self.sock.recv(65536)
        if not data:
            raise EOFError("the server has closed the connection")
        self._received += data

    def close(self) -> None:
        self.sock.close()
