"""The few plain requests that prepare a measurement; never used to make load."""

from __future__ import annotations

import http.client
from collections.abc import Iterable
from typing import NamedTuple

ROOT = "/v1/stream/"
TIMEOUT_S = 60
JSON = {"Content-Type": "application/json"}
BINARY = {"Content-Type": "application/octet-stream"}


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


class Client:
    """One keep-alive connection to a server on 127.0.0.1."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def request(
        self,
        method: str,
        path: str,
        body: bytes = b"",
        headers: dict[str, str] | None = None,
        *,
        allow: Iterable[int] = (200, 201, 204),
    ) -> Answer:
        self._connection.request(method, path, body or None, headers or {})
        response = self._connection.getresponse()
        answer = Answer(
            response.status,
            {name.lower(): value for name, value in response.getheaders()},
            response.read(),
        )
        if answer.status not in allow:
            raise RuntimeError(f"{method} {path}: {answer.status} {answer.body[:200]!r}")
        return answer

    def create(self, name: str, headers: dict[str, str] = JSON) -> str:
        """Create a stream, of JSON unless told otherwise; its path."""
        self.request("PUT", ROOT + name, headers=headers)
        return ROOT + name

    def create_many(self, name: str, count: int) -> str:
        """`count` JSON streams, name-0, name-1, ...; the path before the number."""
        for number in range(count):
            self.create(f"{name}-{number}")
        return ROOT + name

    def append(self, path: str, body: bytes, headers: dict[str, str] = JSON) -> None:
        self.request("POST", path, body, headers)

    def tail(self, path: str) -> str:
        return self.request("HEAD", path).headers["stream-next-offset"]


def message(size: int) -> bytes:
    """A JSON message of exactly `size` bytes."""
    return b'{"n":"' + b"x" * (size - 8) + b'"}'


def array(size: int, count: int) -> bytes:
    """A JSON array of `count` messages of `size` bytes."""
    return b"[" + b",".join([message(size)] * count) + b"]"
