"""What STP costs: catching up a table beside the same rows as a JSON stream, finding a SeqNo in a
table that grows, and telling many NURLs of one change.

    python -m bench.stp [--rounds 5] [--rows 1000000] [--seek 10000000] [--nurls 1000] [--only …]
"""

from __future__ import annotations

import argparse
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import servers, stp_fanout, tools
from bench.rounds import note
from bench.stp_seed import PATH, seed_table
from bench.table import Row, compared, microseconds, publish

GROUPS = ("catch-up", "seek", "fan-out")
RECEIVE_BYTES = 1 << 20
FIRST_MIN, AGAIN_MIN = 0.15, 0.5
SEEK_MAX = 2.0
"""A hundred times the rows are some more steps of a search, and no more than that."""


def drain(port: int, path: str) -> int:
    """GET a table over a plain socket: the lines of the answer, counted without being decoded."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        head = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        connection.sendall(head.encode())
        lines, start = 0, b""
        while piece := connection.recv(RECEIVE_BYTES):
            start = start or piece
            lines += piece.count(b"\n")
    if not start.startswith(b"HTTP/1.1 200 "):
        raise RuntimeError(f"{path} was answered {start[:80]!r}")
    return lines


def drain_json(port: int) -> int:
    """The whole JSON stream in the same manner, chunk after chunk: its lines."""
    lines, offset = 0, "-1"
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while True:
            head = f"GET /v1/stream/{PATH}?offset={offset} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
            connection.sendall(head.encode())
            received = connection.recv(RECEIVE_BYTES)
            while b"\r\n\r\n" not in received:
                received += connection.recv(RECEIVE_BYTES)
            answer, _, body = received.partition(b"\r\n\r\n")
            fields = dict(
                line.lower().split(b": ", 1) for line in answer.split(b"\r\n")[1:] if b": " in line
            )
            left = int(fields[b"content-length"]) - len(body)
            lines += body.count(b"\n") + 1  # the last of an array has no line end
            while left:
                piece = connection.recv(min(left, RECEIVE_BYTES))
                left -= len(piece)
                lines += piece.count(b"\n")
            offset = fields[b"stream-next-offset"].decode()
            if fields.get(b"stream-up-to-date") == b"true":
                return lines


def timed(action: Callable[[], object]) -> float:
    started = time.perf_counter()
    action()
    return time.perf_counter() - started


def catch_up(folder: Path, rows: int, rounds: int) -> list[Row]:
    """The first read of a fresh server, then the same range again, each beside the JSON stream."""
    data = folder / "catch-up"
    note(f"    seeding {rows:,} rows took {seed_table(data, rows):.1f} s")
    path = f"/v1/table/{PATH}?timeout=0"
    found: dict[str, list[float]] = {"JSON": [], "first": [], "again": []}
    used: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        # Restarted each round: "first" is a read of which nothing has been encoded before.
        server = servers.start("ours", data)
        try:
            drain_json(server.port)  # both dialects find the log in the page cache
            actions: dict[str, Callable[[], int]] = {
                "JSON": partial(drain_json, server.port),
                "first": partial(drain, server.port, path),
                "again": partial(drain, server.port, path),
            }
            for name, action in actions.items():
                before = server.cpu_s()
                started = time.perf_counter()
                lines = action()
                found[name].append(rows / (time.perf_counter() - started))
                used[name].append((server.cpu_s() - before) / rows * 1e6)
                if lines < rows:
                    raise RuntimeError(f"{name}: {lines:,} lines of {rows:,}")
        finally:
            server.stop()
    return [
        _beside_json(f"{rows:,} rows as STP, first read", "first", found, used, FIRST_MIN),
        _beside_json("the same range again", "again", found, used, AGAIN_MIN),
    ]


def _beside_json(
    metric: str,
    name: str,
    found: dict[str, list[float]],
    used: dict[str, list[float]],
    at_least: float,
) -> Row:
    """The ratio is the median of those of each round, which were measured side by side."""
    ratios = [rate / json for rate, json in zip(found[name], found["JSON"], strict=True)]
    ratio = statistics.median(ratios)

    def shown(name: str) -> str:
        rate, cost = statistics.median(found[name]), statistics.median(used[name])
        return f"{rate:,.0f} rows/s, {cost:.2f} µs of the server's processor a row"

    return Row(
        metric=metric,
        ours=shown(name),
        reference=shown("JSON"),
        ratio=ratio,
        target=f"≥ {at_least}×",
        met=ratio >= at_least,
        by_round=ratios,
    )


def seek(folder: Path, sizes: Sequence[int], rounds: int) -> list[Row]:
    """Time to the answer for the ten rows after a SeqNo in the middle, as the table grows."""
    medians: list[tuple[float, float]] = []
    for size in sizes:
        data = folder / f"seek-{size}"
        note(f"    seeding {size:,} rows took {seed_table(data, size):.1f} s")
        server = servers.start("ours", data)
        try:
            last = f"/v1/table/{PATH}?timeout=0&since_id=-10"
            middle: list[float] = []
            tail: list[float] = []
            for number in range(rounds * 20 + 1):
                # Never the same place twice: what was found before must not help.
                place = (number * 7919 * 104729) % (size - 20) + 1
                middle.append(timed(partial(first_rows, server.port, place, 10)))
                tail.append(timed(partial(drain, server.port, last)))
            medians.append((statistics.median(middle[1:]), statistics.median(tail[1:])))
        finally:
            server.stop()
    return [
        compared(
            f"{what}, {size:,} rows (beside {sizes[0]:,})",
            median[column] * 1e6,
            medians[0][column] * 1e6,
            microseconds,
            at_most=SEEK_MAX if size > sizes[0] else None,
        )
        for column, what in enumerate(("ten rows after a SeqNo in the middle", "the last ten rows"))
        for size, median in zip(sizes, medians, strict=True)
    ]


def first_rows(port: int, since_id: int, count: int) -> None:
    """The first rows after a SeqNo; the rest of the answer is not waited for."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        target = f"/v1/table/{PATH}?timeout=0&since_id={since_id}"
        connection.sendall(f"GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        received = b""
        while received.count(b"\n") < count + 12:  # the head's lines are among them
            piece = connection.recv(65536)
            if not piece:
                break
            received += piece
    body = received.partition(b"\r\n\r\n")[2]
    if f"{since_id + 1}\t".encode() not in body:
        raise RuntimeError(f"the row after {since_id} is not in the answer: {received[:200]!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--seek", type=int, default=10_000_000, help="rows of the largest table")
    parser.add_argument("--nurls", type=int, default=1000)
    parser.add_argument("--only", default="", help=f"comma-separated, of {', '.join(GROUPS)}")
    options = parser.parse_args()
    only = [name for name in options.only.split(",") if name] or list(GROUPS)
    tools.raise_file_limit()
    started = time.monotonic()
    rows: list[Row] = []
    with tools.work_folder() as name:
        folder = Path(name)
        others = [tools.busy_share()]
        if "catch-up" in only:
            rows += catch_up(folder, options.rows, options.rounds)
            others.append(tools.busy_share())
        if "seek" in only:
            sizes = sorted({options.seek // 100, options.seek // 10, options.seek})
            rows += seek(folder, sizes, options.rounds)
            others.append(tools.busy_share())
        if "fan-out" in only:
            rows += stp_fanout.run(folder, options.nurls, options.rounds)
            others.append(tools.busy_share())
    share = max(others)
    met = publish(
        "stp",
        rows,
        ("", "ours", "beside", "ratio", "target", "met"),
        {"processor time taken by other programs, between measurements": f"{share:.0%} at most"},
        took_s=time.monotonic() - started,
        method=f"Medians of {options.rounds} rounds; ratios are of one round each.",
        disturbed=share > tools.DISTURBED_SHARE,
    )
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
