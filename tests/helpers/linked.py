"""A server whose tables name each other, and what a server of several parts follows of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import httpx2

from penstock.protocol.shards import shard_of
from tests.helpers.server import Server

_numbers = itertools.count(1)


class Source:
    """The server whose tables are followed."""

    def __init__(self, server: Server, http: httpx2.Client, *, parts: int) -> None:
        self._server = server
        self._http = http
        self._parts = parts

    def surl(self, table: str) -> str:
        return f"{self._server.url}/v1/table/{table}"

    def mirror(self, table: str) -> str:
        """The path of the mirror that a link to a table leads to."""
        return f"mirror/127.0.0.1_{self._server.port}/{table}"

    def table(self, part: int, *rows: str) -> str:
        """Declare a table whose mirror is at home with a part; return its name."""
        name = next(
            name
            for number in _numbers
            if shard_of(self.mirror(name := f"t{number}"), self._parts) == part
        )
        answer = self._http.put(f"/v1/table/{name}", json={"schema": "endpoint_manifest"})
        assert answer.status_code == 201, answer.text
        self.write(name, *rows)
        return name

    def write(self, table: str, *rows: str) -> None:
        """Write rows such as `+ key record`; a record `@name` is the SURL of a table."""
        lines = []
        for row in rows:
            action, key, *record = row.split(" ", 2)
            texts = [self.surl(each[1:]) if each.startswith("@") else each for each in record]
            lines.append("\t".join([action, key, *texts]) + "\n")
        if lines:
            answer = self._http.post(f"/v1/table/{table}", content="".join(lines).encode())
            assert answer.status_code == 204, answer.text


class Hub:
    """The server of several parts that follows. `http` returns a client of any of its processes."""

    def __init__(self, http: Callable[[], httpx2.Client]) -> None:
        self._http = http

    def follow(self, table: str, surl: str, **more: Any) -> httpx2.Response:
        return self._http().put(f"/v1/follow/{table}", json={"surl": surl, **more})

    def unfollow(self, table: str) -> httpx2.Response:
        return self._http().delete(f"/v1/follow/{table}")

    def links(self, table: str) -> Any:
        """What became of the links of a mirror; None while that cannot be said."""
        answer = self.status(table)
        return None if answer is None else answer.get("links")

    def status(self, table: str) -> Any:
        return self._get(f"/v1/follow/{table}")

    def roots(self) -> dict[str, str] | None:
        """The roots of all mirrors, by their tables; None while a part is missing."""
        answer = self._get("/v1/follow")
        if answer is None:
            return None
        return {each["table"]: each.get("root", "") for each in answer["mirrors"]}

    def has(self, *tables: str) -> Callable[[], bool]:
        """Whether exactly these tables are mirrors."""
        return lambda: (roots := self.roots()) is not None and set(roots) == set(tables)

    def rows(self, table: str) -> list[list[str]]:
        answer = self._http().get(f"/v1/table/{table}", params={"timeout": "0"})
        if answer.status_code != 200:
            return []
        return [line.split("\t")[2:] for line in answer.text.splitlines()]

    def _get(self, path: str) -> Any:
        try:
            answer = self._http().get(path)
        except httpx2.TransportError:
            return None
        return answer.json() if answer.status_code == 200 else None
