"""Compacting a state of 100,000 rows while it is written and read: in the group `compaction` of
`make bench-growth`.

One writer appends to the stream without a pause, a change every few milliseconds, and one reader
follows its tail by SSE; both are measured apart from compactions and in the middle of them.
"""

from __future__ import annotations

import http.client
import json
import shutil
import statistics
import threading
import time
from collections.abc import Callable

from bench import servers, table
from bench.client import JSON, ROOT, Client
from bench.compare import Run
from bench.rounds import note
from bench.servers import Server
from bench.table import Row, compared

ENTITIES = 100_000
VERSIONS = 5
CHUNK = 1_000
GAP_S = 0.005
QUIET_S = 3.0
SIZE_MAX = 1.5
"""The log after a compaction, beside the state's own bytes."""


def compaction(run: Run) -> list[Row]:
    """A compaction's time, and what it does to an append, a reader, and the size of the log."""
    server = servers.start("ours", run.folder / "compaction", ours_command=run.ours_command)
    try:
        with Client(server.port) as client:
            path = client.create("state")
            client.request("PUT", "/v1/schema/state", b'{"types": {}}', JSON)
            state_bytes = _fill(client, path)
            client.request("GET", "/v1/state/state?limit=1")  # the index is where the log is
            before = _log_bytes(client)
            writer, reader = Writer(server.port, path), Reader(server, path)
            quiet, quiet_late = _measured(writer, reader, lambda: time.sleep(QUIET_S))
            seconds: list[float] = []
            busy, busy_late = _measured(
                writer, reader, lambda: seconds.extend(_compact(client) for _ in range(run.rounds))
            )
            after = _log_bytes(client)
            reader.stop()
    finally:
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)
    what = f"compaction of {ENTITIES:,} rows"
    note(f"    compactions took {', '.join(f'{each:.2f}' for each in seconds)} s")
    rows = [
        Row(metric=f"{what} of which each had {VERSIONS} versions", ours=_s(seconds)),
        compared(
            f"{what}: log after it beside its live state",
            after, state_bytes, table.megabytes, at_most=SIZE_MAX,
        ),
        compared(f"{what}: log before it beside after it", before, after, table.megabytes),
    ]  # fmt: skip
    for label, share in (("p50", 0.5), ("p99", 0.99), ("longest", 1.0)):
        rows += [
            compared(
                f"append to its tail during a {what}, {label}",
                _at(busy, share), _at(quiet, share), table.microseconds,
            ),
            compared(
                f"from an append to its reader by SSE during a {what}, {label}",
                _at(busy_late, share), _at(quiet_late, share), table.microseconds,
            ),
        ]  # fmt: skip
    return rows


def _s(seconds: list[float]) -> str:
    return table.seconds(statistics.median(seconds))


def _at(sorted_us: list[float], share: float) -> float:
    return sorted_us[min(int(len(sorted_us) * share), len(sorted_us) - 1)]


def _event(key: int, value: str) -> str:
    return json.dumps(
        {"type": "row", "key": str(key), "value": {"v": value}, "headers": {"operation": "upsert"}}
    )


def _fill(client: Client, path: str) -> int:
    """Every version of every row; the bytes of the last ones."""
    size = 0
    for version in range(VERSIONS):
        size = 0
        for start in range(0, ENTITIES, CHUNK):
            events = [_event(key, f"{version:040d}") for key in range(start, start + CHUNK)]
            size += sum(len(event) + 2 for event in events)
            client.append(path, f"[{','.join(events)}]".encode())
    return size


def _log_bytes(client: Client) -> int:
    found = json.loads(client.request("GET", "/v1/streams?prefix=state&limit=1").body)
    return int(found["streams"][0]["bytes"])


def _compact(client: Client) -> float:
    started = time.perf_counter()
    client.request("POST", f"{ROOT}state/__ds/compact")
    return time.perf_counter() - started


def _measured(
    writer: Writer, reader: Reader, meanwhile: Callable[[], object]
) -> tuple[list[float], list[float]]:
    """Microseconds of the appends, and until the reader had them, while something is done."""
    writer.start()
    try:
        meanwhile()
    finally:
        sent = writer.stop()
    reader.wait_for(max(sent))
    took = sorted((end - begun) * 1e6 for begun, end in sent.values())
    late = sorted((reader.seen[number] - begun) * 1e6 for number, (begun, _) in sent.items())
    return took, late


class Writer:
    """Appends a numbered change every few milliseconds."""

    def __init__(self, port: int, path: str) -> None:
        self._port, self._path = port, path
        self._number = 0

    def start(self) -> None:
        self._stopping = threading.Event()
        self._sent: dict[int, tuple[float, float]] = {}
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> dict[int, tuple[float, float]]:
        self._stopping.set()
        self._thread.join()
        return self._sent

    def _run(self) -> None:
        with Client(self._port) as client:
            while not self._stopping.wait(GAP_S):
                self._number += 1
                body = _event(self._number % ENTITIES, f"mark {self._number}").encode()
                begun = time.perf_counter()
                client.append(self._path, body)
                self._sent[self._number] = (begun, time.perf_counter())


class Reader:
    """Follows the tail by SSE; notes when each numbered change is there for the first time."""

    def __init__(self, server: Server, path: str) -> None:
        self.seen: dict[int, float] = {}
        self._news = threading.Condition()
        self._stopped = False
        self._port, self._path = server.port, path
        with Client(server.port) as client:
            self._offset = client.tail(path)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def wait_for(self, number: int) -> None:
        with self._news:
            if not self._news.wait_for(lambda: number in self.seen, 60):
                raise RuntimeError("the reader was not told")

    def stop(self) -> None:
        self._stopped = True

    def _run(self) -> None:
        while not self._stopped:
            connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
            connection.request("GET", f"{self._path}?offset={self._offset}&live=sse")
            response = connection.getresponse()
            while line := response.readline():
                now = time.perf_counter()
                if b'"streamNextOffset"' in line:
                    self._offset = json.loads(line.partition(b":")[2])["streamNextOffset"]
                if b'"mark ' not in line:
                    continue
                with self._news:
                    for part in line.split(b'"mark ')[1:]:
                        self.seen.setdefault(int(part.partition(b'"')[0]), now)
                    self._news.notify_all()
            connection.close()
