"""What the two fastest servers need while nothing happens, and how they come back after kill -9."""

from __future__ import annotations

import contextlib
import shutil
import socket
import time
from collections.abc import Iterator
from typing import Any

from bench import load, servers, table, tools
from bench.client import ROOT, Client, array
from bench.compare import WITH_RUST, Run, versus_rust
from bench.rounds import Sample, interleave, note
from bench.servers import Kind, Server
from bench.table import Row

IDLE, IDLE_WARM_UP = 4_000, 1_000
ROUNDS_MAX = 3
REPLAY_STREAMS = 64
SMALL_APPENDS = 100_000
APPEND_MESSAGES = 1_000
# Nothing is replayed that a checkpoint has taken out of the journal.
NO_CHECKPOINT = {
    "PENSTOCK_CHECKPOINT_INTERVAL_S": "3600",
    "PENSTOCK_CHECKPOINT_BYTES": "8GiB",
    "PENSTOCK_TAIL_BYTES_MAX": "8GiB",
}
NO_CHECKPOINT_RUST = ("--wal-checkpoint-interval-ms", "3600000")


def _apart(run: Run) -> list[tuple[str, Kind]]:
    tools.rust()
    return [(kind, kind) for kind in WITH_RUST]


@contextlib.contextmanager
def _kept_alive(server: Server, path: str, count: int) -> Iterator[None]:
    """`count` connections that have been answered once and stay open."""
    request = f"HEAD {path} HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n\r\n".encode()
    with contextlib.ExitStack() as opened:
        for _ in range(count):
            connection = socket.create_connection(("127.0.0.1", server.port), timeout=30)
            opened.enter_context(connection)
            connection.sendall(request)
            answer = connection.recv(4096)
            if not answer.startswith(b"HTTP/1.1 200"):
                raise load.LoadFailed(f"an idle connection was refused: {answer[:100]!r}")
        yield


def _grown(server: Server, path: str, *, sse: bool) -> float:
    """Bytes for one more connection, after the first ones have brought in code and buffers."""

    def held(count: int) -> contextlib.AbstractContextManager[Any]:
        if sse:
            return load.held(server.port, path, count)
        return _kept_alive(server, path, count)

    with held(IDLE_WARM_UP):
        before = server.rss_bytes()
    with held(IDLE):
        time.sleep(1.0)
        return (server.rss_bytes() - before) / (IDLE - IDLE_WARM_UP)


def idle_connections(run: Run) -> list[Row]:
    """Server memory for each of 4,000 idle connections: SSE readers, and kept alive."""

    def each(kind: Kind, *, sse: bool) -> float:
        # A server of its own: connections use again what those before them have given back.
        with servers.running([kind], run.folder, ours_command=run.ours_command) as (server,):
            with Client(server.port) as client:
                path = client.create("idle")
            return _grown(server, path, sse=sse)

    def measure(kind: Kind, number: int) -> Sample:
        return {"kept_alive": each(kind, sse=False), "sse": each(kind, sse=True)}

    if tools.raise_file_limit() < IDLE + 500:
        raise tools.Unavailable(f"the limit on open files is below {IDLE + 500:,}")
    samples = interleave(_apart(run), measure, rounds=min(run.rounds, ROUNDS_MAX), warm_up=False)
    return [
        versus_rust(samples, f"memory of {what}, {IDLE:,} open", key, table.kilobytes, at_most=1.0)
        for what, key in (("an idle SSE reader", "sse"), ("an idle connection", "kept_alive"))
    ]


def _tails(server: Server) -> list[str]:
    with Client(server.port) as client:
        return [client.tail(f"{ROOT}replay-{number}") for number in range(REPLAY_STREAMS)]


def _start(run: Run, kind: Kind, *, checkpoints: bool) -> Server:
    return servers.start(
        kind,
        run.folder / f"replay-{kind}",
        ours_command=run.ours_command,
        env=None if checkpoints else NO_CHECKPOINT,
        options=NO_CHECKPOINT_RUST if kind == "rust" and not checkpoints else (),
    )


def _large_appends(server: Server, total_bytes: int) -> None:
    body = array(100, APPEND_MESSAGES)
    with Client(server.port) as client:
        for number in range(total_bytes // len(body)):
            client.append(f"{ROOT}replay-{number % REPLAY_STREAMS}", body)


def _restarted(run: Run, kind: Kind, *, total_bytes: int) -> Sample:
    """Fill the journal, kill -9, start again: until the first answer. 0 bytes: small appends."""
    server = _start(run, kind, checkpoints=False)
    try:
        with Client(server.port) as client:
            client.create_many("replay", REPLAY_STREAMS)
        if total_bytes:
            _large_appends(server, total_bytes)
        else:
            load.count(
                server.port,
                ROOT + "replay",
                method="POST",
                streams=REPLAY_STREAMS,
                requests=SMALL_APPENDS,
            )
        before = _tails(server)
        server.kill()
        started = time.monotonic()
        server = _start(run, kind, checkpoints=True)
        with Client(server.port) as client:
            client.tail(f"{ROOT}replay-0")
        took_s, used_s = time.monotonic() - started, server.cpu_s()
        if _tails(server) != before:
            raise load.LoadFailed(f"{kind} lost acknowledged appends after kill -9")
    finally:
        server.stop()
        shutil.rmtree(server.data, ignore_errors=True)
    return {"took_s": took_s, "cpu_s": used_s}


def restart(run: Run) -> list[Row]:
    """From the start after kill -9 to the first answer, with a journal that has to be replayed."""
    cases = [
        (f"{SMALL_APPENDS:,} appends of 100 B in the journal", 0),
        (f"{table.megabytes(run.journal_bytes)} in appends of 100 kB", run.journal_bytes),
    ]
    rows = []
    for label, total_bytes in cases:
        note(f"    {label}")

        def measure(kind: Kind, number: int, total_bytes: int = total_bytes) -> Sample:
            return _restarted(run, kind, total_bytes=total_bytes)

        rounds = min(run.rounds, ROUNDS_MAX)
        samples = interleave(_apart(run), measure, rounds=rounds, warm_up=False)
        what = f"restart after kill -9 to the first answer, {label}"
        rows += [
            versus_rust(samples, what, "took_s", table.seconds, at_most=1.0),
            versus_rust(samples, "… processor time of it", "cpu_s", table.seconds),
        ]
    return rows
