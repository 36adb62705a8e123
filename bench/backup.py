"""How much a running backup costs appends: the same load on one server, with and without.

Rounds alternate. Every backup is a whole one, to an empty folder on the same disk, and lasts longer
than its round. First one runs alone, which says how much processor time it takes by itself.

python -m bench.backup [--rounds N] [--rate BYTES] [--connections N ...] [--dest FOLDER]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import httpx2

import penstock
from bench.access import CONNECTIONS, RUN_S, STREAMS, Sample, Side, measure, prepare
from bench.tls import cpu_s
from penstock.limits import BACKUP_BYTES_PER_S
from tests.helpers.server import Server, running_server

MIB = 1024 * 1024
BODY = b"x" * (4 * MIB)


def seed(server: Server, size: int) -> None:
    """Append so much that a backup takes a while."""
    with penstock.Client(server.url, timeout_s=120) as client:
        stream = client.stream("seed")
        stream.create(content_type="application/octet-stream")
        for _ in range(size // len(BODY)):
            stream.append(BODY)


class Running:
    """A backup that runs for as long as the context lasts."""

    def __init__(self, server: Server, folder: Path, rate: int) -> None:
        self._url = f"{server.url}/v1/backup"
        self._wish = {"destination": str(folder), "rate": rate}

    def __enter__(self) -> None:
        httpx2.post(self._url, json=self._wish).raise_for_status()
        while self._job()["phase"] in ("checkpoint", "catalog"):
            time.sleep(0.01)

    def __exit__(self, *_: object) -> None:
        assert self._job()["state"] == "running", "the backup ended before its round"
        httpx2.delete(self._url).raise_for_status()
        while self._job()["state"] == "running":
            time.sleep(0.05)

    def _job(self) -> dict[str, object]:
        job: dict[str, object] = httpx2.get(self._url).json()
        return job


def alone(server: Server, folder: Path) -> float:
    """Return the processor time of a backup that nothing disturbs, in seconds a MiB."""
    url = f"{server.url}/v1/backup"
    before = cpu_s(server.pid)
    httpx2.post(url, json={"destination": str(folder), "rate": 0}).raise_for_status()
    while (job := httpx2.get(url).json())["state"] == "running":
        time.sleep(0.2)
    assert job["state"] == "done", job
    size = int(job["backup"]["bytes"])
    return (cpu_s(server.pid) - before) / (size / MIB)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--rate", type=int, default=BACKUP_BYTES_PER_S, metavar="BYTES")
    parser.add_argument("--connections", type=int, nargs="+", default=CONNECTIONS)
    parser.add_argument("--dest", help="a folder to back up into, on the disk of the server if not")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="penstock-bench-") as scratch,
        tempfile.TemporaryDirectory(prefix="backups-", dir=options.dest or scratch) as backups,
        running_server(data_dir=Path(scratch, "data"), args=["--scrub-interval", "0"]) as server,
    ):
        prepare(server, None)
        seed(server, int(options.rate * RUN_S * 2.5))
        cost_s = alone(server, Path(backups, "alone"))
        print(
            f"alone: {cost_s * 1000:.1f} ms of processor time a MiB; "
            f"{cost_s * options.rate / MIB:.1%} of a core at {options.rate / MIB:.0f} MiB/s"
        )
        side = Side("open", server, "")
        for connections in options.connections:
            without: list[Sample] = []
            beside: list[Sample] = []
            for number in range(options.rounds + 1):
                first = measure(side, connections)
                with Running(server, Path(backups, f"{connections}-{number}"), options.rate):
                    second = measure(side, connections)
                if number:  # the first round warms up
                    without.append(first)
                    beside.append(second)
            rates = [statistics.median(x.appends_per_s for x in each) for each in (without, beside)]
            costs = [statistics.median(x.cpu_us for x in each) for each in (without, beside)]
            ratios = [
                after.appends_per_s / before.appends_per_s
                for before, after in zip(without, beside, strict=True)
            ]
            print(
                f"{connections} connections, {STREAMS} streams: {rates[0]:,.0f} appends/s without, "
                f"{rates[1]:,.0f} beside a backup; by round {statistics.median(ratios):.2f} "
                f"({min(ratios):.2f} to {max(ratios):.2f}); server "
                f"{costs[0]:.1f} µs, {costs[1]:.1f} µs an append, the backup's work included"
            )


if __name__ == "__main__":
    main()
