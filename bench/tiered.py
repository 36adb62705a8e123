"""How fast cold data is read through a server, beside reads of the same bytes straight from the
object store, by ranges and with the same library.

The store is moto's S3 server, as in the tests, or with --folder a folder. Both sides run in turns;
the server's cache is smaller than the stream, so that every read comes from the store.

python -m bench.tiered [--rounds N] [--bytes MIB] [--folder]
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

from penstock.log.disk.tiered.cold_reader import PIECE_BYTES
from penstock.object_store import ObjectStore, open_store
from tests.helpers.server import Server, running_server
from tests.spark.object_store import BUCKET, running_store

MIB = 1024 * 1024
CONCURRENCY = 4
PATH = "/v1/stream/cold"


def fill(server: Server, size: int) -> None:
    """Write a closed stream of incompressible bytes."""
    connection = HTTPConnection("127.0.0.1", server.port)
    headers = {"Content-Type": "application/octet-stream"}
    connection.request("PUT", PATH, headers=headers)
    connection.getresponse().read()
    for start in range(0, size, 8 * MIB):
        is_last = start + 8 * MIB >= size
        body = os.urandom(min(8 * MIB, size - start))
        closed = {"Stream-Closed": "true"} if is_last else {}
        connection.request("POST", PATH, body, {**headers, **closed})
        response = connection.getresponse()
        response.read()
        assert response.status in (200, 204), response.status
    connection.close()


def wait_until_cold(server: Server, size: int) -> None:
    while True:
        connection = HTTPConnection("127.0.0.1", server.port)
        connection.request("GET", "/metrics")
        lines = connection.getresponse().read().decode().splitlines()
        connection.close()
        (line,) = [line for line in lines if 'tier_segment_bytes{place="cold"}' in line]
        if float(line.split()[1]) >= size:
            return
        time.sleep(0.5)


def through_server(server: Server, size: int) -> float:
    """Return the bytes a second of one reader that catches up."""
    connection = HTTPConnection("127.0.0.1", server.port)
    started, total, offset = time.perf_counter(), 0, "-1"
    while total < size:
        connection.request("GET", f"{PATH}?offset={offset}", headers={"Accept-Encoding": ""})
        response = connection.getresponse()
        assert response.status == 200, response.status
        total += len(response.read())
        offset = response.headers["Stream-Next-Offset"]
    connection.close()
    return total / (time.perf_counter() - started)


def straight(store: ObjectStore, *, threads: int) -> float:
    """Return the bytes a second of reading all objects by ranges."""
    ranges = [
        (blob.key, start, min(start + PIECE_BYTES, blob.size))
        for blob in store.list()
        for start in range(0, blob.size, PIECE_BYTES)
    ]
    started = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(lambda each: len(store.get_range(*each)), ranges))
    return total / (time.perf_counter() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bytes", type=int, default=256, help="MiB of the stream")
    parser.add_argument("--folder", action="store_true")
    options = parser.parse_args()
    size = options.bytes * MIB
    with ExitStack() as cleanup:
        scratch = Path(cleanup.enter_context(tempfile.TemporaryDirectory(prefix="penstock-bench-")))
        url, env = (scratch / "objects").as_uri(), {}
        if not options.folder:
            url, env = f"s3://{BUCKET}/cold", cleanup.enter_context(running_store()).options
        store = open_store(url, options=env)
        args = ["--tier-url", url, "--tier-after", "0", "--tier-interval", "0.5"]
        args += ["--tier-concurrency", str(CONCURRENCY), "--checkpoint-interval", "1"]
        args += ["--tier-cache-bytes-max", f"{max(options.bytes // 4, 40)}MiB"]
        server = cleanup.enter_context(running_server(args=args, env=env))
        fill(server, size)
        wait_until_cold(server, size)
        sides: dict[str, Callable[[], float]] = {
            "straight from the store, one range at a time": lambda: straight(store, threads=1),
            f"straight from the store, {CONCURRENCY} at a time": lambda: straight(
                store, threads=CONCURRENCY
            ),
            "through the server, one reader": lambda: through_server(server, size),
        }
        samples: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(options.rounds):
            for name, run in sides.items():
                samples[name].append(run())
        medians = {name: statistics.median(values) for name, values in samples.items()}
        best = max(list(medians.values())[:2])
        for name, median in medians.items():
            spread = f"{min(samples[name]) / MIB:.0f} to {max(samples[name]) / MIB:.0f}"
            print(f"{name}: {median / MIB:.0f} MiB/s ({spread}), {median / best:.2f}x")


if __name__ == "__main__":
    main()
