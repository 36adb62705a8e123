"""Our own scenarios for client adapters: the process, what a scenario does with it, and checks.

An adapter is driven as the upstream suite drives it: one JSON command per line, the reference
server with injected faults behind it, and direct requests to that server past the adapter.
"""

from __future__ import annotations

import base64
import json
import queue
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any, Final, Self

from tests.conformance.reference import Reference
from tests.conformance.suite import HERE

ADAPTER: Final = HERE / "client_adapter.py"
ANSWER_TIMEOUT_S: Final = 30.0
TEXT: Final = "text/plain"
JSON: Final = "application/json"
OCTETS: Final = "application/octet-stream"

Result = dict[str, Any]
Scenario = Callable[["Stage"], None]

SCENARIOS: Final[dict[str, Scenario]] = {}


def scenario(function: Scenario) -> Scenario:
    """Register a scenario under its name."""
    name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"
    assert name not in SCENARIOS, name
    SCENARIOS[name] = function
    return function


class AdapterProcess:
    """A running adapter. Answers come in the order of the commands."""

    def __init__(self, server_url: str, *, is_async: bool) -> None:
        command = [sys.executable, str(ADAPTER), *(["--async"] if is_async else [])]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.features = self.ask({"type": "init", "serverUrl": server_url})["features"]

    def send(self, command: Result) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def receive(self) -> Result:
        line = self._answers.get(timeout=ANSWER_TIMEOUT_S)
        assert line, "the adapter has ended"
        result: Result = json.loads(line)
        return result

    def ask(self, command: Result) -> Result:
        self.send(command)
        return self.receive()

    def close(self) -> int:
        """Shut it down; its exit status."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self.send({"type": "shutdown"})
        self._process.stdin.close()
        status = self._process.wait(ANSWER_TIMEOUT_S)
        self._reader.join()
        self._process.stdout.close()
        return status

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put(b"")


class Stage:
    """What a scenario has: commands for the adapter, and the server behind it."""

    def __init__(self, adapter: AdapterProcess, reference: Reference) -> None:
        self._adapter = adapter
        self._reference = reference

    # -- through the adapter

    def ask(self, kind: str, path: str | None = None, **fields: Any) -> Result:
        """Any command; fields that are None are left out, as in JavaScript."""
        command = {"type": kind, "path": path, **fields}
        return self._adapter.ask(
            {key: value for key, value in command.items() if value is not None}
        )

    def create(self, content_type: str | None = None, **fields: Any) -> str:
        """A new stream at a path of its own."""
        path = new_path()
        check(self.ask("create", path, contentType=content_type, **fields), status=201)
        return path

    def append(self, path: str, data: str | bytes, **fields: Any) -> str:
        """Append; gives the offset after it."""
        result = self.ask("append", path, **_data(data), **fields)
        check(result, status=200)
        offset: str = result["offset"]
        return offset

    def read(self, path: str, **fields: Any) -> Result:
        return self.ask("read", path, **fields)

    def start_read(self, path: str, **fields: Any) -> Callable[[], Result]:
        """A live read that is waiting for news when this returns; call the result for its end."""
        self._adapter.send({"type": "read", "path": path, **fields})
        self._reference.wait_for_reader(path)
        return self._adapter.receive

    def produce(self, path: str, data: str, id: str = "p", **fields: Any) -> Result:
        options = {"producerId": id, "epoch": 0, "autoClaim": False, **fields}
        return self.ask("idempotent-append", path, data=data, **options)

    def produce_many(self, path: str, items: list[str], id: str = "p", **fields: Any) -> Result:
        options = {"producerId": id, "epoch": 0, "autoClaim": False, **fields}
        return self.ask("idempotent-append-batch", path, items=items, **options)

    def produce_close(self, path: str, id: str = "p", **fields: Any) -> Result:
        options = {"producerId": id, "epoch": 0, "autoClaim": False, **fields}
        return self.ask("idempotent-close", path, **options)

    # -- past the adapter

    def inject(self, path: str, *, count: int = 1, **fault: Any) -> None:
        """Let the next requests for a path fail."""
        answer = self._reference.http.post(
            f"{self._reference.url}/_test/inject-error",
            json={"path": path, "count": count, **fault},
        )
        assert answer.is_success, answer.text

    def server_append(
        self, path: str, data: str, producer: tuple[str, int, int] | None = None
    ) -> str:
        url = self._reference.url + path
        headers = {"Content-Type": self._reference.http.head(url).headers["Content-Type"]}
        if producer is not None:
            names = ("Producer-Id", "Producer-Epoch", "Producer-Seq")
            headers |= dict(zip(names, map(str, producer), strict=True))
        answer = self._reference.http.post(url, content=data.encode(), headers=headers)
        assert answer.is_success, answer.text
        offset: str = answer.headers["Stream-Next-Offset"]
        return offset

    def server_close(self, path: str, data: str = "") -> None:
        url = self._reference.url + path
        headers = {"Stream-Closed": "true", "Content-Type": TEXT}
        answer = self._reference.http.post(url, content=data.encode(), headers=headers)
        assert answer.is_success, answer.text


def new_path() -> str:
    return f"/scenario-{uuid.uuid4()}"


def text_of(result: Result) -> str:
    """All that a read has found."""
    return "".join(chunk["data"] for chunk in result["chunks"])


def check(
    result: Result,
    *,
    error: str | None = None,
    data: str | None = None,
    contains: list[str] | None = None,
    chunks: int | None = None,
    message: list[str] | None = None,
    **fields: Any,
) -> Result:
    """Compare a result with what is expected of it; gives it back."""
    found = {"success": result["success"], **{name: result.get(name) for name in fields}}
    wanted: Result = {"success": error is None, **fields}
    if error is not None:
        found["errorCode"], wanted["errorCode"] = result.get("errorCode"), error
    if data is not None:
        found["data"], wanted["data"] = _text_or_none(result), data
    if chunks is not None:
        found["chunks"], wanted["chunks"] = len(result.get("chunks", [])), chunks
    assert found == wanted, f"got {found}, not {wanted}, in {result}"
    for part in contains or []:
        assert part in text_of(result), f"{part!r} is not in {result}"
    for part in message or []:
        assert part.lower() in result["message"].lower(), f"{part!r} is not in {result}"
    return result


def _text_or_none(result: Result) -> str | None:
    return text_of(result) if "chunks" in result else None


def _data(data: str | bytes) -> Result:
    if isinstance(data, str):
        return {"data": data, "binary": False}
    return {"data": base64.b64encode(data).decode(), "binary": True}
