"""Server processes that notify and follow each other, killed and started again on the same port."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import httpx

from tests.helpers.server import Server, running_server

QUICK = [
    *("--notify-retry", "0.02", "--notify-retry-max", "0.1", "--notify-attempts-max", "100000"),
    *("--follow-retry", "0.02", "--follow-retry-max", "0.1"),
    *("--disk-reserve-bytes", "0", "--journal-file-bytes", "1MiB"),
]
ROUNDS_MAX = 600


class Peer:
    """A server with a folder and a port of its own, which outlive its processes."""

    def __init__(
        self, folder: Path, *flags: str, trusts: tuple[str, ...] = ("--development",)
    ) -> None:
        self._folder = folder
        self._flags = (*trusts, *flags)
        self._processes = ExitStack()
        self._server: Server
        self.port = 0
        self.client: httpx.Client

    def __enter__(self) -> Self:
        self.start()
        self.client = self._processes.enter_context(
            httpx.Client(base_url=self.url, timeout=30, verify=False)
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.close()

    def start(self) -> None:
        args = [*QUICK, *self._flags, "--port", str(self.port)]
        self._server = self._processes.enter_context(
            running_server(data_dir=self._folder, args=args)
        )
        self.port = self._server.port

    def kill(self) -> None:
        self._server.kill()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def surl(self, table: str) -> str:
        return f"{self.url}/v1/table/{table}"

    def nurl(self, name: str) -> str:
        return f"{self.url}/v1/notify/{name}"

    def send(self, method: str, path: str, status: int, **content: Any) -> httpx.Response:
        got = self.client.request(method, path, **content)
        assert got.status_code == status, (path, got.text)
        return got

    def table(self, path: str) -> None:
        self.send("PUT", f"/v1/table/{path}", 201, json={"schema": "endpoint_manifest"})

    def put(self, path: str, key: str, record: str) -> None:
        self.send("PUT", f"/v1/table/{path}?key={key}", 204, content=record.encode())

    def rows(self, path: str, *, wait_s: float = 0) -> list[str]:
        """The rows of a table without SeqNo; `wait_s` is spent in the server, waiting for more."""
        got = self.client.get(f"/v1/table/{path}?timeout={wait_s}")
        return (
            []
            if got.status_code == 404
            else [line.partition("\t")[2] for line in got.text.splitlines()]
        )

    def state(self, path: str) -> dict[str, str]:
        got = self.client.get(f"/v1/table/{path}?view=active&timeout=0")
        fields = [line.split("\t") for line in got.text.splitlines()]
        return {key: record for _, _, _, key, record in fields}

    def metric(self, name: str) -> float:
        found = re.search(
            rf"^penstock_{re.escape(name)} (\S+)$", self.client.get("/metrics").text, re.M
        )
        assert found is not None, name
        return float(found[1])


def until(condition: Callable[[], object]) -> None:
    """Ask until it is so; each question waits a little in a server, not here."""
    for _ in range(ROUNDS_MAX):
        if condition():
            return
    raise AssertionError("it never came to be")
